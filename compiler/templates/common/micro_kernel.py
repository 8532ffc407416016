"""The GEMM micro-kernel that templates share: register tiles over packed panels, to follow the prelude of `cpp`.

    C[rows, panel] = A[rows, depth] @ B[depth, panel]

    A is row-major and read one element at a time, broadcast over lanes; B is packed in panels of a few vectors, so that
    a step of `depth` reads one contiguous piece of it; C stays in registers for all of `depth`.

A tile holds `rows * vectors` accumulators. With two vectors per panel, 8 rows reach the peak of the FMA units as 12
rows do (measured with AVX-512), so that the number of rows can be chosen to waste little of the last strip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PANEL = 2  # vectors
_REGISTERS = {16: 24, 8: 12, 4: 12}  # accumulators by lanes, out of 32 or 16 registers


@dataclass(frozen=True)
class Panels:
    """The panels of vectors that cover a width: `count` panels of `PANEL` vectors, then one of `last` (0: none)."""

    count: int
    last: int

    @property
    def vectors(self) -> int:
        """The number of vectors."""
        return self.count * PANEL + self.last

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """For each loop over panels, in C++: the index of its first vector, the number of panels, and their width."""
        if self.count:
            yield f"for (i64 p = 0; p < {self.count * PANEL}; p += {PANEL})", "p", PANEL
        if self.last:
            yield f"for (i64 p = {self.count * PANEL}; p < {self.vectors}; p += {self.last})", "p", self.last


def strip_rows(rows: int, lanes: int) -> int:
    """Rows of a register tile: the number that wastes the fewest rows of the last strip, larger numbers first.

    128  ->  8 (of 16 strips)        197  ->  11 (18 strips, one row unused)        3  ->  3
    """
    most = _REGISTERS[lanes] // PANEL
    candidates = [rows] if rows <= most else range(most, most // 2 - 1, -1)
    return min(candidates, key=lambda tile: -(-rows // tile) * tile)


def panels(width: int, rows: int, lanes: int) -> Panels:
    """The panels of a matrix of `width` columns, for tiles of `rows`; an odd vector joins its neighbor if it fits."""
    vectors = -(-width // lanes)
    count, last = divmod(vectors, PANEL)
    if last and count and rows * (PANEL + last) <= _REGISTERS[lanes]:
        return Panels(count - 1, PANEL + last)
    return Panels(count, last)


PRELUDE = r"""
namespace gemm {

// c[R][C vectors] (+)= a[R][depth] @ b[depth][C vectors], N lanes a vector
template <int N, int R, int C, bool ADD>
static inline void tile(const f32* __restrict a, i64 lda, const f32* __restrict b, f32* __restrict c, i64 ldc,
                        i64 depth) {
  typedef V<f32, N> X;
  X acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) acc[r][n] = ADD ? load<N>(c + r * ldc + n * N) : X{};
  for (i64 k = 0; k < depth; ++k) {
    X row[C];
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) row[n] = load<N>(b + (k * C + n) * N);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const X x = splat<X>(a[r * lda + k]);
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) acc[r][n] = fma(x, row[n], acc[r][n]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) store(c + r * ldc + n * N, acc[r][n]);
}

// One row of a panel: `width` elements at stride `step`, zeros up to C vectors.
template <int N, int C, class T>
static inline void pack_row(f32* to, const T* from, i64 step, i64 width) {
  if (step == 1 && width >= C * N) {
    for (int n = 0; n < C; ++n) store(to + n * N, load<N>(from + n * N));
    return;
  }
  for (i64 j = 0; j < C * N; ++j) to[j] = j < width ? get(from + j * step) : 0.0f;
}

// A panel of C vectors of the transpose: to[k][j] = from[j][k], zeros where j >= width.
template <int N, int C, class T>
static inline void pack_transposed(f32* to, const T* from, i64 row, i64 step, i64 width, i64 depth) {
  typedef V<f32, N> X;
  i64 done = 0;
  if (step == 1)
    for (; done + N <= depth; done += N)
      for (int n = 0; n < C; ++n) {
        X square[N];
#pragma GCC unroll 16
        for (int j = 0; j < N; ++j) square[j] = n * N + j < width ? load<N>(from + (n * N + j) * row + done) : X{};
        transpose(square);
#pragma GCC unroll 16
        for (int j = 0; j < N; ++j) store(to + ((done + j) * C + n) * N, square[j]);
      }
  for (i64 k = done; k < depth; ++k) pack_row<N, C>(to + k * C * N, from + k * step, row, width);
}

}  // namespace gemm
"""
