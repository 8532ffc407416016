"""The part of every generated source in C++ that takes short rows apart, which lie in memory one after the other.

Rows of STEP elements, as many as there are lanes, are STEP whole vectors. Their columns are selected from these.
"""

from __future__ import annotations

TURNS = r"""
// Loops that make places for shuffles are unrolled by request, as those of transposed rows.
#if defined(MASKS) && !defined(__clang__)
// x[k][l] is element k * N + l; afterwards, x[c][l] is element STEP * l + c.
template <int STEP, class X> INLINE void take_apart(X* x) {
  constexpr int N = Count<X>;
  constexpr int F = STEP % 2 == 0 ? 2 : STEP % 3 == 0 ? 3 : STEP;
  constexpr int H = STEP / F;
  X part[F][H];
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 16
    for (int f = 0; f < F; ++f) {
      X r = x[F * h];
#pragma GCC unroll 16
      for (int k = 1; k < F; ++k) {
        Bits<X> from;
#pragma GCC unroll 64
        for (int l = 0; l < N; ++l) {
          const int at = F * l + f;
          from[l] = at >= k * N && at < (k + 1) * N ? at - k * N + N : k == 1 && at < N ? at : l;
        }
        r = __builtin_shuffle(r, x[F * h + k], from);
      }
      part[f][h] = r;
    }
#pragma GCC unroll 16
  for (int f = 0; f < F; ++f) {
    if constexpr (H > 1) take_apart<H>(part[f]);
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) x[F * h + f] = part[f][h];
  }
}
// The reverse.
template <int STEP, class X> INLINE void put_together(X* x) {
  constexpr int N = Count<X>;
  constexpr int F = STEP % 2 == 0 ? 2 : STEP % 3 == 0 ? 3 : STEP;
  constexpr int H = STEP / F;
  X part[F][H];
#pragma GCC unroll 16
  for (int f = 0; f < F; ++f) {
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) part[f][h] = x[F * h + f];
    if constexpr (H > 1) put_together<H>(part[f]);
  }
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 16
    for (int k = 0; k < F; ++k) {
      X r = part[0][h];
#pragma GCC unroll 16
      for (int f = 1; f < F; ++f) {
        Bits<X> from;
#pragma GCC unroll 64
        for (int l = 0; l < N; ++l) {
          const int turn = (k * N + l) % F, at = (k * N + l) / F;
          from[l] = turn == f ? N + at : f == 1 ? at : l;
        }
        r = __builtin_shuffle(r, part[f][h], from);
      }
      x[F * h + k] = r;
    }
}
#define IN_TURNS(T) (sizeof(Raw<T>) > 1)
#else
template <int STEP, class X> INLINE void take_apart(X*) {}
template <int STEP, class X> INLINE void put_together(X*) {}
#define IN_TURNS(T) false
#endif
template <int STEP, class X, int N, class T> INLINE void load_turns(X (&to)[N], const T* from) {
  if constexpr (IN_TURNS(T)) {
#pragma GCC unroll 16
    for (int k = 0; k < STEP; ++k) __builtin_memcpy(to + k, (const Raw<T>*)from + k * N, sizeof to[k]);
    take_apart<STEP>(to);
  } else {
    load_rows_if(to, from, STEP, STEP);
  }
}
template <int STEP, class X, int N, class T> INLINE void store_turns(X (&rows)[N], T* to) {
  if constexpr (IN_TURNS(T)) {
    put_together<STEP>(rows);
#pragma GCC unroll 16
    for (int k = 0; k < STEP; ++k) __builtin_memcpy((Raw<T>*)to + k * N, rows + k, sizeof rows[k]);
  } else {
    store_rows_if(rows, to, STEP, STEP);
  }
}
template <int STEP, class X, int N, class T> static __attribute__((noinline)) void load_turns_apart(
    X (&to)[N], const T* from) {
  load_turns<STEP>(to, from);
}
template <int STEP, class X, int N, class T> static __attribute__((noinline)) void store_turns_apart(
    X (&rows)[N], T* to) {
  store_turns<STEP>(rows, to);
}
"""
