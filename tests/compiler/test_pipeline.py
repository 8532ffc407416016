"""The list of passes: complete, described, and shown."""

import ast
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

import regraft
from regraft.compiler import pipeline
from regraft.compiler.passes import registry
from regraft.compiler.stages import Stages
from regraft.rewrites.purity import storages

# Modules of `passes/` that are no passes: what runs and describes them, and what several of them ask.
NO_PASSES = {"__init__", "registry", "containment", "zeros", "conv_layout_cost", "layout_ends"} | {
    "linear_cross_entropy",
    "logit_maps",
    "region_in_blocks",
    "row_factors",
    "row_region",
    "rows_of_block",
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


def test_code_is_written_by_the_walk_alone():
    """`rewrites.walk` does it once for each pass that has changed anything."""
    folder = Path(registry.__file__).parent
    assert not [file.name for file in folder.glob("*.py") if ".recompile()" in file.read_text()]


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
    expected = ["hold_sizes", "fold_uniform", "fold_constant_tables", "scalars_to_device", "periodic_order"]
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


class Watch:
    """Compares graphs between the passes of one compilation with how the last pass left them.

    Args:
        monkeypatch: replaces the methods of `Stages` that the compilation calls, and the one that runs a pass.
    """

    ENTRIES = ("rewrite_program", "rewrite_desugared", "change_before", "prepare", "lower", "lower_body")

    def __init__(self, monkeypatch):
        self.changed, self.passes = [], set()
        self._known = {}
        for name in (*self.ENTRIES, "_run_one"):
            monkeypatch.setattr(Stages, name, self._watched(name, getattr(Stages, name)))

    def _watched(self, name, method):
        def run(stages, *args):
            graph = next(arg for arg in args if isinstance(arg, fx.GraphModule)).graph
            self._compare(graph, f"before {name}")
            made = method(stages, *args)
            if name == "_run_one":
                self.passes.add(args[0].name)
                self._known[graph] = state(graph)
            self._compare(graph, f"in {name}")
            return made

        return run

    def _compare(self, graph, where):
        found = state(graph)
        if self._known.setdefault(graph, found) != found:
            self.changed.append(where)
            self._known[graph] = found


def state(graph):
    """What a graph computes, and the memory that its metadata says values have."""
    return [(node.name, node.op, node.target, str(node.args), str(node.kwargs), storages(node)) for node in graph.nodes]


def views_of_bags(w, i):
    bag = torch.nn.functional.embedding_bag(i, w, mode="sum")
    bag[:, 0].zero_()
    return bag


def checkpointed(w, i):
    return checkpoint(lambda w: (w @ w.mT).softmax(-1) @ w, w, use_reentrant=False).sum()


def branching(w, i):
    return torch.cond(i.sum() > 3, torch.sin, torch.cos, (w,)) + torch.ones(4)


def trained(w, i):
    return torch.nn.functional.dropout(w.relu(), 0.5)[i[0]].sum()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", [views_of_bags, checkpointed, branching, trained])
def test_passes_alone_change_graphs(function, training, monkeypatch):
    watch = Watch(monkeypatch)
    w, i = torch.randn(6, 4, requires_grad=training), torch.tensor([[0, 2], [1, 1]])
    with torch.set_grad_enabled(training):
        made = torch.compile(function, backend="regraft")(w, i)
    if training:
        made.sum().backward()
    assert not watch.changed and "written_views" in watch.passes


def test_so_do_those_that_fold_weights(monkeypatch):
    watch = Watch(monkeypatch)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()
    with torch.no_grad():
        torch.compile(model, backend="regraft", options={"freezing": True})(torch.randn(2, 4))
    assert not watch.changed and "fold_weights" in watch.passes


def test_changes_outside_of_passes_are_seen(monkeypatch):
    """By the tests above: planted between two passes."""

    def planted(graph_module):
        nodes = graph_module.graph
        with nodes.inserting_before(nodes.find_nodes(op="output")[0]):
            nodes.call_function(torch.ops.aten.neg.default, (next(iter(nodes.nodes)),))

    monkeypatch.setattr("regraft.compiler.stages.backends_throughout", planted)
    watch = Watch(monkeypatch)
    with torch.no_grad(), suppress(Exception):
        torch.compile(lambda x: x.sin().cumsum(0) * 5, backend="regraft")(torch.randn(6, 4))
    assert watch.changed == ["before _run_one"]


def test_a_pass_says_why_it_does_not_run_and_what_it_leaves():
    """The conditions that do not hold; option `without`; nothing of the kind; the places that it refuses."""

    def program(x, w):
        return (x @ w).float()

    x, w = torch.randn(4, 4), torch.randn(4, 4)

    def told(name, **options):
        text = str(regraft.explain(name, torch.no_grad()(program), x, w, options=options))
        assert "it does   " in text
        return text

    assert "not run\n    reason    condition: the pass runs only if all of these conditions hold: CUDA" in told(
        "constants_on_device"
    )
    assert "no changes\n    reason    nothing-found" in told("fold_uniform")
    assert "not run\n    reason    switched-off" in told("fold_uniform", without=("fold_uniform",))
    assert "attention-template: 0 changes" in told("attention-template")


def test_passes_tell_of_places_that_they_leave(monkeypatch):
    def refuses(graph, context):
        registry.refuse("odd", "the number is odd", next(n for n in graph.graph.nodes if n.op == "call_function"))
        return 0

    added = registry.Pass("evens", refuses, doc="2 * x  ->  x + x")
    monkeypatch.setattr("regraft.compiler.stages.LOWERED", (added,))
    with regraft.coverage() as cov, torch.no_grad():
        torch.compile(lambda x: x.sin() * 3, backend="regraft")(torch.randn(4))
    (run,) = [run for run in cov.graphs[0].passes if run.name == "evens"]
    (refusal,) = run.refusals
    assert (run.ran, run.changes, refusal.code) == (True, {}, "odd") and "x.sin() * 3" in refusal.site.code
    assert regraft.Coverage.from_json(cov.to_json()).graphs[0].passes == cov.graphs[0].passes


def test_a_pass_that_fails_says_so(monkeypatch):
    def fails(graph, context):
        raise ValueError("planted")

    monkeypatch.setattr("regraft.compiler.stages.LOWERED", (registry.Pass("fails", fails, doc="x  ->  x"),))
    with regraft.coverage() as cov, torch.no_grad():
        made = torch.compile(lambda x: x.sin() * 3, backend="regraft")(torch.ones(4))
    torch.testing.assert_close(made, torch.ones(4).sin() * 3)
    (run,) = [run for run in cov.graphs[0].passes if run.name == "fails"]
    assert not run.ran and [refusal.code for refusal in run.refusals] == ["failed"]


def test_what_precedes_autograd_runs_as_passes(monkeypatch):
    """Listed, recorded and verified; as the program would be wrong without one, none is left out, nor fails alone."""

    def program(x):
        return torch.nn.functional.dropout(x, 1.0) + x.sin()

    x = torch.randn(4)
    with regraft.coverage() as cov:
        made = torch.compile(program, backend="regraft", options={"verify": "structure"})(x)
    torch.testing.assert_close(made, x.sin())
    (record,) = cov.graphs
    assert record.changes("drop_everything") == {"changes": 1} and not record.fallbacks
    names = [run.name for run in record.passes if run.graph == "program"]
    assert [name for name in names if name in pipeline.CHANGES_BEFORE] == list(pipeline.CHANGES_BEFORE)
    assert not pipeline.CHANGES_BEFORE.keys() & set(pipeline.names_of_steps())

    def fails(graph, inputs):
        raise ValueError("planted")

    broken = registry.Pass("as_eager", lambda graph, context: fails(graph, ()), doc="x  ->  x", required=True)
    monkeypatch.setattr("regraft.compiler.stages.BEFORE", (broken,))
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        torch.testing.assert_close(torch.compile(program, backend="regraft")(x), x.sin())
    assert any(fallback.fault for fallback in cov.graphs[0].fallbacks)
