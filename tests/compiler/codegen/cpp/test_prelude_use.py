"""What is left of the prelude where functions use little of it."""

import importlib

import pytest

from regraft.compiler.codegen.cpp.prelude_use import definitions_of, used_of
from regraft.compiler.codegen.cpp.target import target

build = importlib.import_module("regraft.compiler.codegen.cpp.build")

PRELUDE = """
#define INLINE static inline
#define EACH1(NAME) template <class X> INLINE X op_##NAME(X a) { return op_##NAME(a); }
#define BOTH(T) \\
  INLINE T op_least(T a) { return a; } \\
  INLINE T op_most(T a) { return op_neg(a); }
typedef float f32;  // always {
BOTH(f32)
// The sum.
INLINE f32 add(f32 a, f32 b) { return a + b; }
INLINE f32 add(f32 a, f32 b, f32 c) {
  return add(add(a, b), c);
}
#if defined(WIDE)
INLINE f32 wide(f32 a) { return a; }
#endif
INLINE f32 mul(f32 a) {
  return add(a, a);
}
INLINE f32 op_neg(f32 a) { return -a; }
INLINE f32 op_exp(f32 a) { return mul(a); }
EACH1(exp)
extern "C" f32 other(f32 a); INLINE f32 op_log(f32 a) { return other(a); }
template <class T> struct Pair {
  T a, b;
};
template <class X> INLINE X twice(X a) { return add(a, a); }
"""


@pytest.mark.parametrize(
    ("functions", "kept"),
    [
        ("", []),
        ("f32 f() { return add(1, 2); }", ["add(f32 a, f32 b) {", "add(f32 a, f32 b, f32 c)"]),
        ("op_log(x)", ["op_log", "other"]),
        ("op_exp(x)", ["op_exp(f32", "EACH1(exp)", "mul(f32 a)", "return add(a, a);", "add(f32 a, f32 b)"]),
        ("twice(x)", ["twice", "add(f32 a, f32 b)"]),
    ],
)
def test_functions_stay_where_they_are_used(functions, kept):
    text = used_of(PRELUDE, functions)
    for part in ["typedef float f32", "struct Pair", "BOTH(f32)", "op_neg", "wide", *kept]:
        assert part in text, part
    for name in ("add(", "op_log", "twice", "EACH1(exp)", "mul(f32"):
        assert (name in text) == any(name in part for part in kept), name


def test_definitions_are_the_whole_prelude_in_order():
    for text in (PRELUDE, build._prelude(target("generic")), build._prelude(target("avx2"))):
        assert "\n".join(one.text for one in definitions_of(text)).strip() == text.strip()


def test_most_of_the_prelude_is_left_out_of_a_small_kernel():
    whole = build._prelude(target("generic"))
    source = build.source_of(['extern "C" void k(float* x) { x[0] = op_exp(x[0]); }'], target("generic"))
    assert len(source.text) < 0.6 * len(whole)
    assert "op_sinh" not in source.text and "op_exp" in source.text
