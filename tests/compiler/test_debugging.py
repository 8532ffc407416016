"""What the environment shows of a compilation: torch's logs and traces, and the folder of `REGRAFT_DEBUG`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

QUICKSTART = Path(__file__).resolve().parents[2] / "docs" / "examples" / "quickstart.py"
PROGRAM = """
import torch

def f(x):
    y = torch.softmax(x.tanh(), -1)
    torch._dynamo.graph_break()
    return y * 2

compiled = torch.compile(f, backend="regraft")
for rows in (3, 4):
    compiled(torch.randn(rows, 8, requires_grad=True)).sum().backward()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[str, Path]:
    """What a process writes to its log, and the folder of its files.

    It runs the first example before, in a Python that has imported nothing.
    """
    folder = tmp_path_factory.mktemp("debug")
    (folder / "program.py").write_text(f"import runpy\nrunpy.run_path({str(QUICKSTART)!r})\n{PROGRAM}")
    settings = {
        "TORCH_LOGS": "+regraft,output_code,graph_breaks,recompiles",
        "TORCH_TRACE": str(folder / "trace"),
        "REGRAFT_DEBUG": str(folder / "dump"),
        "REGRAFT_CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, str(folder / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr, folder


def test_torch_logs_show_graphs_code_breaks_and_recompiles(shown):
    log, _ = shown
    assert "regraft: compiled graph 1/0 (training): 0 matches applied, 0 declined" in log
    assert "[__output_code] regraft: graph 1/0, source:forward" in log and "source:backward" in log
    assert 'extern "C"' in log and "def call(args):" in log
    assert "[__graph_breaks]" in log and "[__recompiles]" in log


def test_traces_have_the_code(shown):
    _, folder = shown
    (trace,) = (folder / "trace").iterdir()
    assert "regraft graph 1/0 source:forward" in trace.read_text()


def test_the_folder_has_every_stage_and_an_index(shown):
    _, folder = shown
    dump = folder / "dump"
    graphs = sorted(path.name.partition("-")[2] for path in dump.iterdir() if path.is_dir())
    assert graphs == ["graph-0-0", "graph-1-0", "graph-1-1", "graph-2-0", "graph-2-1"]
    (first,) = dump.glob("*-graph-1-0")
    names = {path.name for path in first.iterdir()}
    assert {"summary.txt", "graph-captured.txt", "normal-forward.txt", "program-forward.txt"} <= names
    assert {"c++-backward.cpp", "source-forward.py", "fusion-forward.txt", "kernels-forward.txt"} <= names
    page = (dump / "index.html").read_text()
    assert all(f'href="{first.name}/{name}"' in page for name in names)


def test_a_folder_that_can_not_be_written_costs_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGRAFT_DEBUG", str(tmp_path / "file"))
    torch.compiler.reset()
    x = torch.randn(3)
    assert torch.equal(torch.compile(lambda x: x + 1, backend="regraft")(x), x + 1)
