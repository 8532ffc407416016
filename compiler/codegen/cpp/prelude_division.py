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
#define EACH_INTEGER(NAME) \
  if constexpr ((Elem<X>)0.5 == 0) { X r; LANES(X) r[l] = op_##NAME((Elem<X>)a[l], (Elem<X>)b[l]); return r; } else
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
  return fmod_lanes(a, b);
}
template <class X> INLINE X op_truncdiv(X a, X b) { EACH_INTEGER(truncdiv) return op_trunc(a / b); }
template <class X> INLINE X op_remainder(X a, X b) {
  EACH_INTEGER(remainder) {
    const X r = op_fmod(a, b);
    return (r != 0) & ((b < 0) ^ (r < 0)) ? r + b : r;
  }
}
template <class X> INLINE X op_floordiv(X a, X b) {
  EACH_INTEGER(floordiv) {
    const X r = op_fmod(a, b), plain = a / b, exact = (a - r) / b;
    const X q = (r != 0) & ((b < 0) ^ (r < 0)) ? exact - 1 : exact, whole = op_floor(q);
    const X rounded = q - whole > (Elem<X>)0.5 ? whole + 1 : whole;
    const X quotient = q == 0 ? op_copysign(X{}, plain) : rounded;
    return b == 0 ? plain : quotient;
  }
}
"""
