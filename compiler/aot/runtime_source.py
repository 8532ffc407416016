"""The part of every artifact that is the same: what graphs and callers call, with torch's headers.

An artifact is one file: a shared library, then the constants, then the manifest, then a footer that says where they are
(the loader of the system reads no further than the library's end). This part is compiled once for a machine
(`build.py`), and linked with the graph of each artifact (`prelude.py`).
"""

from __future__ import annotations

from ..codegen.cpp_wrapper.runtime_source import OF_TORCH
from .prelude import BETWEEN

_CHECKS = r"""
#include <ATen/ops/from_blob.h>
#include <torch/library.h>
#include <torch/version.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>
#include <mutex>
#include <unordered_map>
BETWEEN
namespace {
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
bool lies(const at::Tensor& tensor, Sizes strides) {
  if (tensor.numel() == 0) return true;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) != 1 && tensor.stride(d) != strides[d]) return false;
  return true;
}
// As `placed` of this process, but that strides of dims of one element do not matter.
Impl* placed_loosely(Impl* given, const int64_t* sizes, const int64_t* strides, int64_t dims) {
  const at::Tensor tensor = shared(given);
  if (lies(tensor, Sizes(strides, dims))) return released(tensor);
  at::Tensor made = at::detail::empty_strided_cpu(Sizes(sizes, dims), Sizes(strides, dims), tensor.scalar_type());
  made.copy_(tensor);
  return released(made);
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
const at::Tensor& tensor_given(const void* in, int64_t k) { return ((const IValue*)in)[k].toTensor(); }
}  // namespace

Impl* regraft_given(const void* in, int64_t k, const char* name, int dtype, int64_t dims) {
  const IValue& value = ((const IValue*)in)[k];
  TORCH_CHECK_VALUE(value.isTensor() && value.toTensor().defined(), said("input '", name, "' must be a tensor, not ",
                    value.tagKind()));
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK_VALUE(tensor.device().is_cpu(),
                    said("input '", name, "' is on ", tensor.device(), "; it must be on the CPU"));
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, said("input '", name, "' has layout ", tensor.layout(),
                    ", not strided"));
  TORCH_CHECK_VALUE(tensor.scalar_type() == (at::ScalarType)dtype, said("input '", name, "' has dtype ",
                    tensor.scalar_type(), "; it must be ", (at::ScalarType)dtype));
  TORCH_CHECK_VALUE(tensor.dim() == dims, said("input '", name, "' has ", tensor.dim(), " dims; it must have ", dims));
  return released(tensor.is_neg() || tensor.is_conj() ? tensor.resolve_conj().resolve_neg() : tensor);
}
int64_t regraft_given_number(const void* in, int64_t k, const char* name) {
  const IValue& value = ((const IValue*)in)[k];
  TORCH_CHECK_VALUE(value.isInt(), said("input '", name, "' must be an integer, not ", value.tagKind()));
  return value.toInt();
}
void regraft_is_size(Impl* tensor, const char* name, int64_t dim, int64_t size, const char* why) {
  TORCH_CHECK_VALUE(impl(tensor)->size(dim) == size, said("input '", name, "': dim ", dim, " is ",
                    impl(tensor)->size(dim), "; it must be ", size, why));
}
void regraft_in_range(int64_t size, const char* what, int64_t low, int64_t high) {
  if (size >= low && size <= high) return;
  const char* why = size == 0 && low == 1 ? " (dynamic dims of size 0 are not compiled ahead of time)" : "";
  TORCH_CHECK_VALUE(high == INT64_MAX, said(what, " is ", size, "; it must be from ", low, " to ", high, why));
  TORCH_CHECK_VALUE(false, said(what, " is ", size, "; it must be at least ", low, why));
}
void regraft_holds(bool condition, const char* what) {
  TORCH_CHECK_VALUE(condition,
                    said("the inputs' sizes do not meet a condition that the program was compiled for: ", what));
}
void regraft_unchanged(const void* in, int64_t k, const char* name, const int64_t* strides, int64_t dims) {
  const at::Tensor& tensor = tensor_given(in, k);
  TORCH_CHECK_VALUE(!tensor.is_neg() && !tensor.is_conj(), said("input '", name,
                    "' is written by the program, and must not be a view of negated or conjugate numbers"));
  TORCH_CHECK_VALUE(lies(tensor, Sizes(strides, dims)), said("input '", name,
                    "' is written by the program, and must have strides ", Sizes(strides, dims), ", not ",
                    tensor.strides()));
}
void regraft_apart(Impl* one, const char* name, Impl* another, const char* beside) {
  const at::Tensor written = shared(one), other = shared(another);
  if (!written.numel() || !other.numel()) return;
  const char *begin = (const char*)written.const_data_ptr(), *start = (const char*)other.const_data_ptr();
  const bool met = end_of(written) > start && end_of(other) > begin && !interleaved(written, other, start - begin);
  TORCH_CHECK_VALUE(!met, said("input '", name,
                    "' is written by the program, and must not share memory with input '", beside, "'"));
}
void regraft_touched(Impl* tensor) {
  if (!impl(tensor)->is_inference()) impl(tensor)->bump_version();
}
Impl* regraft_cloned(Impl* tensor) { return released(shared(tensor).clone()); }
Impl* regraft_stored(char* memory, const int64_t* sizes, const int64_t* strides, int64_t dims, int dtype) {
  const auto kept = at::TensorOptions().dtype((at::ScalarType)dtype);
  return released(at::from_blob(memory, Sizes(sizes, dims), Sizes(strides, dims), kept));
}

namespace {
void divided() { refuse("ZeroDivisionError"); }
void failed(const Runtime* at) {
  if (at->kind == 2) divided();
  TORCH_CHECK_INDEX(false, said("index ", at->index, " is out of bounds for dimension with size ", at->size));
}
const Api* api() {
  static const Api made = [] {
    Api api = {{}, retain, release, size, stride, memory, empty, over, strided, tracked, placed_loosely, laid_out,
               number, operator_named, call, nullptr, drop, tensor, item, whole, real, truth, failed, refuse,
               other_size, divided};
    const char* names[] = {"GOMP_parallel", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num"};
    bool all = true;
    for (int k = 0; k < 4; ++k) all = (api.entries[k] = dlsym(RTLD_DEFAULT, names[k])) && all;
    if (!all) api.entries[0] = nullptr;
    return api;
  }();
  return &made;
}

struct Model {
  std::vector<Impl*> constants;
  std::string manifest;
  void* memory = nullptr;
  size_t bytes = 0;
  ~Model() {
    for (Impl* constant : constants)
      if (constant) release(constant);
    if (memory) munmap(memory, bytes);
  }
};

struct Results {
  std::vector<Value> values = std::vector<Value>(strlen(regraft_outputs));
  ~Results() {
    for (size_t k = 0; k < values.size(); ++k)
      if (regraft_outputs[k] == 't' && values[k].tensor) release(values[k].tensor);
  }
  IValue take(size_t k) {
    switch (regraft_outputs[k]) {
      case 'i': return values[k].whole;
      case 'f': return values[k].real;
      case 'b': return (bool)values[k].whole;
    }
    at::Tensor made(Pointer::reclaim(impl(values[k].tensor)));
    values[k].tensor = nullptr;
    return made;
  }
};
void forward(const Model& model, const IValue* in, std::vector<IValue>& out) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  const c10::AutoGradMode no_gradients(false);
  const BelowAutograd no_autocast(c10::autocast_dispatch_keyset);
  Results results;
  Frame frame{model.constants.data(), nullptr, -1};
  regraft_call(frame, in, results.values.data());
  out.reserve(results.values.size());
  for (size_t k = 0; k < results.values.size(); ++k) out.push_back(results.take(k));
}
"""

