"""What is left of the prelude where functions use little of it."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

import regraft
from regraft.compiler.codegen.cpp import can_build
from regraft.compiler.codegen.cpp.compiler import find_compiler
from regraft.compiler.codegen.cpp.prelude_use import definitions_of, used_of
from regraft.compiler.codegen.cpp.target import target

build = importlib.import_module("regraft.compiler.codegen.cpp.build")

PRELUDE = """
#define INLINE static inline
#define EACH1(NAME) template <class X> INLINE X op_##NAME(X a) { return op_##NAME(a); }
#define BOTH(T) \\
  INLINE T op_least(T a) { return a; } \\
  INLINE T op_most(T a) { return op_neg(a); }
typedef float f32;  // not {
typedef f32 (*Function)(f32);
BOTH(f32)
#define NUMBERS(OF) OF(one, 1) OF(two, 2)
#define NUMBER(NAME, X) \\
  INLINE f32 give_##NAME() { return X + least_of(Pair{}); }
NUMBERS(NUMBER)
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
static __attribute__((noinline)) f32 least_of(Pair<f32> x) { return op_least(x.a); }
template <class X> INLINE X twice(X a) { return add(a, a); }
int kept;
"""

NAMES = ("typedef float", "struct Pair", "BOTH(f32)", "op_neg(f32", "Function", "least_of(Pair<", "NUMBERS(NUMBER)",
         "wide", "add(f32", "op_log", "twice", "EACH1(exp)", "mul(f32")  # fmt: skip


@pytest.mark.parametrize(
    ("functions", "kept"),
    [
        ("", []),
        ("f32 f() { return add(1, 2); }", ["typedef float", "add(f32 a, f32 b) {", "add(f32 a, f32 b, f32 c)"]),
        ("op_log(x)", ["typedef float", "op_log"]),
        ("op_exp(x)", ["typedef float", "op_exp(f32", "EACH1(exp)", "mul(f32 a)", "add(f32 a, f32 b)"]),
        ("twice(x)", ["twice", "typedef float", "add(f32 a, f32 b)"]),
        ("Function f;", ["typedef float", "Function"]),
        ("op_most(x)", ["typedef float", "BOTH(f32)", "op_neg(f32"]),
        ("wide(x)", ["typedef float", "wide"]),
        ("give_two()", ["NUMBERS(NUMBER)", "typedef float", "least_of", "struct Pair", "BOTH(f32)", "op_neg(f32"]),
    ],
)
def test_what_is_not_used_is_left_out(functions, kept):
    text = used_of(PRELUDE, functions)
    for part in ["int kept;", *kept]:
        assert part in text, part
    for name in NAMES:
        assert (name in text) == any(name in part or part in name for part in kept), name


def test_definitions_are_the_whole_prelude_in_order():
    for text in (PRELUDE, build._prelude(target("generic")), build._prelude(target("avx2"))):
        assert "\n".join(one.text for one in definitions_of(text)).strip() == text.strip()


@pytest.mark.skipif(not can_build(), reason="no C++ compiler")
@pytest.mark.parametrize("name", ["avx512", "avx2", "generic", "scalar"])
def test_all_that_macros_define_has_a_name(name):
    """What is left of the prelude after the preprocessor has nothing that its definitions do not name."""
    prelude = build._prelude(target(name))
    flags = [flag for flag in target(name).flags if not flag.startswith("-l")]
    command = [find_compiler().path, "-E", "-P", "-x", "c++", *flags, "-"]
    written = subprocess.run(command, input=prelude, capture_output=True, text=True, check=True).stdout
    made = set(re.findall(r"static inline __attribute__\(\(always_inline\)\) [^(){};]*?\b(\w+)\(", written))
    assert "lanes_min_if" in made
    members = set(re.findall(r"\b(\w+)\(", "".join(re.findall(r"struct \w+(?:<\w+>)? {.*?^};", prelude, re.M | re.S))))
    assert made - members <= set().union(*(one.names for one in definitions_of(prelude)))


def test_most_of_the_prelude_is_left_out_of_a_small_kernel():
    whole = build._prelude(target("generic"))
    source = build.source_of(['extern "C" void k(float* x) { x[0] = op_exp(x[0]); }'], target("generic"))
    assert len(source.text) < 0.3 * len(whole)
    assert "op_sinh" not in source.text and "op_exp" in source.text


def test_no_template_declares_what_is_a_macro_of_the_prelude():
    """The preprocessor would replace the name by the macro: the kernels would not compile."""
    folder = Path(regraft.__file__).parent / "compiler"
    texts = [path.read_text() for path in folder.rglob("*.py")]
    declared = {name for text in texts for name in re.findall(r"^constexpr \w+ ([A-Z_0-9]+)\b", text, re.M)}
    macros = {name for text in texts for name in re.findall(r"^#define ([A-Z_0-9]+)\b", text, re.M)}
    assert declared and macros and not declared & macros
