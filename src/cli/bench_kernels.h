// `kvarto bench kernels`: each kernel alone on one thread, against what bounds it on this machine. A row says what one
// call costs and sets its scene when its turn comes. Main thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "cli/step_cost.h"
#include "cli/verb.h"

namespace kvarto {

struct KernelRow {
  std::string name;  // "matmul/Q4_K/576x1536/rows:8"
  Cost cost;         // of one call
  bool cold = true;  // the bytes come from (or go to) memory; else from the caches, and bound nothing
  // Makes what the kernel works on and returns the call to time, which keeps it.
  std::function<Result<std::function<void()>>()> scene;
};
std::vector<KernelRow> activation_rows(SimdTarget target);
std::vector<KernelRow> attention_rows(SimdTarget target);
std::vector<KernelRow> matmul_rows(SimdTarget target);

std::vector<float> normal_floats(size_t count, uint64_t seed);

// The word `kernels` behind `bench`.
struct KernelVerb {
  std::function<bool()> chosen;  // once the command line is parsed
  VerbAction run;
};
KernelVerb declare_bench_kernels(CLI::App& bench);

}  // namespace kvarto
