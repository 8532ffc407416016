"""Sanitizers see what generated kernels do with memory: a planted overrun is found; odd sizes are clean."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.thorough import in_thorough_runs

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "benchmarks" / "sanitize.py"
PROGRAM = """
import ctypes, sys, torch
from regraft.compiler.codegen.cpp.compiler import Source, compile_all

TEXT = 'extern "C" void k0123456789abcdef(float* x, long n) { for (long i = 0; i <= n; ++i) x[i] += 1; }'

def test_overrun():
    ((library, _),) = compile_all([Source(TEXT)])
    x = torch.zeros(10)
    library.k0123456789abcdef(ctypes.c_void_p(x.data_ptr()), ctypes.c_long(10))

def test_tails():
    def program(x, i):
        return x.exp().sum(1), x.t().contiguous() + 1, x[i], x.cumsum(0), torch.cat([x, x[:3]]).amax(0)
    x, i = torch.randn(13, 7), torch.tensor([12, 0, -13])
    for ours, eager in zip(torch.compile(program, backend="regraft")(x, i), program(x, i), strict=True):
        torch.testing.assert_close(ours, eager)
"""


@in_thorough_runs
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_an_overrun_is_found_and_tails_are_clean(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    command = [sys.executable, str(TOOL), "--folder", str(tmp_path / "made"), str(tmp_path / "test_program.py")]
    done = subprocess.run([*command, "-q", "-p", "no:cacheprovider"], capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1 and "1 findings" in done.stdout
    assert "heap-buffer-overflow" in done.stdout and "k0123456789abcdef" in done.stdout


def test_tests_that_capture_graphs_are_skipped_where_each_tensor_is_an_allocation(pytestconfig, monkeypatch):
    """Under compute-sanitizer, and however deep in a compilation that contains faults."""
    (conftest,) = (plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "refuse_capture"))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", conftest.refuse_capture)
    with pytest.raises(pytest.skip.Exception):
        try:
            torch.cuda.CUDAGraph.capture_begin(None, pool=None, capture_error_mode="thread_local")
        except Exception:
            pytest.fail("taken for a fault")
