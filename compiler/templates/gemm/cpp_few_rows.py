"""Products with few rows on a CPU: what takes time is reading the weights, once, as they lie in memory.

    neighbours along the depth side by side             columns side by side
    for each block of W columns, in parallel:           for each block of columns, in parallel:
        for some columns at a time:                         for some of the depth at a time:
            sums += x[all rows, k..] * b[k.., column]           sums[all rows] += x[k] * b[k, columns]
        sums of lanes, by a transposition
        out = f(sums)                                       out = f(sums)

Rows of the left operand are copied as float32 first. The weight is a formula of the loop IR (`Prologue`): 16 bits
become 32 by shifts, bytes and halves of bytes are dequantized in registers. Packed bytes have several places of the
depth in one, neighbours or as far apart as there are bytes: the loop then goes through bytes, and the left operand is
copied in that order. Operands that are
bfloat16 in memory, or computed as bfloat16 (`cpp_read_pairs.py`), are multiplied as pairs if the processor can
(`cpp_pairs.py`). A thread takes as many neighbouring
blocks of columns at once as their sums fit in the first cache, so that it reads long pieces of each row.

    b[j, k] = packed[j, k / 2] >> 4 * (k % 2)   ->   for m: x[2m] * (p[j, m] & 15) + x[2m + 1] * (p[j, m] >> 4)
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...codegen.cpp.arranged import lane_offsets, span
from ...codegen.cpp.dtypes import memory_type
from ...codegen.cpp.value_text import Vectors
from ...codegen.flatten import flatten_value
from ...ir.dependence import Dependence
from ...ir.index.index import Loaded, Var, add, atoms, mul, terms
from ...ir.value import Load, Number, Op, Rewriter, Value, indices_of, substitute, walk
from ..common.cpp_entry import with_entry
from . import cpp_pairs
from .cpp_read_pairs import WORDS, ReadsPairs, reading
from .description import CPU_FEW_ROWS, Product

_SUMS = {16: 16, 8: 8, 4: 8}  # vectors of sums at a time, by lanes
_COLUMNS = 4  # of a weight that are read side by side
_WORDS = ((1, False), (2, False), (4, False), (8, False), (2, True), (4, True))
"""Places of the depth that a word may hold, and whether these are far apart."""
_STEPS, _NARROW_STEPS = 8, 16  # rows of a weight that are read side by side; of elements of less than 4 bytes
_SIDE_BY_SIDE = 4  # vectors of columns that are read of each of them: whole cache lines in a row
_BLOCK = 4  # vectors of columns that are one piece of work
_SUMS_KEPT = 4096  # sums that stay in the first cache
_ROWS_KEPT = 24 << 10  # bytes of the left operand that do
_COPIES = 2  # vectors of a column that are summed apart, beside other columns
_ALONE, _NARROW_ALONE = 8, 4  # of one column, one row; of elements of less than 4 bytes
_AHEAD, _CACHE_LINE = 4096, 64  # bytes from what is computed to what is requested from memory, and of one request

PRELUDE = r"""
namespace gemm {

// sums[l] of W vectors, one after the other: to[l] = the sum of the lanes of vector l.
template <int N> static inline void sum_lanes(f32* to, const f32* sums) {
  typedef V<f32, N> X;
  X x[N];
#pragma GCC unroll 16
  for (int l = 0; l < N; ++l) x[l] = load<N>(sums + l * N);
  transpose(x);
#pragma GCC unroll 16
  for (int half = N / 2; half; half /= 2)
    for (int l = 0; l < half; ++l) x[l] += x[l + half];
  store(to, x[0]);
}

}  // namespace gemm
"""


@dataclass(frozen=True)
class _Plan:
    """How a weight is read: `values` of it for each of the places of the depth that lie in a word, by the loop `step`.

    `deep`: lanes are neighbours along the depth; else they are columns. `apart`: the places of a word are as far apart
    as there are words; else they are neighbours.
    """

    deep: bool
    step: Var
    values: tuple[Value, ...]
    apart: bool = False


def is_served(product: Product, lanes: int) -> bool:
    """Whether a product has few rows, and lanes can read its weight."""
    if product.row.extent > CPU_FEW_ROWS or product.left is not None or product.packed or product.step is None:
        return False
    return _plan(product, lanes) is not None


def few_rows_cpp(product: Product, lanes: int) -> str:
    """The C++ of a product of few rows, as `gemm_cpp` gives it for others; nothing is packed.

    Raises:
        UnsupportedDtype: `f` or the weight is computed with a dtype that C++ has no type for.
    """
    return PRELUDE + cpp_pairs.PRELUDE + _FewRowsCpp(product, lanes).text()


def _weight(product: Product) -> Value:
    """The element of the weight, in float32; without roundings to bfloat16 on the way, which cost time and digits."""
    b, g, j, k = product.b, product.batch, product.column, product.step
    assert k is not None
    if product.right is not None:
        return flatten_value(Rewriter(_unrounded)(product.right.value), product.reads)
    at = add(mul(k.index(), b.row), mul(j.index(), b.column))
    return Load(b.buffer.name, (add(at, mul(g.index(), b.batch) if g.extent > 1 else 0),), torch.float32)


def _unrounded(value: Value) -> Value | None:
    return value.args[0] if isinstance(value, Op) and value.name == "round_bfloat16" else None


def _chosen(value: Value) -> Value | None:
    """What is chosen by a known place."""
    if not isinstance(value, Op) or value.name != "where" or not isinstance(value.args[0], Op):
        return None
    places = [getattr(arg, "index", getattr(arg, "number", None)) for arg in value.args[0].args]
    if value.args[0].name != "eq" or not all(isinstance(place, int) for place in places):
        return None
    return value.args[1 if places[0] == places[1] else 2]


def _plan(product: Product, lanes: int) -> _Plan | None:
    """How lanes can read the weight: along the depth, or along columns; None where neither is side by side."""
    weight, step = _weight(product), product.step
    assert step is not None
    if product.depth == 1:
        return None
    for packed, apart in _WORDS:
        if product.depth % packed:
            continue
        words = product.depth // packed
        outer = step if packed == 1 else Var("m", words)
        at = (add(outer.index(), place * words) if apart else add(mul(outer.index(), packed), place)
              for place in range(packed))  # fmt: skip
        values = (weight,) if packed == 1 else tuple(Rewriter(_chosen)(substitute(weight, {step: k})) for k in at)
        for deep, var in ((True, outer), (False, product.column)):
            if all(_is_side_by_side(value, var, lanes, product.column) for value in values):
                return _Plan(deep, outer, values, apart)
    return None


def _is_side_by_side(value: Value, var: Var, lanes: int, column: Var) -> bool:
    """Whether what a value reads lies side by side along a loop, or is one number for all lanes; some of it does.

    Where numbers of a small table lie does not matter. Lanes may also share words, in an order that all vectors have.
    """
    dependence, strides = Dependence(), list[object]()
    for part in walk([value]):
        if _reads_both(part, dependence, column):
            return False
        if isinstance(part, (Load, Number)) and not _is_chosen(part, var, dependence):
            strides += [_stride(part, at, var, lanes, dependence) for at in indices_of(part) or [0]]
    return all(stride in (0, 1) for stride in strides) and 1 in strides


def _stride(part: Value, at: Any, var: Var, lanes: int, dependence: Dependence) -> Any:
    """How far lanes are from each other; 0 where they share a few elements, or compute a number from what they read."""
    found = dependence.stride(at, var, lanes)
    if found is not None:
        return found
    if isinstance(part, Load):
        return 0 if span(lane_offsets(at, var, lanes, dependence, frozenset({var}))) else None
    return 0 if lane_offsets(at, var, lanes, dependence, frozenset({var})) or _is_of_data(at, var, dependence) else None


def _is_of_data(number: Any, var: Var, dependence: Dependence) -> bool:
    """Whether all parts of a number that differ from lane to lane are read."""
    own = [atom for monomial, _ in terms(number) for atom in monomial if var in dependence.of(atom.index())]
    return all(isinstance(atom, Loaded) for atom in own)


def _reads_both(part: Value, dependence: Dependence, column: Var) -> bool:
    """Whether a place that lanes do not know chooses between parts of a weight: each part would be read for both.

    Columns that are bits of the same bytes (`cat([p & 15, p >> 4])`) read these once.
    """
    if not isinstance(part, Op) or part.name != "where" or not isinstance(part.args[0], Op):
        return False
    place = part.args[0].args[0]
    if part.args[0].name != "eq" or not isinstance(place, Number):
        return False
    one, other = ({below for below in walk([side]) if isinstance(below, Load)} for side in part.args[1:])
    return bool(one and other) and not (dependence.of(place) <= {column} and one == other)


def _is_chosen(part: Value, var: Var, dependence: Dependence) -> bool:
    """Whether a value is a number of a small table, at places that data say, another one in each lane."""
    found = [at for index in part.indices for at in atoms(index)] if isinstance(part, Load) else []
    alone = [at for at in found if isinstance(at, Loaded) and isinstance(part, Load) and part.indices == (at.index(),)]
    return any(var in dependence.of(at.index()) for at in alone)


class _FewRowsCpp(ReadsPairs):
    def __init__(self, product: Product, lanes: int) -> None:
        super().__init__(product, lanes)
        plan = _plan(product, lanes)
        assert plan is not None
        self._plan, self._lanes = plan, lanes
        self._values.names.variables[plan.step] = "k"
        self._extent = plan.step.extent
        self._most = max(_SUMS[lanes] // product.row.extent, 1)  # vectors of sums for each row
        self._block = lanes if plan.deep else _BLOCK * lanes
        self._blocks = -(-product.column.extent // self._block)
        self._many = 1 if plan.deep else min(max(_SUMS_KEPT // product.row.extent // self._block, 1), self._blocks)
        self._pairs = cpp_pairs.reads_pairs(product, lanes, plan.deep)
        self._narrow = product.b.buffer.dtype.itemsize < 4

    def text(self) -> str:
        """The kernel's functions."""
        p = self._p
        self._constants()
        self._memory()
        with self._w.block("for (i64 unit = begin, many; unit < end; unit += many)"):
            self._unit()
        return with_entry(self._w.lines, self._blocks * p.batch.extent, f"{p.multiplications}ll")

    # -- a thread -------------------------------------------------------------------------------------------------

    def _constants(self) -> None:
        p, w = self._p, self._lanes
        self._define({
            "W": w, "ROWS": p.row.extent, "COLUMNS": p.column.extent, "EXTENT": self._extent, "BLOCK": self._block,
            "BLOCKS": self._blocks, "MANY": self._many, "WIDTH": self._many * self._block,
            "PACKED": len(self._plan.values),
            "PITCH": (-(-self._extent // (2 * w)) + 1) * 2 * w,  # rows a power of two apart would displace each other
        })  # fmt: skip
        self._line(f"typedef V<f32, {w}> X;")

    def _memory(self) -> None:
        self._pointers_to_buffers()
        self._line(
            "constexpr i64 LINE = PACKED * PITCH;",
            f"const Heap scratch((ROWS * LINE + ROWS * WIDTH{' + ROWS * W * W' if self._plan.deep else ''}) * 4);",
            "f32* const x = (f32*)scratch.memory;", "f32* const tile = x + ROWS * LINE;", "i64 known = -1;",
        )  # fmt: skip

    def _unit(self) -> None:
        self._line(
            "const i64 g = unit / BLOCKS, block = unit % BLOCKS, j0 = block * BLOCK;",
            "many = least(least(end - unit, BLOCKS - block), MANY);",
            "const i64 stop = least(j0 + many * BLOCK, COLUMNS);",
        )  # fmt: skip
        if self._pairs:
            self._line("#if DOTS")
            self._multiply_pairs()
            self._line("#else")
        with self._w.block("if (g != known)"):
            self._rows()
        if self._plan.deep:
            self._deep()
        else:
            self._wide()
        if self._pairs:
            self._line("#endif")
        with self._w.block("for (i64 i = 0; i < ROWS; ++i)"):
            self._line("const f32* const row = tile + i * WIDTH;")
            self._epilogue()

    def _multiply_pairs(self) -> None:
        a, b = self._p.a, self._p.b
        self._line("u16* const pairs = (u16*)x;")
        with self._w.block("if (g != known)"):
            given = f"pairs, PITCH * PACKED, (const u16*)({self._base(a)}), {a.row}ll, EXTENT"
            apart = "true" if self._plan.apart else "false"
            self._line("known = g;", f"gemm::copy_pairs<ROWS, PACKED, {apart}>({given});")
        if self._plan.deep:
            self._deep_pairs()
            return
        weight = f"(const u16*)({self._base(b)}) + j0 * {b.column}ll"
        self._line(f"gemm::wide_pairs<ROWS>(tile, WIDTH, pairs, PITCH, {weight}, {b.row}ll, EXTENT, stop - j0);")

    def _deep_pairs(self) -> None:
        """Column after column, for some of the depth at a time, so that rows stay in the first cache."""
        b, rows = self._p.b, self._p.row.extent
        most = max(_ROWS_KEPT // (2 * rows * len(self._plan.values)), WORDS)
        pieces = -(-self._extent // most)
        some = -(-self._extent // (pieces * WORDS)) * WORDS
        how = None if self._p.right is None else reading(self._plan.step, self._plan.values, rows)
        self._line("f32* const sums = tile + ROWS * WIDTH;")
        if how is None:
            weight = f"(const u16*)({self._base(b)}) + j0 * {b.column}ll, {b.column}ll"
            self._line(f"const gemm::InPlace<{cpp_pairs.ahead(self._p)}> read = {{{weight}}};")
            self._line(f"const gemm::InPart last = {{{weight}, EXTENT}};")
        else:
            self._read_pairs(how)
        kind = f"ROWS, PACKED, {'true' if how is not None and how.factors else 'false'}"
        given = f"sums, pairs, PITCH * PACKED, least(stop - j0, W), k0, least(k0 + {some}, EXTENT), read, last"
        self._line(f"for (i64 k0 = 0; k0 < EXTENT; k0 += {some}) gemm::deep_pairs<{kind}>({given});")
        self._line("for (int r = 0; r < ROWS; ++r) gemm::sum_lanes<W>(tile + r * WIDTH, sums + r * W * W);")

    def _rows(self) -> None:
        """Copy the left operand: places of one word apart from each other, zeros after the last."""
        a = self._p.a
        self._line("known = g;", "for (i64 n = 0; n < ROWS * LINE; ++n) x[n] = 0.0f;")
        self._line(f"const {memory_type(a.buffer.dtype)}* const a = {self._base(a)};")
        with self._w.block("for (i64 r = 0; r < ROWS; ++r) for (i64 p = 0; p < PACKED; ++p)"):
            place = "p * EXTENT + k" if self._plan.apart else "k * PACKED + p"
            self._line(f"for (i64 k = 0; k < EXTENT; ++k) x[r * LINE + p * PITCH + k] = "
                       f"get(a + r * {a.row}ll + {place});")  # fmt: skip

    # -- lanes along the depth ------------------------------------------------------------------------------------

    def _deep(self) -> None:
        columns = 1 << (min(self._most, _COLUMNS).bit_length() - 1)  # a power of two: it divides the lanes
        copies = _COPIES
        if self._p.row.extent == 1:  # one stream from memory
            columns, copies = 1, _NARROW_ALONE if self._narrow else _ALONE
        while copies > 1 and self._p.row.extent * columns * copies * len(self._plan.values) > _SUMS[self._lanes]:
            copies //= 2
        self._line("f32* const sums = tile + ROWS * WIDTH;")
        with self._w.block(f"for (i64 c = 0; c < W; c += {columns})"):
            self._line(f"X acc[{copies}][ROWS][{columns}] = {{}};", "i64 k = 0;")
            for many in dict.fromkeys((copies, 1)):
                with self._w.block(f"for (; k + {many} * W <= EXTENT; k += {many} * W)"):
                    self._deep_step(columns, many, None)
            if self._extent % self._lanes:
                self._line("const V<i32, W> inside = first<W>(EXTENT - k);")
                self._deep_step(columns, 1, "inside")
            total = " + ".join(f"acc[{copy}][r][n]" for copy in range(copies))
            self._line("#pragma GCC unroll 16", "for (int r = 0; r < ROWS; ++r)", "#pragma GCC unroll 16")
            self._line(f"  for (int n = 0; n < {columns}; ++n) store(sums + (r * W + c + n) * W, {total});")
        self._line("for (int r = 0; r < ROWS; ++r) gemm::sum_lanes<W>(tile + r * WIDTH, sums + r * W * W);")

    def _deep_step(self, columns: int, copies: int, mask: str | None) -> None:
        """Some columns' weights of some vectors of the depth, multiplied with all rows."""
        step = self._plan.step
        self._values.vectors = Vectors(step, self._lanes, copies, frozenset({step}))
        self._line("#pragma GCC unroll 16")
        with self._w.block(f"for (int n = 0; n < {columns}; ++n)"), self._values.masked(mask):
            self._line("[[maybe_unused]] const i64 j = least(j0 + c + n, COLUMNS - 1);")
            for place, value in enumerate(self._plan.values):
                for copy in range(copies):
                    if mask is None and place == 0:
                        self._request(value, columns, copy)
                    weight = self._values.vector(value, copy)
                    weight = weight if mask is None else f"sel({mask}, {weight}, X{{}})"
                    at = f"x + r * LINE + {place} * PITCH + k + {copy} * W"
                    self._line(
                        "#pragma GCC unroll 16", "for (int r = 0; r < ROWS; ++r)",
                        f"  acc[{copy}][r][n] = fma(load<W>({at}), {weight}, acc[{copy}][r][n]);",
                    )  # fmt: skip
        self._values.vectors = None

    def _request(self, value: Value, columns: int, copy: int) -> None:
        """Ask memory for what is read soon: with conversions, a processor has too few loads under way by itself."""
        b = self._p.b
        size = b.buffer.dtype.itemsize
        if not self._narrow or copy * self._lanes * size % _CACHE_LINE:
            return
        ahead = _AHEAD if columns == 1 else columns * b.column * size
        for part in walk([value]):
            if isinstance(part, Load) and part.buffer == b.buffer.name:
                address = self._values.address(part.buffer, part.indices[0], copy)
                self._line(f"__builtin_prefetch((const char*)({address}) + {ahead});")
                return

    # -- lanes along the columns ----------------------------------------------------------------------------------

    def _wide(self) -> None:
        steps = min(_NARROW_STEPS if self._narrow and len(self._plan.values) == 1 else _STEPS, self._extent)
        self._line("i64 k0 = 0;")
        with self._w.block(f"for (; k0 + {steps} <= EXTENT; k0 += {steps})"):
            self._wide_steps(steps)
        if self._extent % steps:
            self._line(f"constexpr i64 REST = EXTENT % {steps};")
            with self._w.block():
                self._wide_steps("REST")

    def _wide_steps(self, steps: int | str) -> None:
        self._line("i64 j = j0;")
        many = _SIDE_BY_SIDE if self._p.row.extent == 1 and not self._narrow else 1
        for count in dict.fromkeys((many, 1)):
            with self._w.block(f"for (; j + {count} * W <= stop; j += {count} * W)"):
                self._wide_vectors(steps, count, None)
        if self._p.column.extent % self._lanes:
            with self._w.block("if (j < stop)"):
                self._line("const V<i32, W> inside = first<W>(stop - j);")
                self._wide_vectors(steps, 1, "inside")

    def _wide_vectors(self, steps: int | str, count: int, mask: str | None) -> None:
        """Some vectors of columns, some of the depth."""
        column = self._p.column
        self._values.vectors = Vectors(column, self._lanes, count, frozenset({column}))
        self._line(f"X acc[{count}][ROWS] = {{}};", "#pragma GCC unroll 16")
        with self._w.block(f"for (int q = 0; q < {steps}; ++q)"):
            self._line("const i64 k = k0 + q;")
            with nullcontext() if mask is None else self._values.masked(mask):
                for place, value in enumerate(self._plan.values):
                    for copy in range(count):
                        weight = self._values.vector(value, copy)
                        self._line(
                            "#pragma GCC unroll 16", "for (int r = 0; r < ROWS; ++r)",
                            f"  acc[{copy}][r] = fma(splat<X>(x[r * LINE + {place} * PITCH + k]), {weight}, "
                            f"acc[{copy}][r]);",
                        )  # fmt: skip
        with self._w.block(f"for (int r = 0; r < ROWS; ++r) for (int n = 0; n < {count}; ++n)"):
            self._line("f32* const to = tile + r * WIDTH + (j - j0) + n * W;",
                       "store(to, k0 ? load<W>(to) + acc[n][r] : acc[n][r]);")  # fmt: skip
        self._values.vectors = None
