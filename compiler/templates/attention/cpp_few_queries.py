"""Few queries over many keys on a CPU: keys and values are read once, where they are.

    for each lead iteration and part of the keys, in parallel:
        which keys the mask keeps                                 see `seen_keys`: the others are not read
        for each chunk of keys:
            S = q @ k^T                                           rows of k as vectors, summed up sixteen at a time
            S = exp(f(S) - row maximum), row sums                 as in `cpp`
            O += S @ v                                            rows of v as vectors
        out = O / row sum, or O, maximum and sum of this part
    for each row, where there are parts: out = parts, each scaled to the largest of all, over the sum of all

Packing, as `cpp` does, would take longer than one row's products.
"""

from __future__ import annotations

import math

from ...codegen.cpp.dtypes import memory_type
from ...codegen.cpp.value_text import Vectors
from ..common.cpp_entry import GRAIN
from ..common.micro_kernel import Panels
from .cpp import AttentionCpp
from .cpu_tiles import Tiling
from .description import Attention
from .seen_keys import seen_keys

MOST_ROWS = 8  # of queries: their sums are held in registers
_CHUNK = 256  # keys, whose scores stay in the cache
_UNITS, _LEAST = 16, 512  # pieces of work for as many threads; keys of a piece
_COLUMNS = 2  # vectors of a value that are summed up at a time

PRELUDE = r"""
namespace attention {

// s[r][j] = sum over d of q[r][d] * k[j][d], for `keys` rows of k, DEPTH / N vectors each; up to N lanes at a time.
template <int N, int R, int D, class T>
static inline void scores(const f32* q, const T* k, i64 row, f32* s, i64 pitch, i64 keys) {
  typedef V<f32, N> X;
  for (i64 j = 0; j < keys; j += N)
    for (int r = 0; r < R; ++r) {
      X sums[N];
#pragma GCC unroll 16
      for (int l = 0; l < N; ++l) {
        const T* from = k + (j + l < keys ? j + l : j) * row;
        X sum = {};
        for (int d = 0; d < D; ++d) sum = fma(load<N>(q + (r * D + d) * N), load<N>(from + d * N), sum);
        sums[l] = sum;
      }
      transpose(sums);
#pragma GCC unroll 16
      for (int half = N / 2; half; half /= 2)
        for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
      store(s + r * pitch + j, sums[0]);
    }
}

// o[r] = o[r] * scale[r] + sum over j of s[r][j] * v[j], C vectors of them
template <int N, int R, int C, class T>
static inline void weigh(const f32* s, i64 pitch, const T* v, i64 row, f32* o, i64 out_pitch, const f32* scale,
                         i64 keys) {
  typedef V<f32, N> X;
  X acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) acc[r][n] = load<N>(o + r * out_pitch + n * N) * scale[r];
  for (i64 j = 0; j < keys; ++j) {
    X x[C];
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) x[n] = load<N>(v + j * row + n * N);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const X weight = splat<X>(s[r * pitch + j]);
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) acc[r][n] = fma(weight, x[n], acc[r][n]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) store(o + r * out_pitch + n * N, acc[r][n]);
}

}  // namespace attention
"""


def is_served(attention: Attention, lanes: int) -> bool:
    """Whether rows of keys and values are whole vectors, and rows of queries few beside the keys."""
    whole = attention.depth % lanes == 0 and attention.width % lanes == 0
    dense = attention.k.column == 1 and attention.v.column == 1
    few = attention.row.extent <= MOST_ROWS and attention.row.extent * 8 <= attention.key.extent
    return whole and dense and few and attention.keep is None


def few_queries_cpp(attention: Attention, lanes: int) -> str:
    """The C++ of an attention with few queries, as `attention_cpp` gives it for others.

    Raises:
        UnsupportedDtype: `f` computes with a dtype that C++ has no type for.
    """
    return PRELUDE + _FewQueriesCpp(attention, lanes).text()


