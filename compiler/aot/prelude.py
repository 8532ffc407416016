"""The part of an artifact that is its own: its graph's statements, in the words of `codegen/cpp_wrapper/prelude.py`.

It compiles without torch's headers, in a fraction of a second. Its other part, the same for all artifacts, is
`runtime_source.py`.
"""

from __future__ import annotations

from ..codegen.cpp_wrapper.prelude import PRELUDE
from ..codegen.cpp_wrapper.tables import Dialect

BETWEEN = r"""
extern "C" {
// Of the graph.
extern const char regraft_name[], regraft_inputs[], regraft_outputs[];  // of inputs and outputs the kinds: t, i, f, b
extern const int64_t regraft_constants;                                 // how many there are
const char* regraft_missing();                                          // instructions of this machine, or null
void regraft_bind(const Api* api);
void regraft_load(Frame& frame, char* memory);
void regraft_call(Frame& frame, const void* in, Value* out);
// Of the runtime. An input is the `k`-th of those that the caller gave.
Impl* regraft_given(const void* in, int64_t k, const char* name, int dtype, int64_t dims);
int64_t regraft_given_number(const void* in, int64_t k, const char* name);
void regraft_is_size(Impl* tensor, const char* name, int64_t dim, int64_t size, const char* why);
void regraft_in_range(int64_t size, const char* what, int64_t low, int64_t high);
void regraft_holds(bool condition, const char* what);
void regraft_unchanged(const void* in, int64_t k, const char* name, const int64_t* strides, int64_t dims);
void regraft_apart(Impl* written, const char* name, Impl* other, const char* beside);
void regraft_touched(Impl* tensor);
Impl* regraft_cloned(Impl* tensor);
Impl* regraft_stored(char* memory, const int64_t* sizes, const int64_t* strides, int64_t dims, int dtype);
}
"""
"""What the two parts of an artifact, its graph and the runtime, call of each other."""

_WORDS = r"""
namespace {
inline Tensor given(const void* in, int64_t k, const char* name, ScalarType dtype, int64_t dims) {
  return Tensor(regraft_given(in, k, name, (int)dtype, dims));
}
inline int64_t given_number(const void* in, int64_t k, const char* name) { return regraft_given_number(in, k, name); }
inline void is_size(const Tensor& tensor, const char* name, int64_t dim, int64_t size, const char* why) {
  regraft_is_size(tensor.impl, name, dim, size, why);
}
inline void in_range(int64_t size, const char* what, int64_t low, int64_t high) {
  regraft_in_range(size, what, low, high);
}
inline void holds(bool condition, const char* what) { regraft_holds(condition, what); }
inline void unchanged(const void* in, int64_t k, const char* name, Sizes strides) {
  regraft_unchanged(in, k, name, strides.data, strides.count);
}
inline void apart(const Tensor& written, const char* name, const Tensor& other, const char* beside) {
  regraft_apart(written.impl, name, other.impl, beside);
}
inline void touched(const Tensor& tensor) { regraft_touched(tensor.impl); }
inline Tensor cloned(const Tensor& tensor) { return Tensor(regraft_cloned(tensor.impl)); }
inline Tensor stored(char* memory, Sizes sizes, Sizes strides, ScalarType dtype) {
  return Tensor(regraft_stored(memory, sizes.data, strides.data, sizes.count, (int)dtype));
}
inline void keep(Frame& frame, int k, Tensor given) { ((Impl**)frame.constants)[k] = given.impl, given.impl = nullptr; }
}  // namespace
"""

HEAD = PRELUDE + BETWEEN + _WORDS

ARTIFACT = Dialect(HEAD, "constant(frame, {})", everywhere=True)
"""Statements that run without Python."""
