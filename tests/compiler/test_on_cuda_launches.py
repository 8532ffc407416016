"""Launches on a GPU: any address, stream, thread and size, without the extension module, and indices that are wrong."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

import regraft

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch, tmp_path):
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


def randn(*shape):
    return torch.randn(shape, device="cuda")


def compiled(function, dynamic=None, **options):
    return torch.compile(function, backend="regraft", dynamic=dynamic, options=options)


def test_other_streams_and_threads():
    def function(x):
        return (x.sin() + 1).sum(-1)

    run, x = compiled(function), randn(512, 512)
    expected = function(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.testing.assert_close(run(x), expected)
    found = []
    thread = threading.Thread(target=lambda: found.append(run(x)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    torch.testing.assert_close(found[0], expected)


def test_symbolic_sizes():
    def function(x, y):
        return torch.softmax(x, -1) + y, x.sum(0)

    run = compiled(function, dynamic=True)
    for rows, columns in ((3, 5), (128, 768), (1000, 33), (17, 9000), (2, 2)):
        x, y = randn(rows, columns), randn(columns)
        torch.testing.assert_close(run(x, y), function(x, y), rtol=1e-4, atol=1e-4)


def test_without_the_extension_module(monkeypatch):
    monkeypatch.setattr(importlib.import_module("regraft.compiler.codegen.triton.launch"), "_module", lambda: None)
    x = randn(1000, 100)
    run = compiled(lambda x: (x.tanh() * 3, x.amax(0)))
    torch.testing.assert_close(run(x), (x.tanh() * 3, x.amax(0)))


OUT_OF_RANGE = """
import torch, regraft
run = torch.compile(lambda w, i: torch.nn.functional.embedding(i, w) * 2, backend="regraft")
w, i = torch.randn(10, 4, device="cuda"), torch.full((3,), 1 << 20, device="cuda")
run(w, i)
torch.cuda.synchronize()
"""


def test_indices_out_of_range_raise():
    """In a process of its own: after that, the GPU does not answer it any more."""
    done = subprocess.run([sys.executable, "-c", OUT_OF_RANGE], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "assert" in done.stderr


def test_random_numbers_have_their_distributions():
    def function(x):
        return torch.rand_like(x) + 0, torch.randn_like(x) + 0, torch.randint_like(x, 10) + 0

    u, g, k = compiled(function)(torch.empty(1000, 1000, device="cuda"))
    assert abs(float(u.mean()) - 0.5) < 0.003 and abs(float(u.var()) - 1 / 12) < 0.002
    assert abs(float(g.mean())) < 0.005 and abs(float(g.var()) - 1) < 0.01
    assert abs(float(k.mean()) - 4.5) < 0.02 and (int(k.min()), int(k.max())) == (0, 9)


def test_replays_draw_anew():
    run = compiled(lambda x: F.dropout(x, 0.5) * 1.0, mode="reduce-overhead")
    x = torch.ones(4096, device="cuda", requires_grad=True)
    masks = []
    for _ in range(5):
        x.grad = None
        y = run(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
        masks.append(y.detach().clone())
    assert all(not torch.equal(a, b) for k, a in enumerate(masks) for b in masks[:k])


def test_a_graph_that_writes_to_its_input_is_not_captured():
    run = compiled(lambda x: x.add_(1).sum(), mode="reduce-overhead")
    with torch.no_grad(), regraft.coverage() as cov:
        for _ in range(3):
            x = torch.zeros(8, device="cuda")
            assert float(run(x)) == 8 and float(x.sum()) == 8
    assert "input-mutated" in {f.code for f in cov.fallbacks}


class Words(torch.nn.Module):
    """Logits of 32 MiB, and a loss that is compiled apart from them."""

    def __init__(self):
        super().__init__()
        self.lookup, self.head = torch.nn.Embedding(64, 128), torch.nn.Linear(128, 8192)

    def forward(self, ids, labels):
        logits = self.head(F.gelu(self.lookup(ids)))
        torch._dynamo.graph_break()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


@pytest.mark.parametrize("held", [0, 1, 3], ids=["dropped", "held for a step", "held for three"])
def test_large_results_between_graphs(held):
    torch.manual_seed(0)
    model = Words().cuda()
    run, kept = torch.compile(model, backend="regraft", mode="reduce-overhead"), []
    for _ in range(10):
        ids, labels = (torch.randint(64, (8, 128), device="cuda") for _ in range(2))
        model.zero_grad(set_to_none=True)
        loss, logits = run(ids, labels)
        (loss + logits.square().mean()).backward()
        found = [loss.detach().clone(), *(p.grad.clone() for p in model.parameters())]
        model.zero_grad(set_to_none=True)
        expected, theirs = model(ids, labels)
        (expected + theirs.square().mean()).backward()
        for a, b in zip(found, [expected.detach(), *(p.grad for p in model.parameters())], strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)
        kept = [*kept, (logits, theirs)][len(kept) + 1 - held :]
        for a, b in kept:
            torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-3)
        del loss, logits, expected, theirs
