"""Random numbers as arithmetic on a seed and the place of an element: the operators of `prims`, in kernels.

    %mask = regraft.bernoulli([8, 64], 0.9, %seed)    ->    for i < 8, j < 64:
                                                                mask[i, j] = philox0(seed[], 64*i + j) < 0.9 * 2**32

Each call has a seed of its own, read from memory, so that equal layers give equal kernels.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch

from ...ir.index.index import Index, add, mul
from ...ir.value import Number, Op, Value, compute_dtype
from ...prims import UNIFORM_BITS, threshold
from ..arithmetic import op, plus, times
from ..core import Indices, Lowering, Tensor, Unlowered, cast, const, contiguous, lowers
from ..scalars import literal
from .copies import copied
from .views import promised_sizes


class Stream:
    """The bits of one random call, by element."""

    def __init__(self, sizes: Indices, seed: Tensor) -> None:
        self._seed = seed.at(())
        self._strides = contiguous(sizes)

    def _place(self, indices: Indices) -> Any:
        return reduce(add, map(mul, indices, self._strides), 0)

    def word(self, indices: Indices, which: int = 0) -> Value:
        """One of the element's four words, int64 in [0, 2**32)."""
        return Op(f"philox{which}", (self._seed, literal(self._place(indices), torch.int64)), torch.int64)

    def hashed(self, indices: Indices) -> Value:
        """The element's hash, int32 of any sign: lanes of 32 bits from end to end."""
        place = self._place(indices)
        number = Number(place, torch.int32) if isinstance(place, Index) else const(place, torch.int32)
        low, high = (cast(half, torch.int32) for half in (self._seed, op("rshift", self._seed, 32)))
        first = _hash32(low, high, high)
        return _hash32(number, first, _hash32(high, first, low))

    def uniform(self, indices: Indices, bits: int = 24, which: int = 0) -> Value:
        """In [0, 1), a multiple of ``2**-bits``, float32."""
        whole = op("rshift", self.word(indices, which), 32 - bits)
        return times(cast(whole, torch.float32), 2.0**-bits)

    def uniform_hashed(self, indices: Indices, bits: int = 24) -> Value:
        """The same, of the hash."""
        signed = op("rshift", self.hashed(indices), 32 - bits)
        return times(cast(plus(signed, 2 ** (bits - 1)), torch.float32), 2.0**-bits)

    def uniform_double(self, indices: Indices) -> Value:
        """In [0, 1), 53 bits, float64."""
        high, low = op("rshift", self.word(indices), 5), op("rshift", self.word(indices, 1), 6)
        total = plus(times(high, 2**26), low)
        return times(cast(total, torch.float64), 2.0**-53)


def _hash32(number: Value, key0: Value, key1: Value) -> Value:
    return Op("hash32", (number, key0, key1), torch.int32)


def _result(low: Lowering) -> tuple[Indices, torch.dtype]:
    return promised_sizes(low), low.current.meta["val"].dtype


@lowers("regraft.bernoulli")
def _bernoulli(low: Lowering, _size: Any, p: float, seed: Tensor, fast: bool = False) -> Tensor:
    sizes, dtype = _result(low)
    stream, limit = Stream(sizes, seed), threshold(p)

    def value(i: Indices) -> Value:
        if not 0 < limit < 2**32:
            return const(limit > 0, torch.bool)
        return op("lt", stream.hashed(i), limit - 2**31) if fast else op("lt", stream.word(i), limit)

    return low.pointwise(value, sizes, dtype)


@lowers("regraft.uniform")
def _uniform(
    low: Lowering, _size: Any, seed: Tensor, _dtype: Any, interior: bool = False, fast: bool = False
) -> Tensor:
    sizes, dtype = _result(low)
    stream, bits = Stream(sizes, seed), 23 if interior else UNIFORM_BITS.get(dtype, 24)

    def value(i: Indices) -> Value:
        if dtype == torch.float64 and not interior:
            return stream.uniform_double(i)
        drawn = stream.uniform_hashed(i, bits) if fast else stream.uniform(i, bits)
        return cast(plus(drawn, 2.0**-24) if interior else drawn, compute_dtype(dtype))

    return low.pointwise(value, sizes, dtype)


@lowers("regraft.normal")
def _normal(low: Lowering, _size: Any, seed: Tensor, _dtype: Any) -> Tensor:
    """Mean 0, deviation 1 (Box and Muller), of float32 numbers in every dtype."""
    sizes, dtype = _result(low)
    stream = Stream(sizes, seed)

    def value(i: Indices) -> Value:
        radius = op("sqrt", times(-2.0, op("log", plus(stream.uniform(i, 23), 2.0**-24))))
        angle = times(stream.uniform(i, 24, 1), 2 * math.pi)
        return cast(times(radius, op("cos", angle)), compute_dtype(dtype))

    return low.pointwise(value, sizes, dtype)


@lowers("regraft.integers")
def _integers(low: Lowering, _size: Any, least: Any, high: Any, seed: Tensor, _dtype: Any) -> Tensor:
    """In [least, high)."""
    if not isinstance(least, int) or not isinstance(high, int):
        raise Unlowered("arguments", f"integers between {least} and {high}")
    sizes, dtype = _result(low)
    stream, span = Stream(sizes, seed), high - least

    def value(i: Indices) -> Value:
        bits = stream.word(i)
        if span > 2**16:
            bits = op("bitwise_or", op("lshift", bits, 31), op("rshift", stream.word(i, 1), 1))
        return cast(plus(op("remainder", bits, span), least), compute_dtype(dtype))

    return low.pointwise(value, sizes, dtype)


@lowers("aten.native_dropout")
def _inactive_dropout(low: Lowering, x: Tensor, _p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Out of training; in training it draws even with p = 0."""
    if train is not False:
        raise Unlowered("random", "the same numbers as eager, from the same generator")
    return copied(low, x), low.pointwise(lambda i: const(True, torch.bool), x.sizes, torch.bool, output=1)
