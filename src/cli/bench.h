// `kvarto bench`: what its parts share. Main thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cli/options.h"

namespace kvarto {

struct BenchFlags {
  ModelFlags model;
  uint32_t prompt = 512, generate = 128, repetitions = 3;
  std::string depths = "0", batches = "1", threads = "0";
  bool json = false, recompute = false, waste = false;
  uint64_t seed = 1;
};

// Random ids that need no tokenizer; control tokens among them are plain ids.
std::vector<TokenId> random_ids(std::mt19937_64& random, uint32_t vocabulary, size_t count);

// Memory that holds no token while 64 sequences of very different lengths run, and how many of them fit where a
// reservation of the longest possible length each would fit fewer. Without MODEL on a tiny one inside the program.
Result<int> bench_waste(const BenchFlags& flags);

}  // namespace kvarto
