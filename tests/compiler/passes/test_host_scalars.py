"""Numbers on the CPU that calls on a GPU read: one copy for all, before the first of these calls."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.host_scalars import copy_host_scalars
from regraft.rewrites.graph import op_name, val

aten = torch.ops.aten


def graph_of(function, *given):
    """Traced on fakes: `given` are devices of inputs, a size and one for a number."""
    with FakeTensorMode():
        shapes = {"cuda": (4, 6), "cpu": ()}
        return make_fx(function)(*(torch.empty(shapes[d], device=d) for d in given))


def mixed(module):
    """Calls that read several devices, copies apart."""
    return [
        op_name(node)
        for node in module.graph.nodes
        if len({val(x).device.type for x in (node, *node.all_input_nodes) if isinstance(val(x), torch.Tensor)}) > 1
        and op_name(node) not in ("aten._to_copy", "output")
        and node.op == "call_function"
    ]


def corrected(x, step):
    c = aten.rsub.Scalar(aten.pow.Scalar(0.9, step), 1)
    y = aten.div.Tensor(x, c)
    return aten.add.Tensor(y, aten.sqrt.default(c))


def test_all_numbers_come_at_once():
    module = graph_of(corrected, "cuda", "cpu")
    assert mixed(module) == ["aten.div", "aten.add"]
    assert copy_host_scalars(module) == 2
    module.graph.lint()
    assert not mixed(module)
    (copy,) = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    assert val(copy).shape == (2,) and val(copy).device.type == "cuda" and copy_host_scalars(module) == 0


def test_lists_of_tensors():
    def step(a, b, n):
        return aten._foreach_mul.Tensor([a, b], n)

    module = graph_of(step, "cuda", "cuda", "cpu")
    assert copy_host_scalars(module) == 1 and not mixed(module)


def test_values_are_the_same(monkeypatch):
    """Run with every device the CPU."""
    module = graph_of(corrected, "cuda", "cpu")
    copy_host_scalars(module)
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device("cpu"))
    module.recompile()
    x, n = torch.randn(4, 6), torch.tensor(3.0)
    torch.testing.assert_close(module(x, n), corrected(x, n))


def drawn_between(x, n):
    y = aten.mul.Tensor(x, n)
    return aten.mul.Tensor(y, aten.rand.default([], device=torch.device("cpu")))


def seen_by_the_gpu(x, n):
    y = aten.mul.Tensor(x, n)
    return aten.mul.Tensor(y, aten._to_copy.default(aten.sum.default(y), device=torch.device("cpu")))


@pytest.mark.parametrize("function", [drawn_between, seen_by_the_gpu])
def test_what_cannot_come_before_stays(function):
    module = graph_of(function, "cuda", "cpu")
    assert copy_host_scalars(module) == 1 and len(mixed(module)) == 1
    module.graph.lint()


def test_vectors_and_cpus_are_left():
    assert copy_host_scalars(graph_of(lambda n, m: aten.mul.Tensor(n, m), "cpu", "cpu")) == 0
    assert copy_host_scalars(graph_of(lambda x, y: aten.mul.Tensor(x, y), "cuda", "cuda")) == 0
