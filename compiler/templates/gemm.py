"""The GEMM micro-kernel that templates share: register tiles over packed panels, in vector extensions of GCC and clang.

    C[rows, panel] = A[rows, depth] @ B[depth, panel]

    A is row-major and read one element at a time, broadcast over lanes; B is packed in panels of a few vectors, so that
    a step of `depth` reads one contiguous piece of it; C stays in registers for all of `depth`.

A tile holds `rows * vectors` accumulators. Two vectors a panel reach the peak of the FMA units with 8 rows as with 12
(tried on AVX-512), so rows are free to be chosen such that little of the last strip is wasted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PANEL = 2  # vectors
_REGISTERS = {16: 24, 8: 12, 4: 12}  # accumulators by lanes: what is left of 32 or 16 registers


@dataclass(frozen=True)
class Panels:
    """How many panels of how many vectors cover a width: `count` of `PANEL`, then one of `last` (0: none)."""

    count: int
    last: int

    @property
    def vectors(self) -> int:
        """Vectors in all."""
        return self.count * PANEL + self.last

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """C++ of each loop over panels: the number of its first vector, of how many there are, and their width."""
        if self.count:
            yield f"for (long p = 0; p < {self.count * PANEL}; p += {PANEL})", "p", PANEL
        if self.last:
            yield f"for (long p = {self.count * PANEL}; p < {self.vectors}; p += {self.last})", "p", self.last


def strip_rows(rows: int, lanes: int) -> int:
    """Rows of a register tile: the number that leaves the least of the last strip unused, larger ones first.

    128  ->  8 (of 16 strips)        197  ->  11 (18 strips, one row unused)        3  ->  3
    """
    most = _REGISTERS[lanes] // PANEL
    candidates = [rows] if rows <= most else range(most, most // 2 - 1, -1)
    return min(candidates, key=lambda tile: -(-rows // tile) * tile)


def panels(width: int, rows: int, lanes: int) -> Panels:
    """The panels of a matrix `width` elements wide, for tiles of `rows`; an odd vector joins a neighbour if it fits."""
    vectors = -(-width // lanes)
    count, last = divmod(vectors, PANEL)
    if last and count and rows * (PANEL + last) <= _REGISTERS[lanes]:
        return Panels(count - 1, PANEL + last)
    return Panels(count, last)


PRELUDE = r"""
namespace gemm {

constexpr int LANES = GEMM_LANES;  // given to the compiler: 16, 8 or 4
typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(LANES * 4)));
typedef unsigned uvec __attribute__((vector_size(LANES * 4)));
typedef unsigned short hvec __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

struct bfloat16 { unsigned short bits; };

static inline vec load(const float* p) { return *(const vec_unaligned*)p; }
static inline vec load(const bfloat16* p) {
  return (vec)(__builtin_convertvector(*(const hvec*)p, uvec) << 16);
}
static inline void store(float* p, vec v) { *(vec_unaligned*)p = v; }
static inline void store(bfloat16* p, vec v) {
  uvec bits = (uvec)v;
  uvec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  ivec ordered = v == v;
  rounded = (rounded & (uvec)ordered) | (~(uvec)ordered & 0x7fc0u);
  *(hvec*)p = __builtin_convertvector(rounded, hvec);
}
static inline float number(float x) { return x; }
static inline float number(bfloat16 x) {
  union { unsigned bits; float x; } u = {(unsigned)x.bits << 16};
  return u.x;
}
static inline void put(float* p, float x) { *p = x; }
static inline void put(bfloat16* p, float x) {
  union { float x; unsigned bits; } u = {x};
  p->bits = x == x ? (unsigned short)((u.bits + 0x7fffu + ((u.bits >> 16) & 1u)) >> 16) : (unsigned short)0x7fc0;
}
static inline vec splat(float x) { return x - vec{}; }

// c[R][C vectors] (+)= a[R][depth] @ b[depth][C vectors]
template <int R, int C, bool ADD>
static inline void tile(const float* __restrict__ a, long lda, const float* __restrict__ b, float* __restrict__ c,
                        long ldc, long depth) {
  vec acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) acc[r][n] = ADD ? load(c + r * ldc + n * LANES) : vec{};
  for (long k = 0; k < depth; ++k) {
    vec row[C];
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) row[n] = load(b + (k * C + n) * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      vec x = splat(a[r * lda + k]);
#pragma GCC unroll 16
      for (int n = 0; n < C; ++n) acc[r][n] += x * row[n];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < C; ++n) store(c + r * ldc + n * LANES, acc[r][n]);
}

// One row of a panel: `width` elements at stride `step`, zeros up to C vectors.
template <int C, class T>
static inline void pack_row(float* to, const T* from, long step, long width) {
  if (step == 1 && width >= C * LANES) {
    for (int n = 0; n < C; ++n) store(to + n * LANES, load(from + n * LANES));
    return;
  }
  for (long j = 0; j < C * LANES; ++j) to[j] = j < width ? number(from[j * step]) : 0.0f;
}

// Swaps blocks of S elements off the diagonal; log2(LANES) such steps transpose a square of vectors.
template <int S>
static inline void exchange(vec& a, vec& b) {
  ivec even, odd;
  for (int e = 0; e < LANES; ++e) {
    even[e] = e & S ? LANES + e - S : e;
    odd[e] = e & S ? LANES + e : e + S;
  }
#if defined(__clang__)
  vec x, y;
  for (int e = 0; e < LANES; ++e) {
    x[e] = e & S ? b[e ^ S] : a[e];
    y[e] = e & S ? b[e] : a[e ^ S];
  }
#else
  vec x = __builtin_shuffle(a, b, even), y = __builtin_shuffle(a, b, odd);
#endif
  a = x;
  b = y;
}

template <int S>
static inline void exchange_all(vec* square) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i)
    if (!(i & S)) exchange<S>(square[i], square[i + S]);
}

static inline void transpose(vec* square) {
  exchange_all<1>(square);
  exchange_all<2>(square);
  if constexpr (LANES > 4) exchange_all<4>(square);
  if constexpr (LANES > 8) exchange_all<8>(square);
}

// A panel of C vectors of the transpose: to[k][j] = from[j][k], zeros where j >= width.
template <int C, class T>
static inline void pack_transposed(float* to, const T* from, long row, long step, long width, long depth) {
  long done = 0;
  if (step == 1)
    for (; done + LANES <= depth; done += LANES)
      for (int n = 0; n < C; ++n) {
        vec square[LANES];
#pragma GCC unroll 16
        for (int j = 0; j < LANES; ++j)
          square[j] = n * LANES + j < width ? load(from + (n * LANES + j) * row + done) : vec{};
        transpose(square);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; ++j) store(to + ((done + j) * C + n) * LANES, square[j]);
      }
  for (long k = done; k < depth; ++k) pack_row<C>(to + k * C * LANES, from + k * step, row, width);
}

}  // namespace gemm
"""
