import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.records import graph
from typer.main import get_command
from typer.testing import CliRunner

import regraft
from regraft.compiler.tools.cli import shared
from regraft.compiler.tools.cli.main import app
from regraft.rewrites.coverage import publish
from regraft.rewrites.report.document import Report
from regraft.rewrites.report.entry import Entry

FACTORY = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.ones(2, 8)

def broken():
    return lambda x: x.view(3, 7), torch.ones(4)
"""


@dataclass
class FakeRule:
    name: str
    family: str = "attention"
    stage: str = "forward"
    numerics: str = "error <= 2 x eager's"
    nan: str = "same"
    doc: str = "softmax(q k^T) v.\n\nIn full."
    tags: dict = field(default_factory=lambda: {"scale": ("yes", "no")})
    candidates: tuple = ()


@dataclass
class FakeFailure:
    rule: FakeRule
    candidate: str = "kernel"
    script: str = "print('a counterexample')"

    def __str__(self):
        return "counterexample: x = nan"


@dataclass
class FakeCheck:
    failures: list
    summary: str = "7 compared"
    runs: int = 7
    told_scope: str = "not covered: fakes"

    @property
    def ok(self):
        return not self.failures


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A directory of its own, with a factory; fake rules and a fake backend, so that only the command is tested."""
    (tmp_path / "small.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        regraft, "default_rules", lambda: [FakeRule("sdpa"), FakeRule("linear", "linear")], raising=False
    )

    def backend(gm, inputs, *, options=None, mode=None):
        publish(graph(1, details={"options": str(options)}))
        return gm.forward

    monkeypatch.setattr("regraft.compiler.backend.backend", backend)


def run(*args: str, code: int = 0):
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_report_writes_both_files_and_answers():
    out = run("report", "small.py:model").output
    assert "Did it match?" in out and "attention 1 applied" in out
    assert "error 0.0e+00" in out and "Was it worth it?" in out and "x (medians of" in out
    (entry,) = Report.read("regraft-report.json").entries
    assert entry.label == "small.py:model" and entry.outcome.speed
    assert "small.py:model" in Path("regraft-report.html").read_text()


def test_report_options(tmp_path):
    arguments = ["--dtype", "bfloat16", "--dynamic", "--profit", "always", "--no-time", "--train", "--threads", "1"]
    run("report", "small.py:model", *arguments, "--json", "a.json", "--html", "b.html")
    (entry,) = Report.read("a.json").entries
    assert entry.label == "small.py:model --dtype bfloat16 --dynamic --profit always --train"
    assert entry.outcome.eager_seconds is None and entry.outcome.gradient_error is not None
    assert entry.graphs[0].details["options"] == "{'profit': 'always'}"
    assert (tmp_path / "b.html").exists() and not (tmp_path / "regraft-report.html").exists()


def test_wrong_results_fail(monkeypatch):
    def wrong(gm, inputs, **_):
        return lambda *args: tuple(x + 1 for x in gm.forward(*args))

    monkeypatch.setattr("regraft.compiler.backend.backend", wrong)
    assert "NOT within" in run("report", "small.py:model", "--no-time", code=1).output


def test_default_target_is_bert_with_a_mask(monkeypatch):
    seen = {}

    def load(target, choices):
        seen.update(target=target, mask=choices.mask)
        raise regraft.OptionError("far enough")

    monkeypatch.setattr("regraft.compiler.tools.targets.load.load", load)
    run("report", code=2)
    assert seen == {"target": "hf:bert", "mask": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "hf:brt"], "did you mean"),
        (["report", "nothing"], "expected hf:TYPE"),
        (["report", "none.py:f"], "no file none.py"),
        (["report", "hf:bert", "--set", "x"], "KEY=VALUE"),
        (["report", "--diff", "a.json", "b.json"], "cannot read a.json"),
        (["report", "small.py:model", "--html", "page.txt", "--no-time"], "the suffix chooses the form"),
        (["explain", "sdpq", "hf:bert"], "--rules PATH; did you mean sdpa?"),
        (["check", "my_clamp"], "there is no rule 'my_clamp'; rules of your own are found with --rules PATH; there"),
        (["check", "nonsense"], "there are: sdpa, linear, attention"),
        (["rules", "nonsense"], "there are: sdpa, linear, attention"),
    ],
)
def test_usage_errors_are_one_line_without_traceback(arguments, message):
    output = run(*arguments, code=2).output
    assert message in output and "error:" in output and "Traceback" not in output


