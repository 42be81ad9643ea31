// `kvarto bench serve`: load on any server of OpenAI's API, and what it made of it. Main thread.
#pragma once

#include <functional>

#include "cli/verb.h"

namespace kvarto {

// The word `serve` behind `bench`.
struct BenchServeVerb {
  std::function<bool()> chosen;  // once the command line is parsed
  VerbAction run;
};
BenchServeVerb declare_bench_serve(CLI::App& bench);

}  // namespace kvarto
