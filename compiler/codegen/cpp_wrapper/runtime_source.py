"""The extension module that generated functions and Python meet in: with torch's headers, compiled once for a machine.

`make(...)` gives a callable in boxed convention: one list of inputs in, which it empties; the graph's outputs out.

torch's headers about Python (pybind11, and the classes of autograd) take as long to compile as all of the rest. They
are read only if TENSOR_AT, the place of the tensor within a Python object, is not defined (`load.py`). Otherwise the
three functions that are needed of torch are declared here; a torch that lacks one of them is found when the module is
loaded.
"""

from __future__ import annotations

from ..wrapper.huge_pages import LARGE_BYTES
from .prelude import SHARED
from .runtime_python import MODULE, PYTHON

_HEADERS = r"""
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>
SHARED
namespace {
using c10::IValue;
using c10::TensorImpl;
using Values = std::vector<IValue>;
using Sizes = at::IntArrayRef;

TensorImpl* impl(Impl* tensor) { return reinterpret_cast<TensorImpl*>(tensor); }
using Pointer = c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>;
at::Tensor shared(Impl* tensor) { return tensor ? at::Tensor(Pointer::reclaim_copy(impl(tensor))) : at::Tensor(); }
Impl* released(at::Tensor tensor) {
  return tensor.defined() ? reinterpret_cast<Impl*>(tensor.unsafeReleaseTensorImpl()) : nullptr;
}
void retain(Impl* tensor) { c10::raw::intrusive_ptr::incref(impl(tensor)); }
void release(Impl* tensor) { c10::raw::intrusive_ptr::decref(impl(tensor)); }
const TensorImpl& defined(Impl* tensor) {
  TORCH_CHECK(tensor, "a tensor is read that a call has not made");
  return *impl(tensor);
}
int64_t size(Impl* tensor, int64_t dim) { return defined(tensor).size(dim); }
int64_t stride(Impl* tensor, int64_t dim) { return defined(tensor).stride(dim); }
// As `data_ptr()` of Python: what copies on writing is copied, since kernels write.
void* memory(Impl* tensor) {
  defined(tensor);
  return impl(tensor)->mutable_data();
}
"""

