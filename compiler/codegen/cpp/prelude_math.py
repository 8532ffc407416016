"""The operations of `ops.OPS` in C++: `op_name` for scalars, and the same for vectors.

Results are eager's to the last bit where those are exact, and good to a few units in the last place where they are not.

Vectors take, in this order of preference: an operator or a loop over lanes that compilers turn into one instruction;
a polynomial written here (the functions that networks are made of, f32); glibc's libmvec; a loop over scalars.
"""

from __future__ import annotations

import functools
from collections.abc import Container

from ...ir.ops import OPS
from .prelude_division import DIVISION, VECTOR_DIVISION
from .prelude_special import SPECIAL

# libmvec's names: 4 lanes of f32 are class b (SSE), 8 class d (AVX2), 16 class e (AVX-512).
_CLASSES = (("f32", 4, "b"), ("f32", 8, "d"), ("f32", 16, "e"), ("f64", 2, "b"), ("f64", 4, "d"), ("f64", 8, "e"))

SCALARS = r"""
#define ALL(T) \
  INLINE bool op_eq(T a, T b) { return a == b; } \
  INLINE bool op_ne(T a, T b) { return a != b; } \
  INLINE bool op_lt(T a, T b) { return a < b; } \
  INLINE bool op_le(T a, T b) { return a <= b; } \
  INLINE bool op_gt(T a, T b) { return a > b; } \
  INLINE bool op_ge(T a, T b) { return a >= b; } \
  INLINE T op_maximum(T a, T b) { return a != a || a > b ? a : b; } \
  INLINE T op_minimum(T a, T b) { return a != a || a < b ? a : b; }
#define SIGNED(T) \
  INLINE T op_neg(T a) { return (T)-a; } \
  INLINE T op_sign(T a) { return (T)((a > 0) - (a < 0)); }
ALL(bool) ALL(u8) ALL(i8) ALL(i16) ALL(i32) ALL(i64) ALL(f32) ALL(f64)
SIGNED(u8) SIGNED(i8) SIGNED(i16) SIGNED(i32) SIGNED(i64) SIGNED(f32) SIGNED(f64)
#define FLOATS(T, I) \
  INLINE T op_abs(T a) { return bitcast<T>((I)(bitcast<I>(a) & ~((I)1 << (sizeof(T) * 8 - 1)))); } \
  INLINE bool op_isnan(T a) { return a != a; } \
  INLINE bool op_isinf(T a) { return op_abs(a) == (T)__builtin_inf(); } \
  INLINE bool op_signbit(T a) { return bitcast<I>(a) < 0; }
FLOATS(f32, i32) FLOATS(f64, i64)
#define INTEGERS(T, U, SIGNED) \
  INLINE T op_abs(T a) { return (T)(a < 0 ? -a : a); } \
  INLINE T op_lshift(T a, T b) { return b < 0 || b >= (T)(sizeof(T) * 8) ? (T)0 : (T)((U)a << b); } \
  INLINE T op_rshift(T a, T b) { \
    return b < 0 || b >= (T)(sizeof(T) * 8 - SIGNED) ? (T)(SIGNED && a < 0 ? -1 : 0) : (T)(a >> b); \
  } \
  INLINE bool op_signbit(T a) { return a < 0; } \
  INLINE T op_pow(T a, T b) { \
    if (b < 0) return a == 1 ? (T)1 : a == (T)-1 ? (T)(b % 2 ? -1 : 1) : (T)0; \
    T r = 1; \
    for (; b; b = (T)(b / 2), a = (T)((U)a * (U)a)) if (b & 1) r = (T)((U)r * (U)a); \
    return r; \
  }
INTEGERS(u8, u8, false) INTEGERS(i8, u8, true) INTEGERS(i16, u32, true)
INTEGERS(i32, u32, true) INTEGERS(i64, u64, true)
INLINE bool op_signbit(bool) { return false; }

// Philox 4x32, 10 rounds, in lanes of 64 bits, of which only the lower halves count.
template <class C> struct Words { C w[4]; };
INLINE u64 low_product(u64 a, u32 b) { return (u64)(u32)a * b; }
template <class C> INLINE C low_product(C a, u32 b) {
#if defined(__AVX512F__) && !defined(__clang__)
  if constexpr (Count<C> == 8)
    return (C)__builtin_ia32_pmuludq512_mask((V<i32, 16>)a, (V<i32, 16>)splat<C>(b), V<i64, 8>{}, (u8)-1);
#endif
  return (a & 0xFFFFFFFFull) * (u64)b;
}
template <class C, class K> INLINE Words<C> philox(K seed, C offset) {
  C c0 = offset, c1 = offset >> 32, c2 = c0 - c0, c3 = c2;
  K k0 = seed & 0xFFFFFFFFull, k1 = seed >> 32;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const C left = low_product(c0, 0xD2511F53u), right = low_product(c2, 0xCD9E8D57u);
    c0 = (right >> 32) ^ c1 ^ k0, c1 = right;
    c2 = (left >> 32) ^ c3 ^ k1, c3 = left;
    k0 = k0 + 0x9E3779B9ull, k1 = k1 + 0xBB67AE85ull;
  }
  return {c0 & 0xFFFFFFFFull, c1 & 0xFFFFFFFFull, c2 & 0xFFFFFFFFull, c3 & 0xFFFFFFFFull};
}

template <class U> INLINE U lowbias32(U x) {
  x = (x ^ x >> 16) * 0x7FEB352Du, x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}
INLINE i32 op_hash32(i32 n, i32 k0, i32 k1) { return (i32)lowbias32(lowbias32((u32)n ^ (u32)k0) + (u32)k1); }
template <class X> INLINE X op_hash32(X n, X k0, X k1) {
  typedef V<u32, Count<X>> U;
  return (X)lowbias32(lowbias32((U)n ^ (U)k0) + (U)k1);
}

// What is out of range is undefined in C++; this is what x86 makes of eager's conversions.
template <class To, class From> INLINE To op_cast(From x) {
  if constexpr ((From)0.5 != 0 && sizeof(To) == 1 && (To)-1 > 0) return (To)whole((i64)x);
  else if constexpr ((From)0.5 != 0 && sizeof(To) < 4) return (To)whole((i32)x);
  else if constexpr ((From)0.5 != 0 && (To)0.5 == 0) return whole((To)x);
  else return (To)x;
}
INLINE f32 op_round_bfloat16(f32 x) { return Codec<Bf16>::up(Codec<Bf16>::down(x)); }
INLINE f32 op_round_float16(f32 x) { return Codec<F16>::up(Codec<F16>::down(x)); }
INLINE f64 op_round_bfloat16(f64 x) { return op_round_bfloat16((f32)x); }
INLINE f64 op_round_float16(f64 x) { return op_round_float16((f32)x); }
COMBINATIONS(COMBINE)
"""

