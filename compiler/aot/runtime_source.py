"""The parts of every artifact that are the same: what generated functions call, and what callers of the library do.

An artifact is one file: a shared library, then the constants, then the manifest, then a footer that says where they are
(the loader of the system reads no further than the library's end).
"""

from __future__ import annotations

from ..codegen.cpp_wrapper.tables import Dialect
from ..codegen.cpp_wrapper.vocabulary import NUMBERS

HELPERS = r"""
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/List.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <torch/library.h>
#include <torch/version.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

// The same as in the kernels' sources.
struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*max_threads)();
  int (*threads)();
  int (*thread)();
  long long kind, index, size;
};

namespace {
using at::ScalarType;
using at::Tensor;
using Sizes = at::IntArrayRef;
using Stack = std::vector<c10::IValue>;
using Handle = const c10::OperatorHandle&;
template <class T> using Items = std::initializer_list<T>;

struct Model {
  std::vector<at::Tensor> constants;
  std::string manifest;
  void* memory = nullptr;
  size_t bytes = 0;
  ~Model() {
    constants.clear();
    if (memory) munmap(memory, bytes);
  }
};

c10::OperatorHandle operator_named(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

template <class... Args> Stack call(const c10::OperatorHandle& op, Args&&... args) {
  Stack stack;
  stack.reserve(sizeof...(args));
  (stack.emplace_back(std::forward<Args>(args)), ...);
  op.callBoxed(stack);
  return stack;
}
c10::IValue none() { return c10::IValue(); }
c10::complex<double> complex_number(double real, double imaginary) { return {real, imaginary}; }
c10::Device cpu() { return c10::Device(c10::DeviceType::CPU); }
std::string text(const char* given) { return given; }

// Messages are joined here, not by streams, as c10::str does: those of a C++ library that a compiler links into the
// artifact do not know the locales of the one that torch has loaded.
std::string word(const char* given) { return given; }
std::string word(const std::string& given) { return given; }
std::string word(at::ScalarType dtype) { return c10::toString(dtype); }
std::string word(const c10::Device& device) { return device.str(); }
std::string word(at::Layout layout) {
  return layout == at::kSparse ? "Sparse" : layout == at::kMkldnn ? "Mkldnn" : layout == at::kJagged ? "Jagged"
                                                                                                      : "SparseRows";
}
template <class T, class = std::enable_if_t<std::is_integral_v<T>>> std::string word(T number) {
  return std::to_string(number);
}
std::string word(Sizes sizes) {
  std::string made = "[";
  for (size_t k = 0; k < sizes.size(); ++k) made += (k ? ", " : "") + std::to_string(sizes[k]);
  return made + "]";
}
template <class... Args> std::string said(const Args&... args) {
  std::string made;
  ((made += word(args)), ...);
  return made;
}
c10::List<int64_t> whole_list(Items<int64_t> items) { return c10::List<int64_t>(items); }
c10::List<double> real_list(Items<double> items) { return c10::List<double>(items); }
c10::List<bool> truth_list(Items<bool> items) { return c10::List<bool>(items); }
c10::List<at::Tensor> tensor_list(Items<at::Tensor> items) { return c10::List<at::Tensor>(items); }
c10::List<at::Scalar> scalar_list(Items<at::Scalar> items) { return c10::List<at::Scalar>(items); }
template <class T> using Maybe = std::optional<T>;
c10::List<Maybe<at::Tensor>> maybe_tensors(Items<Maybe<at::Tensor>> items) {
  return c10::List<Maybe<at::Tensor>>(items);
}
c10::List<Maybe<at::Scalar>> maybe_scalars(Items<Maybe<at::Scalar>> items) {
  return c10::List<Maybe<at::Scalar>>(items);
}
at::Tensor tensor(Stack&& stack, size_t k) {
  return stack[k].isNone() ? at::Tensor() : std::move(stack[k]).toTensor();
}
at::Tensor tensor(Stack& stack, size_t k) { return tensor(std::move(stack), k); }
at::Tensor item(const Stack& stack, size_t k) {
  const auto& value = stack[0];
  return value.isTensorList() ? value.toTensorList().get(k) : value.toListRef()[k].toTensor();
}
int64_t whole(const Stack& stack, size_t k) {
  return stack[k].isBool() ? stack[k].toBool() : stack[k].toScalar().toLong();
}
double real(const Stack& stack, size_t k) { return stack[k].toScalar().toDouble(); }
bool truth(const Stack& stack, size_t k) {
  return stack[k].isBool() ? stack[k].toBool() : stack[k].toScalar().toBool();
}

void require(bool holds, const char* message) { TORCH_CHECK(holds, message); }
[[noreturn]] void divided_by_zero() { TORCH_CHECK(false, "ZeroDivisionError"); }
NUMBERS
at::Tensor empty(Sizes sizes, Sizes strides, ScalarType dtype) {
  return at::detail::empty_strided_cpu(sizes, strides, dtype);
}
// As c10::scalar_to_tensor, whose header has all operators: compiling an artifact would take half as long again.
template <class T> at::Tensor number_tensor(T number) {
  using Whole = std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>;
  using Real = std::conditional_t<std::is_floating_point_v<T>, double, Whole>;
  using Kept = std::conditional_t<std::is_arithmetic_v<T>, Real, T>;
  at::Tensor made = at::detail::empty_strided_cpu({}, {}, c10::CppTypeToScalarType<Kept>::value);
  *static_cast<Kept*>(made.mutable_data_ptr()) = number;
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

void* memory(const at::Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

// A view, `offset` elements after where the tensor begins.
at::Tensor strided(const at::Tensor& tensor, Sizes sizes, Sizes strides, int64_t offset) {
  auto made = at::detail::make_tensor<at::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                      tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, tensor.storage_offset() + offset);
  return made;
}
at::Tensor over(const at::Tensor& old, Sizes sizes, Sizes strides) {
  auto made = at::detail::make_tensor<at::TensorImpl>(c10::Storage(old.storage()), old.key_set(), old.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

bool lies(const at::Tensor& tensor, Sizes strides) {
  if (tensor.numel() == 0) return true;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) != 1 && tensor.stride(d) != strides[d]) return false;
  return true;
}
at::Tensor placed(const at::Tensor& tensor, Sizes sizes, Sizes strides) {
  if (lies(tensor, strides)) return tensor;
  at::Tensor made = at::detail::empty_strided_cpu(sizes, strides, tensor.scalar_type());
  made.copy_(tensor);
  return made;
}
void lay_out(at::Tensor& tensor, Sizes order) {
  int64_t step = 1;
  bool dense = true;
  for (size_t k = order.size(); k-- > 0;) {
    const int64_t size = tensor.size(order[k]);
    dense = dense && (size == 1 || tensor.stride(order[k]) == step);
    step *= most(size, int64_t(1));
  }
  if (dense) return;
  std::vector<int64_t> back(order.size());
  for (size_t k = 0; k < order.size(); ++k) back[order[k]] = (int64_t)k;
  tensor = tensor.permute(order).contiguous().permute(back);
}

at::Tensor stored(char* memory, Sizes sizes, Sizes strides, at::ScalarType dtype) {
  return at::from_blob(memory, sizes, strides, at::TensorOptions().dtype(dtype));
}

Runtime entries() {
  static const Runtime found = [] {
    Runtime made{};
    made.parallel = (decltype(made.parallel))dlsym(RTLD_DEFAULT, "GOMP_parallel");
    made.max_threads = (int (*)())dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    made.threads = (int (*)())dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    made.thread = (int (*)())dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    if (!made.parallel || !made.max_threads || !made.threads || !made.thread) made.parallel = nullptr;
    return made;
  }();
  return found;
}
void launch(void (*kernel)(void**, const long long*, Runtime*), void** pointers, const long long* sizes) {
  Runtime runtime = entries();
  kernel(pointers, sizes, &runtime);
  if (!runtime.kind) return;
  if (runtime.kind == 2) divided_by_zero();
  TORCH_CHECK_INDEX(false, said("index ", runtime.index, " is out of bounds for dimension with size ", runtime.size));
}

void relied_on(const at::Tensor& tensor, int64_t dim, int64_t size) {
  TORCH_CHECK(tensor.size(dim) == size,
              said("Runtime assertion failed: dimension ", dim, " has size ", tensor.size(dim),
              ", not ", size, ", as the program relies on"));
}

at::Tensor given(const c10::IValue& value, const char* name, at::ScalarType dtype, int64_t dims) {
  TORCH_CHECK_VALUE(value.isTensor() && value.toTensor().defined(), said("input '", name, "' must be a tensor, not ",
                    value.tagKind()));
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK_VALUE(tensor.device().is_cpu(),
                    said("input '", name, "' is on ", tensor.device(), "; it must be on the CPU"));
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, said("input '", name, "' has layout ", tensor.layout(),
                    ", not strided"));
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, said("input '", name, "' has dtype ", tensor.scalar_type(),
                    "; it must be ", dtype));
  TORCH_CHECK_VALUE(tensor.dim() == dims, said("input '", name, "' has ", tensor.dim(), " dims; it must have ", dims));
  return tensor.is_neg() || tensor.is_conj() ? tensor.resolve_conj().resolve_neg() : tensor;
}
int64_t given_number(const c10::IValue& value, const char* name) {
  TORCH_CHECK_VALUE(value.isInt(), said("input '", name, "' must be an integer, not ", value.tagKind()));
  return value.toInt();
}
void is_size(const at::Tensor& tensor, const char* name, int64_t dim, int64_t size, const char* why) {
  TORCH_CHECK_VALUE(tensor.size(dim) == size, said("input '", name, "': dim ", dim, " is ", tensor.size(dim),
                    "; it must be ", size, why));
}
void in_range(int64_t size, const char* what, int64_t low, int64_t high) {
  if (size >= low && size <= high) return;
  const char* why = size == 0 && low == 1 ? " (dynamic dims of size 0 are not compiled ahead of time)" : "";
  TORCH_CHECK_VALUE(high == INT64_MAX, said(what, " is ", size, "; it must be from ", low, " to ", high, why));
  TORCH_CHECK_VALUE(false, said(what, " is ", size, "; it must be at least ", low, why));
}
void holds(bool condition, const char* what) {
  TORCH_CHECK_VALUE(condition,
                    said("the inputs' sizes do not meet a condition that the program was compiled for: ", what));
}
void unchanged(const c10::IValue& value, const char* name, Sizes strides) {
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK_VALUE(!tensor.is_neg() && !tensor.is_conj(), said("input '", name,
                    "' is written by the program, and must not be a view of negated or conjugate numbers"));
  TORCH_CHECK_VALUE(lies(tensor, strides), said("input '", name, "' is written by the program, and must have strides ",
                    strides, ", not ", tensor.strides()));
}
const char* end_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return (const char*)tensor.const_data_ptr() + (last + 1) * (int64_t)tensor.element_size();
}
// Whether steps along the dims, back or forth, lead from one element to another: `dims` are strides and most steps.
bool leads(int64_t distance, const std::vector<std::pair<int64_t, int64_t>>& dims, size_t k) {
  if (k == dims.size()) return distance == 0;
  int64_t rest = 0;
  for (size_t j = k + 1; j < dims.size(); ++j) rest += dims[j].first * dims[j].second;
  const auto [stride, most] = dims[k];
  const int64_t about = distance / stride, around = rest / stride + 1;
  for (int64_t steps = std::max(-most, about - around); steps <= std::min(most, about + around); ++steps)
    if (leads(distance - steps * stride, dims, k + 1)) return true;
  return false;
}
bool interleaved(const at::Tensor& a, const at::Tensor& b, int64_t bytes) {
  const int64_t size = (int64_t)a.element_size();
  if (a.sizes() != b.sizes() || a.strides() != b.strides()) return false;
  if ((int64_t)b.element_size() != size || bytes % size) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (int64_t dim = 0; dim < a.dim(); ++dim)
    if (a.size(dim) > 1 && a.stride(dim)) dims.emplace_back(a.stride(dim), a.size(dim) - 1);
  std::sort(dims.rbegin(), dims.rend());
  return !leads(bytes / size, dims, 0);
}
void apart(const at::Tensor& written, const char* name, const at::Tensor& other, const char* beside) {
  if (!written.numel() || !other.numel()) return;
  const char *begin = (const char*)written.const_data_ptr(), *start = (const char*)other.const_data_ptr();
  const bool met = end_of(written) > start && end_of(other) > begin && !interleaved(written, other, start - begin);
  TORCH_CHECK_VALUE(!met, said("input '", name,
                    "' is written by the program, and must not share memory with input '", beside, "'"));
}
}  // namespace
""".replace("NUMBERS", NUMBERS)

