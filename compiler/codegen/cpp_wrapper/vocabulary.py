"""C++ that all dialects of statements share.

A dialect defines the types `Tensor`, `Sizes`, `ScalarType`, `Handle` and these functions:

    arguments    none cpu text complex_number
    lists        whole_list real_list truth_list tensor_list scalar_list maybe_tensors maybe_scalars
    calls        call, and of what it gives: tensor item whole real truth
    tensors      empty over strided placed lay_out memory number_tensor
    kernels      launch
    checks       require relied_on divided_by_zero
"""

from __future__ import annotations

NUMBERS = r"""
inline int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) divided_by_zero();
  const int64_t q = a / b;
  return q - (a % b != 0 && (a % b < 0) != (b < 0));
}
inline double floor_div(double a, double b) { return __builtin_floor(a / b); }
inline int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }
template <class A, class B> auto most(A a, B b) { return a < b ? b : a; }
template <class A, class B> auto least(A a, B b) { return b < a ? b : a; }
template <class A> A absolute(A a) { return a < 0 ? -a : a; }
inline int64_t power(int64_t a, int64_t n) {
  int64_t made = 1;
  for (; n > 0; --n) made *= a;
  return made;
}
inline double power(double a, double n) { return __builtin_pow(a, n); }
"""
"""Arithmetic of sizes."""
