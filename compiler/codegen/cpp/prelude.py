"""The fixed beginning of every generated source: types, memory, masks, threads. No header is included.

A vector of N lanes is `V<T, N>`, a GCC vector extension, which clang has too. Truth of lanes is a mask `V<i32, N>` of 0
and -1, whatever the lanes' type. Memory types `Bf16`, `F16` and `bool` are computed as f32, f32 and mask: `Codec` says
how they are read and written. Loops over lanes have a constant trip count: compilers make single instructions of them.
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

MEMORY = r"""
template <class T> struct Codec {
  typedef T raw;
  typedef T value;
  static INLINE_MEMBER T up(T x) { return x; }
  static INLINE_MEMBER T down(T x) { return x; }
  template <int N> static INLINE_MEMBER V<T, N> up_lanes(V<T, N> x) { return x; }
  template <int N> static INLINE_MEMBER V<T, N> down_lanes(V<T, N> x) { return x; }
};
template <> struct Codec<bool> {
  typedef u8 raw;
  typedef bool value;
  static INLINE_MEMBER bool up(u8 x) { return x != 0; }
  static INLINE_MEMBER u8 down(bool x) { return x; }
  template <int N> static INLINE_MEMBER V<i32, N> up_lanes(V<u8, N> x) { return convert<V<i32, N>>(x) != 0; }
  template <int N> static INLINE_MEMBER V<u8, N> down_lanes(V<i32, N> m) { return convert<V<u8, N>>(m) & (u8)1; }
};
template <> struct Codec<Bf16> {
  typedef u16 raw;
  typedef f32 value;
  static INLINE_MEMBER f32 up(u16 x) { return bitcast<f32>((u32)x << 16); }
  static INLINE_MEMBER u16 down(f32 x) {
    const u32 b = bitcast<u32>(x);
    return x != x ? 0x7fc0 : (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  }
  template <int N> static INLINE_MEMBER V<f32, N> up_lanes(V<u16, N> x) {
    return (V<f32, N>)(convert<V<u32, N>>(x) << 16);
  }
  template <int N> static INLINE_MEMBER V<u16, N> down_lanes(V<f32, N> x) {
#if defined(__AVX512BF16__) && defined(MASKS) && !defined(__clang__)
    // The instruction makes zeros of subnormal numbers.
    if constexpr (N == 16)
      if (__builtin_expect(!__builtin_ia32_fpclassps512_mask(x, 0x20, (u16)-1), 1))
        return (V<u16, 16>)__builtin_ia32_cvtneps2bf16_v16sf(x);
#endif
    const V<u32, N> b = (V<u32, N>)x, r = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    return convert<V<u16, N>>(x != x ? splat<V<u32, N>>(0x7fc0) : r);
  }
};
#if defined(__F16C__) && !defined(__clang__)
#define HALVES 1
#endif
// Round to nearest even through the adder: below the smallest normal number by adding a power of two of the right size.
template <> struct Codec<F16> {
  typedef u16 raw;
  typedef f32 value;
  static INLINE_MEMBER f32 up(u16 x) { return up_lanes<1>(V<u16, 1>{x})[0]; }
  static INLINE_MEMBER u16 down(f32 x) { return down_lanes<1>(V<f32, 1>{x})[0]; }
  template <int N> static INLINE_MEMBER V<f32, N> up_lanes(V<u16, N> x) {
#if defined(HALVES)
    if constexpr (N == 8) return __builtin_ia32_vcvtph2ps256((V<i16, 8>)x);
#if defined(__AVX512F__)
    if constexpr (N == 16) return __builtin_ia32_vcvtph2ps512_mask((V<i16, 16>)x, V<f32, 16>{}, (u16)-1, 4);
#endif
#endif
    const V<u32, N> b = convert<V<u32, N>>(x), rest = (b & 0x7fff) << 13, sign = (b & 0x8000) << 16;
    const V<u32, N> finite = (V<u32, N>)((V<f32, N>)rest * 0x1p112f);
    return (V<f32, N>)(((b & 0x7fff) >= 0x7c00 ? rest | 0x7f800000 : finite) | sign);
  }
  template <int N> static INLINE_MEMBER V<u16, N> down_lanes(V<f32, N> x) {
#if defined(HALVES)
    if constexpr (N == 8) return (V<u16, 8>)__builtin_ia32_vcvtps2ph256(x, 0);
#if defined(__AVX512F__)
    if constexpr (N == 16) return (V<u16, 16>)__builtin_ia32_vcvtps2ph512_mask(x, 0, V<i16, 16>{}, (u16)-1);
#endif
#endif
    const V<u32, N> whole = (V<u32, N>)x, sign = whole & 0x80000000u, b = whole ^ sign;
    const V<u32, N> tiny = (V<u32, N>)((V<f32, N>)b + 0.5f) - 0x3f000000;
    const V<u32, N> normal = (b - 0x38000000 + 0xfff + ((b >> 13) & 1)) >> 13;
    const V<u32, N> huge = b > 0x7f800000 ? splat<V<u32, N>>(0x7e00) : splat<V<u32, N>>(0x7c00);
    return convert<V<u16, N>>((b >= 0x47800000 ? huge : b < 0x38800000 ? tiny : normal) | (sign >> 16));
  }
};

// Loads and stores of some lanes: no other memory is touched.
template <class T, int N, int bytes = sizeof(T)> struct Masked {
  static INLINE_MEMBER V<T, N> load(V<i32, N> m, const T* p) {
    V<T, N> r = {};
    ALONE; for (int l = 0; l < N; ++l) if (m[l]) r[l] = p[l];
    return r;
  }
  static INLINE_MEMBER void store(V<i32, N> m, T* p, V<T, N> x) {
    ALONE; for (int l = 0; l < N; ++l) if (m[l]) p[l] = x[l];
  }
};
#if defined(MASKS)
// The compilers' builtins differ in what they call the pointer.
#if defined(__clang__)
#define NARROW Lanes
#else
#define NARROW Lane
#endif
#define MASKED_512(BYTES, N, LANE, NAME, POINTEE) \
  template <class T> struct Masked<T, N, BYTES> { \
    typedef LANE Lane; typedef LANE Lanes __attribute__((vector_size(BYTES * N))); \
    static INLINE_MEMBER V<T, N> load(V<i32, N> m, const T* p) { \
      return (V<T, N>)__builtin_ia32_load##NAME##_mask((const POINTEE*)p, Lanes{}, flags(m)); \
    } \
    static INLINE_MEMBER void store(V<i32, N> m, T* p, V<T, N> x) { \
      __builtin_ia32_store##NAME##_mask((POINTEE*)p, (Lanes)x, flags(m)); \
    } \
  };
MASKED_512(4, 16, i32, dqusi512, Lane) MASKED_512(4, 8, i32, dqusi256, NARROW)
MASKED_512(8, 8, i64, dqudi512, Lane)
MASKED_512(2, 16, i16, dquhi256, NARROW) MASKED_512(2, 8, i16, dquhi128, NARROW)
MASKED_512(1, 16, char, dquqi128, NARROW)
#elif defined(__AVX2__)
template <class T> struct Masked<T, 8, 4> {
  static INLINE_MEMBER V<T, 8> load(V<i32, 8> m, const T* p) {
    return (V<T, 8>)__builtin_ia32_maskloadd256((const V<i32, 8>*)p, m);
  }
  static INLINE_MEMBER void store(V<i32, 8> m, T* p, V<T, 8> x) {
    __builtin_ia32_maskstored256((V<i32, 8>*)p, m, (V<i32, 8>)x);
  }
};
template <class T> struct Masked<T, 4, 8> {
  static INLINE_MEMBER V<T, 4> load(V<i32, 4> m, const T* p) {
    return (V<T, 4>)__builtin_ia32_maskloadq256((const V<i64, 4>*)p, convert<V<i64, 4>>(m));
  }
  static INLINE_MEMBER void store(V<i32, 4> m, T* p, V<T, 4> x) {
    __builtin_ia32_maskstoreq256((V<i64, 4>*)p, convert<V<i64, 4>>(m), (V<i64, 4>)x);
  }
};
#endif

template <class T> using Raw = typename Codec<T>::raw;
template <class T> INLINE auto get(const T* p) { return Codec<T>::up(*(const Raw<T>*)p); }
template <class T, class X> INLINE void put(T* p, X x) { *(Raw<T>*)p = Codec<T>::down(x); }
template <int N, class T> INLINE auto load(const T* p) {
  V<Raw<T>, N> r;
  __builtin_memcpy(&r, p, sizeof r);
  return Codec<T>::template up_lanes<N>(r);
}
template <int N, class T> INLINE auto load_if(V<i32, N> m, const T* p) {
  return Codec<T>::template up_lanes<N>(Masked<Raw<T>, N>::load(m, (const Raw<T>*)p));
}
template <int N, class T> INLINE auto gather(const T* p, V<i64, N> at) {
  V<Raw<T>, N> r;
  for (int l = 0; l < N; ++l) r[l] = ((const Raw<T>*)p)[at[l]];
  return Codec<T>::template up_lanes<N>(r);
}
template <int N, class T> INLINE auto gather_if(V<i32, N> m, const T* p, V<i64, N> at) {
  V<Raw<T>, N> r = {};
  ALONE; for (int l = 0; l < N; ++l) if (m[l]) r[l] = ((const Raw<T>*)p)[at[l]];
  return Codec<T>::template up_lanes<N>(r);
}
// Offsets of 32 bits: half as many registers. Lanes outside of the mask read what the first lane inside reads.
template <int N> INLINE V<i32, N> inside(V<i32, N> m, V<i32, N> at) {
#if defined(MASKS) && !defined(__clang__)
  return m ? at : __builtin_shuffle(at, splat<V<i32, N>>(__builtin_ctz(flags(m) | 1 << (N - 1))));
#else
  int one = N - 1;
  for (int l = N - 1; l >= 0; --l) if (m[l]) one = l;
  return m ? at : splat<V<i32, N>>(at[one]);
#endif
}
template <int N, class T> INLINE auto gather(const T* p, V<i32, N> at) {
  V<Raw<T>, N> r;
  for (int l = 0; l < N; ++l) r[l] = ((const Raw<T>*)p)[at[l]];
  return Codec<T>::template up_lanes<N>(r);
}
template <int N, class T> INLINE auto gather_if(V<i32, N> m, const T* p, V<i32, N> at) {
  return gather<N>(p, inside<N>(m, at));
}
// Places as near each other as two vectors reach are read as two vectors, and chosen from these.
template <int N> struct Near { V<i32, N> at, from; i32 first; bool close; };
template <int N> INLINE Near<N> near(V<i32, N> at) {
  const i32 first = least(at[0], at[N - 1]);
  const V<i32, N> from = at - splat<V<i32, N>>(first);
  return {at, from, first, !any(mask((V<u32, N>)from >= splat<V<u32, N>>(2 * N)))};
}
template <int N> INLINE Near<N> near_if(V<i32, N> m, V<i32, N> at) { return near<N>(inside<N>(m, at)); }
// `left` elements are in the buffer from `p` on: no other memory is touched.
template <int N, class T> INLINE auto pick(Near<N> n, const T* p, i64 left) {
#if defined(MASKS) && !defined(__clang__)
  typedef V<Raw<T>, N> X;
  if constexpr (sizeof(Raw<T>) > 1) {
    if (__builtin_expect(n.close, 1)) {
      const Raw<T>* q = (const Raw<T>*)p + n.first;
      X low, high;
      left -= n.first;
      if (__builtin_expect(left >= 2 * N, 1)) {
        __builtin_memcpy(&low, q, sizeof low), __builtin_memcpy(&high, q + N, sizeof high);
      } else {
        low = Masked<Raw<T>, N>::load(first<N>(left), q);
        high = Masked<Raw<T>, N>::load(first<N>(left - N), q + N);
      }
      return Codec<T>::template up_lanes<N>(__builtin_shuffle(low, high, convert<Bits<X>>(n.from)));
    }
  }
#endif
  return gather<N>(p, n.at);
}
#if defined(__AVX2__) && !defined(__clang__)
// Every second, third or fourth element, of whole vectors: none of them ends after the last element that is asked for.
template <int STEP, class X, class P> INLINE X every(const P* p) {
  constexpr int N = Count<X>;
  X r, part;
  __builtin_memcpy(&r, p, sizeof r);
#pragma GCC unroll 4
  for (int k = 1; k < STEP; ++k) {
    const int begin = k < STEP - 1 ? k * N : (STEP - 1) * (N - 1);
    __builtin_memcpy(&part, p + begin, sizeof part);
    Bits<X> from;
    for (int l = 0; l < N; ++l) {
      const int at = STEP * l;
      from[l] = at >= k * N ? N + (at - begin < N ? at - begin : 0) : k == 1 ? at : l;
    }
    r = __builtin_shuffle(r, part, from);
  }
  return r;
}
#if defined(MASKS)
#define EVERY(X, P, STEP) ((sizeof(P) == 4 || sizeof(P) == 2) && Count<X> >= 8 && __builtin_constant_p(STEP))
#else
#define EVERY(X, P, STEP) (sizeof(P) == 4 && Count<X> >= 8 && __builtin_constant_p(STEP))
#endif
#else
template <int STEP, class X, class P> INLINE X every(const P*) { return X{}; }
#define EVERY(X, P, STEP) false
#endif
template <int N, class T> INLINE auto strided(const T* p, i64 step) {
  typedef V<Raw<T>, N> X;
  X r;
  if (EVERY(X, Raw<T>, step) && step == 2) r = every<2, X>((const Raw<T>*)p);
  else if (EVERY(X, Raw<T>, step) && step == 3) r = every<3, X>((const Raw<T>*)p);
  else if (EVERY(X, Raw<T>, step) && step == 4) r = every<4, X>((const Raw<T>*)p);
  else
    for (int l = 0; l < N; ++l) r[l] = ((const Raw<T>*)p)[l * step];
  return Codec<T>::template up_lanes<N>(r);
}
template <int N, class T> INLINE auto strided_if(V<i32, N> m, const T* p, i64 step) {
  V<Raw<T>, N> r = {};
  ALONE; for (int l = 0; l < N; ++l) if (m[l]) r[l] = ((const Raw<T>*)p)[l * step];
  return Codec<T>::template up_lanes<N>(r);
}
template <class T, class X> INLINE void store(T* p, X x) {
  auto r = Codec<T>::template down_lanes<Count<X>>(x);
  __builtin_memcpy(p, &r, sizeof r);
}
template <class T, class X> INLINE void store_if(Mask<X> m, T* p, X x) {
  Masked<Raw<T>, Count<X>>::store(m, (Raw<T>*)p, Codec<T>::template down_lanes<Count<X>>(x));
}
// Lanes of 32 bits as elements of 64.
template <class X> INLINE void store_wide(i64* p, X x) {
  constexpr int N = Count<X> / 2;
  V<i32, N> part[2];
  __builtin_memcpy(part, &x, sizeof x);
  for (int k = 0; k < 2; ++k) store(p + k * N, convert<V<i64, N>>(part[k]));
}
template <class X> INLINE void store_wide_if(Mask<X> m, i64* p, X x) {
  constexpr int N = Count<X> / 2;
  V<i32, N> part[2], within[2];
  __builtin_memcpy(part, &x, sizeof x), __builtin_memcpy(within, &m, sizeof m);
  for (int k = 0; k < 2; ++k) store_if(within[k], p + k * N, convert<V<i64, N>>(part[k]));
}
template <class T, class X> INLINE void scatter(T* p, V<i64, Count<X>> at, X x) {
  auto r = Codec<T>::template down_lanes<Count<X>>(x);
  LANES(X) ((Raw<T>*)p)[at[l]] = r[l];
}
template <class T, class X> INLINE void scatter_if(Mask<X> m, T* p, V<i64, Count<X>> at, X x) {
  auto r = Codec<T>::template down_lanes<Count<X>>(x);
  ALONE; LANES(X) if (m[l]) ((Raw<T>*)p)[at[l]] = r[l];
}
// x0[0], x1[0], ..., x0[1], x1[1], ...: lanes in turns, as whole vectors.
template <int STEP, class T, class X> INLINE void weave_rows(T* p, const X* x) {
  constexpr int N = Count<X>;
#pragma GCC unroll 4
  for (int k = 0; k < STEP; ++k) {
    X r = x[0];
#if defined(__clang__)
    for (int l = 0; l < N; ++l) r[l] = x[(k * N + l) % STEP][(k * N + l) / STEP];
#else
#pragma GCC unroll 4
    for (int s = 1; s < STEP; ++s) {
      Bits<X> from;
      for (int l = 0; l < N; ++l) {
        const int turn = (k * N + l) % STEP, at = (k * N + l) / STEP;
        from[l] = turn == s ? N + at : s == 1 ? at : l;
      }
      r = __builtin_shuffle(r, x[s], from);
    }
#endif
    __builtin_memcpy((Raw<T>*)p + k * N, &r, sizeof r);
  }
}
template <class T, class X, class... More> INLINE void weave(T* p, X x, More... more) {
  constexpr int N = Count<X>;
  const V<Raw<T>, N> rows[] = {Codec<T>::template down_lanes<N>(x), Codec<T>::template down_lanes<N>(more)...};
  weave_rows<1 + sizeof...(More)>(p, rows);
}

// A tile of N rows (contiguous in the source) and N columns, written transposed: to[column * N + row].
template <int half, class X> INLINE void swap_blocks(X* x) {
  Bits<X> low, high;
  for (int l = 0; l < Count<X>; ++l) {
    low[l] = l & half ? Count<X> + l - half : l;
    high[l] = l & half ? Count<X> + l : l + half;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Count<X>; ++r)
    if (!(r & half)) {
      const X a = x[r], b = x[r + half];
#if defined(__clang__)
      LANES(X) x[r][l] = l & half ? b[l - half] : a[l], x[r + half][l] = l & half ? b[l] : a[l + half];
#else
      x[r] = __builtin_shuffle(a, b, low), x[r + half] = __builtin_shuffle(a, b, high);
#endif
    }
}
template <class X> INLINE void transpose(X* x) {
  if constexpr (Count<X> > 8) swap_blocks<8>(x);
  if constexpr (Count<X> > 4) swap_blocks<4>(x);
  if constexpr (Count<X> > 2) swap_blocks<2>(x);
  swap_blocks<1>(x);
}
template <class X, int N, class T> INLINE void load_rows(X (&to)[N], const T* from, i64 step) {
#pragma GCC unroll 16
  for (int r = 0; r < N; ++r) __builtin_memcpy(to + r, from + r * step, sizeof to[r]);
  transpose(to);
}
template <class X, int N, class T> INLINE void load_rows_if(X (&to)[N], const T* from, i64 step, int left) {
  const V<i32, N> m = first<N>(left);
#pragma GCC unroll 16
  for (int r = 0; r < N; ++r) to[r] = Masked<Raw<T>, N>::load(m, (const Raw<T>*)(from + r * step));
  transpose(to);
}
template <class X, int N, class T> INLINE void store_rows(X (&rows)[N], T* to, i64 step) {
  transpose(rows);
#pragma GCC unroll 16
  for (int r = 0; r < N; ++r) __builtin_memcpy(to + r * step, rows + r, sizeof rows[r]);
}
template <class X, int N, class T> INLINE void store_rows_if(X (&rows)[N], T* to, i64 step, int left) {
  const V<i32, N> m = first<N>(left);
  for (int r = left; r < N; ++r) rows[r] = X{};
  transpose(rows);
#pragma GCC unroll 16
  for (int r = 0; r < N; ++r) Masked<Raw<T>, N>::store(m, (Raw<T>*)(to + r * step), rows[r]);
}
template <int N, class T> static __attribute__((noinline)) void load_tile(
    T* to, const T* from, i64 step, i64 rows, i64 columns) {
  if (rows == N && columns == N) {
    V<Raw<T>, N> x[N];
    for (int r = 0; r < N; ++r) __builtin_memcpy(x + r, from + r * step, sizeof x[r]);
    transpose(x);
    __builtin_memcpy(to, x, sizeof x);
    return;
  }
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < columns; ++c) to[c * N + r] = from[r * step + c];
}
""".replace("INLINE_MEMBER", "inline __attribute__((always_inline))")

RUNTIME = r"""
struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*max_threads)();
  int (*threads)();
  int (*thread)();
  i64 kind, index, size;
};
struct Call;
typedef void (*Region)(const Call*, i64, i64);
struct Call { void** buffers; const i64* sizes; i64* results; Runtime* runtime; Region region; i64 count; };
struct Heap {
  void* memory;
  explicit Heap(i64 bytes) : memory(aligned_alloc(64, (bytes + 127) & ~63ll)) {}
  ~Heap() { free(memory); }
};
#define FAIL(what, at, limit) \
  do { Runtime* q = call->runtime; q->kind = (what), q->index = (at), q->size = (limit); return; } while (0)

