#include "cli/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "base/memory.h"

namespace kvarto {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStreams = 4;  // read side by side, as the matmul kernels do: one alone reads slower
constexpr size_t kStep = 32;    // words
constexpr size_t kAhead = 2048 / sizeof(uint64_t);  // prefetched, in words

uint64_t sum(const uint64_t* words, size_t count) {
  const size_t part = count / kStreams / kStep * kStep;
  uint64_t lanes[8] = {};
  for (size_t i = 0; i < part; i += kStep) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const uint64_t* from = words + stream * part + i;
      for (size_t word = 0; word < kStep; word += 8) {
        __builtin_prefetch(from + kAhead + word);
        for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += from[word + lane];
      }
    }
  }
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  return total;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// All threads read their parts once; returns bytes per second.
double pass(const Slab& memory, int threads) {
  const size_t words = memory.size() / sizeof(uint64_t) / static_cast<size_t>(threads);
  const auto* data = reinterpret_cast<const uint64_t*>(memory.data());
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  const Clock::time_point start = Clock::now();
  {
    std::vector<std::jthread> workers;
    for (size_t t = 0; t < sums.size(); ++t) {
      workers.emplace_back([&, t] { sums[t] = sum(data + t * words, words); });
    }
  }
  const double seconds = seconds_since(start);
  volatile uint64_t keep = sums[0];  // so that the reads are not optimised away
  (void)keep;
  return static_cast<double>(words * sizeof(uint64_t) * sums.size()) / seconds;
}

double measure(int threads) {
  // Larger than the last cache of most machines, small beside a model.
  const size_t bytes = std::min(size_t{512} << 20, available_memory_bytes() / 4) & ~size_t{4095};
  Result<Slab> memory = Slab::allocate(bytes, MemoryTag::staging, nullptr);
  if (!memory || bytes == 0) return 0;
  // Written once: unwritten pages would all be the same page of zeros.
  for (size_t at = 0; at < bytes; at += 4096) memory->data()[at] = std::byte{1};
  const Clock::time_point start = Clock::now();
  double best = 0;
  do {
    best = std::max(best, pass(*memory, threads));
  } while (seconds_since(start) < 0.2);
  return best;
}

}  // namespace

double Bandwidth::bytes_per_s(int threads) {
  const auto found = measured_.find(threads);
  if (found != measured_.end()) return found->second;
  return measured_[threads] = measure(std::max(threads, 1));
}

}  // namespace kvarto
