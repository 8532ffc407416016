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

// tile[R rows][16] of 16 columns that lie `step` apart; rows of x end with zeros.
template <int R>
static inline void deep_pairs(f32* tile, i64 width, f32* sums, const u16* x, i64 pitch, const u16* w, i64 step,
                              i64 depth, i64 columns) {
  constexpr int S = R > 8 ? 1 : R > 4 ? 2 : STREAMS;
  for (i64 c = 0; c < 16; ++c) {
    const u16* const from = w + least(c, columns - 1) * step;
    Sums acc[S][R] = {};
    i64 k = 0;
    for (; k + S * 32 <= depth; k += S * 32)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) {
        const Sums weight = (Sums)pairs_at(from + k + s * 32);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[s][r] = dots(acc[s][r], weight, pairs_at(x + r * pitch + k + s * 32));
      }
    for (; k < depth; k += 32) {
      const Sums weight = (Sums)row_at(from + k, depth - k);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[0][r] = dots(acc[0][r], weight, pairs_at(x + r * pitch + k));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Sums total = acc[0][r];
#pragma GCC unroll 4
      for (int s = 1; s < S; ++s) total += acc[s][r];
      store(sums + (r * 16 + c) * 16, total);
    }
  }
  for (int r = 0; r < R; ++r) sum_lanes<16>(tile + r * width, sums + r * 256);
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
""".replace("STREAMS", str(STREAMS)).replace("STEPS", str(STEPS))
)


def reads_pairs(product: Product, lanes: int) -> bool:
    """Whether both operands are bfloat16 in memory, and vectors are wide enough for the instruction."""
    dtypes = product.a.buffer.dtype, product.b.buffer.dtype
    return lanes == PAIRED and product.right is None and set(dtypes) == {torch.bfloat16}
