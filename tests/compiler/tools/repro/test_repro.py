import os
import signal
import time

import pytest
import torch
from support.cuda_in_use import skip_forks
from support.fresh import run_fresh
from torch import nn
from typer.testing import CliRunner

import regraft
from regraft.compiler.codegen import generate
from regraft.compiler.lowering.core import LOWERINGS
from regraft.compiler.tools.bisect.subject import Verdict
from regraft.compiler.tools.cli.main import app
from regraft.compiler.tools.repro import NothingFailsError
from regraft.compiler.tools.repro.minimize import Minimizer
from regraft.compiler.tools.repro.program import cut, program_of
from regraft.compiler.tools.repro.script import write
from regraft.compiler.tools.repro.values import SeededTensor
from regraft.compiler.tools.targets.load import module_at


class Model(nn.Module):
    """The fault is in its middle."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 16)

    def forward(self, x):
        h = self.norm(nn.functional.gelu(self.up(x)))
        h = h.view(2, -1, 24).transpose(0, 1).reshape(-1, 24)
        bent = torch.tanh(h)
        y = self.down(bent)
        return torch.softmax(y, -1), y.relu()


def made():
    torch.manual_seed(0)
    return Model(), torch.randn(32, 16)


@pytest.fixture
def wrong_tanh(monkeypatch):
    monkeypatch.setitem(LOWERINGS, "aten.tanh", LOWERINGS["aten.sin"])


def test_a_wrong_kernel_is_one_call_in_the_end(wrong_tanh, tmp_path):
    model, x = made()
    found = regraft.repro(model, x, tmp_path / "small_repro.py", train=True)
    assert found.verdict.outcome == "wrong" and found.calls <= 2 and found.before >= 9
    text = found.path.read_text()
    assert "torch.ops.aten.tanh.default(" in text and "bent = torch.tanh(h)" in text
    space = vars(module_at(str(found.path)))
    program, given = space["make"]()
    assert given[0].numel() <= 4 and not (tmp_path / "small_repro.pt").exists()
    again = regraft.bisect(program, given, options=space["OPTIONS"], train=True)
    assert again.culprit.name in ("aten.tanh.default", "aten.tanh_backward.default")


def test_what_is_right_is_told(tmp_path):
    with pytest.raises(NothingFailsError, match="its one graph is right"):
        regraft.repro(lambda x: x.sin(), torch.ones(3), tmp_path / "small_repro.py")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("search", [regraft.bisect, regraft.repro])
def test_forks_are_refused_where_cuda_is_in_use(search, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    place = {"path": tmp_path / "small_repro.py"} if search is regraft.repro else {}
    with pytest.raises(RuntimeError, match="CUDA does not survive"):
        search(torch.sin, torch.ones(3), isolate=True, **place)


def test_a_crash_is_cut_down_in_forks(monkeypatch, tmp_path):
    skip_forks()
    build = generate.cpp.build

    def dying(kernels):
        made = build(kernels)
        return [
            (lambda *_: os.kill(os.getpid(), signal.SIGKILL)) if "cos" in kernel.nodes else one
            for kernel, one in zip(kernels, made, strict=True)
        ]

    monkeypatch.setattr(generate.cpp, "build", dying)
    found = regraft.repro(
        lambda x: (x.sin() + 1).cos().exp(), torch.randn(8), tmp_path / "small_repro.py", isolate=True, seconds=20
    )
    assert found.verdict.outcome == "died" and found.calls == 1


def graph_of(function, *inputs):
    graphs = []

    def keep(gm, _inputs):
        graphs.append(gm)
        return gm

    torch.compiler.reset()
    torch.compile(function, backend=keep)(*inputs)
    return program_of(graphs[0], list(inputs))


def test_cutting_keeps_values():
    x = torch.randn(4, 3)
    program = graph_of(lambda x: (x.sin().cos().exp() + 1, x.relu()), x)
    names = [node.name for node in program.calls]
    part = cut(program, ["exp"], given={"cos"})
    assert [n.name for n in part.calls] == ["exp"] and torch.equal(part.inputs[0], x.sin().cos())
    short = cut(program, ["exp"], same={"cos": "sin"})
    assert "cos" in names and [n.name for n in short.calls] == ["sin", "exp"]


def test_minimizing_ends_with_time(monkeypatch):
    program = graph_of(lambda x: x.sin().cos(), torch.randn(3))
    minimizer = Minimizer(lambda _: True, seconds=0.0)
    time.sleep(0.01)
    assert len(minimizer.run(program).calls) == 2 and minimizer.tried == 0


def test_what_can_not_be_drawn_is_written_or_kept(tmp_path):
    """Small tensors stand in the script, large ones in a file beside it."""
    small, large = torch.tensor([1.0, float("nan")]), torch.arange(100.0)
    program = graph_of(lambda a, b: (a * 2, b + 1), small, large)
    path = tmp_path / "small_repro.py"
    write(program, path, Verdict("wrong"), {"rules": "sdpa"}, dynamic=None, train=False, isolate=False)
    space = vars(module_at(str(path)))
    run, given = space["make"]()
    assert torch.equal(run(*given)[1], large + 1) and bool(given[0][1].isnan())
    assert space["OPTIONS"] == {"rules": ("sdpa",)}


def test_drawn_tensors_keep_their_layout():
    drawn = SeededTensor(0, (4, 6), (1, 4), torch.float32, -1.0, 1.0, grad=True)
    x = drawn.make()
    assert x.stride() == (1, 4) and x.requires_grad and torch.equal(x, drawn.make())
    assert drawn.resized(6, 2).make().stride() == (1, 4) and drawn.resized(4, 1).shape == (1, 6)
    indices = SeededTensor(1, (5,), (1,), torch.int64, 2, 3).make()
    assert set(indices.tolist()) <= {2, 3}


def test_the_command_writes_a_script_that_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text("import torch\n\ndef make():\n    return torch.tanh, torch.ones(2, 8)\n")
    done = CliRunner().invoke(app, ["repro", "small.py:make"])
    assert done.exit_code == 2 and not (tmp_path / "repro.py").exists()
    monkeypatch.setitem(LOWERINGS, "aten.tanh", LOWERINGS["aten.sin"])  # not so where the script runs
    done = CliRunner().invoke(app, ["repro", "small.py:make", "--out", "script.py"])
    assert "script.py, 1 of 1 call," in done.output, done.output
    (ran,) = run_fresh([["script.py"]])
    assert ran.code == 0 and "nothing to search for" in ran.output, ran.errors


OWN_RULES = """
import regraft, torch
from regraft import Sample, T

@regraft.register_pattern(
    "repro_wrong_sine", replacement=lambda x: torch.cos(x) * 2, samples=[Sample(x=T("N"))], profitable=True
)
def wrong_sine(x):
    return torch.sin(x) * 2

def model():
    return (lambda x: (torch.sin(x) * 2).tanh() + 1), torch.randn(6)
"""


def test_a_script_declares_rules_of_ones_own(tmp_path):
    rules, script = tmp_path / "sines.py", tmp_path / "small_repro.py"
    rules.write_text(OWN_RULES)
    command = ["repro", f"{rules}:model", "--rules", str(rules), "--out", str(script), "--no-minimize"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"runpy.run_path({str(rules)!r})" in script.read_text()
    assert "'rules': ('repro_wrong_sine', 'default')" in script.read_text()
    (found,) = run_fresh([[script]])
    assert "rule repro_wrong_sine" in found.output, found