@pytest.mark.parametrize("arguments", [["report", "--dtype", "int3"], ["report", "--layers", "0"], ["frobnicate"]])
def test_arguments_are_checked(arguments):
    assert "Traceback" not in run(*arguments, code=2).output


def test_diff_has_an_exit_code():
    for name, layers in (("old", 12), ("new", 11)):
        Report([Entry("hf:bert", [graph(layers)])], {}).write(f"{name}.json")
    assert "sdpa: 12 -> 11" in run("report", "--diff", "old.json", "new.json", code=1).output
    assert "better" in run("report", "--diff", "new.json", "old.json").output


@pytest.mark.parametrize("columns", [80, 120])
def test_rules_fit_the_terminal(monkeypatch, columns):
    """A narrow terminal leaves the contracts to `rules NAME`, so that the rest stays readable."""
    monkeypatch.setenv("COLUMNS", str(columns))
    table = run("rules").output
    assert "sdpa" in table and "softmax(q k^T) v." in table and "In full" not in table
    assert ("NaN" in table) == (columns == 120)


def test_rules():
    assert "In full." in run("rules", "sdpa").output and "scale: yes, no" in run("rules", "sdpa").output
    first, second, *passes = json.loads(run("rules", "--json").output)
    assert first["name"] == "sdpa" and first["tags"] == {"scale": ["yes", "no"]}
    assert second["name"] == "linear" and passes[-1].keys() - {"when"} == first.keys()
    assert [rule["name"] for rule in json.loads(run("rules", "linear", "--json").output)] == ["linear"]
    assert "channels_last" in [one["name"] for one in passes] and "clone(x" in run("rules", "layout").output


@dataclass
class FakeExplanation:
    told: str
    normal: dict = field(default_factory=lambda: {"0/0 forward": "%relu = relu(%x)"})

    def text(self, *, everything):
        return f"{self.told}{', all of it' if everything else ''}"


def test_explain(monkeypatch):
    asked = {}

    def explain_all(rules, model, *args, options, dynamic, **kwargs):
        assert isinstance(model, torch.nn.Module) and not torch.is_grad_enabled()
        asked.update(options, dynamic=dynamic)
        return [FakeExplanation(f"{rule.name}: explained with {args[0].shape}") for rule in rules]

    monkeypatch.setattr("regraft.compiler.tools.explain.explain.explain_all", explain_all)
    assert "sdpa: explained with torch.Size([2, 8])\n" in run("explain", "sdpa", "small.py:model").output
    assert asked == {"profit": "always", "dynamic": None}
    more = ["--all", "--normal", "--profit", "measured", "--dynamic", "--mode", "max-autotune", "--freezing"]
    told = run("explain", "attention", "small.py:model", *more).output
    assert "all of it" in told and "%relu = relu" in told
    assert asked == {"profit": "measured", "dynamic": True, "mode": "max-autotune", "freezing": True}
    assert "cse: explained with" in run("explain", "cse", "small.py:model").output
    asked.clear()
    run("explain", "sdpa", "small.py:model", "--config", '{"profit": "measured"}')
    assert asked["profit"] == "measured"


COMPILING = ("report", "explain", "code", "kernels", "bench", "bisect", "repro")


@pytest.mark.parametrize("name", COMPILING)
def test_what_compiles_a_target_takes_the_same_options(name):
    command = get_command(app).commands[name]
    taken = {option for parameter in command.params for option in parameter.opts}
    same = {"--dynamic", "--freezing", "--profit", "--config", "--rules", "--dtype", "--device", "--set"}
    assert same | {"--modes" if name == "bench" else "--mode"} <= taken


OWN = """
import torch
from regraft import RuleSet, Sample, T, register_pattern

@register_pattern("cli_own", replacement=torch.tanh, samples=[Sample(x=T("N"))], family="mine")
def own(x):
    return torch.relu(torch.exp(x))

both = RuleSet([own])
"""


