"""Tensors out of nothing, against eager."""

from __future__ import annotations

import pytest
import torch
from support.lowering import agree, deterministic, lowered, run, trace
from support.thorough import one_row_in

from regraft.compiler.lowering import lower

X = torch.randn(3, 5)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fills(dtype):
    agree(lambda: (torch.zeros(2, 3, dtype=dtype), torch.ones((), dtype=dtype), torch.full((2, 0), 1, dtype=dtype)))
    agree(lambda x: (torch.zeros_like(x, dtype=dtype), torch.full_like(x, 3, dtype=dtype), x.new_ones(2)), X)
    agree(lambda x: (x.new_full((2, 2), 7.5), x.new_zeros(3, dtype=dtype), torch.scalar_tensor(2, dtype=dtype)), X)


def test_memory_layouts():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    agree(lambda x: (torch.ones_like(x), torch.zeros_like(x.transpose(1, 2))), x)


def test_uninitialized_memory_is_fresh():
    def function(x):
        return torch.empty_like(x), x.new_empty(2), torch.empty(3, 4), torch.empty_strided((2, 3), (1, 2))

    module = trace(function, X)
    made = run(module, lower(module, strict=True), [X])
    assert [t.shape for t in made] == [t.shape for t in function(X)]
    assert made[3].stride() == (1, 2)


def test_uninitialized_memory_is_filled_under_deterministic_algorithms():
    with deterministic():
        for dtype in (*DTYPES, torch.float16, torch.int8):
            agree(lambda x, dtype=dtype: (torch.empty_like(x, dtype=dtype), x.new_empty(2, dtype=dtype)), X)
            agree(
                lambda dtype=dtype: (torch.empty(2, 3, dtype=dtype), torch.empty_strided((2, 3), (1, 2), dtype=dtype))
            )
    with deterministic(fill=False):
        module = trace(lambda: torch.empty(3))
        assert not run(module, lower(module, strict=True), [])[0].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16], ids=str)
def test_ranges(dtype):
    agree(
        lambda: (
            torch.arange(7, dtype=dtype),
            torch.arange(3, 30, 4, dtype=dtype),
            torch.arange(9, -3, -2, dtype=dtype),
        )
    )


def test_ranges_of_floats():
    agree(
        lambda: (torch.arange(0.0, 1.0, 0.1), torch.arange(1.0, 4.0), torch.arange(0.5, 3.0, 0.3, dtype=torch.float64))
    )
    agree(lambda x: torch.arange(x.shape[0], x.shape[0] * x.shape[1]) + 1, X, dynamic=True)
    agree(lambda: torch.arange(0, 5, 1) * 2, exact=True)


@pytest.mark.parametrize("steps", [1, 2, 5, 100, 0])
def test_linspace(steps):
    agree(lambda: (torch.linspace(-2, 7, steps), torch.linspace(3.5, 1, steps, dtype=torch.float64)))


def test_linspace_of_integers_stays_a_call():
    agree(lambda: torch.linspace(0, 9, 4, dtype=torch.int64), extern={"aten.linspace.default"})


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"])
def test_linspace_between_tensors(kind, dtype):
    """Eager rounds the ends to integers first."""
    start, end = (torch.tensor(n) if of == "Tensor" else n for n, of in zip((3.9, 0.2), kind.split("_"), strict=True))
    given = [x for x in (start, end) if isinstance(x, torch.Tensor)]

    def program(*tensors):
        ends = iter(tensors)
        first, last = (next(ends) if isinstance(x, torch.Tensor) else x for x in (start, end))
        return torch.linspace(first, last, 23, dtype=dtype)

    agree(program, *given, extern=set() if dtype.is_floating_point else {f"aten.linspace.{kind}"})


def test_eye():
    agree(lambda: (torch.eye(3), torch.eye(2, 4), torch.eye(3, dtype=torch.bool), torch.eye(0)))


@one_row_in(2)
@pytest.mark.parametrize("diagonal", [-9, -1, 0, 2, 9])
@pytest.mark.parametrize("dynamic", [False, True])
def test_triangles(diagonal, dynamic):
    agree(lambda x: (x.tril(diagonal), x.triu(diagonal), (x > 0).tril(diagonal)), X, dynamic=dynamic)
    agree(lambda x: x[None].expand(2, 3, 5).tril(diagonal), X)


def test_a_causal_mask_reads_no_memory():
    made = lowered(lambda: torch.full((4, 4), float("-inf")).triu(1))
    assert not [b for b in made.program.buffers.values() if b.kind != "made"]


def test_a_range_from_a_size_in_steps_of_a_float():
    """Tracing may know the length as an integer of sizes, however the step is written."""
    module = trace(lambda x: torch.arange(x.shape[0], 2 * x.shape[0]), X, dynamic=True)
    (node,) = [n for n in module.graph.nodes if "arange" in str(n.target)]
    node.args = (*node.args[:2], 1.0)
    made = lower(module, strict=True)
    assert not made.kept
    assert torch.equal(run(module, made, [X]), torch.arange(X.shape[0], 2 * X.shape[0]))
