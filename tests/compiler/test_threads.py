"""Threads: what one compiles is not seen by the others, and many may run a program for the first time at once."""

import gc
import logging
import subprocess
import sys
import textwrap
import threading
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.fx import _symbolic_trace
from torch.fx import traceback as fx_traceback

from regraft.compiler.backend import Compilation

THREADS = 8


class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return nn.functional.gelu(self.out((q @ k.transpose(-1, -2) / 4).softmax(-1) @ v)) + x


def gradients(run, model, x):
    return torch.autograd.grad(run(x).square().sum(), list(model.parameters()))


def together(work):
    """Run ``work(number)`` in all threads at once; what they raised."""
    start, raised = threading.Barrier(THREADS), []

    def run(number):
        start.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(f"{type(error).__name__}: {str(error)[:300]}")

    threads = [threading.Thread(target=run, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def check_first_calls(models, inference=False):
    """First calls of models, one a thread, beside models that are not compiled."""
    torch.compiler.reset()
    x = torch.randn(2, 5, 16)
    expected = [(model(x).detach(), gradients(model, model, x)) for model in models]
    compiled = {id(model): torch.compile(model, backend="regraft") for model in models}

    def work(number):
        model, (output, grads) = models[number], expected[number]
        run, plain = compiled[id(model)], nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        for _ in range(2):
            torch.testing.assert_close(gradients(run, model, x), grads)
            plain(torch.randn(3, 4)).sum().backward()
        with torch.no_grad() if inference else nullcontext():
            torch.testing.assert_close(run(x), output)

    assert together(work) == []


def test_first_calls_of_one_model():
    torch.manual_seed(0)
    check_first_calls([Attention()] * THREADS)


def test_first_calls_of_many_models():
    torch.manual_seed(0)
    check_first_calls([model for model in (Attention(), nn.Linear(16, 16)) for _ in range(4)], inference=True)


_FIRST = textwrap.dedent("""
    import threading, torch
    torch.set_num_threads(1)
    start, results = threading.Barrier(4), []
    def work(number):
        x = torch.ones(3, 5) * number
        function = lambda x: x.softmax(-1) * number
        start.wait()
        with torch.no_grad():
            results.append(torch.equal(torch.compile(function, backend="regraft")(x), function(x)))
    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(results)
""")


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11 crashes, whatever the backend, in fake tensors")
def test_threads_may_name_the_backend_for_the_first_time_at_once(tmp_path):
    script = tmp_path / "first.py"
    script.write_text(_FIRST)
    done = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == str([True] * 4), done.stderr


def seen_by_all_threads():
    """What all threads of a process share, and a compilation may not change under them."""
    return (
        nn.Module.__call__, nn.Module.__getattr__, _symbolic_trace.is_fx_tracing(),
        fx_traceback.has_preserved_node_meta(),
        torch._ops._len_torch_dispatch_stack_pre_dispatch(), gc.isenabled(), gc.get_freeze_count(), gc.get_threshold(),
        sys.getrecursionlimit(), sys.getswitchinterval(), tuple(warnings.filters), warnings.showwarning,
        logging.getLogger("torch._subclasses.fake_tensor").disabled, logging.root.manager.disable,
        torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32,
        torch.backends.mkldnn.enabled,
    )  # fmt: skip


def test_a_backward_compiled_when_it_first_runs_changes_nothing_that_other_threads_see(monkeypatch, collecting):
    monkeypatch.setattr(Compilation, "_key", lambda self: None)
    torch.compiler.reset()
    model, x = Attention(), torch.randn(2, 5, 16)
    loss = torch.compile(model, backend="regraft")(x).square().sum()
    before, changed, calls, looks = seen_by_all_threads(), set(), 0, 0

    def look(frame, event, argument):
        nonlocal calls, looks
        calls += 1
        if calls % 50 == 0:
            looks += 1
            changed.update(number for number, now in enumerate(seen_by_all_threads()) if now != before[number])

    gc.unfreeze()  # objects that are frozen are counted one by one, in every look
    before = seen_by_all_threads()
    sys.setprofile(look)
    try:
        loss.backward()
    finally:
        sys.setprofile(None)
        gc.freeze()
    assert not changed
    assert looks > 1000, "nobody looked: was the backward compiled before?"
