// How fast this machine reads memory and multiplies: what bounds every figure of speed. One object measures each rate
// once per number of threads, in a fraction of a second. Main thread, while nothing else computes.
#pragma once

#include <cstddef>
#include <map>

#include "base/cpu.h"

namespace kvarto {

// Of all threads together, per second; a multiply-add is two operations. 0: unknown.
struct Rates {
  double bytes = 0;  // read from memory that no cache holds
  double f32 = 0;    // fused multiply-adds in registers
  double int8 = 0;   // dot products of 32 codes, scaled and summed in float, from the first-level cache
};

// What is touched in turn so that each part is out of the caches when its turn comes again: more than the last cache of
// most machines, small beside a model, and less where memory is short.
size_t cold_bytes();

class MachineRates {
 public:
  explicit MachineRates(SimdTarget target = best_target()) : target_(target) {}
  // bytes is 0 when there is no memory to try it.
  Rates of(int threads);
  double read_bytes_per_s(int threads);  // that rate alone

 private:
  SimdTarget target_;
  std::map<int, double> bytes_;
  std::map<int, Rates> rates_;
};

}  // namespace kvarto