_ENTRY = r"""
struct Footer {
  char magic[16];
  uint64_t library, constants, constants_end, manifest, manifest_end, total;
};
static const char MAGIC[16] = "REGRAFT-AOT-001";

std::unique_ptr<Model> opened(const char* path) {
  const char* missing = regraft_missing();
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
  TORCH_CHECK(model->manifest.find("\"" + std::string(regraft_name) + "\"") != std::string::npos, said(path,
              " has changed since its library was loaded into this process"));
  if (at.constants_end > at.constants) {
    model->bytes = at.constants_end - at.constants;
    void* memory = mmap(nullptr, model->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, (off_t)at.constants);
    TORCH_CHECK(memory != MAP_FAILED, said("the constants of ", path, " cannot be mapped: ", strerror(errno)));
    model->memory = memory;
  }
  const at::AutoDispatchBelowADInplaceOrView plain;
  model->constants.resize(regraft_constants);
  Frame frame{model->constants.data(), nullptr, -1};
  regraft_bind(api());
  regraft_load(frame, (char*)model->memory);
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
  for (const char* kind = regraft_inputs; *kind; ++kind) {
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
  static torch::Library made(torch::Library::DEF, regraft_name, std::nullopt, __FILE__, __LINE__);
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
    TORCH_CHECK_VALUE(count == strlen(regraft_inputs),
                      said("the program takes ", strlen(regraft_inputs), " inputs, not ", count));
    outputs->clear();
    forward(*(const Model*)model, inputs, *outputs);
  });
}
"""

RUNTIME = OF_TORCH + _CHECKS.replace("BETWEEN", BETWEEN) + _ENTRY
"""The C++ of this part."""
