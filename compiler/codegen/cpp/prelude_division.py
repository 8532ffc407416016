"""Division that rounds, and remainders, in C++: of scalars and of vectors.

Remainders are exact, as C's ``fmod`` is: every one of them is a floating-point number.
"""

from __future__ import annotations

DIVISION = r"""
#define DIVIDED(T) \
  INLINE T op_truncdiv(T a, T b) { return op_trunc(a / b); } \
  INLINE T op_remainder(T a, T b) { const T r = op_fmod(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r; } \
  INLINE T op_floordiv(T a, T b) { \
    if (b == 0) return a / b; \
    const T r = op_fmod(a, b); \
    T q = (a - r) / b; \
    if (r != 0 && (b < 0) != (r < 0)) q -= 1; \
    if (q == 0) return op_copysign((T)0, a / b); \
    const T whole = op_floor(q); \
    return q - whole > (T)0.5 ? whole + 1 : whole; \
  }
DIVIDED(f32) DIVIDED(f64)
// Divisors are never 0 here: the caller has checked. -1 is apart since the smallest integer over it overflows.
#define DIVIDED_INTEGERS(T, U, SIGNED) \
  INLINE T op_truncdiv(T a, T b) { return SIGNED && b == (T)-1 ? (T)(0 - (U)a) : (T)(a / b); } \
  INLINE T op_fmod(T a, T b) { return SIGNED && b == (T)-1 ? (T)0 : (T)(a % b); } \
  INLINE T op_remainder(T a, T b) { const T r = op_fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r; } \
  INLINE T op_floordiv(T a, T b) { \
    const T q = op_truncdiv(a, b); \
    return op_fmod(a, b) != 0 && (a < 0) != (b < 0) ? (T)(q - 1) : q; \
  }
DIVIDED_INTEGERS(u8, u8, false) DIVIDED_INTEGERS(i8, u8, true) DIVIDED_INTEGERS(i16, u32, true)
DIVIDED_INTEGERS(i32, u32, true) DIVIDED_INTEGERS(i64, u64, true)
"""

VECTOR_DIVISION = r"""
#define INTEGERS_OF(X) constexpr ((Elem<X>)0.5 == 0)
template <class X> INLINE X truncdiv_lanes(X a, X b) {
  X r;
  LANES(X) r[l] = op_truncdiv((Elem<X>)a[l], (Elem<X>)b[l]);
  return r;
}
// No instruction divides lanes of integers. A quotient of floating-point numbers is rounded, but not up to a whole
// number that it lacks 1 / b to, where these have two bits more than a and b: the one below is nearer.
// (gcc 12 fails to convert halves of a vector of 64 bytes.)
#if defined(MASKS)
constexpr int MOST_QUOTIENTS = 8;
#else
constexpr int MOST_QUOTIENTS = 4;
#endif
template <class X> INLINE X whole_quotient(X a, X b) {
  constexpr int N = Count<X>;
  typedef V<f32, N> Narrow;
  typedef V<f64, N> Wide;
  if constexpr (sizeof(Elem<X>) <= 2) {
    return convert<X>(convert<V<i32, N>>(convert<Narrow>(a) / convert<Narrow>(b)));
  } else if constexpr (sizeof(Elem<X>) == 4 && N > MOST_QUOTIENTS) {
    V<i32, N / 2> half[2], by[2];
    __builtin_memcpy(half, &a, sizeof a), __builtin_memcpy(by, &b, sizeof b);
    for (int k = 0; k < 2; ++k) half[k] = whole_quotient(half[k], by[k]);
    X r;
    __builtin_memcpy(&r, half, sizeof r);
    return r;
  } else if constexpr (sizeof(Elem<X>) == 4) {
    return convert<X>(convert<Wide>(a) / convert<Wide>(b));
  } else {
#if defined(MASKS)
    typedef V<u64, N> U;
    const U far = ((U)a + ((u64)1 << 51)) | ((U)b + ((u64)1 << 51));
    u64 all = 0;
    LANES(U) all |= far[l];
    if (__builtin_expect(!(all >> 52), 1)) return convert<X>(convert<Wide>(a) / convert<Wide>(b));
#endif
    return truncdiv_lanes(a, b);
  }
}
template <class X> INLINE X fmod_lanes(X a, X b) {
  X r;
  LANES(X) r[l] = op_fmod((Elem<X>)a[l], (Elem<X>)b[l]);
  return r;
}
// A quotient that is rounded reaches the next whole number, at most, where it is small; both remainders are numbers of
// this width then, so that the fused multiply-add does not round. Large quotients are found in f64; what is too large
// for that, infinities and NaN are C's.
template <class X> INLINE X op_fmod(X a, X b) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  if constexpr ((Elem<X>)0.5 != 0) {
    const X q = op_trunc(a / b), size = op_abs(b);
    const X far = splat<X>((Elem<X>)(sizeof(Elem<X>) == 4 ? 0x1p22 : 0x1p51));
    const auto near = (op_abs(q) < far) & (size < splat<X>((Elem<X>)__builtin_inf()));
    if (__builtin_expect(any(flip(mask(near))), 0)) {
      if constexpr (sizeof(Elem<X>) == 8) return fmod_lanes(a, b);
      else return convert<X>(op_fmod(convert<V<f64, Count<X>>>(a), convert<V<f64, Count<X>>>(b)));
    }
    const X r = fma(-q, b, a);
    const auto past = ((r < 0) & (a > 0)) | ((r > 0) & (a < 0));
    return op_copysign(past ? r + op_copysign(size, a) : r, a);
  }
#endif
  if INTEGERS_OF(X) return a - whole_quotient(a, b) * b;
  else return fmod_lanes(a, b);
}
template <class X> INLINE X op_truncdiv(X a, X b) {
  if INTEGERS_OF(X) return whole_quotient(a, b);
  else return op_trunc(a / b);
}
template <class X> INLINE X op_remainder(X a, X b) {
  const X r = op_fmod(a, b);
  return (r != 0) & ((b < 0) ^ (r < 0)) ? r + b : r;
}
template <class X> INLINE X op_floordiv(X a, X b) {
  if INTEGERS_OF(X) {
    const X q = whole_quotient(a, b), r = a - q * b;
    return (r != 0) & ((b < 0) ^ (r < 0)) ? q - 1 : q;
  } else {
    const X r = op_fmod(a, b), plain = a / b, exact = (a - r) / b;
    const X q = (r != 0) & ((b < 0) ^ (r < 0)) ? exact - 1 : exact, whole = op_floor(q);
    const X rounded = q - whole > (Elem<X>)0.5 ? whole + 1 : whole;
    const X quotient = q == 0 ? op_copysign(X{}, plain) : rounded;
    return b == 0 ? plain : quotient;
  }
}
"""