VECTORS = r"""
template <int bytes> struct Unsigned;
template <> struct Unsigned<4> { typedef u32 type; };
template <> struct Unsigned<8> { typedef u64 type; };
#define EACH1(NAME) \
  template <class X> INLINE X op_##NAME(X a) { X r; LANES(X) r[l] = op_##NAME((Elem<X>)a[l]); return r; }
#define EACH2(NAME) \
  template <class X> INLINE X op_##NAME(X a, X b) { \
    X r; LANES(X) r[l] = op_##NAME((Elem<X>)a[l], (Elem<X>)b[l]); return r; \
  }
template <class X> INLINE Mask<X> op_eq(X a, X b) { return mask(a == b); }
template <class X> INLINE Mask<X> op_ne(X a, X b) { return mask(a != b); }
template <class X> INLINE Mask<X> op_lt(X a, X b) { return mask(a < b); }
template <class X> INLINE Mask<X> op_le(X a, X b) { return mask(a <= b); }
template <class X> INLINE Mask<X> op_gt(X a, X b) { return mask(a > b); }
template <class X> INLINE Mask<X> op_ge(X a, X b) { return mask(a >= b); }
template <class X> INLINE X op_neg(X a) { return -a; }
template <class X> INLINE X op_abs(X a) {
  if constexpr ((Elem<X>)0.5 == 0) return a < 0 ? -a : a;
  else return (X)((Bits<X>)a & ~(Elem<Bits<X>>)((u64)1 << (sizeof(Elem<X>) * 8 - 1)));
}
template <class X> INLINE X op_sign(X a) { return convert<X>((a < 0) - (a > 0)); }
// The instructions give b where one is NaN: where that is a, it is kept.
#if defined(MASKS) && !defined(__clang__)
#define KEPT(NAME, X, a, b) \
  if constexpr ((Elem<X>)0.5 != 0 && sizeof(Elem<X>) == 4 && Count<X> == 16) \
    return __builtin_ia32_##NAME##ps512_mask(a, b, a, __builtin_ia32_cmpps512_mask(a, a, 7, (u16)-1, 4), 4); \
  if constexpr ((Elem<X>)0.5 != 0 && sizeof(Elem<X>) == 4 && Count<X> == 8) \
    return __builtin_ia32_##NAME##ps256_mask(a, b, a, __builtin_ia32_cmpps256_mask(a, a, 7, (u8)-1)); \
  if constexpr ((Elem<X>)0.5 != 0 && sizeof(Elem<X>) == 8 && Count<X> == 8) \
    return __builtin_ia32_##NAME##pd512_mask(a, b, a, __builtin_ia32_cmppd512_mask(a, a, 7, (u8)-1, 4), 4);
#else
#define KEPT(NAME, X, a, b)
#endif
template <class X> INLINE X op_maximum(X a, X b) { KEPT(max, X, a, b) return (a != a) | (a > b) ? a : b; }
template <class X> INLINE X op_minimum(X a, X b) { KEPT(min, X, a, b) return (a != a) | (a < b) ? a : b; }
template <class X> INLINE X op_lshift(X a, X b) {
  if constexpr (sizeof(Elem<X>) < 4) {
    typedef V<i32, Count<X>> I;
    return convert<X>(op_lshift(convert<I>(a), convert<I>(b)));
  } else {
    typedef V<typename Unsigned<sizeof(Elem<X>)>::type, Count<X>> U;
    constexpr Elem<U> last = sizeof(Elem<X>) * 8 - 1;
    return (U)b > last ? X{} : (X)((U)a << ((U)b & last));
  }
}
template <class X> INLINE X op_rshift(X a, X b) {
  if constexpr (sizeof(Elem<X>) < 4) {
    typedef V<i32, Count<X>> I;
    return convert<X>(op_rshift(convert<I>(a), convert<I>(b)));
  } else {
    typedef V<typename Unsigned<sizeof(Elem<X>)>::type, Count<X>> U;
    return a >> (X)lesser((U)b, splat<U>(sizeof(Elem<X>) * 8 - 1));
  }
}
template <class X> INLINE Mask<X> op_isnan(X a) { return mask(a != a); }
template <class X> INLINE Mask<X> op_isinf(X a) { return mask(op_abs(a) == (Elem<X>)__builtin_inf()); }
template <class X> INLINE Mask<X> op_signbit(X a) {
  if constexpr ((Elem<X>)0.5 == 0) return mask(a < 0);
  else return mask((Bits<X>)a < 0);
}
// By way of i64, as scalars: where no lane needs it, by way of i32, which gives the same.
template <class X> INLINE V<u8, Count<X>> to_bytes(X x) {
  constexpr int N = Count<X>;
  if (__builtin_expect(any(mask(op_abs(x) >= splat<X>((Elem<X>)0x1p31))), 0))
    return convert<V<u8, N>>(convert<V<i64, N>>(x));
  return convert<V<u8, N>>(convert<V<i32, N>>(x));
}
INLINE f32 like(f32, f64 x) { return (f32)x; }
INLINE f64 like(f64, f64 x) { return x; }
template <class X> INLINE X like(X, f64 x) { return splat<X>((Elem<X>)x); }
template <class X> INLINE X op_round_bfloat16(X x) {
  constexpr int N = Count<X>;
  return convert<X>(Codec<Bf16>::up_lanes<N>(Codec<Bf16>::down_lanes<N>(convert<V<f32, N>>(x))));
}
template <class X> INLINE X op_round_float16(X x) {
  constexpr int N = Count<X>;
  return convert<X>(Codec<F16>::up_lanes<N>(Codec<F16>::down_lanes<N>(convert<V<f32, N>>(x))));
}
template <class X> INLINE X fma(X a, X b, X c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  X r;
  LANES(X) r[l] = sizeof(Elem<X>) == 4 ? __builtin_fmaf(a[l], b[l], c[l]) : __builtin_fma(a[l], b[l], c[l]);
  return r;
#else
  return a * b + c;
#endif
}
#if defined(__FMA__)
INLINE V<f32, 4> fma(V<f32, 4> a, V<f32, 4> b, V<f32, 4> c) { return __builtin_ia32_vfmaddps(a, b, c); }
INLINE V<f32, 8> fma(V<f32, 8> a, V<f32, 8> b, V<f32, 8> c) { return __builtin_ia32_vfmaddps256(a, b, c); }
#endif
#if defined(__AVX512F__)
INLINE V<f32, 16> fma(V<f32, 16> a, V<f32, 16> b, V<f32, 16> c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
}
#endif
template <class X> INLINE X horner(X, X sum) { return sum; }
template <class X, class... C> INLINE X horner(X x, X sum, f32 c, C... rest) {
  return horner(x, fma(sum, x, splat<X>(c)), rest...);
}

// x * 2**n, n a whole number from -150, past the smallest normal number, to 128: in two factors.
template <class X> INLINE X scaled(X x, X n) {
  typedef V<i32, Count<X>> I;
  const I i = convert<I>(n), half = i >> 1;
  return x * (X)((half + 127) << 23) * (X)((i - half + 127) << 23);
}
#if defined(__AVX512F__)
INLINE V<f32, 16> scaled(V<f32, 16> x, V<f32, 16> n) { return __builtin_ia32_scalefps512_mask(x, n, x, (u16)-1, 4); }
#endif
// exp of what is within range of the shift that rounds to whole numbers.
template <class X> INLINE X exp_within(X x) {
  const X shift = splat<X>(0x1.8p23f), n = fma(x, splat<X>(0x1.715476p+0f), shift) - shift;
  const X f = fma(n, splat<X>(-0x1.7f7d1cp-20f), fma(n, splat<X>(-0x1.62e4p-1f), x));
  const X cubic = horner(f, splat<X>(0x1.694p-10f), 0x1.125edcp-7f, 0x1.555b5ap-5f, 0x1.55545p-3f);
  return scaled(horner(f, cubic, 0x1.fffff6p-2f, 1.0f, 1.0f), n);
}
// What rounds to 0 is not computed: Intel's processors take 100 cycles and more for results that are not normal.
template <class X> INLINE X exp_f32(X x) {
  const auto none = x < splat<X>(-104.0f);
  const X high = splat<X>(89.0f), made = exp_within(none ? X{} : high < x ? high : x);
  return none ? X{} : made;
}
template <class X> INLINE X log_f32(X x) {
  typedef V<i32, Count<X>> I;
  const X normal = x < 0x1p-126f ? x * 0x1p23f : x;
  const I bits = (I)normal, e = (bits - 0x3f2aaaab) & (i32)0xff800000;
  const X n = convert<X>(e >> 23) + (x < 0x1p-126f ? splat<X>(-23.0f) : X{});
  const X f = (X)(bits - e) - 1.0f, s = f * f;
  X r = horner(s, splat<X>(-0.130310059f), -0.121483512f, -0.166846126f, -0.249996200f);
  r = horner(f, fma(horner(s, splat<X>(0.140869141f), 0.139814854f, 0.200120345f), f, r), 0.333331972f, -0.5f);
  r = fma(n, splat<X>(0.693147182f), fma(r, s, f));
  r = (x > 0) & (x < __builtin_inff()) ? r : x + x;
  r = x < 0 ? splat<X>(__builtin_nanf("")) : r;
  return x == 0 ? splat<X>(-__builtin_inff()) : r;
}
template <class X> INLINE X with_sign(X size, X sign) {
  typedef V<i32, Count<X>> I;
  return (X)(((I)size & 0x7fffffff) | ((I)sign & (i32)0x80000000));
}
template <class X> INLINE X tanh_f32(X x) {
  const X size = with_sign(x, X{}), s = x * x;
  const X ten = splat<X>(10.0f), t = ten < size ? ten : size;
  const X far = 1.0f - 2.0f / (exp_within(t + t) + 1.0f);
  const X near = fma(horner(s, splat<X>(1.57394409e-2f), -5.23025580e-2f, 1.33152470e-1f, -3.33327681e-1f, 0.0f), x, x);
  return size >= 0.55f ? with_sign(far, x) : near;
}
template <class X> INLINE X erf_f32(X x) {
  const X size = with_sign(x, X{}), four = splat<X>(4.0f), t = four < size ? four : size, s = x * x;
  X r = fma(splat<X>(-0x1.22p-16f), t, splat<X>(0x1.91cfb2p-12f));
  r = fma(r, t * t, fma(splat<X>(-0x1.fd1438p-9f), t, splat<X>(0x1.8d6342p-6f)));
  r = horner(t, r, -0x1.b55cb8p-4f, -0x1.450aa0p-1f, -0x1.079d0cp-3f);
  const X far = 1.0f - exp_within(fma(r, t, -t));
  const X high = horner(s, splat<X>(-0x1.38ep-11f), 0x1.471a58p-8f, -0x1.b691b2p-6f);
  const X near = horner(s, high, 0x1.ce1c44p-4f, -0x1.8127p-2f, 0x1.06eba8p-3f);
  return t > 0.927734375f ? with_sign(far, x) : fma(near, x, x);
}
#if defined(MASKS) && !defined(__clang__)
// erf(x) / x by polynomials around the multiples of 1/4, whose coefficients are chosen lane by lane: half the work.
INLINE V<f32, 16> erf_f32(V<f32, 16> x) {
  typedef V<f32, 16> X;
  const X by[] = {
    {0, -0x1.245e7p-5f, -0x1.97ccap-5f, -0x1.34bb8ap-5f, -0x1.9adbep-7f, 0x1.16a248p-7f,
     0x1.166cccp-6f, 0x1.eb088cp-7f, 0x1.22b7f8p-7f, 0x1.ca0916p-9f, 0x1.d61f6ap-12f, -0x1.7150e8p-11f,
     -0x1.ccb3fap-11f, -0x1.787194p-11f, -0x1.0db0c8p-11f, -0x1.734598p-12f},
    {0x1.cb9d34p-4f, 0x1.6aee9ap-4f, 0x1.091776p-5f, -0x1.91ef16p-6f, -0x1.cd341ap-5f, -0x1.d9166ep-5f,
     -0x1.4bb4e6p-5f, -0x1.439b96p-6f, -0x1.360dcap-8f, 0x1.6d5d28p-9f, 0x1.48beaap-8f, 0x1.34cd2p-8f,
     0x1.e0255p-9f, 0x1.5b87cap-9f, 0x1.edc6d2p-10f, 0x1.60e8cep-10f},
    {0, 0x1.aceebcp-4f, 0x1.55ce96p-3f, 0x1.5acf3p-3f, 0x1.01cf5ap-3f, 0x1.0fab64p-4f,
     0x1.094a96p-6f, -0x1.c03372p-7f, -0x1.9c89f8p-6f, -0x1.a1def6p-6f, -0x1.5bfabcp-6f, -0x1.0a0c6p-6f,
     -0x1.8a39dap-7f, -0x1.23693p-7f, -0x1.b3d2a2p-8f, -0x1.4b3ee6p-8f},
    {-0x1.81265p-2f, -0x1.5765a8p-2f, -0x1.d6dd16p-3f, -0x1.9a7fa4p-4f, 0x1.990edap-7f, 0x1.5aa3c4p-4f,
     0x1.d4d93ap-4f, 0x1.d35518p-4f, 0x1.93cadap-4f, 0x1.44093p-4f, 0x1.f7606p-5f, 0x1.846dap-5f,
     0x1.2e2216p-5f, 0x1.dcc01ap-6f, 0x1.7e09b2p-6f, 0x1.36ac6ap-6f},
    {0, -0x1.730704p-3f, -0x1.4c3884p-2f, -0x1.a0cddap-2f, -0x1.b5db04p-2f, -0x1.9b12ep-2f,
     -0x1.667ed6p-2f, -0x1.2b07a6p-2f, -0x1.e87128p-3f, -0x1.8d734cp-3f, -0x1.45c32p-3f, -0x1.0e5896p-3f,
     -0x1.c6e932p-4f, -0x1.83bfap-4f, -0x1.4e5c5cp-4f, -0x1.234526p-4f},
    {0x1.20dd74p+0f, 0x1.1af54ep+0f, 0x1.0a7ef6p+0f, 0x1.e57b74p-1f, 0x1.af767ap-1f, 0x1.7a0518p-1f,
     0x1.49c38ep-1f, 0x1.20ac04p-1f, 0x1.fd9ae2p-2f, 0x1.c67206p-2f, 0x1.996eeep-2f, 0x1.74538p-2f,
     0x1.555368p-2f, 0x1.3b1358p-2f, 0x1.24923ap-2f, 0x1.11111p-2f},
  };
  const X size = with_sign(x, X{}), shift = splat<X>(0x1.8p21f), at = size + shift, f = size - (at - shift);
  X r = __builtin_shuffle(by[0], (V<i32, 16>)at);
#pragma GCC unroll 5
  for (int k = 1; k < 6; ++k) r = fma(r, f, __builtin_shuffle(by[k], (V<i32, 16>)at));
  const X one = splat<X>(1.0f), near = r * size;
  return with_sign((size >= 3.875f) | (one < near) ? one : near, x);
}
#endif
"""

