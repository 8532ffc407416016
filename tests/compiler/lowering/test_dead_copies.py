"""Writes to parts of a tensor: no copy of the tensor for each of them, and the elements that eager gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import compare, fresh, run, trace
from support.schedules import assert_same
from support.thorough import examples

from regraft.compiler.ir.program import Definition
from regraft.compiler.lowering import Lowered, lower
from regraft.compiler.schedule import CPU, gpu, schedule

X = torch.arange(48.0).reshape(6, 8)


def lowered(function: Callable[..., Any], *inputs: torch.Tensor) -> Lowered:
    """The loop program; it agrees with eager to the bit, and so do its schedules for both kinds of machines."""
    module = trace(function, *inputs)
    made = lower(module, strict=True)
    compare(run(module, made, fresh(inputs)), function(*fresh(inputs)), exact=True)
    for target in (CPU, gpu(132)):
        assert_same(made.program, tolerance=0.0, target=target)
    return made


def passes(made: Lowered, size: int) -> int:
    """How many loop nests of the schedule's kernels write as much as `size` elements."""
    items = schedule(made.program).program.items
    sizes = [torch.Size([v.extent for v in item.loops]).numel() for item in items if isinstance(item, Definition)]
    return sum(n >= size for n in sizes)


def part_by_part(x: Any) -> Any:
    y = x.new_zeros(6, 12)
    y[:, 2:10] = x
    y[:, :2] = x[:, -2:]
    y[:, 10:] = x[:, :2]
    return y


def parts_of_parts(x: Any) -> Any:
    y = x.new_zeros(8, 10)
    y[1:7, 1:9] = x
    y[0][2:4] = x[0, :2]
    y[1:][:, 3:][2:4, 1] += 1
    return y


def from_itself(x: Any) -> Any:
    y = torch.cat([x, x], 1)
    y[:, 0] = x[:, 3]
    y[1:3] = y[3:5]
    y[:, 4:6] = y[:, 1:3].clone()
    return y


def overlapping(x: Any) -> Any:
    y = torch.cat([x, x], 1)
    y[:, 0] = x[:, 3]
    y[1:4] = y[2:5].clone()
    y[:, 2:6] = y[:, 1:5] * 2
    return y


def on_a_diagonal(x: Any) -> Any:
    y = x.new_zeros(6, 8)
    y[2:4] = x[:2]
    y.diagonal().fill_(7)
    return y


def padded(x: Any) -> Any:
    return F.pad(x[None, None], (2, 3, 1, 2), mode="circular")


@pytest.mark.parametrize(("function", "most"), [(part_by_part, 1), (parts_of_parts, 1), (from_itself, 0), (padded, 1)])
def test_one_pass_and_the_parts(function: Callable[..., Any], most: int) -> None:
    """What is left that writes as much as the whole result: one fill, or none where parts fill it."""
    made = lowered(function, X)
    assert passes(made, function(X).numel()) <= most


@pytest.mark.parametrize("function", [overlapping, on_a_diagonal])
def test_what_a_write_reads_is_read_before(function: Callable[..., Any]) -> None:
    lowered(function, X)


# -- copies that are needed -------------------------------------------------------------------------------------------


def old_read_after(x: Any) -> Any:
    old = torch.cat([x, x], 1)
    new = old.clone()
    new[:, 2] = 0
    return new.amax(0), old.amax(0)


def old_is_given(x: Any) -> Any:
    old = torch.cat([x, x], 1)
    new = old.clone()
    new[:, 2] = 0
    return new, old


def branched(x: Any) -> Any:
    old = torch.cat([x, x], 1)
    one, other = old.clone(), old.clone()
    one[:, 2], other[:, 3] = 0, 1
    return one + other


def of_an_input(x: Any) -> Any:
    new = x.clone()
    new[:, 2] = 0
    return new, x.amax()


@pytest.mark.parametrize("function", [old_read_after, old_is_given, branched, of_an_input])
def test_what_is_read_afterwards_is_copied(function: Callable[..., Any]) -> None:
    lowered(function, X)


SLICES = st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 5), st.integers(1, 3))


@settings(max_examples=examples(8, 20), deadline=None)
@given(st.lists(st.tuples(SLICES, SLICES, st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_any_writes_in_any_order(steps: list[Any]) -> None:
    def function(x: Any) -> Any:
        y = torch.cat([x, x], 1)
        sums = []
        for (a, h, b, w), (c, _, d, _), copied, read in steps:
            source = y[c : c + h, d : d + w]
            y[a : a + h][:, b : b + w] = source.clone() if copied else source * 2
            sums += [y.amax(1)] if read else []
        return (y, *sums)

    lowered(function, X)


def of_any_size(x: Any) -> Any:
    y = x.new_zeros(x.shape[0], x.shape[1] + 2)
    y[:, 1:-1] = x
    y[:, 0] = x[:, -1]
    return y


def test_symbolic_sizes() -> None:
    made = lower(trace(of_any_size, X, dynamic=True), strict=True)
    items = schedule(made.program).program.items
    assert len({store.buffer for item in items if isinstance(item, Definition) for store in item.stores}) == 1
