"""The source of the extension module that calls kernels from Python: C, compiled once for each machine and Python.

`make(address, kinds, sizes, big)` returns a callable. Its arguments are tensors or addresses (``t``), integers (``i``)
and floats (``f``) by value, then sizes. A call costs little more than the tensors' `data_ptr()`. Big kernels release
the interpreter lock.
"""

BINDING = r"""
#include <Python.h>
typedef long long i64;
typedef struct { void* entry[4]; i64 kind, index, size; } Runtime;
typedef void (*Function)(void**, const i64*, Runtime*);
static void* entry[4];
static PyObject *data_ptr, *out_of_range;
enum { MOST = 500 };

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  Function function;
  Py_ssize_t params, sizes;
  int big;
  char kinds[MOST + 1];
} Kernel;

static void* pointer(PyObject* tensor) {
  if (PyLong_CheckExact(tensor)) return PyLong_AsVoidPtr(tensor);
  PyObject* args[1] = {tensor};
  PyObject* number = PyObject_Vectorcall(data_ptr, args, 1, NULL);
  if (!number) return NULL;
  void* made = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return made;
}

static PyObject* failed(const Runtime* runtime) {
  if (runtime->kind == 2) return PyErr_SetString(PyExc_RuntimeError, "ZeroDivisionError"), (PyObject*)NULL;
  const char* wording = "index %lld is out of bounds for dimension with size %lld";
  return PyErr_Format(out_of_range, wording, runtime->index, runtime->size);
}

static PyObject* call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* keywords) {
  const Kernel* kernel = (const Kernel*)self;
  const Py_ssize_t count = PyVectorcall_NARGS(flagged), params = kernel->params;
  if (count != params + kernel->sizes || (keywords && PyTuple_GET_SIZE(keywords)))
    return PyErr_Format(PyExc_TypeError, "the kernel takes %zd tensors and %zd sizes, not %zd arguments", params,
                        kernel->sizes, count);
  void* pointers[MOST];
  union { i64 whole; double real; } numbers[MOST + 1];
  for (Py_ssize_t k = 0; k < count; ++k) {
    const char kind = k < params ? kernel->kinds[k] : 'i';
    if (kind == 't') pointers[k] = pointer(args[k]);
    else if (kind == 'f') numbers[k].real = PyFloat_AsDouble(args[k]), pointers[k] = &numbers[k];
    else numbers[k].whole = PyLong_AsLongLong(args[k]), pointers[k] = &numbers[k];
    if (PyErr_Occurred()) return NULL;
  }
  Runtime runtime = {{entry[0], entry[1], entry[2], entry[3]}, 0, 0, 0};
  PyThreadState* state = kernel->big ? PyEval_SaveThread() : NULL;
  kernel->function(pointers, &numbers[params].whole, &runtime);
  if (state) PyEval_RestoreThread(state);
  if (runtime.kind) return failed(&runtime);
  Py_RETURN_NONE;
}

static PyTypeObject type = {PyVarObject_HEAD_INIT(NULL, 0) "regraft.Kernel"};

static PyObject* make(PyObject* module, PyObject* args) {
  unsigned long long address;
  const char* kinds;
  Py_ssize_t sizes;
  int big;
  if (!PyArg_ParseTuple(args, "Ksnp", &address, &kinds, &sizes, &big)) return NULL;
  const Py_ssize_t params = (Py_ssize_t)strlen(kinds);
  if (params + sizes > MOST) return PyErr_SetString(PyExc_ValueError, "too many parameters"), (PyObject*)NULL;
  Kernel* made = PyObject_New(Kernel, &type);
  if (!made) return NULL;
  made->call = call, made->function = (Function)(size_t)address;
  made->params = params, made->sizes = sizes, made->big = big;
  memcpy(made->kinds, kinds, (size_t)params + 1);
  return (PyObject*)made;
}

static PyObject* setup(PyObject* module, PyObject* args) {
  unsigned long long a, b, c, d;
  PyObject *method, *error;
  if (!PyArg_ParseTuple(args, "OOKKKK", &method, &error, &a, &b, &c, &d)) return NULL;
  entry[0] = (void*)a, entry[1] = (void*)b, entry[2] = (void*)c, entry[3] = (void*)d;
  Py_INCREF(method), Py_INCREF(error);
  data_ptr = method, out_of_range = error;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"make", make, METH_VARARGS, NULL}, {"setup", setup, METH_VARARGS, NULL}, {NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "regraft_binding", NULL, -1, methods};

PyMODINIT_FUNC PyInit_regraft_binding(void) {
  type.tp_basicsize = sizeof(Kernel);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = __builtin_offsetof(Kernel, call);
  type.tp_call = PyVectorcall_Call;
  if (PyType_Ready(&type) < 0) return NULL;
  return PyModule_Create(&definition);
}
"""
