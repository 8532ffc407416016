"""Small tensors that follow from constants alone."""

from __future__ import annotations

import pytest
import torch
from support.fake_cuda import memory_on_cpu
from support.offline_gpu import on_cuda
from support.rewriting import compiled

from regraft.compiler.lowering.core import TABLE_SPAN
from regraft.compiler.passes import fold_constant_tables as folding
from regraft.compiler.passes.fold_constant_tables import fold_constant_tables
from regraft.rewrites.compat import capture_function
from regraft.rewrites.functional import functionalize_temporaries

FOLDED = {
    "powers": lambda x: x * torch.pow(2.0, -torch.arange(1, 5).float()),
    "joined": lambda x: x + torch.cat([torch.zeros(1), torch.ones(3)]),
    "looked up": lambda x: x + torch.bucketize(torch.arange(4), torch.tensor([1, 3])),
    "through a cheap call": lambda x: x + torch.arange(4).float().sin() * 2,
    "read twice": lambda x: (x + (t := torch.arange(4).float().cos())) * t,
}
LEFT = {
    "cheap": lambda x: x * (torch.arange(4) * 2 + 1).float(),
    "triangle": lambda x: x + torch.full((4, 4), -torch.inf).triu(1),
    "of the input": lambda x: x + x.cumsum(-1).cumprod(-1),
    "returned": lambda x: (x, torch.arange(4).float().sin()),
    "a view of it returned": lambda x: (x + (t := torch.arange(4).float().sin()), t[1:]),
    "random": lambda x: x + torch.rand(4).sin(),
    "uninitialised": lambda x: x + torch.empty(4).sin(),
    "too large": lambda x: x[0, 0] + torch.arange(1 << 15).float().sin(),
}


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str) -> None:
    x = torch.randn(4, 4)
    module, _ = capture_function(FOLDED[name], [x], dynamic=False)
    functionalize_temporaries(module.graph)
    assert fold_constant_tables(module) == 1
    module.graph.lint()
    assert "_folded0" in {n.target for n in module.graph.find_nodes(op="get_attr")}
    assert torch.equal(module(x), FOLDED[name](x))


STRIDED = {
    "a slice of a larger table": lambda x: x + torch.arange(32).float().sin().view(4, 8)[:, :4],
    "transposed": lambda x: x + torch.arange(16).float().sin().view(4, 4).t(),
    "expanded": lambda x: x + torch.arange(4).float().sin()[:, None].expand(4, 4),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_are_as_promised(name: str) -> None:
    """Kernels are generated for the strides of the program's own table."""
    x = torch.randn(4, 4)
    run, cov = compiled(STRIDED[name])
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), STRIDED[name](x))
    module, _ = capture_function(STRIDED[name], [x], dynamic=False)
    functionalize_temporaries(module.graph)
    fold_constant_tables(module)
    (constant,) = module.graph.find_nodes(op="get_attr")
    assert getattr(module, constant.target).stride() == constant.meta["val"].stride()


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    module, _ = capture_function(LEFT[name], [torch.randn(4, 4)], dynamic=False)
    assert fold_constant_tables(module) == 0


def test_a_table_next_to_symbolic_sizes() -> None:
    function = FOLDED["powers"]
    run, cov = compiled(function, dynamic=True)
    with cov, torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(run(x), function(x))


def test_what_a_user_writes_to_later_is_his_own() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.arange(4).float().sin()
        return x + table, table

    run, _ = compiled(function)
    x = torch.randn(4)
    with torch.no_grad():
        _, table = run(x)
        table.add_(100)
        torch.testing.assert_close(run(x), function(x))


def test_a_table_written_in_place_is_no_constant() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(4).float().sin()
        first = x + table
        table.add_(x)
        return first * table

    run, _ = compiled(function)
    with torch.no_grad():
        for seed in range(2):
            x = torch.randn(4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(run(x), function(x))


def test_in_training() -> None:
    function = FOLDED["through a cheap call"]
    run, _ = compiled(lambda x: function(x).square().sum())
    x = torch.randn(4, 4, requires_grad=True)
    run(x).backward()
    expected = torch.autograd.grad(function(x).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_tables_of_indices_say_what_they_hold() -> None:
    """An index alone is kept in 32 bits; what is computed with as well keeps its dtype."""

    def alone(x: torch.Tensor) -> torch.Tensor:
        return x[:, torch.arange(6).float().sqrt().long()]

    def shared(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(4).float().sqrt().long()
        return x[:, places] * places

    for function, dtype, span in ((alone, torch.int32, (0, 2)), (shared, torch.int64, (0, 1))):
        x = torch.randn(4, 4)
        module, _ = capture_function(function, [x], dynamic=False)
        functionalize_temporaries(module.graph)
        assert fold_constant_tables(module) == 1
        (constant,) = module.graph.find_nodes(op="get_attr")
        assert constant.meta[TABLE_SPAN] == span
        assert getattr(module, constant.target).dtype == constant.meta["val"].dtype == dtype
        assert torch.equal(module(x), function(x))
        run, cov = compiled(function)
        with cov, torch.no_grad():
            torch.testing.assert_close(run(x), function(x))


def test_positions_that_are_rounded_are_tables() -> None:
    """As nearest interpolation has them: else each index is computed in 64 bits and checked, element by element."""

    def nearest(x: torch.Tensor) -> torch.Tensor:
        places = ((torch.arange(8).float() + 0.0) * 0.5).long()
        return x[:, places[:, None], places]

    x = torch.randn(2, 4, 4)
    module, _ = capture_function(nearest, [x], dynamic=False)
    functionalize_temporaries(module.graph)
    assert fold_constant_tables(module) == 2
    assert {node.meta[TABLE_SPAN] for node in module.graph.find_nodes(op="get_attr")} == {(0, 3)}
    torch.testing.assert_close(module(x), nearest(x), rtol=0, atol=0)


ON_A_GPU = {
    "the lower triangle's places": lambda x: torch.tril_indices(4, 4, -1, device=x.device)[0],
    "counts": lambda x: (torch.arange(6, device=x.device) % 4).cumsum(0) % 4,
    "looked up": lambda x: torch.bucketize(torch.arange(4, device=x.device), torch.arange(0, 4, 2, device=x.device)),
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_integers_of_a_gpu_are_computed_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "memory_like", memory_on_cpu)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index.Tensor(x, [ON_A_GPU[name](x)])

    x = torch.randn(4, 4)
    module, _ = capture_function(forward, [x], dynamic=False)
    there = on_cuda(module)
    assert fold_constant_tables(there) == 1
    (constant,) = there.graph.find_nodes(op="get_attr")
    assert constant.meta["val"].device.type == "cuda" and TABLE_SPAN in constant.meta
    assert torch.equal(there(x), forward(x))


def test_floats_of_a_gpu_stay_there() -> None:
    """The last bits of a sine differ between devices."""
    module, _ = capture_function(FOLDED["through a cheap call"], [torch.randn(4, 4)], dynamic=False)
    assert fold_constant_tables(on_cuda(module)) == 0
