"""Writes how weights that are formulas become pairs of bfloat16 numbers (`cpp_pairs`), 32 words of a column at a time.

    bits of a byte           one look-up (`looked_up`)
    any other formula        16 lanes at a time in float32, then rounded as the program rounds it
    a factor of a group      taken out of the sum of these words, if rows are so few that it pays

A word holds one number, or several neighbours along the depth; rows of the left operand are copied in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...codegen.cpp.value_text import Vectors
from ...ir.dependence import Dependence
from ...ir.index.index import Var, add, mul
from ...ir.value import Load, Op, Value, substitute, walk
from .cpp import GemmCpp
from .cpp_pairs import ahead
from .looked_up import LookedUp, looked_up

WORDS = 32  # of a column that are read at a time
_LANES = 16
_FEWEST = 4  # most rows for which multiplying sums with a factor takes less time than multiplying the weights


@dataclass(frozen=True)
class WeightReading:
    """How 32 words of a weight are read.

    Args:
        step: the loop over words.
        values: of a word.
        tables: the same as look-ups; empty if they are computed.
        factors: what sums of 32 words are multiplied by: nothing, one number, or one for each half.
        many: the loop over 32 words in `factors`.
    """

    step: Var
    values: tuple[Value, ...]
    tables: tuple[LookedUp, ...] = ()
    factors: tuple[Value, ...] = ()
    many: Var | None = None


def reading(step: Var, values: tuple[Value, ...], rows: int) -> WeightReading:
    """How a weight is read, for so many rows."""
    many = Var("q", step.extent // WORDS)
    rest, factors = _without_factor(step, many, values) if rows <= _FEWEST and many.extent else (values, ())
    tables = tuple(found for found in map(looked_up, rest) if found is not None)
    return WeightReading(step, rest, tables if len(tables) == len(rest) else (), factors, many)


def _without_factor(step: Var, many: Var, values: tuple[Value, ...]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The values without a factor that they share and that is the same for 32 or 16 words, and this factor."""
    if step.extent % WORDS or not all(isinstance(value, Op) and value.name == "mul" for value in values):
        return values, ()
    for place in (0, 1):
        same = {value.args[place] for value in values if isinstance(value, Op)}
        rest = tuple(value.args[1 - place] for value in values if isinstance(value, Op))
        factor = next(iter(same))
        if len(same) > 1 or any(
            isinstance(part, Load) and part.dtype in (torch.int8, torch.uint8) for part in walk(same)
        ):
            continue
        halves = _halves(step, many, factor)
        if halves:
            return rest, tuple(_poisoned(half) for half in halves)
    return values, ()


def _halves(step: Var, many: Var, factor: Value) -> tuple[Value, ...]:
    """The factor of 32 words from a multiple of 32 on, or of each half of them; nothing if it changes in between."""
    if step not in Dependence().of(factor):
        return ()
    each = [substitute(factor, {step: add(mul(many.index(), WORDS), word)}) for word in range(WORDS)]
    first, second = dict.fromkeys(each[:_LANES]), dict.fromkeys(each[_LANES:])
    return tuple(dict.fromkeys((*first, *second))) if len(first) == len(second) == 1 else ()


def _poisoned(factor: Value) -> Value:
    """Infinite factors give NaN, as do infinite weights of both signs."""
    return Op("add", (factor, Op("sub", (factor, factor), factor.dtype)), factor.dtype)


class ReadsPairs(GemmCpp):
    """Writes `read` and `last` of `gemm::deep_pairs`, for the column `j`."""

    def _read_pairs(self, how: WeightReading) -> None:
        """Write both, of a weight that is a formula."""
        if how.many is not None:
            self._values.names.variables[how.many] = "q"
        for number, found in enumerate(how.tables):
            self._line(f"constexpr gemm::Row table{number} = {{{', '.join(map(str, found.table))}}};")
        for name, partly in (("read", False), ("last", True)):
            head = f"const auto {name} = [&](i64 k, i64 c, gemm::Pairs* w, [[maybe_unused]] gemm::Sums& factor)"
            with self._w.block(f"{head} __attribute__((always_inline))"):
                self._line("const i64 j = j0 + c;")
                self._request_words(how)
                if how.tables:
                    self._look_up(how, partly)
                else:
                    self._convert(how, partly)
                self._factor(how)
            self._line(";")

    def _request_words(self, how: WeightReading) -> None:
        loads = [part for part in walk(how.values) if isinstance(part, Load)]
        load = next((part for part in loads if part.buffer == self._p.b.buffer.name), loads[0])
        address = self._values.address(load.buffer, load.indices[0])
        self._line(f"__builtin_prefetch({address} + {ahead(self._p)}, 0, 2);")

    def _look_up(self, how: WeightReading, partly: bool) -> None:
        rows = dict[Load, str]()
        for number, found in enumerate(how.tables):
            if found.byte not in rows:
                address = self._values.address(found.byte.buffer, found.byte.indices[0])
                count = "EXTENT - k" if partly else WORDS
                rows[found.byte] = self._w.define("gemm::Row", f"gemm::bytes_at((const u8*)({address}), {count})")
            byte = rows[found.byte]
            place = f"{byte} >> {found.shift}" if found.shift else byte
            self._line(f"w[{number}] = (gemm::Pairs)__builtin_shuffle(table{number}, {place});")

    def _convert(self, how: WeightReading, partly: bool) -> None:
        self._values.vectors = Vectors(how.step, _LANES, 2, frozenset({how.step}))
        halves, left = list[list[str]](), how.step.extent % WORDS
        for copy in range(2):
            if partly and 0 < left <= copy * _LANES:  # not even what all of these words share is there
                halves.append(["X{}"] * len(how.values))
                continue
            mask = self._w.define("V<i32, W>", f"first<W>(EXTENT - k - {copy * _LANES})") if partly else None
            with self._values.masked(mask):
                vectors = [self._values.vector(value, copy) for value in how.values]
                halves.append([f"sel({mask}, {vector}, X{{}})" if mask else vector for vector in vectors])
        for place, (low, high) in enumerate(zip(*halves, strict=True)):
            self._line(f"w[{place}] = gemm::paired({low}, {high});")
        self._values.vectors = None

    def _factor(self, how: WeightReading) -> None:
        if not how.factors:
            return
        self._line("const i64 q = k / 32;")
        first, *second = (self._values.get(factor) for factor in how.factors)
        self._line(f"factor = splat<X>({first});")
        if second:
            upper = "V<i32, W>{0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1}"
            self._line(f"factor = sel({upper}, splat<X>({second[0]}), factor);")