_TENSORS = r"""
// Advice alone: it may fail, and nothing is lost.
void in_large_pages(const at::Tensor& tensor) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = (size_t)tensor.unsafeGetTensorImpl()->mutable_data();
  const size_t first = (begin + page - 1) / page * page, last = (begin + tensor.storage().nbytes()) / page * page;
  if (last > first) madvise((void*)first, last - first, MADV_HUGEPAGE);
}
Impl* empty(const int64_t* sizes, const int64_t* strides, int64_t dims, int dtype) {
  at::Tensor made = at::detail::empty_strided_cpu(Sizes(sizes, dims), Sizes(strides, dims), (at::ScalarType)dtype);
  if (made.storage().nbytes() >= LARGE_BYTES) in_large_pages(made);
  return released(std::move(made));
}
Impl* over(Impl* given, const int64_t* sizes, const int64_t* strides, int64_t dims) {
  TensorImpl& old = *impl(given);
  auto made = at::detail::make_tensor<TensorImpl>(c10::Storage(old.storage()), old.key_set(), old.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(Sizes(sizes, dims), Sizes(strides, dims));
  return released(std::move(made));
}
// A view that only kernels and calls see.
Impl* strided(Impl* given, const int64_t* sizes, const int64_t* strides, int64_t dims, int64_t offset) {
  TensorImpl& old = *impl(given);
  auto made = at::detail::make_tensor<TensorImpl>(TensorImpl::VIEW, c10::Storage(old.storage()), old.key_set(),
                                                  old.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(Sizes(sizes, dims), Sizes(strides, dims),
                                                    old.storage_offset() + offset);
  return released(std::move(made));
}
using BelowAutograd = c10::impl::ExcludeDispatchKeyGuard;
// A view that counts writes together with its base.
Impl* tracked(Impl* given, const int64_t* sizes, const int64_t* strides, int64_t dims, int64_t offset) {
  const BelowAutograd plain(c10::autograd_dispatch_keyset);
  const at::Tensor old = shared(given);
  return released(old.as_strided(Sizes(sizes, dims), Sizes(strides, dims), old.storage_offset() + offset));
}
Impl* placed(Impl* given, const int64_t* sizes, const int64_t* strides, int64_t dims) {
  const at::Tensor old = shared(given);
  if (old.strides() == Sizes(strides, dims)) return released(old);
  const BelowAutograd plain(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor made = at::detail::empty_strided_cpu(Sizes(sizes, dims), Sizes(strides, dims), old.scalar_type());
  return released(made.copy_(old));
}
Impl* laid_out(Impl* given, const int64_t* order, int64_t dims) {
  at::Tensor tensor = shared(given);
  int64_t step = 1;
  bool dense = true;
  for (int64_t k = dims; k-- > 0;) {
    const int64_t size = tensor.size(order[k]);
    dense = dense && (size == 1 || tensor.stride(order[k]) == step);
    step *= std::max(size, int64_t(1));
  }
  if (dense) return released(std::move(tensor));
  const BelowAutograd plain(c10::autograd_dispatch_keyset);  // the caller may see that it is a view
  std::vector<int64_t> back(dims);
  for (int64_t k = 0; k < dims; ++k) back[order[k]] = k;
  return released(tensor.permute(Sizes(order, dims)).contiguous().permute(back));
}
c10::complex<double> complex_of(const Argument& given) {
  double imaginary;
  std::memcpy(&imaginary, &given.count, sizeof imaginary);
  return {given.real, imaginary};
}
at::ScalarType dtype_of(const Argument& given) {
  if (given.kind == COMPLEX) return at::kComplexDouble;
  return given.kind == WHOLE ? at::kLong : given.kind == REAL ? at::kDouble : at::kBool;
}
Impl* number(const Argument* given) {
  const auto dtype = dtype_of(*given);
  at::Tensor made = at::detail::empty_strided_cpu({}, {}, dtype);
  void* place = made.mutable_data_ptr();
  if (given->kind == WHOLE) *(int64_t*)place = given->whole;
  else if (given->kind == REAL) *(double*)place = given->real;
  else if (given->kind == COMPLEX) *(c10::complex<double>*)place = complex_of(*given);
  else *(bool*)place = given->whole;
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return released(std::move(made));
}
"""

