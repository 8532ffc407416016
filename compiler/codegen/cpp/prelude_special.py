"""Special functions in C++ that neither C's library nor libmvec has, of scalars and of vectors alike."""

from __future__ import annotations

SPECIAL = r"""
INLINE bool some(bool m) { return m; }
template <class M> INLINE bool some(M m) { return any(mask(m)); }

// Recurrence up to 10, then the asymptotic series; what is negative is reflected.
template <class X> INLINE X op_digamma(X x) {
  const f64 c[6] = {-2.10927960927960927961e-2, 7.57575757575757575758e-3, -4.16666666666666666667e-3,
                    3.96825396825396825397e-3, -8.33333333333333333333e-3, 8.33333333333333333333e-2};
  const X ten = like(x, 10), pi = like(x, 3.14159265358979323846);
  X at = x < 0 ? 1 - x : x, total = x - x;
  for (int k = 0; k < 10 && some(at < ten); ++k) {
    total = at < ten ? total - 1 / at : total;
    at = at < ten ? at + 1 : at;
  }
  const X z = 1 / (at * at);
  X tail = like(x, 8.33333333333333333333e-2);
  for (int k = 0; k < 6; ++k) tail = tail * z + like(x, c[k]);
  const X series = op_log(at) - like(x, 0.5) / at - tail * z;
  X r = total + (at == ten ? like(x, 2.25175258906672110764) : series);
  if (some(x < 0)) {
    const X mirrored = x == op_trunc(x) ? like(x, __builtin_nan("")) : r - pi / op_tan(pi * (x - op_round(x)));
    r = x < 0 ? mirrored : r;
  }
  r = x == like(x, __builtin_inf()) ? x : r;
  return x == 0 ? op_copysign(like(x, __builtin_inf()), -x) : r;
}

// In f64: up to 8 by log(x (x + 1) ...), then Stirling's series; what is negative is reflected. Exact where it is 0.
template <class X> INLINE X lgamma_series(X x) {
  const f64 c[7] = {6.41025641025641025641e-3, -1.91752691752691752692e-3, 8.41750841750841750842e-4,
                    -5.95238095238095238095e-4, 7.93650793650793650794e-4, -2.77777777777777777778e-3,
                    8.33333333333333333333e-2};
  const X pi = like(x, 3.14159265358979323846), infinite = like(x, __builtin_inf()), eight = like(x, 8);
  X at = x < 0 ? 1 - x : x, product = like(x, 1);
  for (int k = 0; k < 8 && some(at < eight); ++k) {
    product = at < eight ? product * at : product;
    at = at < eight ? at + 1 : at;
  }
  const X z = 1 / (at * at);
  X tail = like(x, c[0]);
  for (int k = 1; k < 7; ++k) tail = tail * z + like(x, c[k]);
  X r = (at - like(x, 0.5)) * op_log(at) - at + like(x, 0.91893853320467274178) + tail / at - op_log(product);
  r = (x == 1) | (x == 2) ? X{} : r;
  if (some(x < 0)) {
    const X part = x - op_round(x);
    const X mirrored = op_log(pi / op_abs(op_sin(pi * part))) - r;
    r = x < 0 ? (part == 0 ? infinite : mirrored) : r;
  }
  r = (x == 0) | (op_abs(x) == infinite) ? infinite : r;
  return x != x ? x : r;
}
template <class X> INLINE X op_lgamma(X x) {
  X r;
  if constexpr (sizeof(Elem<X>) == 4 && Count<X> > 2) {
    typedef V<f32, Count<X> / 2> Half;
    Half part[2];
    __builtin_memcpy(part, &x, sizeof x);
    for (int k = 0; k < 2; ++k) part[k] = convert<Half>(lgamma_series(convert<V<f64, Count<X> / 2>>(part[k])));
    __builtin_memcpy(&r, part, sizeof r);
  } else {
    LANES(X) r[l] = op_lgamma((Elem<X>)x[l]);
  }
  return r;
}

// M. Giles, Approximating the erfinv function: polynomials of -log(1 - y**2), or of its root.
template <class X> INLINE X erfinv_f32(X y) {
  const f64 near[9] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                       -0.00417768164, 0.246640727, 1.50140941};
  const f64 far[9] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                      0.00943887047, 1.00167406, 2.83297682};
  const X w = -op_log1p(-y * y), low = w - like(y, 2.5), high = op_sqrt(w) - like(y, 3);
  X center = like(y, near[0]), tail = like(y, far[0]);
  for (int k = 1; k < 9; ++k) center = center * low + like(y, near[k]), tail = tail * high + like(y, far[k]);
  const X one = like(y, 1), x = (w < like(y, 5) ? center : tail) * y;
  return op_abs(y) == one ? op_copysign(like(y, __builtin_inf()), y) : x;
}
// Rational approximations of the center and the tail, then two steps of Newton.
template <class X> INLINE X erfinv_f64(X y) {
  const f64 a[4] = {-0.140543331, 0.914624893, -1.645349621, 0.886226899};
  const f64 b[4] = {0.012229801, -0.329097515, 1.442710462, -2.118377725};
  const f64 c[4] = {1.641345311, 3.429567803, -1.624906493, -1.970840454};
  const f64 d[2] = {1.637067800, 3.543889200};
  const X one = like(y, 1), size = op_abs(y), z = y * y, far = op_sqrt(-op_log((one - size) / 2));
  X over = like(y, a[0]), under = like(y, b[0]), over_far = like(y, c[0]);
  for (int k = 1; k < 4; ++k)
    over = over * z + like(y, a[k]), under = under * z + like(y, b[k]), over_far = over_far * far + like(y, c[k]);
  const X under_far = (like(y, d[0]) * far + like(y, d[1])) * far + one;
  X x = size <= like(y, 0.7) ? y * over / (under * z + one) : op_copysign(over_far, y) / under_far;
  const X slope = like(y, 1.12837916709551257390);
  for (int k = 0; k < 2; ++k) x = x - (op_erf(x) - y) / (slope * op_exp(-x * x));
  x = size == one ? op_copysign(like(y, __builtin_inf()), y) : x;
  return size > one ? like(y, __builtin_nan("")) : x;
}
INLINE f32 op_erfinv(f32 y) { return erfinv_f32(y); }
INLINE f64 op_erfinv(f64 y) { return erfinv_f64(y); }
template <class X> INLINE X op_erfinv(X y) {
  if constexpr (sizeof(Elem<X>) == 4) return erfinv_f32(y);
  else return erfinv_f64(y);
}
"""
