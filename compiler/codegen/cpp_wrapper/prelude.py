"""The words of statements, without torch's headers: a fraction of a second rather than five to compile.

Tensors are pointers that an extension module (`runtime_source.py`, compiled once for a machine) counts references of,
and whatever is done with them goes through a table of that module's functions. What these throw passes through the
generated function: its destructors drop what it holds.
"""

from __future__ import annotations

from .tables import Dialect
from .vocabulary import NUMBERS

SHARED = r"""
struct Impl;   // c10::TensorImpl
struct Stack;  // the results of a call
struct Op;     // an operator's handle
enum Kind : int {
  NONE, TENSOR, WHOLE, REAL, TRUTH, TEXT, CPU, WHOLES, REALS, TRUTHS, TENSORS, MAYBE_TENSORS, SCALARS, MAYBE_SCALARS,
  COMPLEX
};
struct Argument {
  int kind;
  int64_t count;  // of a complex number, the bits of its imaginary part
  union { Impl* tensor; int64_t whole; double real; const char* text; const Argument* items; };
};
union Value { Impl* tensor; int64_t whole; double real; };
struct Frame {
  Impl* const* constants;
  void* const* functions;  // of Python
  int site;                // which of the user's lines is running
};
// The same as in the kernels' sources.
struct Runtime {
  void *parallel, *max_threads, *threads, *thread;
  long long kind, index, size;
};
typedef void Kernel(void**, const long long*, Runtime*);
struct Api {
  void* entries[4];
  void (*retain)(Impl*);
  void (*release)(Impl*);
  int64_t (*size)(Impl*, int64_t);
  int64_t (*stride)(Impl*, int64_t);
  void* (*memory)(Impl*);
  Impl* (*empty)(const int64_t* sizes, const int64_t* strides, int64_t dims, int dtype);
  Impl* (*over)(Impl*, const int64_t* sizes, const int64_t* strides, int64_t dims);
  Impl* (*strided)(Impl*, const int64_t* sizes, const int64_t* strides, int64_t dims, int64_t offset);
  Impl* (*tracked)(Impl*, const int64_t* sizes, const int64_t* strides, int64_t dims, int64_t offset);
  Impl* (*placed)(Impl*, const int64_t* sizes, const int64_t* strides, int64_t dims);
  Impl* (*laid_out)(Impl*, const int64_t* order, int64_t dims);
  Impl* (*number)(const Argument*);
  Op* (*operator_named)(const char* name, const char* overload);
  Stack* (*call)(Op*, const Argument*, int64_t count);
  Stack* (*python)(void* function, const Argument*, int64_t count);
  void (*drop)(Stack*);
  Impl* (*tensor)(Stack*, int64_t);
  Impl* (*item)(Stack*, int64_t);
  int64_t (*whole)(Stack*, int64_t);
  double (*real)(Stack*, int64_t);
  bool (*truth)(Stack*, int64_t);
  void (*failed)(const Runtime*);
  void (*refuse)(const char* message);
  void (*other_size)(int64_t dim, int64_t found, int64_t size);
  void (*divided)();
};
"""
"""What generated functions and the extension module agree on."""

_TENSORS = r"""
#include <initializer_list>
#include <stdint.h>
SHARED
namespace {
const Api* api;
enum class ScalarType : int {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8,
  QInt32, BFloat16, QUInt4x2, QUInt2x4, Bits1x8, Bits2x4, Bits4x2, Bits8, Bits16, Float8_e5m2, Float8_e4m3fn,
  Float8_e5m2fnuz, Float8_e4m3fnuz, UInt16, UInt32, UInt64
};
class Tensor {
 public:
  Impl* impl = nullptr;
  Tensor() = default;
  explicit Tensor(Impl* owned) : impl(owned) {}
  Tensor(const Tensor& other) : impl(other.impl) { if (impl) api->retain(impl); }
  Tensor(Tensor&& other) noexcept : impl(other.impl) { other.impl = nullptr; }
  Tensor& operator=(Tensor other) noexcept {
    Impl* old = impl;
    impl = other.impl, other.impl = old;
    return *this;
  }
  ~Tensor() { if (impl) api->release(impl); }
  void reset() { *this = Tensor(); }
  int64_t size(int64_t dim) const { return api->size(impl, dim); }
  int64_t stride(int64_t dim) const { return api->stride(impl, dim); }
};
struct Sizes {
  const int64_t* data;
  int64_t count;
  Sizes(std::initializer_list<int64_t> list) : data(list.begin()), count((int64_t)list.size()) {}
};
struct Text { const char* text; };
struct Cpu {};
struct Arg : Argument {
  Arg() { kind = NONE; }
  Arg(const Tensor& given) { kind = TENSOR, tensor = given.impl; }
  Arg(int64_t given) { kind = WHOLE, whole = given; }
  Arg(double given) { kind = REAL, real = given; }
  Arg(bool given) { kind = TRUTH, whole = given; }
  Arg(Text given) { kind = TEXT, text = given.text; }
  Arg(Cpu) { kind = CPU; }
  Arg(int of, const std::initializer_list<Arg>& list) {
    kind = of, count = (int64_t)list.size(), items = list.begin();
  }
};
using Items = std::initializer_list<Arg>;
inline Arg none() { return Arg(); }
inline Cpu cpu() { return Cpu(); }
inline Arg complex_number(double real, double imaginary) {
  Arg made(real);
  made.kind = COMPLEX;
  __builtin_memcpy(&made.count, &imaginary, sizeof made.count);
  return made;
}
inline Text text(const char* given) { return Text{given}; }
inline Arg whole_list(Items items) { return Arg(WHOLES, items); }
inline Arg real_list(Items items) { return Arg(REALS, items); }
inline Arg truth_list(Items items) { return Arg(TRUTHS, items); }
inline Arg tensor_list(Items items) { return Arg(TENSORS, items); }
inline Arg scalar_list(Items items) { return Arg(SCALARS, items); }
inline Arg maybe_tensors(Items items) { return Arg(MAYBE_TENSORS, items); }
inline Arg maybe_scalars(Items items) { return Arg(MAYBE_SCALARS, items); }
"""

