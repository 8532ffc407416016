"""Products of bytes and signed bytes with sums in 32 bits: four neighbours along the depth are multiplied in one lane.

    sums[row, lane] += x[row, 4k] * b[4k, column] + ... + x[row, 4k + 3] * b[4k + 3, column]

The instruction (VNNI) takes unsigned bytes on the left: a signed `x` is read with its upper bit flipped, which adds
128, and sums begin at -128 times the sum of a column. Panels are those of `cpp`, of words of four bytes instead of
numbers.
"""

from __future__ import annotations

import torch

from ...codegen.cpp.target import cpu_flags
from .cpp import GemmCpp
from .description import Product
from .operands import TOGETHER

LANES = 16  # of the instruction

PRELUDE = r"""
namespace gemm {

typedef V<i32, 16> Words;

INLINE Words byte_dots(Words sums, Words unsigned_bytes, Words signed_bytes) {
#if defined(__AVX512VNNI__) && defined(MASKS)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
#else  // an artifact that was made elsewhere
  for (int q = 0; q < 4; ++q) {
    const Words x = unsigned_bytes >> (8 * q) & 255, y = signed_bytes << (24 - 8 * q) >> 24;
    sums += x * y;
  }
#endif
  return sums;
}

INLINE i32 word_at(const void* p) { i32 word; __builtin_memcpy(&word, p, 4); return word; }

// c[R][C vectors] = start[C vectors] (+ c) + a[R][depth words] @ b; vector n of b's row k is at b + n * ldb + k * 16.
template <int N, int R, int C, typename T>
static inline void streams_of_bytes(const T* __restrict a, i64 lda, const i32* __restrict b, i64 ldb,
                                    i32* __restrict c, i64 ldc, i64 depth, bool add, const i32* start) {
  Words acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) {
      acc[r][n] = load<N>(start + n * N);
      if (add) acc[r][n] += load<N>(c + r * ldc + n * N);
    }
  const Words upper_bits = splat<Words>((T)-1 < 0 ? (i32)0x80808080u : 0);
  for (i64 k = 0; k < depth; ++k) {
    Words row[C];
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) row[n] = load<N>(b + n * ldb + k * N);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Words x = splat<Words>(word_at(a + r * lda + k * 4)) ^ upper_bits;
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) acc[r][n] = byte_dots(acc[r][n], x, row[n]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) store(c + r * ldc + n * N, acc[r][n]);
}

// The same of rows that begin at `at`, of runs of words that begin at `lines`: of them `depth` words from `first` on.
template <int N, int R, int C, int RUN, typename T>
static inline void streams_of_windows(const T* __restrict a, const i64* at, const i64* lines, i64 first,
                                      const i32* __restrict b, i64 ldb, i32* __restrict c, i64 ldc, i64 depth, bool add,
                                      const i32* start) {
  Words acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) {
      acc[r][n] = load<N>(start + n * N);
      if (add) acc[r][n] += load<N>(c + r * ldc + n * N);
    }
  const Words upper_bits = splat<Words>((T)-1 < 0 ? (i32)0x80808080u : 0);
  const T* rows[R];
  for (i64 k = 0; k < depth;) {
    const i64 line = (first + k) / RUN, inside = (first + k) % RUN, end = least(k + RUN - inside, depth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) rows[r] = a + at[r] + lines[line] + inside * 4;
    for (i64 q = 0; k < end; ++k, q += 4) {
      Words row[C];
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) row[n] = load<N>(b + n * ldb + k * N);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Words x = splat<Words>(word_at(rows[r] + q)) ^ upper_bits;
#pragma GCC unroll 16
        for (int n = 0; n < C; ++n) acc[r][n] = byte_dots(acc[r][n], x, row[n]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) store(c + r * ldc + n * N, acc[r][n]);
}

// start[16] = -128 * the sums of the columns of one vector.
static inline void start_of_sums(i32* start, const i32* b, i64 depth) {
  Words sums = {};
  for (i64 k = 0; k < depth; ++k) sums = byte_dots(sums, splat<Words>(0x01010101), load<16>(b + k * 16));
  store(start, sums * -128);
}

// One vector of a weight whose columns lie side by side: four rows of bytes become one row of words.
static inline void pack_bytes(i32* to, const i8* from, i64 row, i64 width, i64 depth) {
  for (i64 k = 0; k < depth; ++k) {
    V<u8, 16> rows[4] = {};
    for (int q = 0; q < 4; ++q) __builtin_memcpy(&rows[q], from + (4 * k + q) * row, width < 16 ? width : 16);
    Words words = {};
    for (int q = 0; q < 4; ++q) words |= convert<Words>(rows[q]) << (8 * q);
    store(to + k * 16, words);
  }
}

}  // namespace gemm
"""