COMPOSED = r"""
template <class X> INLINE X scale(X x, X top) { return sel(op_eq(x, like(x, -__builtin_inf())), X{}, op_exp(x - top)); }
template <class X, class I> INLINE void co_argmax(X& x, I& i, X y, I j) {
  const auto lost = op_ne(x, x);
  const auto tie = op_eq(x, y) | (lost & op_ne(y, y));
  const auto left = (tie & op_le(i, j)) | (flip(tie) & (lost | op_gt(x, y)));
  x = sel(left, x, y), i = sel(left, i, j);
}
template <class X, class I> INLINE void co_argmin(X& x, I& i, X y, I j) {
  const auto lost = op_ne(x, x);
  const auto tie = op_eq(x, y) | (lost & op_ne(y, y));
  const auto left = (tie & op_le(i, j)) | (flip(tie) & (lost | op_lt(x, y)));
  x = sel(left, x, y), i = sel(left, i, j);
}
template <class X, class I> INLINE void up_argmax(X& x, I& i, X y, I j) { co_argmax(x, i, y, j); }
template <class X, class I> INLINE void up_argmin(X& x, I& i, X y, I j) { co_argmin(x, i, y, j); }
template <class X> INLINE void up_welford(X& mean, X& m2, X& n, X x) {
  const X apart = x - mean;
  n = n + like(x, 1), mean = mean + apart / n, m2 = m2 + apart * (x - mean);
}
template <class X> INLINE void co_welford(X& mean, X& m2, X& n, X mean_b, X m2_b, X n_b) {
  const X both = n + n_b, share = sel(op_eq(n_b, X{}), X{}, n_b / both);
  const auto empty = op_eq(n, X{});
  const X apart = sel(empty | op_eq(n_b, X{}), X{}, mean_b - mean);
  mean = sel(empty, mean_b, mean + apart * share), m2 = m2 + m2_b + apart * apart * n * share, n = both;
}
// One exponential an element: either the sum so far is rescaled, or the element.
template <class X> INLINE void up_softmax(X& top, X& sum, X x) {
  const X e = op_exp(-op_abs(x - top));
  const X made = sel(op_gt(x, top), sum * e + (x - x + like(x, 1)), sum + e);
  sum = sel(op_eq(x, like(x, -__builtin_inf())), sum, made), top = op_maximum(top, x);
}
template <class X> INLINE void co_softmax(X& top, X& sum, X top_b, X sum_b) {
  const X both = op_maximum(top, top_b);
  sum = sum * scale(top, both) + sum_b * scale(top_b, both), top = both;
}
#define COMBINE_LANES(NAME, EXPR) \
  template <class T, class X> INLINE void lanes_##NAME(T* p, X b) { \
    const X a = load<Count<X>>(p); \
    store(p, (X)(EXPR)); \
  } \
  template <class T, class X> INLINE void lanes_##NAME##_if(Mask<X> m, T* p, X b) { \
    const X a = load_if<Count<X>>(m, p); \
    store_if(m, p, (X)(EXPR)); \
  }
COMBINATIONS(COMBINE_LANES)
template <class X> INLINE X logaddexp(X a, X b) {
  const X made = op_maximum(a, b) + op_log1p(op_exp(-op_abs(a - b)));
  return sel(op_eq(a, b) & op_isinf(a), a, made);
}
"""


