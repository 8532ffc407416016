"""Zeros with signs, NaN, infinities and the smallest numbers, as constants and as operands: eager's class of result.

Every operator below, with every constant, on every operand, as C++ and as Triton: NaN where eager has NaN, infinities
and zeros of the same sign, and what is finite as close as eager's own functions are.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from support.versions import OLD_TORCH

import regraft

INFINITY, NAN = math.inf, math.nan
CONSTANTS = (-0.0, 1.0, INFINITY, NAN, 0.1)
OPERANDS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.0, -7.0, INFINITY, -INFINITY, NAN, 65504.0, 1e-3, 88.5, -88.5, 20.0,
)  # fmt: skip
WITH_NUMBER = {
    "add": lambda x, c: x + c, "sub": lambda x, c: x - c, "rsub": lambda x, c: c - x, "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c, "floor": lambda x, c: torch.div(x, c, rounding_mode="floor"),
    "trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"), "pow": lambda x, c: x**c,
    "where": lambda x, c: torch.where(x > 0, x, c), "masked_fill": lambda x, c: x.masked_fill(x == 0, c),
    "full": lambda x, c: torch.full_like(x, c), "copysign": torch.copysign, "xlogy": torch.xlogy, "eq": torch.eq,
    "atan2": lambda x, c: torch.atan2(x, torch.full_like(x, c)), "threshold": lambda x, c: F.threshold(x, 0.5, c),
    "leaky_relu": F.leaky_relu, "nan_to_num": lambda x, c: torch.nan_to_num(x, nan=c, posinf=c, neginf=c),
    "least": lambda x, c: x.clamp(min=c), "most": lambda x, c: x.clamp(max=c),
    "maximum": lambda x, c: torch.maximum(x, torch.full_like(x, c)),
    "fmin": lambda x, c: torch.fmin(x, torch.full_like(x, c)),
    "inverse": lambda x, c: 1 / torch.full_like(x, c) + torch.ones_like(x) * 0,
}  # fmt: skip
ALONE = {
    "relu": torch.relu, "signs": lambda x: torch.where(x > 0, 0.0, -0.0),
    "zeros": lambda x: torch.stack([x * 0.0, x * -0.0, x / 0.0, x / -0.0]), "minus": lambda x: -0.0 - x,
    "less": lambda x: x - x, "share": lambda x: x / x, "nothing": lambda x: x - (-0.0), "rsqrt": torch.rsqrt,
    "hidden": lambda x: torch.softmax(torch.stack([x, x * 0 - INFINITY]), 0),
}  # fmt: skip


def operands(dtype: torch.dtype) -> torch.Tensor:
    """Special numbers, often enough for whole vectors, whose zeros eager treats alike."""
    return torch.tensor(OPERANDS, dtype=torch.float64).to(dtype).repeat(16)


def of_all(cases: list[tuple[str, float]]) -> Any:
    return lambda x: [WITH_NUMBER[name](x, c) for name, c in cases]


def accepted(x: torch.Tensor, constants: tuple[float, ...]) -> list[tuple[str, float]]:
    """Operators with constants that eager takes."""
    found = []
    for case in product(WITH_NUMBER, constants):
        with suppress(RuntimeError):  # a number that the dtype does not hold
            of_all([case])(x)
            found.append(case)
    return found


def classes(x: torch.Tensor) -> list[torch.Tensor]:
    x = x.double()
    return [x.isnan(), x.isposinf(), x.isneginf(), x == 0, x.signbit() & ~x.isnan()]


def differences(ours: Any, eager: Any, labels: list[Any], dtype: torch.dtype) -> list[Any]:
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    found = []
    for label, a, b in zip(labels, ours, eager, strict=True):
        assert a.dtype == b.dtype
        same = all(torch.equal(*pair) for pair in zip(classes(a), classes(b), strict=True))
        if not same or not torch.allclose(a.double(), b.double(), rtol=tolerance, atol=1e-30, equal_nan=True):
            found.append(label)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_kernels_for_cpus(dtype: torch.dtype) -> None:
    x = operands(dtype)
    cases = accepted(x, CONSTANTS)
    if torch.__version__ < (2, 12):  # whose eager leaves numbers alone that a NaN limits
        cases = [(name, c) for name, c in cases if name not in ("least", "most") or c == c]
    f, g = of_all(cases), lambda x: [one(x) for one in ALONE.values()]
    with regraft.coverage() as found:
        ours = torch.compile(lambda x: (f(x), g(x)), backend="regraft", fullgraph=True)(x)
    assert not found.fallbacks
    assert not differences(ours[0], f(x), cases, dtype)
    assert not differences(ours[1], g(x), list(ALONE), dtype)


def test_kernels_for_gpus() -> None:
    pytest.importorskip("triton")
    from support.triton_kernels import interpreted_agrees

    x = operands(torch.float32)[: len(OPERANDS)]
    signed = ("add", "sub", "rsub", "mul", "div", "where", "copysign", "atan2", "maximum")

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        made = [WITH_NUMBER[name](x, -0.0) for name in signed] + [ALONE[n](x) for n in ("signs", "minus", "nothing")]
        return [*made, *(torch.signbit(y) & ~y.isnan() for y in made)]

    interpreted_agrees(f, x, rtol=1e-5, atol=0)


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("eps", [None, 1e-6, 1e-3, 0.1])
def test_limits_of_logit(dtype: torch.dtype, eps: float | None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.logit(x, eps)

    x = torch.tensor([0.0, 1e-4, 0.5, 0.999, 1.0, 0.9, 0.0999, 0.1, 0.0011, -1.0, 2.0]).repeat(8).to(dtype)
    torch.compiler.reset()
    results = []
    for run in (torch.compile(f, backend="regraft"), f):
        given = x.clone().requires_grad_()
        result = run(given)
        results.append((result, *torch.autograd.grad(result.sum(), given)))
    near = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(*results, equal_nan=True, rtol=near, atol=0)


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1.6e-19, 1e-23, 1e-30, 1e20])
def test_deviations_of_any_scale(dtype: torch.dtype, scale: float) -> None:
    """Squares of such numbers are none of float32's: eager computes deviations in float64 on CPUs."""

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.std(1), x.std(0, correction=0), x.std(), *torch.std_mean(x, 1), (x - x.mean()) / x.std() * scale]

    x = (torch.randn(40, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    torch.compiler.reset()
    near = 1e-5 if dtype == torch.float32 else 1.6e-2
    torch.testing.assert_close(torch.compile(f, backend="regraft")(x), f(x), rtol=near, atol=near * scale)


DECISIONS = {
    "floor": lambda x: torch.floor(x * 3.3), "round": lambda x: torch.round(x * 33.3),
    "int": lambda x: (x * 33.3).int(),
    "greater": lambda x: (x + 1) > 1.0, "equal": lambda x: (x * 0 + 0.1) == 0.1, "sign": lambda x: torch.sign(x * 1e-9),
    "infinite": lambda x: torch.isinf(x * 1e5), "bool": lambda x: (x * 1e-9).bool(),
    "whole": lambda x: (x * 3.3) // 0.7,
    "largest": lambda x: (x * 0.3) == (x * 0.3).amax(-1, keepdim=True), "first": lambda x: (x * 0.3).argmax(-1),
    "rest": lambda x: torch.fmod(x * 3.3, 0.7), "place": lambda x: (x * 0.3).max(-1)[1],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_decisions_are_made_on_what_eager_has_rounded(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, f = torch.randn(64, 128).to(dtype), lambda x: [one(x) for one in DECISIONS.values()]
    for name, ours, eager in zip(DECISIONS, torch.compile(f, backend="regraft")(x), f(x), strict=True):
        assert torch.equal(ours, eager), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_rounded_where_eager_rounds_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(4000).to(dtype)

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + 0.1, x - 0.1, 0.1 - x, x * 0.1, x / 0.1, torch.add(x, x, alpha=0.1)]

    for ours, eager in zip(torch.compile(f, backend="regraft")(x), f(x), strict=True):
        assert torch.equal(ours, eager)


KEPT_AS_EAGER = {
    "softshrink": lambda x: F.softshrink(x, 0.3).abs(), "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "beyond": lambda x: F.smooth_l1_loss(x.clamp(-2, 2), x * 0, beta=7e4, reduction="none"),
    "none": lambda x: x**0, "ones": lambda x: 1**x,
    "1.0": lambda x: 1.0**x, "float_power": lambda x: torch.float_power(x, 0), "ldexp": lambda x: torch.ldexp(x, x * 2),
    "mean": lambda x: (x.float().nan_to_num(posinf=7e4) * 1.5)[:96].reshape(8, 12).mean(1, dtype=torch.float16),
}  # fmt: skip
if not OLD_TORCH:  # which refuses integers
    KEPT_AS_EAGER["whole"] = lambda x: x.nansum(dtype=torch.int32)
    KEPT_AS_EAGER["whole rows"] = lambda x: x[:96].reshape(8, 12).nansum(1, dtype=torch.int64)


@takes_turns("dynamic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_bit_by_bit(dtype: torch.dtype, dynamic: bool) -> None:
    """Limits that 16 bits do not hold, zeros of both signs, signalling NaN, and what becomes an integer."""
    bits = {torch.float32: (torch.int32, 0x7F800001), torch.float16: (torch.int16, 0x7C01)}.get(
        dtype, (torch.int16, 0x7F81)
    )
    x = torch.tensor([0.0, -0.0, 0.3, -0.3, 0.25, 1.0, -2.0, INFINITY, NAN, 65504.0], dtype=dtype).repeat(10)
    y = x.roll(3)
    signalling = x.clone()
    signalling[3::7] = torch.tensor([bits[1]], dtype=bits[0]).view(dtype)

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        return [
            *(one(z) for one in KEPT_AS_EAGER.values()),
            torch.fmax(x, y),
            torch.fmin(x, y),
            torch.fmax(x, torch.zeros((), dtype=x.dtype)),
        ]

    torch.compiler.reset()
    ours = torch.compile(f, backend="regraft", dynamic=dynamic)(x, y, signalling)
    for name, a, b in zip([*KEPT_AS_EAGER, "fmax", "fmin", "most"], ours, f(x, y, signalling), strict=True):
        same = a.dtype == b.dtype and all(torch.equal(*pair) for pair in zip(classes(a), classes(b), strict=True))
        assert same and torch.equal(a.nan_to_num(), b.nan_to_num()), name


LARGEST = 3.4e38
MEANS = {
    "mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss, "huber": lambda x, y: F.huber_loss(x, y, delta=1e38),
    "soft_margin": F.soft_margin_loss,
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_means_near_the_largest_number(dynamic: bool) -> None:
    """Eager divides by the number of elements first: twice a difference may be none of float32's."""
    x = torch.tensor([LARGEST, -LARGEST, LARGEST / 2, 1.0, -0.0, INFINITY, 1e-38, NAN]).repeat(5)
    y = torch.tensor([1.0, 0.0, -LARGEST / 3, 1.0, 0.0, 1.0, 0.0, 1.0]).repeat(5)

    def f(*given: torch.Tensor) -> list[torch.Tensor]:
        return [one(a, y) for one, a in zip(MEANS.values(), given, strict=True)]

    torch.compiler.reset()
    results = []
    for run in (torch.compile(f, backend="regraft", dynamic=dynamic), f):
        given = [x.clone().requires_grad_() for _ in MEANS]
        results.append(torch.autograd.grad(sum(run(*given)) * 1, given))
    for name, ours, eager in zip(MEANS, *results, strict=True):
        assert all(torch.equal(*pair) for pair in zip(classes(ours), classes(eager), strict=True)), name
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sixths_of_float64(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eager has a sixth in float32: in gradients of `hardsigmoid`, and on GPUs in results too."""
    if device == "cuda":
        pytest.importorskip("triton")
        from support.simulated_gpu import SimulatedGpu

    x, sixth = torch.linspace(-4, 4, 33, dtype=torch.float64), float(torch.tensor(1 / 6))
    gate = (x + 3).clamp(0, 6)

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.hardsigmoid(x), F.hardswish(x)]

    torch.compiler.reset()
    given = x.clone().requires_grad_()
    ours = torch.compile(f, backend=SimulatedGpu(monkeypatch, tmp_path) if device == "cuda" else "regraft")(given)
    slope = torch.autograd.grad(ours[0].sum(), given)[0]
    for result, eager in zip(ours, [gate * sixth, x * gate * sixth] if device == "cuda" else f(x), strict=True):
        assert torch.equal(result, eager)
    assert torch.equal(slope, torch.where(x.abs() < 3, sixth, 0.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64], ids=str)
def test_margins_of_integers(dtype: torch.dtype) -> None:
    """Eager takes the negative of targets as they are: it refuses bools, and wraps what has no sign."""
    x, y = torch.linspace(-3, 3, 12), (torch.arange(12) % 2).to(dtype)
    torch.compiler.reset()
    results = []
    for run in (torch.compile(F.soft_margin_loss, backend="regraft", options={"strict": True}), F.soft_margin_loss):
        given = x.clone().requires_grad_()
        if dtype == torch.bool:
            with pytest.raises(RuntimeError, match="on a bool tensor"):
                run(given, y).backward()
            continue
        run(given, y).backward()
        results.append(given.grad)
    if results:
        torch.testing.assert_close(*results, equal_nan=True)


EXACT = {
    "floor": lambda x: torch.div(x, 3, rounding_mode="floor"),
    "trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % 3, "from below": lambda x: x % -7, "fmod": lambda x: torch.fmod(x, 3),
    "between": lambda x: x.clamp(1, 5), "crossed": lambda x: x.clamp(5, 1), "negative": torch.neg, "abs": torch.abs,
    "sign": torch.sign, "sgn": torch.sgn, "left": lambda x: x << 3, "right": lambda x: x >> 3, "and": lambda x: x & -6,
    "or": lambda x: x | 6, "xor": lambda x: x ^ -1, "not": torch.bitwise_not, "square": lambda x: x**2,
    "cube": lambda x: x**3, "gcd": lambda x: torch.gcd(x, x.flip(0)), "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "fmin": lambda x: torch.fmin(x, x.flip(0)), "times": lambda x: x * 7, "less": lambda x: 1 - x,
    "compared": lambda x: x < x.flip(0), "float": lambda x: x.float(), "bool": lambda x: x.bool(),
    "int8": lambda x: x.to(torch.int8), "quotient": lambda x: x / 3,
    "least nan": lambda x: x.clamp(min=NAN), "copied sign": lambda x: torch.copysign(x, -0.0),
    "heaviside": lambda x: torch.heaviside(x, x.flip(0)), "where": lambda x: torch.where(x > 0, x, -0.0),
}  # fmt: skip
if OLD_TORCH:  # whose eager limits some numbers by NaN, and leaves others alone
    del EXACT["least nan"]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)


def whole_numbers(dtype: torch.dtype) -> torch.Tensor:
    """The least, the greatest, and those between whose products wrap or have no float32."""
    if dtype == torch.bool:
        return torch.tensor([False, True]).repeat(24)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    some = [
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        -1,
        -2,
        -7,
        100,
        -100,
        127,
        255,
        2**24 + 1,
        2**53 + 1,
        least,
        least + 1,
        most,
        most - 1,
    ]
    return torch.tensor([n for n in some if least <= n <= most], dtype=dtype).repeat(3)


def test_whole_numbers_bit_by_bit() -> None:
    given = [whole_numbers(dtype) for dtype in INTEGERS]
    cases = [(name, k) for name, k in product(EXACT, range(len(given))) if _is_taken(EXACT[name], given[k])]

    def f(*given: torch.Tensor) -> list[torch.Tensor]:
        return [EXACT[name](given[k]) for name, k in cases]

    torch.compiler.reset()
    compiled = torch.compile(f, backend="regraft", fullgraph=True, options={"strict": True})
    for (name, k), ours, eager in zip(cases, compiled(*given), f(*given), strict=True):
        assert ours.dtype == eager.dtype, (name, INTEGERS[k])
        same = torch.equal(ours.signbit(), eager.signbit()) if ours.is_floating_point() else True
        assert same and torch.equal(ours.nan_to_num(), eager.nan_to_num()), (name, INTEGERS[k])


def _is_taken(one: Any, x: torch.Tensor) -> bool:
    if x.dtype == torch.bool and one in (EXACT["left"], EXACT["right"]):  # torch's metadata refuses what eager takes
        return False
    try:
        one(x)
    except RuntimeError:
        return False
    return True