ENTRY = r"""
struct Footer {
  char magic[16];
  uint64_t library, constants, constants_end, manifest, manifest_end, total;
};
static const char MAGIC[16] = "REGRAFT-AOT-001";

std::unique_ptr<Model> opened(const char* path) {
  const char* missing = missing_instructions();
  TORCH_CHECK(!missing, said("this machine's processor lacks ", missing, ", which ", path, " was compiled for"));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(file >= 0, said(path, " cannot be opened: ", strerror(errno)));
  struct Closing { int file; ~Closing() { close(file); } } closing{file};
  struct stat about;
  Footer at;
  TORCH_CHECK(!fstat(file, &about) && about.st_size >= (off_t)sizeof at &&
              pread(file, &at, sizeof at, about.st_size - (off_t)sizeof at) == (ssize_t)sizeof at &&
              !memcmp(at.magic, MAGIC, sizeof MAGIC), said(path, " is no whole artifact of regraft"));
  TORCH_CHECK(at.total == (uint64_t)about.st_size, said(path, " has ", about.st_size, " bytes, but was written with ",
              at.total));
  auto model = std::make_unique<Model>();
  model->manifest.resize(at.manifest_end - at.manifest);
  TORCH_CHECK(pread(file, &model->manifest[0], model->manifest.size(), (off_t)at.manifest) ==
              (ssize_t)model->manifest.size(), said(path, " cannot be read"));
  TORCH_CHECK(model->manifest.find("\"" LIBRARY_NAME "\"") != std::string::npos, said(path,
              " has changed since its library was loaded into this process"));
  if (at.constants_end > at.constants) {
    model->bytes = at.constants_end - at.constants;
    void* memory = mmap(nullptr, model->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, (off_t)at.constants);
    TORCH_CHECK(memory != MAP_FAILED, said("the constants of ", path, " cannot be mapped: ", strerror(errno)));
    model->memory = memory;
  }
  const at::AutoDispatchBelowADInplaceOrView plain;
  bind_constants(*model, (char*)model->memory);
  return model;
}

thread_local std::string last_error;
template <class F> int guarded(F&& run) {
  try {
    run();
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

std::mutex models_lock;
std::unordered_map<int64_t, std::shared_ptr<Model>> models;

// For Python: what the library registers with torch when it is loaded.
int64_t open_model(const std::string& path) {
  std::shared_ptr<Model> model = opened(path.c_str());
  const std::lock_guard<std::mutex> held(models_lock);
  const int64_t number = (int64_t)(size_t)model.get();
  models[number] = std::move(model);
  return number;
}
void close_model(int64_t number) {
  const std::lock_guard<std::mutex> held(models_lock);
  models.erase(number);
}
std::tuple<std::vector<at::Tensor>, std::vector<int64_t>, std::vector<double>> run_model(
    int64_t number, at::TensorList tensors, at::IntArrayRef numbers) {
  std::vector<c10::IValue> in, out;
  in.reserve(tensors.size() + numbers.size());
  size_t t = 0, n = 0;
  for (const char* kind = INPUT_KINDS; *kind; ++kind) {
    if (*kind == 't') in.emplace_back(tensors[t++]);
    else in.emplace_back(numbers[n++]);
  }
  forward(*(const Model*)(size_t)number, in.data(), out);
  std::tuple<std::vector<at::Tensor>, std::vector<int64_t>, std::vector<double>> made;
  std::get<0>(made).reserve(out.size());
  for (auto& value : out) {
    if (value.isTensor()) std::get<0>(made).push_back(std::move(value).toTensor());
    else if (value.isInt()) std::get<1>(made).push_back(value.toInt());
    else if (value.isBool()) std::get<1>(made).push_back(value.toBool());
    else std::get<2>(made).push_back(value.toDouble());
  }
  return made;
}

// Registered when Python asks for it, not when the library is loaded: C++ may load two copies of one artifact.
void register_operators() {
  static torch::Library made(torch::Library::DEF, LIBRARY_NAME, std::nullopt, __FILE__, __LINE__);
  static bool done = false;
  if (done) return;
  done = true;
  made.def("open(str path) -> int", open_model);
  made.def("close(int model) -> ()", close_model);
  made.def("run(int model, Tensor[] tensors, int[] numbers) -> (Tensor[], int[], float[])",
           torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, run_model));
  // Results have no gradients: the function that torch has for operators without a derivative would say they had.
  // Those for views of conjugate and negated numbers would have copies written.
  for (const auto key : {c10::DispatchKey::Autograd, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    made.impl("run", torch::dispatch(key, torch::CppFunction::makeFallthrough()));
}

}  // namespace

// For C and C++: see regraft_aot.h.
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED const char* regraft_aot_error() { return last_error.c_str(); }
EXPORTED const char* regraft_aot_torch_version() { return TORCH_VERSION; }
EXPORTED int regraft_aot_register() { return guarded(register_operators); }
EXPORTED int regraft_aot_open(const char* path, void** model) {
  return guarded([&] { *model = opened(path).release(); });
}
EXPORTED void regraft_aot_close(void* model) { delete (Model*)model; }
EXPORTED const char* regraft_aot_manifest(void* model) { return ((Model*)model)->manifest.c_str(); }
EXPORTED int regraft_aot_run(void* model, const c10::IValue* inputs, size_t count, std::vector<c10::IValue>* outputs) {
  return guarded([&] {
    TORCH_CHECK_VALUE(count == strlen(INPUT_KINDS),
                      said("the program takes ", strlen(INPUT_KINDS), " inputs, not ", count));
    outputs->clear();
    forward(*(const Model*)model, inputs, *outputs);
  });
}
"""

ARTIFACT = Dialect(HELPERS, "model.constants[{}]", everywhere=True)
"""Statements that run without Python."""
