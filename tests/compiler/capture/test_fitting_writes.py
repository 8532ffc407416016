"""Results that do not fit the tensor that a call writes in place: refused where eager refuses them, and only there."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import fx

import regraft
from regraft.compiler.capture.fitting_writes import misfit

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
REFUSALS = ("can't be cast", "output with shape", "doesn't match the broadcast shape")
CALLS = [
    (name, getattr(torch.ops.aten, name), names)
    for name, names in (
        *((f"{n}_", "Tensor") for n in ("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow")),
        *((f"{n}_", "Tensor") for n in ("eq", "ne", "lt", "ge", "bitwise_and", "bitwise_xor", "xlogy", "copysign")),
        *((f"{n}_", "Tensor") for n in ("clamp_min", "clamp_max", "bitwise_left_shift", "float_power")),
        *((f"{n}_", "Scalar") for n in ("add", "sub", "mul", "div", "remainder", "lt", "bitwise_or")),
        *((f"{n}_", "default") for n in ("atan2", "hypot", "nextafter", "logical_and", "logical_xor", "gcd", "lcm")),
        *((f"{n}_", "default") for n in ("heaviside", "addcmul", "addcdiv", "ldexp", "fmax", "sqrt", "neg")),
        ("lerp_", "Scalar"), ("lerp_", "Tensor"), ("masked_fill_", "Scalar"), ("where_", "self"), ("clamp_", "Tensor"),
    )
    if hasattr(torch.ops.aten, name)
]  # fmt: skip


def operands(overload: str, name: str, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    if name == "masked_fill_":
        return x, y > 0 if not y.is_complex() else y.real > 0, 1
    if name == "lerp_":
        return x, y, (0.5 if overload == "Scalar" else y)
    if overload == "Scalar":
        return x, 2j if y.is_complex() else 2.5 if y.is_floating_point() else True if y.dtype == torch.bool else 2
    if name in ("sqrt_", "neg_"):
        return (x,)
    return (x, y, y) if name in ("addcmul_", "addcdiv_") else (x, y)


def answer(target: Any, given: tuple[Any, ...]) -> str | None:
    """What eager says where it refuses a call; None where it takes it."""
    try:
        target(*(x.clone() if isinstance(x, torch.Tensor) else x for x in given))
    except (RuntimeError, NotImplementedError) as error:
        return str(error)
    return None


def in_graph(target: Any, given: tuple[Any, ...]) -> fx.Node:
    graph, args = fx.Graph(), []
    for k, x in enumerate(given):
        if isinstance(x, torch.Tensor):
            node = graph.placeholder(f"x{k}")
            node.meta["val"] = x
            args.append(node)
        else:
            args.append(x)
    return graph.call_function(target, tuple(args))


@pytest.mark.parametrize(("name", "packet", "overload"), CALLS, ids=lambda x: x if isinstance(x, str) else "")
def test_as_eager(name, packet, overload):
    target, missed, extra = getattr(packet, overload), [], []
    functional = getattr(torch.ops.aten, name.removesuffix("_"))
    for a, b, (rows, others) in product(DTYPES, DTYPES, (((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 3), (3,)))):
        given = operands(overload, name, torch.ones(rows, dtype=a), torch.ones(others, dtype=b))
        eager, found = answer(target, given), misfit(in_graph(target, given))
        misfits = eager is not None and any(text in eager for text in REFUSALS) and answer(functional, given) is None
        if found is None and misfits:
            missed.append((a, b, rows, others))
        if found is not None and eager is None:
            extra.append((a, b, rows, others, found))
    assert not missed and not extra


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.sum().lt_(x) * 1,
        lambda x: x.sum().long().bitwise_and_(x.long()) * 1,
        lambda x: x.long().sub_(torch.tensor(2j)) * 1,
        lambda x: x.sum().atan2_(x) + 1,
        lambda x: x[0].eq_(x[:, :1]) + 1,
    ],
)
def test_programs(write):
    x = torch.randn(4, 6)
    with pytest.raises(RuntimeError) as eager:
        write(x.clone())
    torch._dynamo.reset()
    with regraft.coverage() as found, pytest.raises(RuntimeError) as ours:
        torch.compile(write, backend="regraft")(x.clone())
    assert str(ours.value) == str(eager.value) or "when making fake tensor call" in str(ours.value)
    assert not any(f.fault for f in found.fallbacks)