def _libm() -> str:
    lines = []
    for name, info in OPS.items():
        for kind, suffix in (("f32", "f"), ("f64", "")) if info.cpp.libm else ():
            args, passed = (f"{kind} a, {kind} b", "a, b") if info.arity == 2 else (f"{kind} a", "a")
            lines.append(f"INLINE {kind} op_{name}({args}) {{ return __builtin_{info.cpp.libm}{suffix}({passed}); }}")
    return "\n".join(lines)


def _each() -> str:
    loops = [(name, info.arity) for name, info in OPS.items() if info.cpp.lanes or info.cpp.libmvec]
    return "\n".join(f"EACH{arity}({name})" for name, arity in loops)


def _composed() -> str:
    """Operations that are expressions of others, for scalars and vectors alike."""
    lines = []
    for name, info in OPS.items():
        if info.cpp.formula:
            args = "X a, X b" if info.arity == 2 else "X a"
            lines.append(f"template <class X> INLINE X op_{name}({args}) {{ return {info.cpp.formula}; }}")
    return "\n".join(lines)


def _has_polynomial(name: str) -> bool:
    return OPS[name].cpp.polynomial


def _written(lanes: int) -> str:
    """Overloads that prefer the polynomials above."""
    vector = f"V<f32, {lanes}>"
    names = filter(_has_polynomial, OPS)
    return "\n".join(f"INLINE {vector} op_{name}({vector} x) {{ return {name}_f32(x); }}" for name in names)


