// How fast this machine reads memory, multiplies and hashes: what bounds every figure of speed. A rate is a
// measurement, with noise: others may want the memory at that moment. So each is taken before and after what it bounds,
// and the larger counts. Main thread, while nothing else computes.
#pragma once

#include <cstddef>
#include <map>

#include "base/cpu.h"

namespace kvarto {

// Of all threads together, per second; a multiply-add is two operations. 0: unknown.
struct Rates {
  double bytes = 0;     // read from memory that no cache holds
  double f32 = 0;       // fused multiply-adds in registers
  double int8 = 0;      // dot products of 32 codes, scaled and summed in float, from the first-level cache
  double int8_few = 0;  // the same as the kernel for few rows computes them, which has no tiles
  double sha256 = 0;    // bytes hashed, by one thread whatever the number
};

// What is touched in turn so that each part is out of the caches when its turn comes again: five times the largest last
// cache that we know of, and less where memory is short.
size_t cold_bytes();

// Bytes per second that `threads` threads read; 0, and a warning, where the system refuses the memory or the threads.
double measure_reads(int threads);

class MachineRates {
 public:
  explicit MachineRates(SimdTarget target = best_target()) : target_(target) {}
  // Takes a second. What the system refuses to let us measure stays 0, and a warning says why.
  void measure(int threads);
  // The larger of each rate over all measurements; all 0 before the first.
  Rates of(int threads) const;

 private:
  SimdTarget target_;
  std::map<int, Rates> rates_;
};

}  // namespace kvarto