class _FewQueriesCpp(AttentionCpp):
    def __init__(self, attention: Attention, lanes: int) -> None:
        super().__init__(attention, lanes)
        rows, vectors = attention.row.extent, -(-attention.key.extent // lanes)
        chunk = min(_CHUNK // lanes, vectors)
        columns = Panels(*divmod(attention.width // lanes, _COLUMNS))
        self._t = Tiling(lanes, rows, rows, Panels(vectors, 0), columns, chunk)
        self._leads = math.prod(var.extent for var in attention.lead)
        wanted = min(-(-_UNITS // self._leads), attention.key.extent // _LEAST)
        self._splits = max(wanted, 1)
        self._seen = seen_keys(self._score, attention.row, attention.key)

    def text(self) -> str:
        """The kernel's functions."""
        a, parts = self._a, self._splits > 1
        self._constants()
        self._memory()
        with self._w.block("for (i64 unit = begin; unit < end; ++unit)"):
            self._unit()
        body, self._w.lines = self._w.lines, []
        second = []
        if parts:
            self._whole()
            second = ["static void KERNEL_1(const Call* call, i64 begin, i64 end) {", *self._w.lines, "}"]
        units, buffers = self._leads * self._splits, len(a.reads) + 1
        work = self._leads * a.row.extent * a.key.extent * (a.depth + a.width)
        return "\n".join([
            "static void KERNEL_0(const Call* call, i64 begin, i64 end) {", *body, "}", *second,
            'extern "C" void KERNEL(void** given, const i64* sizes, Runtime* runtime) {',
            f"  const Heap parts({units * a.row.extent * (self._t.out_pitch + 2) * 4 if parts else 0});",
            f"  void* all[{buffers + 1}];",
            f"  for (int b = 0; b < {buffers}; ++b) all[b] = given[b];",
            f"  all[{buffers}] = parts.memory;",
            "  Call call = {all, sizes, 0, runtime, 0, 0};",
            f"  run(&call, KERNEL_0, {units}, {work}, {GRAIN});",
            *([f"  run(&call, KERNEL_1, {self._leads * a.row.extent}, {work}, {GRAIN});"] if parts else []), "}",
        ])  # fmt: skip

    # -- a part of the keys -------------------------------------------------------------------------------------------

    def _constants(self) -> None:
        super()._constants()
        self._line(f"constexpr i64 SPLITS = {self._splits}, UNITS = {self._leads * self._splits};")
        self._line("constexpr i64 PART = BLOCK * (OUT_PITCH + 2);")

    def _memory(self) -> None:
        t, a = self._t, self._a
        self._pointers_to_buffers()
        self._line(f"[[maybe_unused]] f32* const parts = (f32*)call->buffers[{len(a.reads) + 1}];")
        sizes = {"q": t.block * a.depth, "s": t.block * t.pitch, "o": t.block * t.out_pitch}
        self._scratch(sizes)

    def _unit(self) -> None:
        a, t = self._a, self._t
        self._line("[[maybe_unused]] const i64 part = unit % SPLITS, i0 = 0, rows = ROWS, padded = ROWS;")
        self._lead(f"unit / {self._splits}")
        for name, x in (("k", a.k), ("v", a.v)):
            self._line(f"const {memory_type(x.buffer.dtype)}* const {name}_head = {self._base(x)};")
        self._queries()
        self._start()
        self._line("f32 rescale[BLOCK];")
        self._line("for (i64 x = 0; x < BLOCK * OUT_PITCH; ++x) o[x] = 0.0f;")
        self._range()
        with self._w.block("for (i64 j0 = from; j0 < to; j0 += CHUNK * W)"):
            self._line("const i64 keys = least(to - j0, CHUNK * W), c = j0 / W, stop = c + (keys + W - 1) / W;")
            rows, depth = a.row.extent, a.depth // t.lanes
            move = f"q, k_head + j0 * {a.k.row}ll, {a.k.row}ll, s, PITCH, keys"
            self._line(f"attention::scores<W, {rows}, {depth}>({move});")
            with self._w.block("for (i64 r = 0; r < rows; ++r)"):
                self._line("f32* const row = s + r * PITCH;", "[[maybe_unused]] const i64 i = r;")
                self._scores()
                self._line("rescale[r] = attention::exponentiate<W>(row, stop - c, top[r], sum[r]);")
            for loop, at, count in t.columns:
                move = f"s, PITCH, v_head + j0 * {a.v.row}ll + {at} * W, {a.v.row}ll, o + {at} * W, OUT_PITCH"
                self._line(f"{loop} attention::weigh<W, {rows}, {count}>({move}, rescale, keys);")
        if self._splits == 1:
            self._finish()
            return
        self._line("f32* const mine = parts + unit * PART;")
        self._line("for (i64 x = 0; x < BLOCK * OUT_PITCH; ++x) mine[x] = o[x];")
        with self._w.block("for (i64 r = 0; r < rows; ++r)"):
            self._line("mine[BLOCK * OUT_PITCH + r] = top[r], mine[BLOCK * (OUT_PITCH + 1) + r] = sum[r];")

    def _start(self) -> None:
        super()._start()
        if self._sink is not None and self._splits > 1:
            self._line("if (part) for (i64 r = 0; r < rows; ++r) top[r] = -__builtin_inff(), sum[r] = 0.0f;")

    def _range(self) -> None:
        """Which keys the program goes through: `from`, the first of a vector, and `to`."""
        self._line("i64 first_seen = 0, past_seen = KEYS;")
        if self._seen is not None:
            self._look()
        self._line("i64 from = first_seen / W * W, to = past_seen;")
        if self._splits > 1:
            self._line("const i64 each = (to - from + SPLITS * W - 1) / (SPLITS * W) * W;")
            self._line("from += part * each, to = least(to, from + each);")

    def _look(self) -> None:
        """Between which keys all lie that the mask does not hide."""
        key, lanes = self._a.key, self._t.lanes
        assert self._seen is not None
        self._line("first_seen = KEYS, past_seen = 0;")
        found = "first_seen = least(first_seen, j), past_seen"
        self._values.vectors = Vectors(key, lanes, 1, frozenset({key}))
        with self._w.block("{ i64 j = 0; for (; j + W <= KEYS; j += W)"):
            self._line(f"if (any({self._values.vector(self._seen)})) {found} = j + W;")
        if key.extent % lanes:
            with self._w.block("if (j < KEYS)"):
                inside = self._w.define(f"V<i32, {lanes}>", "first<W>(KEYS - j)")
                with self._values.masked(inside):
                    seen = self._values.vector(self._seen)
                self._line(f"if (any({inside} & {seen})) {found} = KEYS;")
        self._line("}", "if (!past_seen) first_seen = 0, past_seen = KEYS;")
        self._values.vectors = None

    # -- all parts ----------------------------------------------------------------------------------------------------

    def _whole(self) -> None:
        super()._constants()
        self._line(f"constexpr i64 SPLITS = {self._splits}, PART = BLOCK * (OUT_PITCH + 2);")
        self._pointers_to_buffers()
        self._line(f"const f32* const parts = (const f32*)call->buffers[{len(self._a.reads) + 1}];")
        with self._w.block("for (i64 unit = begin; unit < end; ++unit)"):
            self._line("const i64 r = unit % ROWS, i0 = 0, rows = ROWS;")
            self._lead("unit / ROWS")
            self._line("const f32* const mine = parts + unit / ROWS * SPLITS * PART;")
            self._line("const f32* const tops = mine + BLOCK * OUT_PITCH + r;")
            self._line("f32 high = -__builtin_inff(), total = 0.0f, o[OUT_PITCH];")
            self._line("for (i64 p = 0; p < SPLITS; ++p) high = tops[p * PART] > high ? tops[p * PART] : high;")
            self._line("const f32 shift = high == -__builtin_inff() ? 0.0f : high;")
            self._line("for (i64 x = 0; x < OUT_PITCH; ++x) o[x] = 0.0f;")
            with self._w.block("for (i64 p = 0; p < SPLITS; ++p)"):
                self._line("const f32 added = tops[p * PART + BLOCK];")
                self._line("if (added == 0.0f) continue;")
                self._line("const f32 scale = op_exp(tops[p * PART] - shift);", "total += added * scale;")
                self._line("const f32* const from = mine + p * PART + r * OUT_PITCH;")
                self._line("for (i64 x = 0; x < OUT_PITCH; ++x) o[x] += from[x] * scale;")
            self._row_out("o", "total")