def test_rules_of_ones_own(tmp_path, monkeypatch):
    """`--rules` takes a rule, a set, a function or a whole file, in every command."""
    (tmp_path / "own.py").write_text(OWN)
    seen = []
    monkeypatch.setattr(regraft, "check", lambda rule, **_: seen.append(rule.name) or FakeCheck([]), raising=False)
    for place in ("own.py", "own.py:own", "own.py:both", "own:own", "own.py:cli_own"):
        run("check", "--rules", place)
    assert seen == ["cli_own"] * 5
    assert "family mine" in run("rules", "mine", "--rules", "own.py").output
    run("report", "small.py:model", "--no-time", "--rules", "own.py")
    (entry,) = Report.read("regraft-report.json").entries
    assert "cli_own" in entry.graphs[0].details["options"] and "default" in entry.graphs[0].details["options"]


def test_a_place_without_rules_is_named(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    assert "it has own, both" in run("check", "--rules", "own.py:nope", code=2).output
    assert "declares no rules" in run("rules", "--rules", "small.py", code=2).output
    assert "no file none.py" in run("check", "--rules", "none.py:f", code=2).output
    assert "the rule comes first" in run("explain", "small.py:model", "sdpa", code=2).output


def test_check(monkeypatch, tmp_path):
    asked = []

    def check(rule, *, examples, seed, device):
        asked.append((rule.name, examples, seed, device))
        return FakeCheck([] if rule.name == "sdpa" else [FakeFailure(rule)])

    monkeypatch.setattr(regraft, "check", check, raising=False)
    output = run("check", code=1).output
    assert "ok      sdpa    7 compared" in output and "FAILED  linear  7 compared" in output
    assert "counterexample: x = nan" in output
    assert output.endswith("1 passed, 1 failed\n") and asked == [("sdpa", 50, 0, "cpu"), ("linear", 50, 0, "cpu")]
    assert "1 passed, 0 failed" in run("check", "attention", "--examples", "7", "--seed", "3").output
    assert asked[-1] == ("sdpa", 7, 3, "cpu")

    for file in ("linear_kernel.py", "linear_kernel_1.py"):
        assert file in run("check", "--save", "found", code=1).output
        assert (tmp_path / "found" / file).read_text() == "print('a counterexample')"


def test_check_on_a_gpu(monkeypatch):
    """A rule that is not for the device has failed at nothing, and proven nothing."""
    results = {"sdpa": FakeCheck([]), "linear": FakeCheck([], runs=0)}
    monkeypatch.setattr(regraft, "check", lambda rule, device, **_: results[rule.name], raising=False)
    output = run("check", "--device", "cuda").output
    assert "unused  linear" in output and output.endswith("1 passed, 0 failed, 1 not for cuda\n")


def test_check_where_there_is_no_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "cannot be checked on 'cuda': there is none here" in run("check", "sdpa", "--device", "cuda", code=2).output


def test_check_without_hypothesis(monkeypatch):
    def check(rule, **_):
        raise ModuleNotFoundError("pip install 'regraft[check]'")

    monkeypatch.setattr(regraft, "check", check, raising=False)
    assert "pip install 'regraft[check]'" in run("check", code=2).output


def test_check_guards(monkeypatch):
    found = {"sdpa": {"guard floating": "Sample(x=1)"}, "linear": {"guard rows": None}}
    monkeypatch.setattr("regraft.compiler.tools.check.noticed", lambda rule: found[rule.name])
    output = run("check", "--guards", code=1).output
    assert "Sample(x=1)" in output and "NONE" in output and "1 of 2 conditions" in output
    assert "1 of 1 conditions" in run("check", "sdpa", "--guards").output


def test_help_needs_no_torch():
    import subprocess
    import sys

    code = "import sys; from regraft.compiler.tools.cli import main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("report", "bert"), "did you mean hf:bert"),
        (("report", "small.py:model", "--device", "cuda:99"), "no device 'cuda:99' here"),
        (("report", "small.py:model", "--device", "gpu"), "no device 'gpu' here"),
        (("report", "small.py:broken"), "small.py:broken raises in eager mode: RuntimeError: shape '[3, 7]'"),
        (("bench", "small.py:broken"), "small.py:8: return lambda x: x.view(3, 7)"),
        (("report", "small.py:model", "--html", "nowhere/page.html"), "there is no folder nowhere"),
        (("report", "small.py:model", "--json", "."), "it is a folder"),
        (("bench", "small.py:model", "--json", "nowhere/x.json"), "there is no folder nowhere"),
        (("report", "small.py:model", "--dtype", "half"), "bf16"),
    ],
)
def test_usage_errors_are_told_before_the_work(args, told):
    result = run(*args, code=2)
    assert told in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_short_names_of_dtypes():
    run("report", "small.py:model", "--dtype", "bf16", "--no-time")
    assert '"bfloat16"' in Path("regraft-report.json").read_text()


