"""The part of every generated source in C++ that reads and writes memory: elements, lanes, masked lanes, tiles.

The types `Bf16`, `F16` and `bool` exist in memory only: they are computed as f32, f32 and mask. `Codec` converts them.
"""

from __future__ import annotations

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
#if defined(__clang__) || __GNUC__ >= 12
// The same lanes again until there are N; gcc takes other than twice as many through memory.
template <int N, class X> INLINE auto again(X x) {
  constexpr int C = Count<X>;
  if constexpr (C == N) return x;
  else if constexpr (C == 2) return again<N>(__builtin_shufflevector(x, x, 0, 1, 0, 1));
  else if constexpr (C == 4) return again<N>(__builtin_shufflevector(x, x, 0, 1, 2, 3, 0, 1, 2, 3));
  else return again<N>(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7));
}
#endif
// SPAN elements, those at places AT.
template <int SPAN, int... AT, class T> INLINE auto arranged(const T* p) {
  constexpr int N = sizeof...(AT), BYTES = SPAN * sizeof(Raw<T>);
  typedef V<Raw<T>, N> X;
#if defined(__clang__) || __GNUC__ >= 12
  X r;
  if constexpr (BYTES == 2 || BYTES == 4 || BYTES == 8) {
    typename Integer<BYTES>::type word;
    __builtin_memcpy(&word, p, sizeof word);
    r = (X)splat<V<typename Integer<BYTES>::type, N / SPAN>>(word);
  } else {
    V<Raw<T>, SPAN> few;
    __builtin_memcpy(&few, p, sizeof few);
    r = again<N>(few);
  }
  r = __builtin_shufflevector(r, r, AT...);
#else
  const int at[] = {AT...};
  X r;
  LANES(X) r[l] = ((const Raw<T>*)p)[at[l]];
#endif
  return Codec<T>::template up_lanes<N>(r);
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
// Numbers of a table of SPAN, at any places in it: the table is read as a whole.
template <int SPAN, int N, class T> INLINE auto looked_up(const T* p, V<i32, N> at) {
#if defined(MASKS) && !defined(__clang__)
  typedef V<Raw<T>, N> X;
  if constexpr (sizeof(Raw<T>) > 1 && sizeof(X) <= 64) {
    const Raw<T>* q = (const Raw<T>*)p;
    X low, high = {};
    if constexpr (SPAN >= N) __builtin_memcpy(&low, q, sizeof low);
    else low = Masked<Raw<T>, N>::load(first<N>(SPAN), q);
    if constexpr (SPAN <= N)
      return Codec<T>::template up_lanes<N>(__builtin_shuffle(low, convert<Bits<X>>(at)));
    if constexpr (SPAN >= 2 * N) __builtin_memcpy(&high, q + N, sizeof high);
    else high = Masked<Raw<T>, N>::load(first<N>(SPAN - N), q + N);
    return Codec<T>::template up_lanes<N>(__builtin_shuffle(low, high, convert<Bits<X>>(at)));
  }
#endif
  return gather<N>(p, at);
}
#if defined(__AVX2__) && !defined(__clang__)
// Column COLUMN of a table of STEP columns, of whole vectors of the table. The first SPAN columns are in the buffer in
// its last row: no vector ends after these. Columns that are read together have the same vectors.
template <int STEP, int COLUMN, int SPAN, class X, class P> INLINE X every(const P* p) {
  constexpr int N = Count<X>;
  X r, part;
  __builtin_memcpy(&r, p, sizeof r);
#pragma GCC unroll 8
  for (int k = 1; k < STEP; ++k) {
    const int begin = k < STEP - 1 ? k * N : STEP * (N - 1) + SPAN - N;
    __builtin_memcpy(&part, p + begin, sizeof part);
    Bits<X> from;
#pragma GCC unroll 64
    for (int l = 0; l < N; ++l) {
      const int at = STEP * l + COLUMN;
      from[l] = at >= k * N ? N + (at - begin < N ? at - begin : 0) : k == 1 ? at : l;
    }
    r = __builtin_shuffle(r, part, from);
  }
  return r;
}
// The same of bytes, in pieces of 16: a shuffle of two takes one instruction or three, and bytes one by one two each.
template <int STEP, int COLUMN, int SPAN, class X, class P> INLINE X every_byte(const P* p) {
  typedef V<u8, 16> Piece;
  constexpr int N = Count<X>, END = STEP * (N - 1) + SPAN;
  Piece r, part;
  __builtin_memcpy(&r, p, sizeof r);
#pragma GCC unroll 8
  for (int k = 1; k < (END > 32 ? (END + 15) / 16 : 2); ++k) {
    const int begin = 16 * k < END - 16 ? 16 * k : END - 16;
    __builtin_memcpy(&part, p + begin, sizeof part);
    Piece from;
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) {
      const int at = STEP * l + COLUMN;
      from[l] = at >= 16 * k ? 16 + (at - begin < 16 ? at - begin : 0) : k == 1 ? at : l;
    }
    r = __builtin_shuffle(r, part, from);
  }
  X x;
  __builtin_memcpy(&x, &r, sizeof x);
  return x;
}
#define EVERY_BYTE(X, P, STEP, SPAN) (sizeof(P) == 1 && Count<X> <= 16 && STEP * (Count<X> - 1) + SPAN >= 16)
#if defined(MASKS)
#define EVERY(X, P, STEP) (sizeof(P) > 1 && Count<X> >= 8)
#else
#define EVERY(X, P, STEP) (sizeof(P) == 4 && Count<X> >= 8 && STEP <= 4)
#endif
#else
template <int STEP, int COLUMN, int SPAN, class X, class P> INLINE X every(const P*) { return X{}; }
template <int STEP, int COLUMN, int SPAN, class X, class P> INLINE X every_byte(const P*) { return X{}; }
#define EVERY(X, P, STEP) false
#define EVERY_BYTE(X, P, STEP, SPAN) false
#endif
template <int N, class T> INLINE auto one_by_one(const T* p, i64 step) {
  V<Raw<T>, N> r;
  for (int l = 0; l < N; ++l) {
    const Raw<T>* q = (const Raw<T>*)p + l * step;
    if constexpr (sizeof *q == 8) asm("" : "+r"(q));  // or GCC joins loads, and shuffles them apart
    r[l] = *q;
  }
  return Codec<T>::template up_lanes<N>(r);
}
template <int N, int STEP, int COLUMN, int SPAN, class T> INLINE auto column(const T* p) {
  typedef V<Raw<T>, N> X;
  if constexpr (EVERY(X, Raw<T>, STEP))
    return Codec<T>::template up_lanes<N>(every<STEP, COLUMN, SPAN, X>((const Raw<T>*)p));
  else if constexpr (EVERY_BYTE(X, Raw<T>, STEP, SPAN))
    return Codec<T>::template up_lanes<N>(every_byte<STEP, COLUMN, SPAN, X>((const Raw<T>*)p));
  else
    return one_by_one<N>((const T*)((const Raw<T>*)p + COLUMN), STEP);
}
template <int N, class T> INLINE auto strided(const T* p, i64 step) {
  if (!__builtin_constant_p(step) || step > 8) return one_by_one<N>(p, step);
  if (step == 2) return column<N, 2, 0, 1>(p);
  if (step == 3) return column<N, 3, 0, 1>(p);
  if (step == 4) return column<N, 4, 0, 1>(p);
  if (step == 5) return column<N, 5, 0, 1>(p);
  if (step == 6) return column<N, 6, 0, 1>(p);
  if (step == 7) return column<N, 7, 0, 1>(p);
  if (step == 8) return column<N, 8, 0, 1>(p);
  return one_by_one<N>(p, step);
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
#if !defined(__clang__)
  // Those half of the turns apart first: fewer shuffles than for each result from all rows.
  if constexpr (STEP > 2 && STEP % 2 == 0) {
    constexpr int H = STEP / 2;
    Bits<X> low, high;
#pragma GCC unroll 64
    for (int l = 0; l < N; ++l) low[l] = l / 2 + l % 2 * N, high[l] = low[l] + N / 2;
    X first[H], second[H];
#pragma GCC unroll 4
    for (int k = 0; k < H; ++k) {
      first[k] = __builtin_shuffle(x[k], x[k + H], low);
      second[k] = __builtin_shuffle(x[k], x[k + H], high);
    }
    weave_rows<H>(p, first);
    weave_rows<H>((Raw<T>*)p + H * N, second);
    return;
  }
#endif
#pragma GCC unroll 8
  for (int k = 0; k < STEP; ++k) {
    X r = x[0];
#if defined(__clang__)
    for (int l = 0; l < N; ++l) r[l] = x[(k * N + l) % STEP][(k * N + l) / STEP];
#else
#pragma GCC unroll 8
    for (int s = 1; s < STEP; ++s) {
      Bits<X> from;
#pragma GCC unroll 64
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

// Loops that make places for shuffles are unrolled by request: with the flags of `build`, gcc 12 runs them each time.

// A tile of N rows (contiguous in the source) and N columns, written transposed: to[column * N + row].
template <int half, class X> INLINE void swap_blocks(X* x) {
  Bits<X> low, high;
#pragma GCC unroll 64
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
// The same by functions, for kernels with many of them.
template <class X, int N, class T> static __attribute__((noinline)) void load_rows_apart(
    X (&to)[N], const T* from, i64 step) {
  load_rows(to, from, step);
}
template <class X, int N, class T> static __attribute__((noinline)) void load_rows_if_apart(
    X (&to)[N], const T* from, i64 step, int left) {
  load_rows_if(to, from, step, left);
}
template <class X, int N, class T> static __attribute__((noinline)) void store_rows_apart(
    X (&rows)[N], T* to, i64 step) {
  store_rows(rows, to, step);
}
template <class X, int N, class T> static __attribute__((noinline)) void store_rows_if_apart(
    X (&rows)[N], T* to, i64 step, int left) {
  store_rows_if(rows, to, step, left);
}
template <int N, class T> static __attribute__((noinline)) void load_tile(
    T* to, const T* from, i64 step, i64 rows, i64 columns) {
  V<Raw<T>, N> x[N];
  if (rows == N && columns == N) {
    for (int r = 0; r < N; ++r) __builtin_memcpy(x + r, from + r * step, sizeof x[r]);
  } else {
    const V<i32, N> m = first<N>(columns);
    for (int r = 0; r < rows; ++r) x[r] = Masked<Raw<T>, N>::load(m, (const Raw<T>*)(from + r * step));
    for (int r = rows; r < N; ++r) x[r] = V<Raw<T>, N>{};
  }
  transpose(x);
  __builtin_memcpy(to, x, sizeof x);
}
""".replace("INLINE_MEMBER", "inline __attribute__((always_inline))")
