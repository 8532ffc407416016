"""Sums of products of two bfloat16 numbers in each lane, to follow the prelude of `cpp`.

`DOTS` is 1 where the processor has the instruction (AVX512-BF16), else 0, and `dots` is missing. Products and sums are
single precision; subnormal numbers count as zeros.
"""

PAIRED = 16  # lanes of vectors of the sums

DOTS = r"""
#if defined(__AVX512BF16__) && defined(MASKS)
#define DOTS 1
INLINE V<f32, 16> dots(V<f32, 16> sum, V<f32, 16> row, V<i32, 16> weight) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weight), "v"(row));
  return sum;
}
#else
#define DOTS 0
#endif
"""
