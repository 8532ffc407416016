"""Random numbers as arithmetic: Philox of a seed and a counter, so that an element's number depends on its place alone.

    seed  = one int64 from eager's generator, per run (so `torch.manual_seed` makes runs reproducible)
    bits  = philox(seed, stream * 2**40 + place of the element)         stream: which call of the graph it is
    rand  = bits * 2**-24        randn = sqrt(-2 log u) cos(2 pi v)        bernoulli = rand < p

The numbers are not eager's; the distributions are. Without ``random="philox"`` these calls stay calls.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from torch import fx

from ..ir.index import add, mul
from ..ir.program import Buffer, Extern
from ..ir.value import Load, Op, Value, compute_dtype
from .arithmetic import negated, op, plus, times
from .core import Indices, Lowering, Tensor, Unlowered, cast, const, contiguous, lowers
from .elementwise import element, literal
from .pointwise import copied
from .views import promised_sizes

STREAM_BITS = 40  # elements that a stream can tell apart
UNIFORM_BITS = {torch.bfloat16: 8, torch.float16: 11}  # as many as the significand holds; 24 else


def _seed(low: Lowering) -> Value:
    """The seed of this run, drawn before the first definition that needs it; one for each device."""
    name = f"philox_seed_{low.device.type}{low.device.index if low.device.index is not None else ''}"
    if name not in low.buffers:
        low.buffers[name] = Buffer(name, torch.int64, (), (), low.device)
        low.items.append(Extern(name, _draw(name, low.device), (), (name,), "random", False))
    return Load(name, (), torch.int64)


def _draw(name: str, device: torch.device) -> fx.Node:
    graph = fx.Graph()
    options = {"dtype": torch.int64, "device": device}
    node = graph.create_node("call_function", torch.ops.aten.randint.low, (0, 2**63 - 1, []), options, name)
    node.meta["val"] = torch.empty((), dtype=torch.int64, device="meta")
    return node


class Stream:
    """The bits of one random call: different for every element, and for every call of the graph.

    Raises:
        Unlowered: eager's own numbers are wanted, or those of a generator of the user's.
    """

    def __init__(self, low: Lowering, sizes: Indices, generator: Any = None) -> None:
        if low.random != "philox":
            raise Unlowered("random", "the same numbers as eager, from the same generator")
        if generator is not None:
            raise Unlowered("random", "a generator of the user's")
        self._seed = _seed(low)
        self._strides = contiguous(sizes)
        self._first = low.stream() << STREAM_BITS

    def word(self, indices: Indices, which: int = 0) -> Value:
        """One of the element's four words, int64 in [0, 2**32)."""
        place = reduce(add, map(mul, indices, self._strides), self._first)
        return Op(f"philox{which}", (self._seed, literal(place, torch.int64)), torch.int64)

    def uniform(self, indices: Indices, bits: int = 24, which: int = 0) -> Value:
        """In [0, 1), a multiple of ``2**-bits``, float32."""
        whole = op("rshift", self.word(indices, which), 32 - bits)
        return times(cast(whole, torch.float32), 2.0**-bits)

    def uniform_double(self, indices: Indices) -> Value:
        """In [0, 1), 53 bits, float64."""
        high, low = op("rshift", self.word(indices), 5), op("rshift", self.word(indices, 1), 6)
        total = plus(times(high, 2**26), low)
        return times(cast(total, torch.float64), 2.0**-53)

    def open_uniform(self, indices: Indices, which: int = 0) -> Value:
        """In (0, 1), both ends excluded, float32."""
        return plus(self.uniform(indices, 23, which), 2.0**-24)

    def normal(self, indices: Indices) -> Value:
        """Mean 0, deviation 1 (Box and Muller), float32."""
        radius = op("sqrt", times(-2.0, op("log", self.open_uniform(indices))))
        return times(radius, op("cos", times(2 * math.pi, self.uniform(indices, 24, 1))))


def _result(low: Lowering, output: int | None = None) -> tuple[Indices, torch.dtype]:
    meta = low.current.meta["val"]
    return promised_sizes(low, output), (meta if output is None else meta[output]).dtype


# -- uniform --------------------------------------------------------------------------------------------------------


@lowers("aten.rand.default", "aten.rand_like.default")
def _rand(low: Lowering, _: Any, **_more: Any) -> Tensor:
    return _uniform(low, None, 0.0, 1.0)


@lowers("aten.uniform")
def _uniform(low: Lowering, _: Any, least: float = 0.0, most: float = 1.0, *, generator: Any = None) -> Tensor:
    sizes, dtype = _result(low)
    stream = Stream(low, sizes, generator)
    bits = UNIFORM_BITS.get(dtype, 24)

    def value(i: Indices) -> Value:
        drawn = stream.uniform_double(i) if dtype == torch.float64 else stream.uniform(i, bits)
        return drawn if (least, most) == (0.0, 1.0) else plus(times(drawn, most - least), least)

    return low.pointwise(value, sizes, dtype)


