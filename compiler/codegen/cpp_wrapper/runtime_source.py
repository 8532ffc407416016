"""The extension module that generated functions and Python meet in: with torch's headers, compiled once for a machine.

`make(...)` gives a callable in boxed convention: one list of inputs in, which it empties; the graph's outputs out.
"""

from __future__ import annotations

from ..wrapper.huge_pages import LARGE_BYTES
from .prelude import SHARED

_HEADERS = r"""
#include <Python.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>
namespace {
SHARED
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
"""

_PYTHON = r"""
struct Owned {
  PyObject* object;
  explicit Owned(PyObject* given = nullptr) : object(given) {}
  Owned(Owned&& other) noexcept : object(other.object) { other.object = nullptr; }
  Owned(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object); }
  PyObject* take() { PyObject* given = object; object = nullptr; return given; }
};
struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};
struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};
[[noreturn]] void raise_python() {
  python_error error;
  error.persist();
  throw error;
}
PyObject* object_of(const Argument& x) {
  switch (x.kind) {
    case TENSOR: return x.tensor ? THPVariable_Wrap(shared(x.tensor)) : Py_NewRef(Py_None);
    case WHOLE: return PyLong_FromLongLong(x.whole);
    case REAL: return PyFloat_FromDouble(x.real);
    case TRUTH: return PyBool_FromLong(x.whole);
  }
  return Py_NewRef(Py_None);
}
IValue value_of(PyObject* x) {
  if (x == Py_None) return IValue();
  if (PyBool_Check(x)) return x == Py_True;
  if (PyLong_Check(x)) {
    const int64_t made = PyLong_AsLongLong(x);
    if (made == -1 && PyErr_Occurred()) raise_python();
    return made;
  }
  if (PyFloat_Check(x)) return PyFloat_AsDouble(x);
  if (THPVariable_Check(x)) return THPVariable_Unpack(x);
  PyErr_Format(PyExc_TypeError, "a call gave a %s, which is no tensor and no number", Py_TYPE(x)->tp_name);
  raise_python();
}
// What Python computes: its results, or the only one.
Stack* python(void* function, const Argument* args, int64_t count) {
  std::unique_ptr<Values> stack = fresh(count);
  const WithGil held;
  std::vector<Owned> given;
  std::vector<PyObject*> plain;
  for (int64_t k = 0; k < count; ++k) {
    given.emplace_back(object_of(args[k]));
    if (!given.back().object) raise_python();
    plain.push_back(given.back().object);
  }
  const Owned made(PyObject_Vectorcall((PyObject*)function, plain.data(), (size_t)count, nullptr));
  if (!made.object) raise_python();
  if (!PyTuple_Check(made.object) && !PyList_Check(made.object)) {
    stack->push_back(value_of(made.object));
    return (Stack*)stack.release();
  }
  for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(made.object); ++k)
    stack->push_back(value_of(PySequence_Fast_GET_ITEM(made.object, k)));
  return (Stack*)stack.release();
}

struct Failure { Runtime at; };  // of a kernel
struct Divided {};
void failed(const Runtime* at) { throw Failure{*at}; }
void divided() { throw Divided{}; }
void refuse(const char* message) { TORCH_CHECK(false, message); }
void other_size(int64_t dim, int64_t found, int64_t size) {
  // Joined here: streams of a C++ library that a compiler links statically do not know those of torch.
  refuse(("Runtime assertion failed: dimension " + std::to_string(dim) + " has size " + std::to_string(found) +
          ", not " + std::to_string(size) + ", as the program relies on").c_str());
}
Api api = {{}, retain, release, size, stride, memory, empty, over, strided, tracked, placed, laid_out, number,
           operator_named, call, python, drop, tensor, item, whole, real, truth, failed, refuse, other_size, divided};
"""

