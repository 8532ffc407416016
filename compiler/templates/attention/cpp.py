"""The attention kernel: from a description to C++.

    for each lead iteration and block of queries, in parallel:
        pack k (transposed) and v of this head into panels, unless they are there from the block before
        for each chunk of keys:                                   one chunk, unless the head outgrows the cache
            S = q @ k^T                                           micro-kernel, a strip of rows at a time
            S = exp(f(S) - row maximum), row sums                 rescaling what earlier chunks came to
            O += S @ v                                            micro-kernel
        out = O / row sum

The scores of a block never leave the cache, and are exactly eager's `f` of the products: NaN and infinities spread as
they do there. Rows without a finite score give NaN, or 0 in the safe variant. Keys that `f` hides from every row of a
block (see `mask_bounds`) are left out, unless v holds infinities or NaN: those times 0 are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...codegen.cpp.dtypes import memory_type
from ...codegen.cpp.value_text import Vectors
from ..common.cpp_entry import with_entry
from ..common.cpp_text import CppText
from ..common.micro_kernel import PANEL
from .cpu_tiles import tiling
from .description import SCORE, Attention, Operand
from .mask_bounds import horizon
from .score import flat

PRELUDE = r"""
namespace attention {

// Puts exp(row - max) in place of a row; `top` and `sum` are the row's maximum and sum so far. Gives what the result of
// earlier chunks must be multiplied with.
template <int N>
static inline f32 exponentiate(f32* row, i64 vectors, f32& top, f32& sum) {
  typedef V<f32, N> X;
  X m = splat<X>(top), total = {};
  for (i64 j = 0; j < vectors; ++j) {
    const X x = load<N>(row + j * N);
    m = x > m ? x : m;
  }
  f32 high = m[0];
  for (int l = 1; l < N; ++l) high = m[l] > high ? m[l] : high;
  const f32 shift = high == -__builtin_inff() ? 0.0f : high;
  for (i64 j = 0; j < vectors; ++j) {
    const X e = op_exp(load<N>(row + j * N) - shift);
    store(row + j * N, e);
    total += e;
  }
  f32 added = 0.0f;
  for (int l = 0; l < N; ++l) added += total[l];
  const f32 rescale = sum == 0.0f ? 0.0f : op_exp(top - shift);
  top = high, sum = sum * rescale + added;
  return rescale;
}

template <int N> static inline bool finite(const f32* panel, i64 vectors) {
  V<f32, N> bad = {};
  for (i64 j = 0; j < vectors; ++j) bad += load<N>(panel + j * N) * 0.0f;
  for (int l = 0; l < N; ++l) if (bad[l] != 0.0f) return false;
  return true;
}

}  // namespace attention
"""


def attention_cpp(attention: Attention, lanes: int) -> str:
    """The kernel's functions, to follow the prelude of `cpp` and `PRELUDE`; the one to call is named ``KERNEL``.

    It takes what kernels of `cpp` take: the buffers of `Attention.reads`, then the result; no sizes.

    Raises:
        UnsupportedDtype: `f` computes with a dtype that C++ has no type for.
        ValueError: weights are dropped.
    """
    if attention.keep is not None:
        raise ValueError("the attention kernel for CPUs drops no weights")
    return AttentionCpp(attention, lanes).text()


class AttentionCpp(CppText):
    """Writes one kernel; a unit of work is one lead iteration and one block of queries."""

    def __init__(self, attention: Attention, lanes: int) -> None:
        self._a, self._t = attention, tiling(attention, lanes)
        lead = {var: f"g{number}" for number, var in enumerate(attention.lead)}
        super().__init__((*attention.reads, attention.out.buffer), {**lead, attention.row: "i", attention.key: "j"})
        self._score = flat(attention, attention.score)
        self._sink = None if attention.sink is None else flat(attention, attention.sink)
        self._horizon = horizon(self._score, attention.key, attention.row)

    def text(self) -> str:
        """The kernel's functions."""
        self._constants()
        self._memory()
        with self._w.block("for (i64 unit = begin; unit < end; ++unit)"):
            self._unit()
        a, t = self._a, self._t
        units = -(-a.row.extent // t.block)
        for var in a.lead:
            units *= var.extent
        work = units * t.block * a.key.extent * (a.depth + a.width)
        return with_entry(self._w.lines, units, f"{work}")

    # -- a thread -------------------------------------------------------------------------------------------------

    def _constants(self) -> None:
        t, a = self._t, self._a
        self._define({
            "W": t.lanes, "ROWS": a.row.extent, "KEYS": a.key.extent, "DEPTH": a.depth, "STRIP": t.strip,
            "BLOCK": t.block, "BLOCKS": -(-a.row.extent // t.block), "VECTORS": t.keys.vectors, "CHUNK": t.chunk,
            "PITCH": t.pitch, "OUT_PITCH": t.out_pitch,
        })  # fmt: skip

    def _memory(self) -> None:
        self._pointers_to_buffers()
        t, a = self._t, self._a
        sizes = {
            "kt": t.keys.vectors * t.lanes * a.depth, "vp": t.columns.vectors * t.lanes * a.key.extent,
            "q": t.block * a.depth, "s": t.block * t.pitch, "o": t.block * t.out_pitch,
        }  # fmt: skip
        self._scratch(sizes)
        for name, x in (("k", a.k), ("v", a.v)):
            self._line(f"const {memory_type(x.buffer.dtype)}* {name}_packed = nullptr;")
        if self._horizon is not None:
            self._line("bool v_finite = true;")

    def _scratch(self, sizes: dict[str, int]) -> None:
        """Memory of a thread's own, by name."""
        starts, total = {}, 0
        for name, size in sizes.items():
            starts[name] = total
            total += -(-size // 16) * 16
        self._line(f"const Heap scratch({total * 4});")
        self._line(*(f"f32* const {name} = (f32*)scratch.memory + {start};" for name, start in starts.items()))

    def _unit(self) -> None:
        self._lead("unit / BLOCKS")
        self._line("const i64 i0 = unit % BLOCKS * BLOCK, rows = least(ROWS - i0, BLOCK);")
        self._line("const i64 padded = (rows + STRIP - 1) / STRIP * STRIP;")
        self._pack()
        self._queries()
        self._start()
        reach = self._reach()
        with self._w.block(f"for (i64 c = 0; c < {reach}; c += CHUNK)"):
            self._chunk(reach)
        self._finish()

    def _lead(self, rest: str) -> None:
        for number, var in reversed(list(enumerate(self._a.lead))):
            self._line(f"[[maybe_unused]] const i64 g{number} = {rest} % {var.extent};")
            rest += f" / {var.extent}"

    def _base(self, x: Operand) -> str:
        self._values.prepare(x.base)
        return f"{self._pointers[x.buffer.name]} + {self._values.at(x.base)}"

    # -- packing --------------------------------------------------------------------------------------------------

    def _pack(self) -> None:
        k, v, t = self._a.k, self._a.v, self._t
        with self._packing("k", k):
            for loop, at, count in t.keys:
                move = f"kt + {at} * W * DEPTH, k_head + {at} * W * {k.row}ll, {k.row}, {k.column}"
                self._line(f"{loop} gemm::pack_transposed<W, {count}>({move}, KEYS - {at} * W, DEPTH);")
        with self._packing("v", v):
            for loop, at, count in t.columns:
                with self._w.block(loop), self._w.block("for (i64 j = 0; j < KEYS; ++j)"):
                    row = f"v_head + j * {v.row}ll + {at} * W * {v.column}ll, {v.column}, {self._a.width} - {at} * W"
                    self._line(f"gemm::pack_row<W, {count}>(vp + {at} * W * KEYS + j * {count} * W, {row});")
            if self._horizon is not None:
                self._line(f"v_finite = attention::finite<W>(vp, KEYS * {t.columns.vectors});")

    @contextmanager
    def _packing(self, name: str, x: Operand) -> Iterator[None]:
        """Packs what was not packed for the unit before."""
        self._line(f"const {memory_type(x.buffer.dtype)}* const {name}_head = {self._base(x)};")
        with self._w.block(f"if ({name}_head != {name}_packed)"):
            self._line(f"{name}_packed = {name}_head;")
            yield

    def _queries(self) -> None:
        x = self._a.q
        self._line(f"const {memory_type(x.buffer.dtype)}* const q_head = {self._base(x)} + i0 * {x.row}ll;")
        with self._w.block("for (i64 r = 0; r < padded; ++r)"), self._w.block("for (i64 d = 0; d < DEPTH; ++d)"):
            self._line(f"q[r * DEPTH + d] = r < rows ? get(q_head + r * {x.row}ll + d * {x.column}ll) : 0.0f;")

    # -- rows -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Maxima and sums before any key: those of the sink, where there is one."""
        self._line("f32 top[BLOCK], sum[BLOCK];")
        with self._w.block("for (i64 r = 0; r < rows; ++r)"):
            if self._sink is None:
                self._line("top[r] = -__builtin_inff(), sum[r] = 0.0f;")
                return
            self._line("[[maybe_unused]] const i64 i = i0 + r;")
            self._line(f"top[r] = {self._values.get(self._sink)};")
            self._line("sum[r] = top[r] == -__builtin_inff() ? 0.0f : op_exp(top[r] - top[r]);")

    def _reach(self) -> str:
        """Vectors of keys that the block's rows look at."""
        if self._horizon is None:
            return "VECTORS"
        with self._w.apart():
            self._line("i64 seen = KEYS;")
            with self._w.block("if (v_finite)"):
                self._line("const i64 i = i0 + rows - 1;")
                self._line(f"seen = most<i64>(1, least<i64>(KEYS, {self._values.at(self._horizon)}));")
        self._line("const i64 reach = (seen + W - 1) / W;")
        return "reach"

    def _chunk(self, reach: str) -> None:
        t = self._t
        self._line(f"const i64 stop = least<i64>(c + CHUNK, {reach}), j0 = c * W, keys = least(stop * W, KEYS) - j0;")
        whole = t.keys.count * PANEL
        if whole:
            with self._w.block(f"for (i64 p = c; p < least<i64>(stop, {whole}); p += {PANEL})"):
                self._products("p", PANEL)
        if t.keys.last:
            with self._w.block(f"if (stop > {whole})"):
                self._products(f"{whole}", t.keys.last)
        with self._w.block("for (i64 r = 0; r < rows; ++r)"):
            self._row()
        for loop, at, count in t.columns:
            with self._w.block(loop), self._w.block("for (i64 r = 0; r < padded; r += STRIP)"):
                panel = f"vp + {at} * W * KEYS + j0 * {count} * W"
                out, add = f"o + r * OUT_PITCH + {at} * W", str(t.chunked).lower()
                self._line(
                    f"gemm::tile<W, STRIP, {count}, {add}>(s + r * PITCH, PITCH, {panel}, {out}, OUT_PITCH, keys);"
                )

    def _products(self, at: str, count: int) -> None:
        panel, to = f"kt + {at} * W * DEPTH", f"s + r * PITCH + ({at} - c) * W"
        with self._w.block("for (i64 r = 0; r < padded; r += STRIP)"):
            self._line(f"gemm::tile<W, STRIP, {count}, false>(q + r * DEPTH, DEPTH, {panel}, {to}, PITCH, DEPTH);")

    def _row(self) -> None:
        self._line("f32* const row = s + r * PITCH;", "[[maybe_unused]] const i64 i = i0 + r;")
        self._scores()
        exponentiate = "attention::exponentiate<W>(row, stop - c, top[r], sum[r])"
        if not self._t.chunked:
            self._line(f"{exponentiate};")
            return
        self._line(f"const f32 rescale = {exponentiate};", "f32* const to = o + r * OUT_PITCH;")
        self._line("for (i64 d = 0; d < OUT_PITCH; ++d) to[d] = c ? to[d] * rescale : 0.0f;")

    def _scores(self) -> None:
        """`f` in place of a row's products, -inf after the last key."""
        key, lanes = self._a.key, self._t.lanes
        varying = frozenset({key, ("buffer", SCORE.buffer)})
        self._values.vectors = Vectors(key, lanes, 1, varying, tiles={SCORE: f"load<{lanes}>(row + (j - j0))"})
        self._values.hoist(self._score)
        self._line("i64 j = j0;")
        with self._w.block("for (; j + W <= j0 + keys; j += W)"):
            self._line(f"store(row + (j - j0), {self._values.vector(self._score)});")
        if key.extent % lanes:
            with self._w.block("if (j < j0 + keys)"):
                inside = self._w.define(f"V<i32, {lanes}>", "first<W>(j0 + keys - j)")
                with self._values.masked(inside):
                    score = self._values.vector(self._score)
                self._line(f"store(row + (j - j0), sel({inside}, {score}, splat<V<f32, W>>(-__builtin_inff())));")
        self._values.vectors = None

    def _finish(self) -> None:
        with self._w.block("for (i64 r = 0; r < rows; ++r)"):
            self._row_out("o + r * OUT_PITCH", "sum[r]")

    def _row_out(self, row: str, total: str) -> None:
        """Write a row of the result: what was summed up over the weights' total."""
        x, width, lanes = self._a.out, self._a.width, self._t.lanes
        whole = width // lanes * lanes if x.column == 1 else 0
        self._line(f"const f32 inverse = {f'{total} == 0.0f ? 0.0f : ' if self._a.safe else ''}1.0f / {total};")
        self._line(f"auto* const to = {self._base(x)} + (i0 + r) * {x.row}ll;")
        result = f"{row} + d"
        self._line(f"for (i64 d = 0; d < {whole}; d += W) store(to + d, load<W>({result}) * inverse);")
        self._line(f"for (i64 d = {whole}; d < {width}; ++d) put(to + d * {x.column}ll, *({result}) * inverse);")
