"""Rows that begin at aligned addresses: written so by kernels, kept so from the forward for the backward."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import regraft
from regraft.compiler.passes import align_rows as align_rows_module
from regraft.compiler.passes.align_rows import align_rows
from regraft.rewrites.graph import op_name, val

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(align_rows_module, "_DEVICES", ("cpu",))


def graph_of(function, *inputs):
    return make_fx(torch.func.functionalize(function), tracing_mode="fake")(*inputs)


def halves(*shapes):
    return [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]


def read_by(module, name):
    return [val(operand) for node in module.graph.nodes if op_name(node) == name for operand in node.args[:2]]


def both(x, w, v):
    y = torch.relu(x)
    return torch.mm(y, w), torch.mm(y.t(), v), y.float().sum(0)


def test_products_read_spaced_rows():
    inputs = halves((16, 1003), (1003, 8), (16, 8))
    module = graph_of(both, *inputs)
    expected = module(*inputs)
    assert align_rows(module) == 1
    module.graph.lint()
    first, weight, second, _ = read_by(module, "aten.mm")
    assert (first.shape, first.stride(), weight.shape) == ((16, 1008), (1008, 1), (1008, 8))
    assert (second.shape, second.stride()) == ((1008, 16), (1, 1008))
    (kept,) = (node for node in module.graph.nodes if op_name(node) == "aten._to_copy")
    assert val(kept.args[0]).stride() == (1008, 1)
    for found, wanted in zip(module(*inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_second_operand():
    """As columns of the result it stays, transposed it is the inner dim."""

    def function(x, w):
        y = torch.relu(x)
        return torch.mm(w, y.t())

    inputs = halves((16, 1003), (8, 1003))
    module = graph_of(function, *inputs)
    expected = module(*inputs)
    assert align_rows(module) == 1 and [x.shape[-1] for x in read_by(module, "aten.mm")] == [1008, 16]
    torch.testing.assert_close(module(*inputs), expected)
    columns = graph_of(lambda x, w: torch.mm(w, torch.relu(x)), *halves((16, 1003), (8, 16)))
    assert align_rows(columns) == 1 and read_by(columns, "aten.mm")[1].shape == (16, 1003)


def test_views_between_are_adapted():
    def function(x, w):
        return torch.mm(torch.relu(x).view(-1, 1003), w)

    inputs = halves((2, 8, 1003), (1003, 8))
    module = graph_of(function, *inputs)
    expected = module(*inputs)
    assert align_rows(module) == 1 and read_by(module, "aten.mm")[0].stride() == (1008, 1)
    torch.testing.assert_close(module(*inputs), expected)


UNTOUCHED = {
    "aligned": (lambda x, w: torch.mm(torch.relu(x), w), [(16, 1008), (1008, 8)]),
    "mostly gaps": (lambda x, w: torch.mm(torch.relu(x), w), [(16, 203), (203, 8)]),
    "no product": (lambda x, w: torch.relu(x).sum() + w.sum(), [(16, 1003), (1003, 8)]),
    "an input": (lambda x, w: torch.mm(x, w), [(16, 1003), (1003, 8)]),
    "returned": (lambda x, w: (y := torch.relu(x), torch.mm(y, w)), [(16, 1003), (1003, 8)]),
    "made by a library": (lambda x, w: torch.mm(torch.mm(x, w), x), [(1003, 1003), (1003, 1003)]),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_others_stay(name):
    function, shapes = UNTOUCHED[name]
    assert align_rows(graph_of(function, *halves(*shapes))) == 0


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(20, 64), torch.nn.Linear(64, 1003)

    def forward(self, x, labels):
        logits = self.outer(torch.tanh(self.inner(x)))
        return torch.nn.functional.cross_entropy(logits, labels)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_the_backward_reads_is_not_made_dense(dynamic):
    """The product is padded; its result is kept with its gaps, and the backward is compiled for them."""
    torch.manual_seed(0)
    model, x, labels = Classifier(), torch.randn(32, 20), torch.randint(1003, (32,))
    model(x, labels).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    options = {"profit": "always", "rules": "padded_product", "debug": True}
    with regraft.coverage() as cov:
        torch.compile(model, backend="regraft", dynamic=dynamic, options=options)(x, labels).backward()
    for p, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, grad)
    (graph,) = cov.graphs
    assert graph.fallbacks == [] and cov.matches["padded_product"] >= 1
    if not dynamic:
        assert "aten.clone" not in graph.details["graph:forward"]


def test_results_of_the_program_stay_dense():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(64, 1003), torch.randn(32, 64)
    options = {"profit": "always", "rules": "padded_product"}
    with regraft.coverage() as cov:
        y = torch.compile(model, backend="regraft", options=options)(x)
    assert y.requires_grad and y.is_contiguous() and cov.matches["padded_product"] >= 1
    torch.testing.assert_close(y, model(x))
