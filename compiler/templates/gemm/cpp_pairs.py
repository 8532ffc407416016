"""Products of few rows with a bfloat16 weight, both read as pairs along the depth (`dots`): half of the instructions.

    neighbours along the depth side by side          columns side by side
    for each column:                                 for some of the depth at a time, for each 32 columns:
        sums += dots(x[k..], b[column, k..])             (b[k], b[k + 1]) -> pairs of the even and odd half-quarters
                                                         sums += dots((x[k], x[k + 1]) in all lanes, pairs)

A weight is one stream from memory in the first case. In the second, pairs lie in the order in which one instruction
interleaves two rows (4 columns of each 8 in one vector, 4 in the other); sums are put in order at the end.
"""

from __future__ import annotations

import torch

from ..common.dots import DOTS, PAIRED
from .description import Product

STREAMS = 4  # vectors of sums of a column, or as many as 16 registers hold
STREAM_STEPS, STREAM_SUMS = 8, 2  # vectors of a column that are read at a time for one row, and of its sums
AHEAD = 1 << 14  # bytes from what is computed to what is requested from memory, in whole columns
STEPS = 16  # rows of a weight that are read at a time

PRELUDE = (
    DOTS
    + r"""
#if DOTS
namespace gemm {

typedef V<f32, 16> Sums;
typedef V<i32, 16> Pairs;
typedef V<u16, 32> Row;

INLINE Pairs pairs_at(const u16* p) { Pairs x; __builtin_memcpy(&x, p, sizeof x); return x; }

// The first `count` of 32 elements, zeros for the others.
INLINE Row row_at(const u16* p, i64 count) {
  Row x = {};
  if (count >= 32) __builtin_memcpy(&x, p, sizeof x);
  else if (count > 0) __builtin_memcpy(&x, p, count * 2);
  return x;
}

// Rows of x: of each 32 words of P numbers, the first numbers, then the second ones, and so on; zeros after the last.
// APART: the numbers of a word are as far apart as there are words, else they are neighbours.
template <int R, int P, bool APART> static inline void copy_pairs(u16* x, i64 pitch, const u16* a, i64 row, i64 words) {
  __builtin_memset(x, 0, R * pitch * 2);
  for (i64 r = 0; r < R; ++r) {
    const u16* const from = a + r * row;
    u16* const to = x + r * pitch;
    if constexpr (P == 1) {
      __builtin_memcpy(to, from, words * 2);
    } else {
      for (i64 b = 0; b < words; b += 32)
        for (int p = 0; p < P; ++p) {
          u16* const part = to + b * P + p * 32;
          const u16* const some = APART ? from + p * words + b : from + b * P + p;
          constexpr int NEXT = APART ? 1 : P;
          if (b + 32 <= words)
            for (int l = 0; l < 32; ++l) part[l] = some[l * NEXT];
          else
            for (i64 l = 0; l < words - b; ++l) part[l] = some[l * NEXT];
        }
    }
  }
}

// 32 numbers, rounded as bfloat16.
INLINE Pairs paired(Sums low, Sums high) {
  Pairs both;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
  return both;
}

// 32 bytes as numbers of 16 bits, zeros after the first `count`.
INLINE Row bytes_at(const u8* p, i64 count) {
  V<u8, 32> x = {};
  if (count >= 32) __builtin_memcpy(&x, p, sizeof x);
  else if (count > 0) __builtin_memcpy(&x, p, count);
  return __builtin_convertvector(x, Row);
}

// Columns in memory that are bfloat16 already: 32 numbers, or those before the last. AHEAD 0: nothing is requested.
template <i64 AHEAD> struct InPlace {
  const u16* from;
  i64 step;
  inline __attribute__((always_inline)) void operator()(i64 k, i64 c, Pairs* w, Sums&) const {
    if constexpr (AHEAD) __builtin_prefetch(from + c * step + k + AHEAD, 0, 2);
    w[0] = pairs_at(from + c * step + k);
  }
};
struct InPart {
  const u16* from;
  i64 step, depth;
  inline __attribute__((always_inline)) void operator()(i64 k, i64 c, Pairs* w, Sums&) const {
    w[0] = (Pairs)row_at(from + c * step + k, depth - k);
  }
};

// sums[r][c..] (+)= words of C columns by R rows of x. `read` makes P vectors of pairs of the 32 words from k on, and
// what their sums are multiplied by if FACTOR; `last` those of fewer words.
template <int R, int P, int C, bool FACTOR, class Read, class Last>
INLINE void columns_of_pairs(f32* sums, const u16* x, i64 pitch, i64 c, i64 begin, i64 end, const Read& read,
                             const Last& last) {
  constexpr bool STREAM = R * C * P == 1;
  constexpr int A = STREAM ? STREAM_SUMS : R * C > 8 ? 1 : R * C > 4 ? 2 : STREAMS;
  constexpr int S = STREAM ? STREAM_STEPS : A > P ? A / P : 1;
  Sums acc[A][R][C] = {}, factor[C] = {};
  Pairs w[C][P];
  const auto multiply = [&](i64 k, int s, const auto& from) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int n = 0; n < C; ++n) from(k, c + n, w[n], factor[n]);
    const u16* const at = x + k * P;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < C; ++n) {
        Sums part = {};
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          Sums& to = FACTOR ? part : acc[(s * P + p) % A][r][n];
          to = dots(to, (Sums)w[n][p], pairs_at(at + r * pitch + p * 32));
        }
        if constexpr (FACTOR) acc[s % A][r][n] = fma(part, factor[n], acc[s % A][r][n]);
      }
  };
  i64 k = begin;
#pragma GCC unroll 1  // a whole column without a branch is read far ahead of what requests lines in order
  for (; k + S * 32 <= end; k += S * 32)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) multiply(k + s * 32, s, read);
  for (; k + 32 <= end; k += 32) multiply(k, 0, read);
  if (k < end) multiply(k, 0, last);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < C; ++n) {
      Sums total = acc[0][r][n];
#pragma GCC unroll 4
      for (int a = 1; a < A; ++a) total += acc[a][r][n];
      f32* const to = sums + (r * 16 + c + n) * 16;
      store(to, begin ? load<16>(to) + total : total);
    }
}

// All `columns` of them, of which there are 16 at most.
template <int R, int P, bool FACTOR, class Read, class Last>
static inline void deep_pairs(f32* sums, const u16* x, i64 pitch, i64 columns, i64 begin, i64 end, const Read& read,
                              const Last& last) {
  constexpr int H = R > 8 ? (R + 1) / 2 : R, C = H > 4 && H <= 8 ? 2 : 1;  // rows and columns at a time
  const auto some = [&](auto count, i64 c) __attribute__((always_inline)) {
    constexpr int N = sizeof count;
    columns_of_pairs<H, P, N, FACTOR>(sums, x, pitch, c, begin, end, read, last);
    if constexpr (H < R)
      columns_of_pairs<R - H, P, N, FACTOR>(sums + H * 256, x + H * pitch, pitch, c, begin, end, read, last);
  };
  i64 c = 0;
  for (; c + C <= columns; c += C) some(V<u8, C>{}, c);
  for (; c < columns; ++c) some(u8{}, c);
}

// STEPS rows of a weight, of which there are `rows`, for 32 columns, of which there are `columns`.
template <int R, bool WHOLE>
INLINE void wide_vector(f32* tile, i64 width, const u16* x, i64 pitch, const u16* w, i64 row, i64 rows, i64 columns,
                        bool first) {
  Sums low[R], high[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    low[r] = first ? Sums{} : load<16>(tile + r * width);
    high[r] = first ? Sums{} : load<16>(tile + r * width + 16);
  }
#pragma GCC unroll 16
  for (int q = 0; q < STEPS; q += 2) {
    if (WHOLE && R > 1)
      __builtin_prefetch(w + (q + STEPS) * row, 0, 2), __builtin_prefetch(w + (q + 1 + STEPS) * row, 0, 2);
    const Row a = row_at(w + q * row, WHOLE || q < rows ? columns : 0);
    const Row b = row_at(w + (q + 1) * row, WHOLE || q + 1 < rows ? columns : 0);
    const Row even = __builtin_shuffle(a, b, (Row){0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48,
                                                   17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59});
    const Row odd = __builtin_shuffle(a, b, (Row){4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52,
                                                  21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63});
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      i32 pair;
      __builtin_memcpy(&pair, x + r * pitch + q, sizeof pair);
      low[r] = dots(low[r], (Sums)even, splat<Pairs>(pair)), high[r] = dots(high[r], (Sums)odd, splat<Pairs>(pair));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store(tile + r * width, low[r]), store(tile + r * width + 16, high[r]);
}

// tile[R rows][columns] of columns side by side, rows of the weight `row` apart; rows of x end with zeros.
template <int R>
static inline void wide_pairs(f32* tile, i64 width, const u16* x, i64 pitch, const u16* w, i64 row, i64 depth,
                              i64 columns) {
  for (i64 k = 0; k < depth; k += STEPS) {
    i64 j = 0;
    if (k + STEPS <= depth)
      for (; j + 32 <= columns; j += 32)
        wide_vector<R, true>(tile + j, width, x + k, pitch, w + k * row + j, row, STEPS, 32, k == 0);
    for (; j < columns; j += 32)
      wide_vector<R, false>(tile + j, width, x + k, pitch, w + k * row + j, row, depth - k, columns - j, k == 0);
  }
  for (int r = 0; r < R; ++r)
    for (f32* at = tile + r * width; at < tile + r * width + columns; at += 32) {
      const Sums low = load<16>(at), high = load<16>(at + 16);
      const Pairs left = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
      store(at, __builtin_shuffle(low, high, left)), store(at + 16, __builtin_shuffle(low, high, left + 8));
    }
}

}  // namespace gemm
#endif
""".replace("STREAM_SUMS", str(STREAM_SUMS))
    .replace("STREAM_STEPS", str(STREAM_STEPS))
    .replace("STREAMS", str(STREAMS))
    .replace("STEPS", str(STEPS))
)


def ahead(product: Product) -> int:
    """How many elements of the weight before they are read they are requested: the same place of a later column.

    With more rows, a processor has too few loads under way by itself; then rows must stay in the first cache, and the
    request fetches into the second one. For one row of a weight in memory, requests only take what loads need: 0.
    """
    if product.row.extent == 1 and product.right is None:
        return 0
    column = max(product.b.column, 1)
    return max(AHEAD // (column * product.b.buffer.dtype.itemsize), 1) * column


def reads_pairs(product: Product, lanes: int, deep: bool) -> bool:
    """Whether both operands are bfloat16, and vectors are wide enough for the instruction.

    A weight that is computed as it is read becomes bfloat16 in registers where lanes go along the depth.
    """
    right = product.b.buffer.dtype if product.right is None else product.right.dtype
    computed = product.right is not None
    return lanes == PAIRED and {product.a.buffer.dtype, right} == {torch.bfloat16} and (deep or not computed)
