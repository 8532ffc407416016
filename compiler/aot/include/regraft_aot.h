// Runs artifacts of regraft.aot_compile from C++, without Python.
//
//   #include <regraft_aot.h>                      link with torch_cpu, c10 and the system's dl
//   regraft::Model model("model.rgx");
//   std::vector<c10::IValue> results = model({torch::ones({2, 8})});
//
// Inputs are the program's tensors and integers in the order of the manifest (inputs that are constants left out);
// results are its tensors and numbers in the order of the manifest (constant ones left out). The manifest is JSON.
// A model whose program writes no state may be called by several threads at once.
#pragma once

#include <ATen/core/ivalue.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace regraft {

class Model {
 public:
  // Throws std::runtime_error: there is no artifact at `path`, or not for this version of torch or this processor.
  explicit Model(const std::string& path) {
    const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
    library_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error(std::string("no artifact of regraft: ") + dlerror());
    const std::string made_for = ((const char* (*)())symbol("regraft_aot_torch_version"))();
    if (made_for != TORCH_VERSION)
      throw std::runtime_error(path + " was compiled for torch " + made_for + ", this program for " TORCH_VERSION);
    error_ = (const char* (*)())symbol("regraft_aot_error");
    run_ = (int (*)(void*, const c10::IValue*, size_t, std::vector<c10::IValue>*))symbol("regraft_aot_run");
    close_ = (void (*)(void*))symbol("regraft_aot_close");
    manifest_ = (const char* (*)(void*))symbol("regraft_aot_manifest");
    if (((int (*)(const char*, void**))symbol("regraft_aot_open"))(file.c_str(), &model_))
      throw std::runtime_error(error_());
  }
  ~Model() {
    if (model_) close_(model_);  // the library stays: torch knows its operators
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Throws std::runtime_error: an input does not match (the message names it), or the program itself fails.
  std::vector<c10::IValue> operator()(const std::vector<c10::IValue>& inputs) const {
    std::vector<c10::IValue> outputs;
    if (run_(model_, inputs.data(), inputs.size(), &outputs)) throw std::runtime_error(error_());
    return outputs;
  }

  std::string manifest() const { return manifest_(model_); }

 private:
  void* symbol(const char* name) const {
    void* found = dlsym(library_, name);
    if (!found) throw std::runtime_error(std::string("no artifact of regraft: it lacks ") + name);
    return found;
  }
  void *library_ = nullptr, *model_ = nullptr;
  const char* (*error_)() = nullptr;
  const char* (*manifest_)(void*) = nullptr;
  int (*run_)(void*, const c10::IValue*, size_t, std::vector<c10::IValue>*) = nullptr;
  void (*close_)(void*) = nullptr;
};

}  // namespace regraft
