"""Gradients of gathers at counted places: paddings that give what eager's scattered sums give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import regraft
from regraft.compiler.passes.pad_counted_scatters import pad_counted_scatters
from regraft.rewrites.graph import op_name

aten = torch.ops.aten


def zeros(*sizes, dtype=torch.float32):
    return torch.full(sizes, 0.0, dtype=dtype)


REPLACED = {
    "index_add": (lambda g: aten.index_add(zeros(3, 9), 1, torch.arange(4), g), (3, 4)),
    "index_add from the end": (lambda g: aten.index_add(zeros(3, 9), -1, torch.arange(5, 9), g), (3, 4)),
    "index_add of all": (lambda g: aten.index_add(zeros(4, 3), 0, torch.arange(4), g), (4, 3)),
    "index_add, moved": (lambda g: aten.index_add(zeros(3, 9), 1, torch.arange(1, 5) + 2, g), (3, 4)),
    "index_put": (lambda g: aten.index_put(zeros(2, 9, 3), [None, torch.arange(4)], g, True), (2, 4, 3)),
    "index_put, 16 bits": (
        lambda g: aten.index_put(zeros(2, 9, dtype=torch.bfloat16), [None, torch.arange(4)], g.bfloat16(), True),
        (2, 4),
    ),
    "scatter_add": (
        lambda g: aten.scatter_add(zeros(2, 9, 3), 1, torch.arange(2, 6)[None, :, None].expand(2, 4, 3), g),
        (2, 4, 3),
    ),
    "embedding": (lambda g: aten.embedding_dense_backward(g, torch.arange(4), 9, -1, False), (4, 5)),
    "embedding of batches": (
        lambda g: aten.embedding_dense_backward(g, torch.arange(2, 6)[None].expand(3, 4), 9, 1, False),
        (3, 4, 5),
    ),
}
KEPT = {
    "steps of 2": (lambda g: aten.index_add(zeros(3, 9), 1, torch.arange(0, 8, 2), g), (3, 4)),
    "onto numbers": (lambda g: aten.index_add(zeros(3, 9) + 1, 1, torch.arange(4), g), (3, 4)),
    "scaled": (lambda g: aten.index_add(zeros(3, 9), 1, torch.arange(4), g, alpha=2), (3, 4)),
    "one value for all places": (lambda g: aten.index_put(zeros(2, 9), [None, torch.arange(4)], g, True), (2, 1)),
    "one place, expanded": (
        lambda g: aten.scatter_add(zeros(9), 0, torch.arange(1).expand(4), g),
        (4,),
    ),
    "along another dim": (
        lambda g: aten.scatter_add(zeros(4, 4), 0, torch.arange(4).expand(4, 4), g),
        (4, 4),
    ),
    "a row that is padding": (lambda g: aten.embedding_dense_backward(g, torch.arange(4), 9, 2, False), (4, 5)),
    "fewer rows of an index": (
        lambda g: aten.scatter_add(zeros(5, 9), 1, torch.arange(4).expand(3, 4), g),
        (3, 4),
    ),
}


def gradient(build, shape):
    g = torch.randn(shape)
    return make_fx(build, tracing_mode="fake")(g), g


@pytest.mark.parametrize("name", REPLACED)
def test_a_counted_scatter_is_a_padding(name):
    build, sizes = REPLACED[name]
    module, g = gradient(build, sizes)
    assert pad_counted_scatters(module) == 1
    assert not any("index" in op_name(n) or "scatter" in op_name(n) for n in module.graph.nodes)
    torch.testing.assert_close(module(g), build(g))


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    build, sizes = KEPT[name]
    module, g = gradient(build, sizes)
    assert pad_counted_scatters(module) == 0
    torch.testing.assert_close(module(g), build(g))


OUT_OF_RANGE = {
    "index_add": lambda g: aten.index_add(zeros(3, 3), 1, torch.arange(4), g),
    "index_put": lambda g: aten.index_put(zeros(3, 3), [None, torch.arange(4)], g, True),
    "scatter_add": lambda g: aten.scatter_add(zeros(3, 3), 1, torch.arange(4).expand(3, 4), g),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_places_out_of_range_stay_an_error(name):
    module, g = gradient(OUT_OF_RANGE[name], (3, 4))
    assert pad_counted_scatters(module) == 0
    with pytest.raises((RuntimeError, IndexError), match="index 3 is out of bounds"):
        module(g)


def test_rows_out_of_range_are_left_to_eager():
    """Which reads beside its memory."""
    module, _ = gradient(lambda g: aten.embedding_dense_backward(g, torch.arange(4), 3, -1, False), (4, 5))
    assert pad_counted_scatters(module) == 0


def relative_shift(x, keys):
    """As in Transformer-XL: one row of a distance each, shifted by a view."""
    b, n, rows, columns = x.shape
    x = x.reshape(b, n, columns, rows)[:, :, 1:, :].reshape(b, n, rows, columns - 1)
    return torch.index_select(x, 3, torch.arange(keys, device=x.device))


@pytest.mark.parametrize("dynamic", [False, True])
def test_in_training(dynamic):
    def loss(x, w, p):
        at = torch.arange(6)
        scores = relative_shift(x, 6).softmax(-1).square().sum()
        return scores + (F.embedding(at.unsqueeze(0), w) * p[:, :6]).square().sum() + p[:, at + 1].sin().sum()

    def given():
        torch.manual_seed(0)
        return [torch.randn(s, requires_grad=True) for s in ((2, 3, 6, 12), (9, 8), (4, 8, 8))]

    mine, expected = given(), given()
    with regraft.coverage() as cov:
        torch.compile(loss, backend="regraft", dynamic=dynamic)(*mine).backward()
    loss(*expected).backward()
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert not [f for g in cov.graphs for f in g.fallbacks]
    done = sum(sum(p.changes.values()) for g in cov.graphs for p in g.passes if p.name == "pad_counted_scatters")
    assert dynamic or done == 3
