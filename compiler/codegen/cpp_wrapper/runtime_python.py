"""The part of the extension module (`runtime_source.py`) that handles Python: objects, errors, warnings, calls."""

from __future__ import annotations

PYTHON = r"""
#ifdef TENSOR_AT
PyObject* THPVariable_Wrap(const at::TensorBase&);
PyObject* THPVariable_Wrap(at::TensorBase&&);
namespace torch { void translate_exception_to_python(const std::exception_ptr&); }
#else
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#define TENSOR_AT offsetof(THPVariable, cdata)
#endif
namespace {
PyObject *out_of_range, *profiler, *profiler_on, *tensor_class;

bool is_tensor(PyObject* x) { return PyObject_TypeCheck(x, (PyTypeObject*)tensor_class); }
const at::Tensor& tensor_in(PyObject* x) { return *(const at::Tensor*)((const char*)x + TENSOR_AT); }

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
// An error that Python raised, on its way to the caller. It is thrown, caught and freed where the lock is held.
struct Raised {
  PyObject *type, *error, *trace;
  Raised() { PyErr_Fetch(&type, &error, &trace); }
  void give() const { PyErr_Restore(type, error, trace); }
};
[[noreturn]] void raise_python() { throw Raised(); }
// Keeps the warnings of operators, which run without the lock, for Python.
struct Warnings : c10::WarningHandler {
  std::vector<c10::Warning> kept;
  c10::WarningHandler* before = c10::WarningUtils::get_warning_handler();
  Warnings() { c10::WarningUtils::set_warning_handler(this); }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(before); }
  void process(const c10::Warning& warning) override { kept.push_back(warning); }
  static bool warned(const c10::Warning& warning) {
    PyObject* kind = std::holds_alternative<c10::Warning::DeprecationWarning>(warning.type())
                         ? PyExc_DeprecationWarning : PyExc_UserWarning;
    const c10::SourceLocation& at = warning.source_location();
    if (!at.file) return !PyErr_WarnEx(kind, warning.msg().c_str(), 1);
    if (warning.verbatim())
      return !PyErr_WarnExplicit(kind, warning.msg().c_str(), at.file, (int)at.line, nullptr, nullptr);
    return !PyErr_WarnFormat(kind, 1, "%s (Triggered internally at %s:%u.)", warning.msg().c_str(), at.file, at.line);
  }
  // The result, or nothing if a warning is an error for Python. After an error the others are shown.
  PyObject* given(PyObject* result) {
    if (kept.empty()) return result;
    c10::WarningUtils::set_warning_handler(before);  // not for those of Python's filters
    const Raised failed;
    for (const c10::Warning& warning : kept) {
      if (warned(warning)) continue;
      if (failed.type) PyErr_WriteUnraisable(nullptr);
      else return Py_XDECREF(result), nullptr;
    }
    failed.give();
    return result;
  }
};
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
  if (is_tensor(x)) return tensor_in(x);
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
Api api = {{}, retain, release, size, stride, memory, empty, over, strided, tracked, placed, laid_out, number,
           operator_named, call, python, drop, tensor, item, whole, real, truth, failed, refuse, other_size, divided};
"""
"""Objects of Python as values, calls of Python, and the errors of both."""

MODULE = r"""
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
    if (!is_tensor(given))
      return PyErr_Format(PyExc_TypeError, "an input is a %s, not a tensor", Py_TYPE(given)->tp_name), false;
    to.tensor = released(tensor_in(given));
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

PyObject* computed(Graph* self, PyObject* list) {
  const size_t count = (size_t)PyUnicode_GET_LENGTH(self->inputs);
  const size_t made = (size_t)PyUnicode_GET_LENGTH(self->outputs);
  Inputs in{std::vector<Value>(count), (const char*)PyUnicode_1BYTE_DATA(self->inputs)};
  in.held.reserve(count);
  const char* kinds = (const char*)PyUnicode_1BYTE_DATA(self->outputs);
  std::vector<Value> out(made);
  Frame frame{self->tensors, (void* const*)((PyTupleObject*)self->functions)->ob_item, -1};
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
  } catch (const Raised& raised) {
    raised.give();
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
}
PyObject* ran(Graph* self, PyObject* list) {
  Warnings warnings;
  PyObject* made = nullptr;
  try {
    made = computed(self, list);
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  }
  return warnings.given(made);
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

PyObject* bound(PyObject* args) {
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
    if (!is_tensor(PyTuple_GET_ITEM(constants, k)))
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
    made->tensors[k] = (Impl*)tensor_in(PyTuple_GET_ITEM(constants, k)).unsafeGetTensorImpl();
  return (PyObject*)made;
}
PyObject* make(PyObject*, PyObject* args) {
  try {
    return bound(args);
  } catch (const std::exception&) {
    return torch::translate_exception_to_python(std::current_exception()), nullptr;
  }
}
PyObject* setup(PyObject*, PyObject* args) {
  unsigned long long a, b, c, d;
  PyObject *error, *switches, *tensor;
  if (!PyArg_ParseTuple(args, "OO!O!KKKK", &error, &PyDict_Type, &switches, &PyType_Type, &tensor, &a, &b, &c, &d))
    return nullptr;
  api.entries[0] = (void*)a, api.entries[1] = (void*)b, api.entries[2] = (void*)c, api.entries[3] = (void*)d;
  out_of_range = Py_NewRef(error), profiler = Py_NewRef(switches), tensor_class = Py_NewRef(tensor);
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
"""A graph as an object of Python, and what makes it."""