@lowers("aten.randint.default", "aten.randint_like.default")
def _randint(low: Lowering, a: Any, b: Any, **_more: Any) -> Tensor:
    """``randint(high, sizes)`` and ``randint_like(x, high)``."""
    return _integers(low, 0, b if isinstance(a, Tensor) else a)


@lowers("aten.randint.low")
def _randint_low(low: Lowering, least: Any, high: Any, _sizes: Any, **_more: Any) -> Tensor:
    return _integers(low, least, high)


@lowers("aten.randint_like.low_dtype")
def _randint_like_low(low: Lowering, _: Tensor, least: Any, high: Any, **_more: Any) -> Tensor:
    return _integers(low, least, high)


def _integers(low: Lowering, least: Any, high: Any) -> Tensor:
    """In [least, high): 63 bits, so that no value is noticeably likelier than another; 32 for up to 2**16 values."""
    if not isinstance(least, int) or not isinstance(high, int) or not 0 < high - least < 2**62:
        raise Unlowered("arguments", f"integers between {least} and {high}")
    sizes, dtype = _result(low)
    stream, span = Stream(low, sizes), high - least

    def value(i: Indices) -> Value:
        bits = stream.word(i)
        if span > 2**16:
            bits = op("bitwise_or", op("lshift", bits, 31), op("rshift", stream.word(i, 1), 1))
        return cast(plus(op("remainder", bits, span), least), compute_dtype(dtype))

    return low.pointwise(value, sizes, dtype)


# -- normal and exponential -----------------------------------------------------------------------------------------


@lowers("aten.randn.default", "aten.randn_like.default")
def _randn(low: Lowering, _: Any, **_more: Any) -> Tensor:
    return _normal(low, 0.0, 1.0, None)


@lowers("aten.normal_functional")
def _normal_functional(
    low: Lowering, _: Tensor, mean: float = 0.0, deviation: float = 1.0, *, generator: Any = None
) -> Tensor:
    return _normal(low, mean, deviation, generator)


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def _normal_tensors(low: Lowering, mean: Any, deviation: Any = 1.0, *, generator: Any = None) -> Tensor:
    return _normal(low, mean, deviation, generator)


@lowers("aten.normal.float_float")
def _normal_sizes(
    low: Lowering, mean: float, deviation: float, _: Any, *, generator: Any = None, **_more: Any
) -> Tensor:
    return _normal(low, mean, deviation, generator)


def _normal(low: Lowering, mean: Any, deviation: Any, generator: Any) -> Tensor:
    sizes, dtype = _result(low)
    stream, computed = Stream(low, sizes, generator), compute_dtype(dtype)

    def value(i: Indices) -> Value:
        shift, scale = (
            cast(element(n, i), computed) if isinstance(n, Tensor) else const(n, computed) for n in (mean, deviation)
        )
        return plus(times(cast(stream.normal(i), computed), scale), shift)

    return low.pointwise(value, sizes, dtype)


@lowers("aten.exponential")
def _exponential(low: Lowering, x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    stream = Stream(low, x.sizes, generator)
    computed = compute_dtype(x.dtype)

    def value(i: Indices) -> Value:
        return times(cast(negated(op("log", stream.open_uniform(i))), computed), 1.0 / rate)

    return low.pointwise(value, x.sizes, x.dtype)


# -- yes or no ------------------------------------------------------------------------------------------------------


@lowers("aten.bernoulli.default")
def _bernoulli(low: Lowering, x: Tensor, *, generator: Any = None) -> Tensor:
    return _chances(low, x, x, generator)


@lowers("aten.bernoulli.p", "aten.bernoulli.Tensor")
def _bernoulli_of(low: Lowering, x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    return _chances(low, x, p, generator)


def _chances(low: Lowering, x: Tensor, p: Any, generator: Any) -> Tensor:
    stream = Stream(low, x.sizes, generator)

    def value(i: Indices) -> Value:
        chance = cast(element(p, i), torch.float32) if isinstance(p, Tensor) else const(p, torch.float32)
        return cast(op("lt", stream.uniform(i), chance), compute_dtype(x.dtype))

    return low.pointwise(value, x.sizes, x.dtype)


@lowers("aten.native_dropout")
def _dropout(low: Lowering, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """As eager: ``x * mask * scale``, so that what is not finite becomes NaN where it is dropped."""
    computed = compute_dtype(x.dtype)
    if train is False or p == 0:
        return copied(low, x), low.pointwise(lambda i: const(True, torch.bool), x.sizes, torch.bool)
    stream, scale = Stream(low, x.sizes), 0.0 if p == 1 else 1.0 / (1.0 - p)
    low.output = 1
    kept = low.pointwise(lambda i: op("ge", stream.uniform(i), const(p, torch.float32)), x.sizes, torch.bool)
    low.output = 0
    result = low.pointwise(lambda i: times(times(x.at(i), cast(kept.at(i), computed)), scale), x.sizes, x.dtype)
    low.output = None
    return result, kept
