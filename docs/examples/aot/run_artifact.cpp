// Runs an artifact on a tensor of ones: run_artifact model.rgx 2 16
//
//   T=$(python -c "import torch; print(torch.__path__[0])")
//   g++ -std=c++20 -I$T/include -I$T/include/torch/csrc/api/include -I$(regraft aot --include) run_artifact.cpp
//       -L$T/lib -Wl,--no-as-needed -ltorch_cpu -lc10 -ldl -Wl,-rpath,$T/lib -o run_artifact     (one line)
#include <regraft_aot.h>

#include <ATen/ops/ones.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** words) {
  if (count < 2) return std::fprintf(stderr, "usage: run_artifact model.rgx SIZE...\n"), 2;
  try {
    const regraft::Model model(words[1]);
    std::vector<int64_t> sizes;
    for (int k = 2; k < count; ++k) sizes.push_back(std::atoll(words[k]));
    for (const c10::IValue& result : model({at::ones(sizes)})) {
      if (!result.isTensor()) continue;
      const at::Tensor values = result.toTensor().contiguous().view(-1);
      for (int64_t k = 0; k < values.size(0); ++k) std::printf("%.9g\n", values.data_ptr<float>()[k]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