_MODULE = r"""
PyObject *out_of_range, *profiler, *profiler_on;

typedef void Body(Frame&, Value*, Value*);
struct Graph {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *dict, *weak;
  Body* body;
  PyObject *constants, *functions, *inputs, *outputs, *fixed, *python, *sites;
  Impl** tensors;
};
struct Inputs {
  std::vector<Value> values;
  const char* kinds;
  size_t count = 0;
  std::vector<Impl*> held;  // what the caller holds as well: a last reference that falls without the lock waits for it
  ~Inputs() {
    for (size_t k = 0; k < count; ++k)
      if (kinds[k] == 't' && values[k].tensor) release(values[k].tensor);
    for (Impl* tensor : held) release(tensor);
  }
};

bool read(char kind, PyObject* given, Value& to) {
  to.whole = 0;
  if (kind == '-') return true;
  if (kind == 't') {
    if (given == Py_None) return true;
    if (!THPVariable_Check(given))
      return PyErr_Format(PyExc_TypeError, "an input is a %s, not a tensor", Py_TYPE(given)->tp_name), false;
    to.tensor = released(THPVariable_Unpack(given));
    return true;
  }
  if (kind == 'f') to.real = PyFloat_AsDouble(given);
  else if (kind == 'b') to.whole = PyObject_IsTrue(given);
  else to.whole = PyLong_AsLongLong(given);
  return !PyErr_Occurred();
}
PyObject* written(char kind, Value& from, PyObject* fixed) {
  if (kind == 't') {
    if (!from.tensor) return Py_NewRef(Py_None);
    at::Tensor made(Pointer::reclaim(impl(from.tensor)));
    from.tensor = nullptr;
    return THPVariable_Wrap(std::move(made));
  }
  if (kind == 'i') return PyLong_FromLongLong(from.whole);
  if (kind == 'f') return PyFloat_FromDouble(from.real);
  if (kind == 'b') return PyBool_FromLong(from.whole);
  return Py_NewRef(fixed);
}
// Which line of the user's program an error comes from.
void add_site(PyObject* sites, int site) {
  if (site < 0 || site >= PyTuple_GET_SIZE(sites)) return;
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  const Owned note(PyObject_CallMethod(error, "add_note", "O", PyTuple_GET_ITEM(sites, site)));
  if (!note.object) PyErr_Clear();
  PyErr_Restore(type, error, trace);
}

PyObject* ran(Graph* self, PyObject* list) {
  const size_t count = (size_t)PyUnicode_GET_LENGTH(self->inputs);
  const size_t made = (size_t)PyUnicode_GET_LENGTH(self->outputs);
  Inputs in{std::vector<Value>(count), (const char*)PyUnicode_1BYTE_DATA(self->inputs)};
  in.held.reserve(count);
  const char* kinds = (const char*)PyUnicode_1BYTE_DATA(self->outputs);
  std::vector<Value> out(made);
  Frame frame{self->tensors, (void* const*)((PyTupleObject*)self->functions)->ob_item, -1};
  HANDLE_TH_ERRORS
  for (size_t k = 0; k < count; ++k) {
    PyObject* given = PyList_GET_ITEM(list, k);
    const bool shares = Py_REFCNT(given) > 1;
    if (!read(in.kinds[k], given, in.values[k])) return nullptr;
    in.count = k + 1;
    if (shares && in.kinds[k] == 't' && in.values[k].tensor) {
      retain(in.values[k].tensor);
      in.held.push_back(in.values[k].tensor);
    }
  }
  if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr)) return nullptr;
  in.count = 0;  // the function's now
  try {
    const WithoutGil running;
    self->body(frame, in.values.data(), out.data());
  } catch (const Failure& failure) {
    if (failure.at.kind == 2) PyErr_SetString(PyExc_RuntimeError, "ZeroDivisionError");
    else PyErr_Format(out_of_range, "index %lld is out of bounds for dimension with size %lld", failure.at.index,
                      failure.at.size);
    return add_site(self->sites, frame.site), nullptr;
  } catch (const Divided&) {
    PyErr_SetString(PyExc_ZeroDivisionError, "integer division or modulo by zero");
    return add_site(self->sites, frame.site), nullptr;
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
    return add_site(self->sites, frame.site), nullptr;
  }
  Owned results(PyTuple_New((Py_ssize_t)made));
  for (size_t k = 0; k < made && results.object; ++k) {
    PyObject* result = written(kinds[k], out[k], PyTuple_GET_ITEM(self->fixed, k));
    if (!result) return nullptr;
    PyTuple_SET_ITEM(results.object, k, result);
  }
  return results.take();
  END_HANDLE_TH_ERRORS
}

PyObject* graph_call(PyObject* object, PyObject* const* args, size_t flagged, PyObject* keywords) {
  Graph* self = (Graph*)object;
  if (PyVectorcall_NARGS(flagged) != 1 || (keywords && PyTuple_GET_SIZE(keywords)) || !PyList_Check(args[0]) ||
      PyList_GET_SIZE(args[0]) != PyUnicode_GET_LENGTH(self->inputs))
    return PyErr_Format(PyExc_TypeError, "the graph takes one list of %zd inputs",
                        PyUnicode_GET_LENGTH(self->inputs));
  if (PyDict_GetItem(profiler, profiler_on) == Py_True) return PyObject_Vectorcall(self->python, args, 1, nullptr);
  return ran(self, args[0]);
}
void graph_free(PyObject* object) {
  Graph* self = (Graph*)object;
  if (self->weak) PyObject_ClearWeakRefs(object);
  for (PyObject* held : {self->dict, self->constants, self->functions, self->inputs, self->outputs, self->fixed,
                         self->python, self->sites})
    Py_XDECREF(held);
  PyMem_Free(self->tensors);
  PyObject_Free(object);
}
PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0) "regraft.Graph"};
PyGetSetDef attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict}, {}};

PyObject* make(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned long long bind, body;
  PyObject *kernels, *constants, *functions, *inputs, *outputs, *fixed, *python, *sites;
  if (!PyArg_ParseTuple(args, "KKO!O!O!UUO!OO!", &bind, &body, &PyTuple_Type, &kernels, &PyTuple_Type, &constants,
                        &PyTuple_Type, &functions, &inputs, &outputs, &PyTuple_Type, &fixed, &python, &PyTuple_Type,
                        &sites))
    return nullptr;
  std::vector<void*> addresses;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kernels); ++k)
    addresses.push_back(PyLong_AsVoidPtr(PyTuple_GET_ITEM(kernels, k)));
  const Py_ssize_t count = PyTuple_GET_SIZE(constants);
  for (Py_ssize_t k = 0; k < count; ++k)
    if (!THPVariable_Check(PyTuple_GET_ITEM(constants, k)))
      return PyErr_SetString(PyExc_TypeError, "a constant is no tensor"), nullptr;
  if (PyErr_Occurred()) return nullptr;
  ((void (*)(const Api*, void* const*))bind)(&api, addresses.data());
  Graph* made = PyObject_New(Graph, &type);
  if (!made) return nullptr;
  made->call = graph_call, made->body = (Body*)body, made->dict = nullptr, made->weak = nullptr;
  made->constants = Py_NewRef(constants), made->functions = Py_NewRef(functions);
  made->inputs = Py_NewRef(inputs), made->outputs = Py_NewRef(outputs), made->fixed = Py_NewRef(fixed);
  made->python = Py_NewRef(python), made->sites = Py_NewRef(sites);
  made->tensors = (Impl**)PyMem_Calloc(count + 1, sizeof(Impl*));
  for (Py_ssize_t k = 0; k < count; ++k)
    made->tensors[k] = (Impl*)THPVariable_Unpack(PyTuple_GET_ITEM(constants, k)).unsafeGetTensorImpl();
  return (PyObject*)made;
  END_HANDLE_TH_ERRORS
}
PyObject* setup(PyObject*, PyObject* args) {
  unsigned long long a, b, c, d;
  PyObject *error, *switches;
  if (!PyArg_ParseTuple(args, "OO!KKKK", &error, &PyDict_Type, &switches, &a, &b, &c, &d)) return nullptr;
  api.entries[0] = (void*)a, api.entries[1] = (void*)b, api.entries[2] = (void*)c, api.entries[3] = (void*)d;
  out_of_range = Py_NewRef(error), profiler = Py_NewRef(switches);
  profiler_on = PyUnicode_InternFromString("_is_profiler_enabled");
  Py_RETURN_NONE;
}
PyMethodDef methods[] = {{"make", make, METH_VARARGS, nullptr}, {"setup", setup, METH_VARARGS, nullptr}, {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "regraft_graphs", nullptr, -1, methods};
}  // namespace

PyMODINIT_FUNC PyInit_regraft_graphs() {
  type.tp_basicsize = sizeof(Graph);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Graph, call);
  type.tp_dictoffset = offsetof(Graph, dict);
  type.tp_weaklistoffset = offsetof(Graph, weak);
  type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = graph_free;
  type.tp_getattro = PyObject_GenericGetAttr;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_getset = attributes;
  if (PyType_Ready(&type) < 0) return nullptr;
  return PyModule_Create(&definition);
}
"""

_TEXT = _HEADERS + _TENSORS + _OPERATORS + _PYTHON + _MODULE
RUNTIME = _TEXT.replace("SHARED", SHARED).replace("LARGE_BYTES", str(LARGE_BYTES))
"""The C++ of the module."""