def test_errors_in_a_file_of_rules_name_the_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import regraft\n\nrules = regraft.RuleSet(1, 2)\n")
    done = CliRunner().invoke(app, ["rules", "--rules", str(path)])
    assert done.exit_code == 2 and f"importing {path} failed at line 3: TypeError" in done.output


MISTAKES = [
    (["report", "{file}"], "name the function in it that returns (model, inputs)"),
    (["report", "{file}:models"], "did you mean model?"),
    (["report", "{file}:model", "--set", "profit=always"], "takes no --set: that is for models of transformers"),
    (["report", "{file}:model", "--config", "aten"], '{"template": "aten"}'),
    (["report", "{file}:model", "--config", "{template: 1}"], "Expecting property name"),
    (["bench", "{file}:model", "--backends", "inductorr"], "did you mean 'inductor'?"),
    (["bench", "{file}:model", "--templates", "atn"], "did you mean 'aten'?"),
    (["report", "{file}:model", "--seq", "4"], "takes no --seq: its factory has no parameters"),
    (["report", "{file}:model", "--dtype", "int3"], "'int3' is none of float32"),
    (["report", "{file}:model", "--layers", "0"], "--layers"),  # the rest is worded by the library
    (["code", "{file}:model", "--stage", "norml"], "'norml' is not one of"),
    (["report", "{file}:model", "--nothing"], "--nothing"),
    (["explain", "sdpa"], "Missing argument"),
    (["frobnicate"], "No such command 'frobnicate'"),
    (["explain", "small", "sdpa"], "the rule comes first, then the target: regraft explain sdpa small"),
    (["check", "sdpa", "--save", "{file}"], "mine.py is a file"),
    (["code", "{file}:model", "--standalone", "{file}"], "mine.py is a file"),
    (["repro", "{file}:model", "--out", "/no/such/folder/r.py"], "there is no folder /no/such/folder"),
    (["check", "--rules", "no_such_module"], "no installed package offers rules under it"),
    (["aot", "{file}:model", "-o", "/no/such/folder/m.rgx"], "there is no folder /no/such/folder"),
    (["repro", "{file}:model"], "nothing to show: its one graph is right"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_get_one_line(command, message, tmp_path):
    (tmp_path / "mine.py").write_text(FACTORY)
    done = CliRunner().invoke(app, [part.replace("{file}", str(tmp_path / "mine.py")) for part in command])
    assert done.exit_code == 2 and message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_ahead_of_time_takes_factories_without_rows(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("regraft.compiler.aot.compile.aot_compile", lambda *given, **_: asked.append(given) or 1 / 0)
    (tmp_path / "mine.py").write_text(FACTORY)
    CliRunner().invoke(app, ["aot", f"{tmp_path / 'mine.py'}:model", "-o", str(tmp_path / "m.rgx")])
    assert asked and asked[0][1][0].shape == (2, 8)


def test_targets_in_messages_are_no_pictures(capsys):
    from rich.table import Table

    from regraft.compiler.tools.cli import shared
    from regraft.rewrites.report.text import plain

    table = Table()
    table.add_row("hf:llama: a row")
    assert "hf:llama: a row" in plain(table)
    shared.output_console().print("hf:llama: is what it is", table)
    assert capsys.readouterr().out.count("hf:llama:") == 2


def test_progress_is_told_in_a_pipe(monkeypatch, capsys):
    """Rounds of one kind once, and nothing of a command that takes no time."""
    monkeypatch.setattr(shared, "errors", Console(stderr=True, width=80, force_terminal=False))
    with shared.shown_progress() as progress:
        progress("compiling", 0.0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(shared, "SILENT_SECONDS", 0.0)
    with shared.shown_progress() as progress:
        progress("hf:albert, 1 of 100", 0.01)
        for turn in range(3):
            progress(f"timing, round {turn + 1} of 3", 0.5)
        progress("hf:bert, 2 of 100", 0.02)
    told = [line.split("%")[1].strip() for line in capsys.readouterr().err.splitlines()]
    assert told == ["hf:albert, 1 of 100", "timing, round 1 of 3", "hf:bert, 2 of 100"]