_CALLS = r"""
struct Results {
  Stack* stack;
  explicit Results(Stack* given) : stack(given) {}
  Results(const Results&) = delete;
  ~Results() { api->drop(stack); }
};
using Handle = Op*;
inline Handle operator_named(const char* name, const char* overload) { return api->operator_named(name, overload); }
inline Results call_with(Handle op, Items args) { return Results(api->call(op, args.begin(), (int64_t)args.size())); }
inline Results python_with(void* function, Items args) {
  return Results(api->python(function, args.begin(), (int64_t)args.size()));
}
#define call(op, ...) call_with(op, {__VA_ARGS__})
#define python(k, ...) python_with(frame.functions[k], {__VA_ARGS__})
inline Tensor tensor(const Results& r, int64_t k) { return Tensor(api->tensor(r.stack, k)); }
inline Tensor item(const Results& r, int64_t k) { return Tensor(api->item(r.stack, k)); }
inline int64_t whole(const Results& r, int64_t k) { return api->whole(r.stack, k); }
inline double real(const Results& r, int64_t k) { return api->real(r.stack, k); }
inline bool truth(const Results& r, int64_t k) { return api->truth(r.stack, k); }

[[noreturn]] void divided_by_zero() { api->divided(); __builtin_unreachable(); }
inline void require(bool holds, const char* message) { if (!holds) api->refuse(message); }
inline void relied_on(const Tensor& given, int64_t dim, int64_t size) {
  if (given.size(dim) != size) api->other_size(dim, given.size(dim), size);
}
NUMBERS
inline Tensor number_tensor(const Arg& number) { return Tensor(api->number(&number)); }
inline void* memory(const Tensor& given) { return api->memory(given.impl); }
inline Tensor empty(Sizes sizes, Sizes strides, ScalarType dtype) {
  return Tensor(api->empty(sizes.data, strides.data, sizes.count, (int)dtype));
}
inline Tensor over(const Tensor& old, Sizes sizes, Sizes strides) {
  return Tensor(api->over(old.impl, sizes.data, strides.data, sizes.count));
}
inline Tensor strided(const Tensor& given, Sizes sizes, Sizes strides, int64_t offset) {
  return Tensor(api->strided(given.impl, sizes.data, strides.data, sizes.count, offset));
}
inline Tensor tracked(const Tensor& given, Sizes sizes, Sizes strides, int64_t offset) {
  return Tensor(api->tracked(given.impl, sizes.data, strides.data, sizes.count, offset));
}
inline Tensor placed(const Tensor& given, Sizes sizes, Sizes strides) {
  return Tensor(api->placed(given.impl, sizes.data, strides.data, sizes.count));
}
inline void lay_out(Tensor& given, Sizes order) {
  given = Tensor(api->laid_out(given.impl, order.data, order.count));
}
inline void launch(Kernel* kernel, void** pointers, const long long* sizes) {
  Runtime runtime = {api->entries[0], api->entries[1], api->entries[2], api->entries[3], 0, 0, 0};
  kernel(pointers, sizes, &runtime);
  if (runtime.kind) api->failed(&runtime);
}
inline const Tensor& constant(const Frame& frame, int k) { return ((const Tensor*)frame.constants)[k]; }
inline Tensor&& moved(Tensor& given) { return (Tensor&&)given; }
inline void give(Value& out, Tensor given) { out.tensor = given.impl, given.impl = nullptr; }
inline void give(Value& out, int64_t given) { out.whole = given; }
inline void give(Value& out, double given) { out.real = given; }
inline void give(Value& out, bool given) { out.whole = given; }
}  // namespace
"""

PRELUDE = _TENSORS.replace("SHARED", SHARED) + _CALLS.replace("NUMBERS", NUMBERS)

PROCESS = Dialect(PRELUDE, "constant(frame, {})", owns_inputs=True)
"""Statements of a function that is called in this process."""