def multiplies_bytes(product: Product) -> bool:
    """Whether a product is one of bytes in the dtype and layout that the kernel reads."""
    b = product.b
    if not product.is_of_bytes or product.depth % TOGETHER or product.left or product.right:
        return False
    return product.packed or b.column == 1 or (b.row == 1 and b.column % TOGETHER == 0)


def has_byte_dots(lanes: int) -> bool:
    """Whether this machine multiplies bytes in vectors of so many lanes."""
    return lanes == LANES and "avx512_vnni" in cpu_flags()


def bytes_cpp(product: Product) -> str:
    """The functions of the kernel, as `gemm_cpp` gives them for other products.

    Raises:
        UnsupportedDtype: `f` computes with a dtype that C++ has no type for.
    """
    return PRELUDE + BytesCpp(product, LANES).text()


class BytesCpp(GemmCpp):
    """Writes the kernel of a product of bytes."""

    number, together = "i32", TOGETHER

    def _memory(self) -> None:
        t = self._t
        self._pointers_to_buffers()
        panel = 0 if self._p.packed else t.pitch * t.step
        tiles = t.pitch * (t.strip if t.step == self._depth else t.block)
        self._line(
            f"const Heap scratch({(panel + tiles + t.pitch) * 4});", "i32* const start = (i32*)scratch.memory;",
            "i32* const tiles = start + PITCH;", f"[[maybe_unused]] i32* const packed = tiles + {tiles};",
            "i64 known = -1;",
        )  # fmt: skip

    def _panel(self) -> None:
        b = self._p.b
        if self._p.packed:
            self._line(f"const i32* const b = (const i32*)({self._base(b)}) + vector * (W * DEPTH) + k0 * W;")
            self._line("constexpr i64 ldb = W * DEPTH;")
        else:
            self._line("const i32* const b = packed;", "const i64 ldb = W * depth;")
        with self._w.block("if (STEP < DEPTH || unit / BLOCKS != known)"):
            self._line("known = unit / BLOCKS;")
            with self._w.block("for (i64 n = 0; n < count; ++n)"):
                if not self._p.packed:
                    self._pack()
                if self._p.dtype == torch.int8:
                    self._line("gemm::start_of_sums(start + n * W, b + n * ldb, depth);")
                else:
                    self._line("store(start + n * W, gemm::Words{});")

    def _pack(self) -> None:
        b = self._p.b
        self._line(f"const i8* const from = {self._base(b)} + (j0 + n * W) * {b.column}ll + k0 * 4 * {b.row}ll;")
        if b.row == 1:
            words = f"(f32*)packed + n * ldb, (const f32*)from, {b.column // TOGETHER}, 1"
            self._line(f"gemm::pack_transposed<W, 1>({words}, COLUMNS - j0 - n * W, depth);")
        else:
            self._line(f"gemm::pack_bytes(packed + n * ldb, from, {b.row}, COLUMNS - j0 - n * W, depth);")

    def _constants(self) -> None:
        super()._constants()
        if self._p.windows is not None:
            lines = ", ".join(f"{start}ll" for start in self._p.windows.lines)
            self._line(f"static const i64 LINES[] = {{{lines}}};")

    def _strip(self) -> None:
        if self._p.windows is not None:
            self._line("i64 at[STRIP];")
            with self._w.block("for (i64 q = 0; q < least(rows - r, STRIP); ++q)"):
                self._line("i64 rest = i0 + r + q;", "at[q] = 0;")
                for size, stride in reversed(self._p.windows.rows):
                    self._line(f"at[q] += rest % {size}ll * {stride}ll, rest /= {size}ll;")
        super()._strip()

    def _multiply(self, height: int, width: int) -> str:
        if self._p.windows is not None:
            run = self._p.windows.run // TOGETHER
            given = "a, at, LINES, k0, b, ldb, tile, PITCH, depth, k0 > 0, start"
            return f"gemm::streams_of_windows<W, {height}, {width}, {run}>({given});"
        given = f"a + r * {self._p.a.row}ll + k0 * 4, {self._p.a.row}, b, ldb, tile, PITCH, depth, k0 > 0, start"
        return f"gemm::streams_of_bytes<W, {height}, {width}>({given});"
