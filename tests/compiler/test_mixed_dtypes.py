"""Operators on tensors of two dtypes: values, dtypes and strides are eager's, on both code generators.

Every operator meets every pair of dtypes in thorough runs, and each dtype in short ones; tensors without dims, which
promote otherwise, are the first or the second operand in turns. What eager refuses must raise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.lowering import compare, fresh
from support.thorough import THOROUGH, in_thorough_runs, one_row_in, takes_turns
from torch._subclasses import FakeTensorMode

import regraft

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
)  # fmt: skip
ROWS = torch.tensor([2, 0])
Operator = Callable[[torch.Tensor, torch.Tensor], Any]
NAMES = (
    "add sub mul div floor_divide remainder fmod pow atan2 hypot copysign maximum minimum fmax fmin eq ne lt le gt ge "
    "logical_and logical_xor bitwise_and bitwise_or bitwise_left_shift bitwise_right_shift xlogy ldexp heaviside "
    "logaddexp float_power gcd isclose outer lcm rsub"
)


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x.real > 0 if x.is_complex() else x > 0


def _part(y: torch.Tensor) -> torch.Tensor:
    return y[:2] if y.dim() else y


OPERATORS: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in NAMES.split() if name != "outer"},
    "outer": lambda x, y: torch.outer(x.reshape(-1)[:3], y.reshape(-1)[:4]),
    "floored": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "cut": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "twice": lambda x, y: torch.add(x, y, alpha=2),
    "where": lambda x, y: torch.where(_positive(x), x, y), "number": lambda x, y: torch.where(_positive(y), x, 2.5),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3), "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "clamp": lambda x, y: torch.clamp(x, y), "cat": lambda x, y: torch.cat([x, y], -1),
    "stack": lambda x, y: torch.stack([x, y.expand_as(x)]),
    "masked": lambda x, y: x.masked_fill(_positive(x), y.reshape(-1)[0]),
    "scattered": lambda x, y: x.masked_scatter(_positive(x), y.expand_as(x)),
    "index_add": lambda x, y: x.index_add(0, ROWS, _part(y)), "put": lambda x, y: x.index_put((ROWS,), _part(y)),
    "written": lambda x, y: _written(x, y, slice(0, 2)), "indexed": lambda x, y: _written(x, y, ROWS),
    "gather": lambda x, y: x.gather(0, y.abs() % 3), "take": lambda x, y: x.take(y.abs() % 5),
    "looked up": lambda x, y: x[y.abs() % 3], "part": lambda x, y: x.slice_scatter(_part(y), 0, 0, 2),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"), "l1": lambda x, y: F.l1_loss(x, y),
    "smooth": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), "like": lambda x, y: x.type_as(y),
    "sum": lambda x, y: x.sum(-1, dtype=y.dtype), "prod": lambda x, y: x.prod(0, dtype=y.dtype),
    "mean": lambda x, y: x.mean(-1, dtype=y.dtype), "cumsum": lambda x, y: x.cumsum(0, dtype=y.dtype),
    "nansum": lambda x, y: x.nansum(-1, dtype=y.dtype), "softmax": lambda x, y: x.softmax(-1, dtype=y.dtype),
    "added to": lambda x, y: x.clone().add_(y), "divided": lambda x, y: x.clone().div_(y),
    "compared": lambda x, y: x.clone().lt_(y), "copied": lambda x, y: x.clone().copy_(y),
    "lists": lambda x, y: torch._foreach_add([x, x], [y, y]), "chain": lambda x, y: (x + y) > (x - y),
    "column": lambda x, y: x[:, :1] * (y[0] if y.dim() else y),
}  # fmt: skip


def _written(x: torch.Tensor, y: torch.Tensor, place: Any) -> torch.Tensor:
    z = x.clone()
    z[place] = _part(y)
    return z


def numbers(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of a dtype, the extremes of integers among them, none 0 or -1: quotients of integers end the process."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 21, generator=generator, dtype=torch.float64) * 3
    if dtype.is_floating_point or dtype.is_complex:
        return x.to(dtype)
    if dtype == torch.bool:
        return x > 0
    x = x.round().to(torch.int64)
    x[(x == 0) | (x == -1)] = 3
    made = (x.abs() if dtype == torch.uint8 else x).to(dtype)
    limits = torch.iinfo(dtype)
    made[0, :4] = torch.tensor([limits.max, limits.min or 1, limits.max - 1, limits.max // 2 + 1], dtype=dtype)
    return made


def operands(a: torch.dtype, b: torch.dtype, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = numbers(a, 0), numbers(b, 1)
    return (x[1, 2].clone() if mode == "first" else x), (y[2, 3].clone() if mode == "second" else y)


def taken(operator: Operator, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether eager takes these operands, and torch's rules for metadata do."""
    with suppress(RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        operator(*fresh((x, y)))
        return _traced(operator, (x, y))
    return False


def pairs(a: torch.dtype) -> list[tuple[str, torch.dtype]]:
    """Operators with the other dtype: each with one in short runs."""
    shift = DTYPES.index(a)
    rows = [(name, k, b) for k, name in enumerate(OPERATORS) for b in DTYPES]
    return [(name, b) for name, k, b in rows if THOROUGH or DTYPES.index(b) == (k + shift) % len(DTYPES)]


def check(made: Any, expected: Any, label: str) -> None:
    near = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
    parts = expected if isinstance(expected, (list, tuple)) else [expected]
    for ours, theirs in zip(made if isinstance(made, (list, tuple)) else [made], parts, strict=True):
        rough = theirs.is_floating_point() or theirs.is_complex()
        tolerance = near.get(theirs.dtype, 2e-5) if rough else 0
        compare(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{label}: {text}")


@one_row_in(4)
@takes_turns("mode")
@pytest.mark.parametrize("a", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["dims", "second", "first"])
def test_kernels_for_cpus(a: torch.dtype, mode: str) -> None:
    cases = [(OPERATORS[name], *operands(a, b, mode), f"{name} {b}") for name, b in pairs(a)]
    cases = [case for case in cases if taken(*case[:3])]

    def program(*given: torch.Tensor) -> list[Any]:
        return [case[0](x, y) for case, x, y in zip(cases, given[::2], given[1::2], strict=True)]

    inputs = [x for case in cases for x in case[1:3]]
    torch.compiler.reset()
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft", dynamic=mode == "second")(*fresh(inputs))
    assert not found.faults
    for case, made, expected in zip(cases, ours, program(*fresh(inputs)), strict=True):
        check(made, expected, case[3])


@in_thorough_runs
@pytest.mark.parametrize("a", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["dims", "second", "first"])
def test_what_eager_refuses(a: torch.dtype, mode: str) -> None:
    """Calls that eager refuses and metadata does not: Dynamo raises for the others."""
    missed = []
    for name, b in pairs(a):
        given = operands(a, b, mode)
        if taken(OPERATORS[name], *given) or not _traced(OPERATORS[name], given):
            continue
        torch.compiler.reset()
        with suppress(Exception):
            torch.compile(OPERATORS[name], backend="regraft")(*given)
            missed.append((name, b))
    assert not missed


def _traced(operator: Operator, given: tuple[torch.Tensor, ...]) -> bool:
    with suppress(Exception), FakeTensorMode() as mode:
        operator(*map(mode.from_tensor, given))
        return True
    return False


@one_row_in(5)
@pytest.mark.parametrize("a", [dtype for dtype in DTYPES if not dtype.is_complex], ids=str)
def test_kernels_for_gpus(a: torch.dtype) -> None:
    pytest.importorskip("triton")
    from support.triton_kernels import interpreted_agrees

    left = (
        "gather",
        "take",
        "looked up",
        "scattered",
        "index_add",
        "put",
        "indexed",
        "prod",
        "cumsum",
    )  # calls of ATen
    cases = [(OPERATORS[name], *operands(a, b, "dims"), name) for name, b in pairs(a)[::4] if name not in left]
    cases = [case for case in cases if taken(*case[:3]) and not case[2].is_complex()]

    def program(*given: torch.Tensor) -> list[Any]:
        return [case[0](x, y) for case, x, y in zip(cases, given[::2], given[1::2], strict=True)]

    interpreted_agrees(program, *(x for case in cases for x in case[1:3]), rtol=3e-2, atol=3e-2)
