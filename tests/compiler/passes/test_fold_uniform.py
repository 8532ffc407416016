"""Tensors made from nothing that hold one value everywhere."""

from __future__ import annotations

import pytest
import torch
from support.rewriting import compiled

from regraft.compiler.passes.fold_uniform import fold_uniform
from regraft.rewrites.compat import capture_function


def allowed(rows: int, columns: int, shift: int) -> torch.Tensor:
    return torch.arange(columns)[None] <= torch.arange(rows)[:, None] + shift


UNIFORM = {
    "all true": lambda x: torch.where(allowed(4, 4, 4), x, -torch.inf),
    "nothing masked": lambda x: x + (1.0 - torch.ones(4, 4).float()) * torch.finfo(torch.float32).min,
    "integers": lambda x: x * (torch.arange(4) * 0 + 3),
    "infinite": lambda x: x + torch.zeros(4).log(),
}
NOT_UNIFORM = {
    "triangle": lambda x: torch.where(allowed(4, 4, 0), x, -torch.inf),
    "nan": lambda x: x + torch.zeros(4).sub(1).sqrt(),
    "two zeros": lambda x: x / torch.cat([torch.zeros(2), torch.zeros(2).neg()]),
    "of the input": lambda x: x + (x * 0 + 1),
    "empty": lambda x: x[:, :0] + torch.arange(0).float().exp(),
    "random": lambda x: x + torch.rand(4).floor(),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform(name: str) -> None:
    x = torch.randn(4, 4)
    module, _ = capture_function(UNIFORM[name], [x], dynamic=False)
    assert fold_uniform(module) == 1
    assert {str(n.target) for n in module.graph.nodes if n.op == "call_function"} >= {"aten.full.default"}
    torch.testing.assert_close(module(x), UNIFORM[name](x), rtol=0, atol=0)


@pytest.mark.parametrize("name", NOT_UNIFORM)
def test_left_alone(name: str) -> None:
    module, _ = capture_function(NOT_UNIFORM[name], [torch.randn(4, 4)], dynamic=False)
    assert fold_uniform(module) == 0


def test_large_tensors_are_not_looked_at() -> None:
    module, _ = capture_function(lambda x: x + torch.arange(1 << 21).float().mul(0), [torch.randn(1)], dynamic=False)
    assert fold_uniform(module) == 0


def test_sizes_that_vary() -> None:
    function = UNIFORM["all true"]
    run, cov = compiled(lambda x: torch.where(allowed(*x.shape, 99), x, -torch.inf), dynamic=True)
    with cov, torch.no_grad():
        for size in (4, 5):
            x = torch.randn(size, size + 2)
            torch.testing.assert_close(run(x), x)
    assert function(torch.zeros(4, 4)).eq(0).all()


def test_written_constant_is_no_constant() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(4).exp()
        total.add_(x)
        return total

    run, _ = compiled(function)
    x = torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(run(x), function(x))
        torch.testing.assert_close(run(x), function(x))


VIEWED = {
    "windows": lambda: (v := torch.full((4,), 2.0), v.unfold(-1, 2, 2)),
    "a part": lambda: (v := torch.full((4,), 2.0) + 1, v[1:]),
    "a diagonal": lambda: (v := torch.tensor([[3, 3], [3, 3]]), v.diagonal()),
    "the real parts": lambda: (v := torch.ones(4, dtype=torch.complex64), torch.view_as_real(v)[:, 0]),
    "a window of windows": lambda: (v := torch.zeros(6), v.unfold(0, 4, 2).unfold(1, 2, 1)),
}


@pytest.mark.parametrize("name", VIEWED)
def test_views_that_are_returned_share_the_memory_of_what_they_look_at(name: str) -> None:
    torch.compiler.reset()
    base, view = torch.compile(lambda x: (*VIEWED[name](), x + 1), backend="regraft")(torch.ones(2))[:2]
    for found, wanted in zip((base, view), VIEWED[name](), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
