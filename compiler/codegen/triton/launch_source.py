"""The module that launches kernels from Python, in C against Python's API and the CUDA driver: compiled once a machine.

`make(...)` gives a callable over tensors, addresses and numbers. Every argument of a generated kernel takes 8 bytes: a
pointer, an int64 or a float64; two null pointers follow, for scratch memory that these kernels do not need (Triton 3.6
to 3.9).
"""

LAUNCHER = r"""
#include <Python.h>
typedef long long i64;
typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                      void**);
struct Attribute { unsigned id, padding; union { int number; char bytes[64]; } value; };
struct Config { unsigned x, y, z, threads, ty, tz, shared; void* stream; const Attribute* attributes; unsigned count; };
typedef int (*LaunchWith)(const Config*, void*, void**, void**);
static Launch launch;
static LaunchWith launch_with;
static int (*get_context)(void**);
static int (*push_context)(void*);
static int (*pop_context)(void**);
static PyObject *data_ptr, *current_stream;
enum { MOST = 500 };

struct Launcher {
  PyObject_HEAD
  vectorcallfunc call;
  void *function, *context;
  PyObject *device, *name, *otherwise;
  Py_ssize_t count, slots;
  i64 programs;
  unsigned threads, shared;
  int early;
  char kinds[MOST + 1];
  short order[MOST];
};

static void* pointer(PyObject* maker, PyObject* argument) {
  if (PyLong_CheckExact(argument) && maker == data_ptr) return PyLong_AsVoidPtr(argument);
  PyObject* args[1] = {argument};
  PyObject* number = PyObject_Vectorcall(maker, args, 1, nullptr);
  if (!number) return nullptr;
  void* made = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return made;
}

static int enqueue(const Launcher* self, i64 programs, void* stream, void** arguments) {
  void* now = nullptr;
  get_context(&now);
  if (now != self->context) push_context(self->context);
  int code;
  if (self->early) {  // programmatic stream serialization: the kernel itself waits for those before it
    const Attribute attribute = {6, 0, {1}};
    const Config config = {(unsigned)programs, 1, 1, self->threads, 1, 1, self->shared, stream, &attribute, 1};
    code = launch_with(&config, self->function, arguments, nullptr);
  } else {
    code = launch(self->function, (unsigned)programs, 1, 1, self->threads, 1, 1, self->shared, stream, arguments,
                  nullptr);
  }
  if (now != self->context) pop_context(&now);
  return code;
}

static PyObject* call(PyObject* object, PyObject* const* args, size_t flagged, PyObject* keywords) {
  const Launcher* self = (const Launcher*)object;
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  if (count != self->count || (keywords && PyTuple_GET_SIZE(keywords)))
    return PyErr_Format(PyExc_TypeError, "%U takes %zd arguments, not %zd", self->name, self->count, count);
  const i64 programs = self->programs < 0 ? PyLong_AsLongLong(args[count - 1]) : self->programs;
  if (PyErr_Occurred()) return nullptr;
  if (programs == 0) Py_RETURN_NONE;
  if (programs < 0 || programs > 2147483647)
    return PyErr_Format(PyExc_ValueError, "%U cannot run %lld programs", self->name, programs);
  union { void* address; i64 whole; double real; } values[MOST + 2];
  void* arguments[MOST + 2];
  for (Py_ssize_t k = 0; k < self->slots; ++k) {
    PyObject* given = args[self->order[k]];
    const char kind = self->kinds[k];
    arguments[k] = &values[k];
    if (kind == 'i') values[k].whole = PyLong_AsLongLong(given);
    else if (kind == 'f') values[k].real = PyFloat_AsDouble(given);
    else values[k].address = pointer(data_ptr, given);
    if (PyErr_Occurred()) return nullptr;
    if (kind == 'a' && ((size_t)values[k].address & 15))
      return PyObject_Vectorcall(self->otherwise, args, (size_t)count, nullptr);
  }
  for (Py_ssize_t k = self->slots; k < self->slots + 2; ++k) values[k].address = nullptr, arguments[k] = &values[k];
  void* stream = pointer(current_stream, self->device);
  if (PyErr_Occurred()) return nullptr;
  int code;
  Py_BEGIN_ALLOW_THREADS;
  code = enqueue(self, programs, stream, arguments);
  Py_END_ALLOW_THREADS;
  if (code) return PyErr_Format(PyExc_RuntimeError, "%U was not launched: CUDA error %d", self->name, code);
  Py_RETURN_NONE;
}

static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0) "regraft.Launcher"};

static void dealloc(PyObject* object) {
  Launcher* self = (Launcher*)object;
  Py_XDECREF(self->device);
  Py_XDECREF(self->name);
  Py_XDECREF(self->otherwise);
  PyObject_Free(object);
}

static PyObject* make(PyObject*, PyObject* args) {
  unsigned long long function, context;
  PyObject *name, *device, *otherwise, *order;
  unsigned threads, shared;
  i64 programs;
  const char* kinds;
  Py_ssize_t count;
  int early;
  if (!PyArg_ParseTuple(args, "KKUIIOLsO!nOp", &function, &context, &name, &threads, &shared, &device, &programs,
                        &kinds, &PyTuple_Type, &order, &count, &otherwise, &early))
    return nullptr;
  const Py_ssize_t slots = (Py_ssize_t)strlen(kinds);
  if (slots > MOST || slots != PyTuple_GET_SIZE(order))
    return PyErr_SetString(PyExc_ValueError, "too many parameters"), nullptr;
  Launcher* made = PyObject_New(Launcher, &type);
  if (!made) return nullptr;
  made->call = call;
  made->function = (void*)function, made->context = (void*)context;
  made->device = Py_NewRef(device), made->name = Py_NewRef(name), made->otherwise = Py_NewRef(otherwise);
  made->count = count, made->slots = slots, made->programs = programs;
  made->threads = threads, made->shared = shared, made->early = early;
  memcpy(made->kinds, kinds, (size_t)slots + 1);
  for (Py_ssize_t k = 0; k < slots; ++k) {
    const long position = PyLong_AsLong(PyTuple_GET_ITEM(order, k));
    if (position < 0 || position >= count) {
      Py_DECREF(made);
      return PyErr_SetString(PyExc_ValueError, "no such argument"), nullptr;
    }
    made->order[k] = (short)position;
  }
  return (PyObject*)made;
}

static PyObject* setup(PyObject*, PyObject* args) {
  unsigned long long a, b, c, d, e;
  PyObject *method, *stream;
  if (!PyArg_ParseTuple(args, "OOKKKKK", &method, &stream, &a, &b, &c, &d, &e)) return nullptr;
  launch = (Launch)a, get_context = (int (*)(void**))b;
  push_context = (int (*)(void*))c, pop_context = (int (*)(void**))d;
  launch_with = (LaunchWith)e;
  data_ptr = Py_NewRef(method), current_stream = Py_NewRef(stream);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"make", make, METH_VARARGS, nullptr}, {"setup", setup, METH_VARARGS, nullptr}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "regraft_launcher", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_regraft_launcher() {
  type.tp_basicsize = sizeof(Launcher);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = __builtin_offsetof(Launcher, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = dealloc;
  if (PyType_Ready(&type) < 0) return nullptr;
  return PyModule_Create(&definition);
}
"""