static void team(void* data) {
  const Call* call = (const Call*)data;
  const i64 threads = call->runtime->threads(), thread = call->runtime->thread(), n = call->count;
  const i64 each = n / threads, more = n % threads, begin = thread * each + least(thread, more);
  if (each || thread < more) call->region(call, begin, begin + each + (thread < more));
}
// `work` counts memory accesses and cheap operations; fewer than `grain` a thread are not worth waking it.
static __attribute__((noinline)) void run(Call* call, Region region, i64 count, i64 work, i64 grain) {
  if (count <= 0 || call->runtime->kind) return;
  i64 threads = 1;
  if (work >= 2 * grain && call->runtime->parallel)
    threads = least(least((i64)call->runtime->max_threads(), work / grain), count);
  if (threads < 2) return region(call, 0, count);
  call->region = region, call->count = count;
  call->runtime->parallel(team, call, (unsigned)threads, 0);
}
template <class T> INLINE T result(const Call* call, int at) {
  T x;
  __builtin_memcpy(&x, call->results + at, sizeof x);
  return x;
}
template <class T> INLINE void keep(i64* to, T x) { __builtin_memcpy(to, &x, sizeof x); }

INLINE i64 wrapped(i64 at, i64 size) { return at + (at < 0 ? size : 0); }
template <class T> INLINE T wrapped(T at, i64 size) { return at + (at < 0 ? splat<T>(size) : T{}); }
template <class X> INLINE int outside(X at, i64 size) {
  if (__builtin_expect(!any(mask((V<u64, Count<X>>)at >= splat<V<u64, Count<X>>>(size))), 1)) return -1;
  LANES(X) if ((u64)at[l] >= (u64)size) return l;
  return -1;
}
template <class X> INLINE int outside_if(Mask<X> m, X at, i64 size) {
  if (__builtin_expect(!any(m & mask((V<u64, Count<X>>)at >= splat<V<u64, Count<X>>>(size))), 1)) return -1;
  LANES(X) if (m[l] && (u64)at[l] >= (u64)size) return l;
  return -1;
}

#define COMBINATIONS(OF) \
  OF(add, a + b) OF(mul, a * b) OF(max, op_maximum(a, b)) OF(min, op_minimum(a, b)) OF(or, a | b) OF(and, a & b)
#define COMBINE(NAME, EXPR) \
  template <class T, class X> INLINE void plain_##NAME(T* p, X b) { const X a = get(p); put(p, (X)(EXPR)); } \
  template <class T, class X> INLINE void atomic_##NAME(const Call* call, T* p, X b) { \
    if (!call->region) return plain_##NAME(p, b);  /* one thread runs all of it */ \
    Raw<T> old, made; \
    __atomic_load((Raw<T>*)p, &old, __ATOMIC_RELAXED); \
    do { const X a = Codec<T>::up(old); made = Codec<T>::down((X)(EXPR)); } \
    while (!__atomic_compare_exchange((Raw<T>*)p, &old, &made, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
  }
"""
