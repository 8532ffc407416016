"""The part of every generated source in C++ that runs a kernel: threads, errors, checks of indices, atomic updates."""

from __future__ import annotations

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
