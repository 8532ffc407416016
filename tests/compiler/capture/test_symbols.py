"""Symbolic sizes and numbers: kept, with Dynamo's own names, and no guard more than AOTAutograd would add."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.capturing import CaptureBackend, same_as_eager
from support.thorough import one_row_in, takes_turns
from torch import nn

from regraft.compiler.capture import capture

X = torch.linspace(-2, 3, 20).reshape(5, 4)


def attention(q, k, v):
    b, h, s, d = q.shape
    p = (q @ k.transpose(-1, -2) / d**0.5).softmax(-1)
    return (p @ v).transpose(1, 2).reshape(b, s, h * d)


def qkv(*sizes):
    return [torch.randn(*sizes) for _ in range(3)]


def test_sizes_are_symbols_of_dynamo():
    backend = same_as_eager(attention, *qkv(2, 3, 5, 4), dynamic=True)
    placeholders = backend.graph.graph.find_nodes(op="placeholder")
    names = {n.name for n in placeholders if isinstance(n.meta["val"], torch.SymInt)}
    (softmax,) = (n for n in backend.graph.graph.nodes if n.target is torch.ops.aten.softmax.int)
    assert len(names) == 4 and {str(s) for s in softmax.meta["val"].shape} < names


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.shape[0] * 2,
        lambda x: (x.shape[0] * 2, x.reshape(x.shape[0] * 2, -1), x.numel(), x.stride(0)),
        lambda x: (x.shape[0] / 2, x.shape[0] ** 0.5, x * (x.shape[0] / 3), x.shape[0] > 2),
        lambda x: torch.arange(x.shape[0]) + x.new_zeros(x.shape[0], dtype=torch.long),
        lambda x: x[: min(x.shape[0], x.shape[1])].flip(0),
        lambda x: F.pad(x, (0, x.shape[1])).view(-1, x.shape[1], 2).mean(-1),
    ],
)
def test_numbers_made_of_sizes(program):
    assert same_as_eager(program, X, dynamic=True).codes == []


@pytest.mark.parametrize("number", [5, 0.5])
def test_numbers_as_inputs(number):
    backend = same_as_eager(lambda x, s: (x * s).softmax(-1) + s, X, number, dynamic=True)
    assert backend.codes == []


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (attention, [qkv(*s) for s in [(2, 4, 8, 6), (2, 4, 9, 6), (3, 4, 10, 6), (1, 4, 8, 6), (2, 2, 0, 4)]]),
        (torch.add, [(torch.ones(a, 4), torch.ones(b, 4)) for a, b in [(3, 3), (5, 5), (5, 1), (1, 5), (7, 7)]]),
        (
            lambda x, s, n: (x * s).softmax(-1)[:, :n] + n,
            [
                (torch.ones(a, 8), s, n)
                for a, s, n in [(3, 0.5, 2), (5, 0.25, 3), (5, 2.0, 4), (6, 3.0, 5), (1, 1.0, 1)]
            ],
        ),
        (lambda x: [c * 2 for c in x.chunk(2, 1)] + [*x.split(2)], [(torch.ones(a, 6),) for a in (4, 6, 8)]),
        (
            lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
            [(torch.ones(b, 2, s, 8),) for b, s in [(2, 8), (3, 9), (2, 16), (1, 5), (4, 1)]],
        ),
        (
            lambda x, w: F.interpolate(F.max_pool2d(F.conv2d(x, w, padding=1), 2), scale_factor=2.0).flatten(1),
            [(torch.ones(b, 3, s, s), torch.ones(4, 3, 3, 3)) for b, s in [(2, 8), (3, 10), (4, 12), (1, 14)]],
        ),
    ],
    ids=["attention", "broadcast", "numbers", "split", "sdpa", "convolution"],
)
def test_no_further_recompilations(program, inputs, dynamic):
    """After each call: how many graphs were compiled so far, with capture and without."""

    def compilations(enabled):
        torch._dynamo.reset()
        backend = CaptureBackend(enabled)
        compiled = torch.compile(program, backend=backend, dynamic=dynamic)
        counts = []
        for args in inputs:
            compiled(*args)
            counts.append(len(backend.captured))
        assert backend.codes == []
        return counts

    assert compilations(True) == compilations(False)


@pytest.mark.parametrize(
    "program",
    [
        lambda view, x: (x.chunk(3, 1)[1] * 2, view + 1),
        lambda view, x: (x.chunk(3, 1)[1] * 2, view),
        lambda view, x: (view.chunk(3, 0)[1] * 2, x),
        lambda view, x: (view * 2, x.chunk(3, 1)[1]),
    ],
)
def test_an_input_and_a_view_of_it(program):
    """torch takes the input for the base of the view, and makes other symbols for it."""
    torch._dynamo.reset()
    backend = CaptureBackend()
    compiled = torch.compile(program, backend=backend, dynamic=True)
    for rows in (2, 4):
        x = torch.randn(4, rows, 5)
        for ours, eagers in zip(compiled(x.ravel(), x), program(x.ravel(), x), strict=True):
            assert torch.equal(ours, eagers)
    assert backend.codes == []


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked])
def test_marked_dimensions(mark):
    torch._dynamo.reset()
    backend = CaptureBackend()
    compiled = torch.compile(lambda x: x.softmax(-1) * 2 + 1, backend=backend)
    for size in (8, 5, 7):
        x = torch.randn(size, 3)
        mark(x, 0)
        assert torch.equal(compiled(x), x.softmax(-1) * 2 + 1)
    assert len(backend.captured) == 1 and backend.codes == []


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize(
    ("program", "args"),
    [
        (lambda x: (x > 0).nonzero().float().sum(0), (X,)),
        (lambda x: x[x > 0] * 2, (X,)),
        (lambda x: torch.unique(x.round()).shape[0], (X,)),
    ],
)
def test_sizes_that_depend_on_data(program, args):
    assert same_as_eager(program, *args).codes == []


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_numbers_that_depend_on_data_keep_their_checks():
    def program(x, i):
        n = i[1].item()
        torch._check(n >= 0)
        torch._check(n < 5)
        return x[:n] * 2, torch.zeros(n, 3)

    backend = same_as_eager(program, X, torch.tensor([1, 2]))
    assert backend.codes == [] and "aten._assert_scalar.default" in backend.calls()
    compiled = torch.compile(program, backend=backend)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(X, torch.tensor([1, 7]))


def test_nothing_is_kept_alive():
    import weakref

    alive = []

    def backend(gm, example_inputs):
        found = capture(gm, example_inputs)
        assert found.fallback is None
        fakes = [n.meta["val"] for n in found.graph_module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        alive.extend(weakref.ref(x) for x in (found.graph_module, *fakes))
        return gm

    torch._dynamo.reset()
    with torch._dynamo.config.patch(run_gc_after_compile=True):  # Dynamo itself makes cycles, which it collects
        torch.compile(nn.Linear(4, 4), backend=backend)(X)
    assert alive and not [r for r in alive if r() is not None]
