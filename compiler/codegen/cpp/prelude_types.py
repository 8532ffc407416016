"""The beginning of every generated source in C++: types of numbers, vectors and masks. No header is included.

A vector of N lanes is `V<T, N>`, a vector extension of GCC that clang also has. The truth values of lanes are a mask
`V<i32, N>` of 0 and -1, for lanes of any type. Loops over lanes have a constant trip count, which compilers turn into
single instructions.
"""

from __future__ import annotations

TYPES = r"""
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef float f32; typedef double f64;
struct Bf16 { u16 bits; };
struct F16 { u16 bits; };
#define INLINE static inline __attribute__((always_inline))
#define LANES(X) for (int l = 0; l < Count<X>; ++l)
// Where few lanes are left, GCC vectorizes the scalar loop around them once more, and wrongly (12, AVX-512): never.
#define ALONE asm("")

extern "C" void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__);
extern "C" void free(void*);

template <class T, int N> struct Vector { typedef T type __attribute__((vector_size(sizeof(T) * N))); };
template <class T> struct Vector<T, 1> { typedef T type __attribute__((vector_size(sizeof(T)))); };
template <class T, int N> using V = typename Vector<T, N>::type;
template <class X> struct Bare { typedef X type; };
template <class X> struct Bare<X&> { typedef X type; };
template <class X> struct Bare<const X&> { typedef X type; };
template <class X> using Elem = typename Bare<decltype((*(X*)0)[0])>::type;
template <class X, class E = Elem<X>> constexpr int Count = sizeof(X) / sizeof(E);
template <int bytes> struct Integer;
template <> struct Integer<1> { typedef i8 type; };
template <> struct Integer<2> { typedef i16 type; };
template <> struct Integer<4> { typedef i32 type; };
template <> struct Integer<8> { typedef i64 type; };
template <class X> using Bits = V<typename Integer<sizeof(Elem<X>)>::type, Count<X>>;
template <class X> using Mask = V<i32, Count<X>>;

// Bytes become wide by way of 16 bits, and floats by way of integers as wide: in one step gcc takes lanes one by one,
// or halves of vectors.
template <bool is_signed> struct Short { typedef i16 type; };
template <> struct Short<false> { typedef u16 type; };
// gcc takes float(int(x)) of scalars for trunc(x), which keeps -0 and what no integer holds; lanes that no instruction
// converts are scalars to it.
template <class T> INLINE T whole(T x) {
#if defined(__GNUC__) && !defined(__clang__)
  __asm__("" : "+r"(x));
#endif
  return x;
}
template <class X, class Y> INLINE X convert(Y y) {
#if !defined(__AVX512DQ__)
  if constexpr ((Elem<Y>)0.5 != 0 && (Elem<X>)0.5 == 0 && sizeof(Elem<X>) == 8) {
    X r;
    LANES(X) r[l] = whole((Elem<X>)y[l]);
    return r;
  }
#endif
  if constexpr (sizeof(Elem<Y>) == 1 && sizeof(Elem<X>) >= 4) {
    constexpr bool is_signed = (Elem<Y>)-1 < 0;
#if defined(__AVX512F__) && !defined(__clang__)
    if constexpr (Count<Y> == 16 && sizeof(Elem<X>) == 4) {
      const V<char, 16> c = (V<char, 16>)y;
      const V<i32, 16> wide = is_signed ? __builtin_ia32_pmovsxbd512_mask(c, V<i32, 16>{}, (u16)-1)
                                        : __builtin_ia32_pmovzxbd512_mask(c, V<i32, 16>{}, (u16)-1);
      return __builtin_convertvector(wide, X);
    }
#endif
    typedef V<typename Short<is_signed>::type, Count<Y>> S;
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(y, S), Bits<X>), X);
#if defined(__AVX512F__) && !defined(__clang__)
  } else if constexpr (sizeof(Elem<Y>) == 2 && sizeof(Elem<X>) == 4 && Count<Y> == 16) {
    const V<i16, 16> s = (V<i16, 16>)y;
    const V<i32, 16> wide = (Elem<Y>)-1 < 0 ? __builtin_ia32_pmovsxwd512_mask(s, V<i32, 16>{}, (u16)-1)
                                            : __builtin_ia32_pmovzxwd512_mask(s, V<i32, 16>{}, (u16)-1);
    return sizeof(X) == sizeof wide && (Elem<X>)0.5 == 0 ? (X)wide : __builtin_convertvector(wide, X);
  } else if constexpr (sizeof(Elem<Y>) == 4 && sizeof(Elem<X>) == 2 && (Elem<Y>)0.5 == 0 && Count<Y> == 16) {
    return (X)__builtin_ia32_pmovdw512_mask((V<i32, 16>)y, V<i16, 16>{}, (u16)-1);
#endif
  } else {
    return __builtin_convertvector(y, X);
  }
}
template <class X, class Y> INLINE X bitcast(Y y) { X x; __builtin_memcpy(&x, &y, sizeof x); return x; }
template <class X> INLINE X splat(Elem<X> x) { return x - X{}; }
template <class X> INLINE Mask<X> mask(X compared) { return convert<Mask<X>>(compared); }
template <class X> INLINE X sel(Mask<X> m, X a, X b) { return convert<Bits<X>>(m) ? a : b; }
template <class T> INLINE T sel(bool m, T a, T b) { return m ? a : b; }
INLINE bool flip(bool b) { return !b; }
template <class M> INLINE M flip(M m) { return ~m; }
template <int N> INLINE V<i32, N> truth(bool b) { return splat<V<i32, N>>(-(i32)b); }
template <class T, int N> INLINE V<T, N> iota() {
  if constexpr (N == 16) return V<T, N>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  else if constexpr (N == 8) return V<T, N>{0, 1, 2, 3, 4, 5, 6, 7};
  else if constexpr (N == 4) return V<T, N>{0, 1, 2, 3};
  else return V<T, N>{0, 1};
}
template <class X> INLINE X ramp(Elem<X> base, Elem<X> step) {
  return splat<X>(base) + iota<Elem<X>, Count<X>>() * splat<X>(step);
}
template <int N> INLINE V<i32, N> first(i64 n) { return iota<i32, N>() < splat<V<i32, N>>((i32)n); }
template <int N> INLINE V<i32, N> each(V<i32, N> x) { return x; }
template <int N> INLINE V<i32, N> each(i32 x) { return splat<V<i32, N>>(x); }
template <class X> INLINE X lesser(X a, X b) { return a < b ? a : b; }
template <class X> INLINE X greater(X a, X b) { return a > b ? a : b; }
#if defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define MASKS 1
INLINE u16 flags(V<i32, 16> m) { return __builtin_ia32_cvtd2mask512(m); }
INLINE u8 flags(V<i32, 8> m) { return __builtin_ia32_cvtd2mask256(m); }
#elif defined(__AVX2__)
INLINE int flags(V<i32, 8> m) { return __builtin_ia32_movmskps256((V<f32, 8>)m); }
INLINE int flags(V<i32, 4> m) { return __builtin_ia32_movmskps((V<f32, 4>)m); }
#endif
template <class M> INLINE int flags(M m) { i32 r = 0; LANES(M) r |= m[l]; return r; }
template <class M> INLINE bool any(M m) { return flags(m) != 0; }
template <class X> INLINE X rotate(X x, int by) {
#if defined(__clang__)
  X r; LANES(X) r[l] = x[(l + by) % Count<X>]; return r;
#else
  return __builtin_shuffle(x, (iota<typename Integer<sizeof(Elem<X>)>::type, Count<X>>() + (Elem<Bits<X>>)by) %
                                  splat<Bits<X>>(Count<X>));
#endif
}
template <class T> INLINE T least(T a, T b) { return a < b ? a : b; }
template <class T> INLINE T most(T a, T b) { return a > b ? a : b; }
INLINE i64 floor_div(i64 a, i64 b) { i64 q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }
INLINE i64 floor_mod(i64 a, i64 b) { i64 r = a % b; return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
"""
