"""The list of passes: complete, described, and shown."""

import ast
from pathlib import Path

import torch

import regraft
from regraft.compiler import pipeline
from regraft.compiler.passes import registry

# Modules of `passes/` that are no passes: what runs and describes them, and what several of them ask.
NO_PASSES = {"__init__", "registry", "containment", "foldable", "conv_layout_cost", "layout_ends"} | {
    "linear_cross_entropy"
}


def test_every_module_of_passes_is_in_the_pipeline():
    folder = Path(registry.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")} - NO_PASSES
    imported = {
        node.module.rpartition(".")[2]
        for node in ast.walk(ast.parse(Path(pipeline.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("passes.")
    }
    assert modules <= imported


def test_every_pass_says_what_it_does_and_when_it_runs():
    facts = pipeline.pass_facts()
    assert all("->" in fact["doc"] or fact["doc"].startswith("Tell the rules") for fact in facts)
    assert all(fact["stage"] in pipeline.PIPELINE for fact in facts)
    (cse,) = [fact for fact in facts if fact["name"] == "cse"]
    assert (cse["stage"], cse["when"]) == ("lowered", ["inference graphs"])
    assert len({(fact["stage"], fact["name"]) for fact in facts}) == len(facts) >= 20


def test_runs_of_passes_are_recorded():
    def program(x):
        return x + torch.ones(4) * 2, x.sin() @ x.mT.sin(), x.sin()

    with regraft.coverage() as cov, torch.no_grad():
        torch.compile(program, backend="regraft")(torch.randn(4, 4))
    (record,) = cov.graphs
    lowered = [run for run in record.passes if run.graph == "inference"]
    expected = ["hold_sizes", "fold_uniform", "fold_constant_tables", "scalars_to_device", "loss_in_blocks"]
    assert [run.name for run in lowered][:5] == expected
    assert record.changes("fold_uniform") and all(run.seconds >= 0 for run in record.passes)
    again = regraft.Coverage.from_json(cov.to_json())
    assert again.graphs[0].passes == record.passes


def test_graphs_are_checked_after_each_pass_under_verify(monkeypatch):
    checked = []
    monkeypatch.setattr("regraft.compiler.stages.verify_graph", lambda graph: checked.append(graph))
    run = torch.compile(lambda x: x + torch.ones(4) * 2, backend="regraft", options={"verify": "structure"})
    with regraft.coverage() as cov, torch.no_grad():
        run(torch.randn(4))
    assert len(checked) == sum(bool(run.changes) for run in cov.graphs[0].passes) > 0
