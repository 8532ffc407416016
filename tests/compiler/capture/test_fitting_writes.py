"""Results that do not fit the tensor that a call writes in place: refused where eager refuses them, and only there."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from support.thorough import one_row_in
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


@one_row_in(2)
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


@pytest.mark.parametrize("name", ["addr_", "addmm_", "addmv_", "baddbmm_"])
def test_results_of_more_dims(name):
    """Products are broadcast to, out of place."""
    rows = {"addr_": (1, 1), "addmm_": (2, 2), "addmv_": (2, 1), "baddbmm_": (3, 3)}[name]
    target, others = getattr(torch.ops.aten, name).default, [torch.ones((2,) * dims) for dims in rows]
    made = getattr(torch, name.removesuffix("_"))(torch.ones(()), *others)
    for dims in range(made.dim() + 1):
        given = (torch.ones((2,) * dims), *others)
        assert (misfit(in_graph(target, given)) is None) == (answer(target, given) is None), dims


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


def with_places(function: Any) -> Any:
    """A call that gives values and their places, as one that is given memory for the values."""
    return lambda x, out: function(x, out=(out, torch.empty(x.shape, dtype=torch.int64)))[0]


F32, F64 = torch.float32, torch.float64
OUT = {
    "one operand": (torch.bitwise_not, torch.int64, F32), "conjugate": (torch.conj_physical, F32, F64),
    "vectors": (lambda x, out: torch.cross(x, x, 1, out=out), F32, F64),
    "members": (lambda x, out: torch.isin(x, x, out=out), F32, torch.uint8),
    "diagonal": (lambda x, out: torch.diag(x[0], out=out), F32, F64),
    "matrices": (lambda x, out: torch.mm(x, x.t(), out=out), F32, torch.bfloat16),
    "running": (with_places(lambda x, out: torch.cummax(x, 0, out=out)), F32, F64),
    "sorted": (with_places(torch.sort), F32, F64),
    "complex": (lambda x, out: torch.complex(x, x, out=out), F32, torch.complex128),
    "cast": (lambda x, out: torch.add(x, 1, out=out), F32, F64),
    "cast to fewer bits": (lambda x, out: torch.mul(x, x, out=out), F32, torch.bfloat16),
    "no cast": (lambda x, out: torch.sin(x, out=out), F32, torch.int64),
    "sum": (lambda x, out: torch.sum(x, 0, out=out), F32, F64),
    "truth": (lambda x, out: torch.all(x, 0, out=out), torch.uint8, torch.uint8),
    "held before": (lambda x, out: torch.fft.ihfftn(x, dim=0, out=out), F32, torch.complex64),
    "own operand": (lambda x, out: torch.cross(x, x + 1, 1, out=x), F32, F32),
    "view of an operand": (lambda x, out: torch.cross(x[:], x + 1, 1, out=x), F32, F32),
    "largest of itself": (lambda x, out: torch.amax(x[0, 0], (), out=x[0, 0]), F32, F32),
    "other half": (lambda x, out: torch.cumsum(x[0], 0, out=x[1]), F32, F32),
}  # fmt: skip


@pytest.mark.parametrize("name", OUT)
def test_results_of_another_dtype_given_by_the_caller(name):
    """`out=`: refused where eager refuses it; where eager casts, or computes otherwise, so do we."""
    call, dtype, other = OUT[name]
    x = (torch.arange(6.0).reshape(2, 3) - 2).to(dtype)
    sizes = {"diagonal": (3, 3), "matrices": (2, 2), "sum": (3,), "truth": (3,), "held before": (2, 3)}.get(
        name, (2, 3)
    )

    def program(x, out):
        return call(x, out=out) * 1

    def run(function):
        try:
            return function(x.clone(), torch.ones(sizes, dtype=other))
        except RuntimeError as error:
            return error

    torch._dynamo.reset()
    with regraft.coverage() as found:
        ours = run(torch.compile(program, backend="regraft"))
    eager = run(program)
    refused = isinstance(eager, RuntimeError)
    assert refused == isinstance(ours, RuntimeError), (ours, eager)
    assert refused or torch.equal(ours, eager)
    assert not any(f.fault for f in found.fallbacks)