_OPERATORS = r"""
at::Scalar scalar(const Argument& given) {
  if (given.kind == COMPLEX) return complex_of(given);
  if (given.kind == REAL) return given.real;
  return given.kind == TRUTH ? at::Scalar((bool)given.whole) : at::Scalar(given.whole);
}
template <class T, class F> IValue list(const Argument& given, F&& item) {
  c10::List<T> made;
  made.reserve(given.count);
  for (int64_t k = 0; k < given.count; ++k) made.push_back(item(given.items[k]));
  return made;
}
template <class T, class F> IValue maybe_list(const Argument& given, F&& item) {
  return list<std::optional<T>>(given, [&](const Argument& x) {
    return x.kind == NONE || (x.kind == TENSOR && !x.tensor) ? std::optional<T>() : std::optional<T>(item(x));
  });
}
at::Tensor tensor_of(const Argument& x) { return shared(x.tensor); }
IValue value(const Argument& given) {
  switch (given.kind) {
    case TENSOR: return shared(given.tensor);
    case WHOLE: return given.whole;
    case REAL: return given.real;
    case TRUTH: return (bool)given.whole;
    case TEXT: return std::string(given.text);
    case CPU: return c10::Device(c10::DeviceType::CPU);
    case WHOLES: return list<int64_t>(given, [](const Argument& x) { return x.whole; });
    case REALS: return list<double>(given, [](const Argument& x) { return x.kind == REAL ? x.real : (double)x.whole; });
    case TRUTHS: return list<bool>(given, [](const Argument& x) { return (bool)x.whole; });
    case TENSORS: return list<at::Tensor>(given, tensor_of);
    case MAYBE_TENSORS: return maybe_list<at::Tensor>(given, tensor_of);
    case SCALARS: return list<at::Scalar>(given, scalar);
    case MAYBE_SCALARS: return maybe_list<at::Scalar>(given, scalar);
    case COMPLEX: return complex_of(given);
  }
  return IValue();
}

struct Operator {
  c10::OperatorHandle handle;
  c10::DispatchKeySet without;
};
// Where a call need not pass: nowhere of autograd, if it is torch's own; nor where writes are counted and views noted,
// if it does neither. Gradients are off.
c10::DispatchKeySet unneeded(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  const std::string space = name.substr(0, name.find(':'));
  if (space != "aten" && space != "mkldnn" && space != "prims") return {};
  bool noted = schema.is_mutable();
  for (const auto& made : schema.returns()) noted = noted || made.alias_info();
  return noted ? c10::autograd_dispatch_keyset : c10::autograd_dispatch_keyset_with_ADInplaceOrView;
}
Op* operator_named(const char* name, const char* overload) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  return (Op*)new Operator{handle, unneeded(handle.schema())};
}
Values& values(Stack* stack) { return *reinterpret_cast<Values*>(stack); }
thread_local std::unique_ptr<Values> spare;
std::unique_ptr<Values> fresh(int64_t count) {
  std::unique_ptr<Values> made = spare ? std::move(spare) : std::make_unique<Values>();
  made->reserve(count);
  return made;
}
void drop(Stack* stack) {
  std::unique_ptr<Values> old(&values(stack));
  old->clear();
  if (!spare) spare = std::move(old);
}
Stack* call(Op* op, const Argument* args, int64_t count) {
  const Operator& called = *(Operator*)op;
  std::unique_ptr<Values> stack = fresh(count);
  for (int64_t k = 0; k < count; ++k) stack->push_back(value(args[k]));
  const BelowAutograd plain(called.without);
  called.handle.callBoxed(*stack);
  return (Stack*)stack.release();
}
Impl* tensor(Stack* stack, int64_t k) {
  IValue& made = values(stack)[k];
  return made.isNone() ? nullptr : released(std::move(made).toTensor());
}
Impl* item(Stack* stack, int64_t k) {
  const IValue& made = values(stack)[0];
  if (made.isTensorList()) return released(made.toTensorList().get(k));
  const IValue found = made.toListRef()[k];
  return found.isNone() ? nullptr : released(found.toTensor());
}
int64_t whole(Stack* stack, int64_t k) {
  const IValue& made = values(stack)[k];
  return made.isBool() ? made.toBool() : made.toScalar().toLong();
}
double real(Stack* stack, int64_t k) { return values(stack)[k].toScalar().toDouble(); }
bool truth(Stack* stack, int64_t k) {
  const IValue& made = values(stack)[k];
  return made.isBool() ? made.toBool() : made.toScalar().toBool();
}

void refuse(const char* message) { TORCH_CHECK(false, message); }
void other_size(int64_t dim, int64_t found, int64_t size) {
  // Joined here: streams of a C++ library that a compiler links statically do not know those of torch.
  refuse(("Runtime assertion failed: dimension " + std::to_string(dim) + " has size " + std::to_string(found) +
          ", not " + std::to_string(size) + ", as the program relies on").c_str());
}
}  // namespace
"""

_TEXT = _HEADERS + _TENSORS + _OPERATORS
OF_TORCH = _TEXT.replace("SHARED", SHARED).replace("LARGE_BYTES", str(LARGE_BYTES))
"""The functions of `Api` that need torch's headers, but not Python's."""

RUNTIME = "#include <Python.h>\n" + OF_TORCH + PYTHON + MODULE
"""The C++ of the module."""