def vector_symbols() -> dict[str, tuple[str, str, int]]:
    """Functions of libmvec by symbol: the operation, the type of lanes, how many."""
    made = {}
    for name, info in OPS.items():
        for kind, lanes, isa in _CLASSES if info.cpp.libmvec else ():
            form = "v" * info.arity
            made[f"_ZGV{isa}N{lanes}{form}_{name}{'f' if kind == 'f32' else ''}"] = (name, kind, lanes)
    return made


def _library(vector_bytes: int, symbols: Container[str]) -> str:
    """Overloads that call libmvec, which clobbers every vector register but beats a loop over scalars."""
    lines = []
    for symbol, (name, kind, lanes) in vector_symbols().items():
        written = kind == "f32" and _has_polynomial(name)
        if written or lanes * int(kind[1:]) // 8 > vector_bytes or symbol not in symbols:
            continue
        x = f"V<{kind}, {lanes}>"
        args, passed = (f"{x} a, {x} b", "a, b") if OPS[name].arity == 2 else (f"{x} a", "a")
        lines.append(f'extern "C" {x} {symbol}({args}); INLINE {x} op_{name}({args}) {{ return {symbol}({passed}); }}')
    return "\n".join(lines)


@functools.cache
def operations(vector_bytes: int, symbols: frozenset[str]) -> str:
    """The operations for vectors of up to `vector_bytes`, with the functions of libmvec among `symbols`."""
    widths = [lanes for lanes in (16, 8, 4, 2) if lanes * 4 <= vector_bytes]
    libraries = [*map(_written, widths), _library(vector_bytes, symbols)]
    parts = [_libm(), SCALARS, DIVISION, VECTORS, _each(), VECTOR_DIVISION, *libraries, _composed(), COMPOSED, SPECIAL]
    return "\n".join(parts)
