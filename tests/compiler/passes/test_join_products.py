"""Gradients of weights that several calls share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.training_attention import joint_of
from torch import fx

from regraft.compiler.passes.join_products import join_products
from regraft.rewrites.graph import op_name

ROWS, WIDTH = 2, 16
Function = Callable[..., torch.Tensor]


def loop(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(x.shape[1], WIDTH)
    for step in x:
        h = torch.tanh(F.linear(step, w, b) + h @ u)
    return h


def layers(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Layers that share weights, on rows in two dims, and a gradient of `u` that is no product."""
    for _ in range(3):
        x = x + F.gelu(x @ w.t() + b) @ u.t()
    return x * u.sin().sum()


def inputs(rows: int = ROWS, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = [(3, rows, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,)]
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def gradients(joint: fx.GraphModule, given: tuple[torch.Tensor, ...], result: torch.Tensor) -> list[torch.Tensor]:
    results = joint(list(given), [torch.ones_like(result)])
    return list(torch.utils._pytree.tree_leaves(results)[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("function", "left"), [(loop, 2), (layers, 2)], ids=["loop", "layers"])
def test_gradients(function: Function, left: int, dtype: torch.dtype) -> None:
    given = inputs(1 if function is layers else ROWS, dtype)
    joint = joint_of(function, *given)
    before = gradients(joint, given, function(*given))
    assert join_products(joint) == left
    joint.graph.lint()
    after = gradients(joint, given, function(*given))
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    for x, y in zip(after, before, strict=True):
        assert x.stride() == y.stride()
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * float(y.abs().max()))


def test_one_product_is_left_for_each_weight() -> None:
    joint = joint_of(loop, *inputs())
    products = [n for n in joint.graph.nodes if op_name(n) == "aten.mm"]
    join_products(joint)
    assert len([n for n in joint.graph.nodes if op_name(n) == "aten.mm"]) == len(products) - 2 * 2


LEFT: dict[str, tuple[Function, int]] = {
    "many rows": (loop, WIDTH),
    "one call": (lambda x, w, u, b: F.linear(x[0], w, b) @ u, ROWS),
    "products of other forms": (lambda x, w, u, b: (w @ u + u @ w) * b, ROWS),
    "a product with another reader": (lambda x, w, u, b: (p := w.t() @ u) + u.t() @ w + p.sin().sum(), ROWS),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    function, rows = LEFT[name]
    assert join_products(joint_of(function, *inputs(rows))) == 0
