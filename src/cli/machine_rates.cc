#include "cli/machine_rates.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/memory.h"
#include "ops/rate_kernels.h"

namespace kvarto {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// --- memory

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

// Read together, then timed: short enough that some pass undisturbed. Each slice is read once; the last ones are not
// read at all, for what was written last is what the caches hold when reading begins.
constexpr size_t kSlices = 48, kSlicesRead = 36;

// The best slice, read by all threads at once; bytes per second.
double read_slices(const Slab& memory, int threads) {
  const size_t words = memory.size() / sizeof(uint64_t) / kSlices / static_cast<size_t>(threads);
  const auto* data = reinterpret_cast<const uint64_t*>(memory.data());
  std::vector<Clock::time_point> marks;
  marks.reserve(kSlicesRead + 1);
  const auto mark = [&]() noexcept { marks.push_back(Clock::now()); };
  std::barrier together(threads, mark);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  const auto read = [&](size_t thread) {
    uint64_t total = 0;
    together.arrive_and_wait();
    for (size_t slice = 0; slice < kSlicesRead; ++slice) {
      total += sum(data + (slice * sums.size() + thread) * words, words);
      together.arrive_and_wait();
    }
    sums[thread] = total;  // so that the reads are not optimised away
  };
  {
    std::vector<std::jthread> workers;
    for (size_t thread = 0; thread < sums.size(); ++thread) workers.emplace_back(read, thread);
  }
  Clock::duration best = Clock::duration::max();
  for (size_t i = 1; i < marks.size(); ++i) best = std::min(best, marks[i] - marks[i - 1]);
  return static_cast<double>(words * sizeof(uint64_t) * sums.size()) / std::chrono::duration<double>(best).count();
}

// --- arithmetic

double timed(const RateLoop& loop, size_t rounds) {
  float out[16];
  const Clock::time_point start = Clock::now();
  loop.run(rounds, out);
  const double seconds = seconds_since(start);
  volatile float keep = out[0];
  (void)keep;
  return seconds;
}

constexpr double kRunSeconds = 0.0005, kSeconds = 0.08;

// `run` does `work`. The best of many runs: what disturbs one run is not the machine's rate.
double best_rate(double work, const std::function<double()>& run) {
  const Clock::time_point start = Clock::now();
  double best = 0;
  do {
    best = std::max(best, work / run());
  } while (seconds_since(start) < kSeconds);
  return best;
}

double loop_rate(const RateLoop& loop) {
  size_t rounds = 1;
  while (timed(loop, rounds) < kRunSeconds) rounds *= 2;
  return best_rate(loop.operations * static_cast<double>(rounds), [&] { return timed(loop, rounds); });
}

// All threads at once: clocks drop when all compute.
double measure_loop(const RateLoop& loop, int threads) {
  std::vector<double> rates(static_cast<size_t>(threads));
  std::barrier all_there(threads);
  {
    std::vector<std::jthread> workers;
    for (double& rate : rates) {
      workers.emplace_back([&] {
        all_there.arrive_and_wait();
        rate = loop_rate(loop);
      });
    }
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

double measure_sha256() {
  const std::vector<std::byte> data(size_t{256} << 10);
  return best_rate(static_cast<double>(data.size()), [&] {
    const Clock::time_point start = Clock::now();
    Sha256 hash;
    hash.update(data);
    const Sha256Digest digest = hash.finish();
    const double seconds = seconds_since(start);
    volatile uint8_t keep = digest[0];
    (void)keep;
    return seconds;
  });
}

}  // namespace

size_t cold_bytes() { return std::min(size_t{1536} << 20, available_memory_bytes() / 4) & ~size_t{4095}; }

double measure_reads(int threads) {
  const size_t bytes = cold_bytes();
  Result<Slab> memory = Slab::allocate(bytes, MemoryTag::staging, nullptr);
  if (!memory || bytes == 0) return 0;
  // Written once: unwritten pages would all be the same page of zeros.
  for (size_t at = 0; at < bytes; at += 4096) memory->data()[at] = std::byte{1};
  return read_slices(*memory, std::max(threads, 1));
}

void MachineRates::measure(int threads) {
  const RateLoops loops = rate_loops(target_);
  Rates& best = rates_[threads];
  const auto keep = [](double& rate, double measured) { rate = std::max(rate, measured); };
  const auto loop = [&](const RateLoop& l) { return measure_loop(l, std::max(threads, 1)); };
  keep(best.bytes, measure_reads(threads));
  keep(best.f32, loop(loops.fma));
  keep(best.int8, loop(loops.int8));
  // A product of few rows has no use for AMX tiles and runs on AVX-512.
  const bool tiles = target_ == SimdTarget::amx;
  keep(best.int8_few, tiles ? loop(rate_loops(SimdTarget::avx512).int8) : best.int8);
  keep(best.sha256, measure_sha256());
}

Rates MachineRates::of(int threads) const {
  const auto found = rates_.find(threads);
  return found == rates_.end() ? Rates() : found->second;
}

}  // namespace kvarto
