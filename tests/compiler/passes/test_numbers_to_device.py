"""Numbers that change from call to call: calls on a GPU read them as tensors, where one CUDA graph then serves all."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler.passes.host_scalars import copy_host_scalars
from regraft.compiler.passes.numbers_to_device import numbers_to_device
from regraft.compiler.runtime.cudagraphs.host import split_host
from regraft.compiler.runtime.cudagraphs.rules import skip_reason

from ...support.lowering import symbolic_number

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def traced(function, n, dtype=torch.float32, shape=(4, 6)):
    """The graph of `function(x, n)` with x on a GPU and a number that may be any."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        number = symbolic_number(mode.shape_env, n, "n")
        return make_fx(in_a_list(function))(torch.empty(shape, dtype=dtype, device=CUDA), number)


def in_a_list(function):
    """Results as AOTAutograd gives them."""

    def call(*given):
        made = function(*given)
        return list(made) if isinstance(made, tuple) else [made]

    return call


def called(module, *given):
    """Run with every device the CPU."""
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", CPU)
    module.recompile()
    return module(*given)


def window(x, n):
    """Which of the keys in a cache a query sees, as caches of windows count them."""
    places = aten.add.Tensor(aten.arange.start_step(0, 6, 1, device=CUDA), torch.sym_max(n - 4, 0))
    seen = aten.le.Tensor(places, aten.add.Tensor(aten.arange.start_step(0, 1, 1, device=CUDA), n))
    return aten.where.self(seen, x, aten.full.default([], -math.inf, device=CUDA)), n + 1


SPELLINGS = {
    "add": lambda x, n: aten.add.Tensor(x, n),
    "sub with alpha": lambda x, n: aten.sub.Tensor(x, n, alpha=3),
    "mul of a sum": lambda x, n: aten.mul.Tensor(x, 2 * n + 1),
    "div": lambda x, n: aten.div.Tensor(x, n),
    "floor": lambda x, n: aten.div.Tensor_mode(x, n, rounding_mode="floor"),
    "remainder": lambda x, n: aten.remainder.Scalar(x, n),
    "a remainder of the number": lambda x, n: aten.add.Tensor(x, n % 5),
    "rsub": lambda x, n: aten.rsub.Scalar(x, n),
    "eq": lambda x, n: aten.eq.Scalar(aten.floor.default(x), n),
    "lt": lambda x, n: aten.lt.Scalar(x, n),
    "masked": lambda x, n: aten.masked_fill.Scalar(x, aten.lt.Scalar(x, 0), n),
    "where": lambda x, n: aten.where.ScalarOther(aten.lt.Scalar(x, 0), x, n),
    "clamp": lambda x, n: aten.clamp.default(x, None, n),
    "clamp both": lambda x, n: aten.clamp.default(x, n - 1, n + 1),
    "full": lambda x, n: aten.mul.Tensor(x, aten.full.default([6], n, dtype=torch.float32, device=CUDA)),
    "full, no dims": lambda x, n: aten.mul.Tensor(x, aten.full.default([], n, dtype=torch.int64, device=CUDA)),
    "arange": lambda x, n: aten.mul.Tensor(x, aten.arange.start(n, n + 6, device=CUDA)),
    "arange by steps": lambda x, n: aten.mul.Tensor(x, aten.arange.start_step(n, n - 12, -2, device=CUDA)),
    "root": lambda x, n: aten.mul.Tensor(x, torch.sym_float(n) / 7),
    "window": window,
}


def parts_of(module):
    copy_host_scalars(module)
    return split_host(module)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_graph_serves_all_numbers(spelling):
    function = SPELLINGS[spelling]
    module, plain = traced(function, 5), traced(function, 5)
    before = parts_of(traced(function, 5))
    assert before is None or 1 in before.device_inputs
    assert numbers_to_device(module) >= 1
    module.graph.lint()
    parts = parts_of(module)
    assert parts.device_inputs == (0,) or spelling == "window"
    assert not any(isinstance(n.meta.get("val"), torch.SymInt) for n in parts.device.graph.nodes)
    assert skip_reason(parts.device.graph, frozenset({0}), "statistical") is None
    for n in (5, 9, -3, 2**40):
        x = torch.randn(4, 6) * 4
        found, wanted = called(module, x, n), called(plain, x, n)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_floats_keep_the_signs_of_zeros():
    def function(x, s):
        return aten.div.Tensor(x, s), aten.full.default([2], s, device=CUDA)

    module = traced(function, 0.5)
    assert numbers_to_device(module) == 2
    y, filled = called(module, torch.ones(4, 6), -0.0)
    assert y.eq(-torch.inf).all() and filled.signbit().all()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x, n: aten.mul.Tensor(x, n), torch.bfloat16),  # a tensor would be rounded first
        (lambda x, n: aten.add.Tensor(x, n), torch.int32),  # eager refuses numbers that are too large
        (lambda x, n: aten.add.Tensor(x, x, alpha=n), torch.float32),
        (lambda x, n: aten.slice.Tensor(x, 1, 0, n), torch.float32),
        (lambda x, n: aten.mul.Tensor(aten.slice.Tensor(x, 1, 0, n), n), torch.float32),  # a size changes, too
        (lambda x, n: (aten.mul.Tensor(x, n), aten.add.Tensor(x, x, alpha=n)), torch.float32),  # the number is needed
    ],
)
def test_numbers_that_stay(function, dtype):
    module = traced(function, 5, dtype)
    before = str(module.graph)
    assert numbers_to_device(module) == 0 and str(module.graph) == before


def test_numbers_beside_sizes():
    """A mask of so many keys as there are, moved by how many there were: the first is a size, the second a number."""

    def function(x, size, n):
        places = aten.arange.start_step(0, size, 1, device=CUDA)
        return aten.add.Tensor(x, aten.add.Tensor(places, n + size))

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        size, n = (symbolic_number(mode.shape_env, k, f"n{k}") for k in (6, 3))
        torch._check(size > 1)
        module = make_fx(in_a_list(function))(torch.empty(4, size, device=CUDA), size, n)
    assert numbers_to_device(module) == 1
    parts = parts_of(module)
    assert parts.device_inputs == (0, 1) and parts.host_inputs == (1, 2)
    x = torch.randn(4, 7)
    torch.testing.assert_close(called(module, x, 7, -2), [x + torch.arange(7) + 5])
