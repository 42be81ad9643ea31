#include "cli/machine_rates.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/output.h"
#include "ops/rate_kernels.h"

namespace kvarto {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Measurements are tried again; why one failed is said once. Main thread.
void warn_once(const std::string& message) {
  static std::set<std::string> said;
  if (said.insert(message).second) log(LogLevel::warning, message);
}

// Runs `work(thread)` on so many threads at once, or on none where the system refuses one of them: they wait for each
// other, and a rate of fewer would pass for that of all. The caller is the first.
Status run_together(size_t threads, const std::function<void(size_t)>& work) {
  enum Start { waiting, all_there, given_up };
  std::atomic<Start> start{waiting};
  const auto release = [&](Start how) {
    start = how;
    start.notify_all();
  };
  std::vector<std::jthread> others;
  try {
    others.reserve(threads - 1);
    for (size_t thread = 1; thread < threads; ++thread) {
      others.emplace_back([&start, &work, thread] {
        start.wait(waiting);
        if (start == all_there) work(thread);
      });
    }
  } catch (const std::exception& error) {  // a limit on threads or on memory
    release(given_up);
    return fail(ErrorCode::io,
                "rates of this machine were not measured: only " + std::to_string(others.size() + 1) + " of " +
                    std::to_string(threads) + " threads could be started (" + error.what() +
                    "); give fewer --threads, or allow more (ulimit -u and -v, a container's pids limit)");
  }
  release(all_there);
  work(0);
  return {};
}

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
Result<double> read_slices(const Slab& memory, size_t threads) {
  const size_t words = memory.size() / sizeof(uint64_t) / kSlices / threads;
  const auto* data = reinterpret_cast<const uint64_t*>(memory.data());
  std::vector<Clock::time_point> marks;
  marks.reserve(kSlicesRead + 1);
  const auto mark = [&]() noexcept { marks.push_back(Clock::now()); };
  std::barrier together(static_cast<ptrdiff_t>(threads), mark);
  std::vector<uint64_t> sums(threads);
  const auto read = [&](size_t thread) {
    uint64_t total = 0;
    together.arrive_and_wait();
    for (size_t slice = 0; slice < kSlicesRead; ++slice) {
      total += sum(data + (slice * sums.size() + thread) * words, words);
      together.arrive_and_wait();
    }
    sums[thread] = total;  // so that the reads are not optimised away
  };
  RETURN_IF_ERROR(run_together(threads, read));
  Clock::duration best = Clock::duration::max();
  for (size_t i = 1; i < marks.size(); ++i) best = std::min(best, marks[i] - marks[i - 1]);
  return static_cast<double>(words * sizeof(uint64_t) * sums.size()) / std::chrono::duration<double>(best).count();
}

// From less the caches would be measured.
constexpr size_t kLeastRead = size_t{128} << 20;

Result<double> try_reads(size_t threads) {
  const size_t wanted = cold_bytes();
  Result<double> rate = fail(ErrorCode::out_of_memory,
                             "how fast this machine reads memory was not measured, and what that bounds is unknown: "
                             "not even " +
                                 human_bytes(static_cast<double>(kLeastRead)) +
                                 " could be had for it; free memory, or allow more (ulimit -v)");
  for (size_t bytes = wanted; bytes >= kLeastRead; bytes /= 2) {
    const Result<Slab> memory = Slab::allocate(bytes, MemoryTag::staging, nullptr);
    if (!memory) continue;  // a limit below what is free
    // Written once: unwritten pages would all be the same page of zeros.
    for (size_t at = 0; at < bytes; at += 4096) memory->data()[at] = std::byte{1};
    rate = read_slices(*memory, threads);
    if (!rate) continue;  // threads need memory too
    if (bytes < wanted) {
      warn_once("reading was measured on " + human_bytes(static_cast<double>(bytes)) +
                " only, the system refused more (ulimit -v?): the rate may be that of a cache");
    }
    return rate;
  }
  return rate;
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
Result<double> measure_loop(const RateLoop& loop, size_t threads) {
  std::vector<double> rates(threads);
  RETURN_IF_ERROR(run_together(threads, [&](size_t thread) { rates[thread] = loop_rate(loop); }));
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
  const Result<double> rate = try_reads(static_cast<size_t>(std::max(threads, 1)));
  if (!rate) warn_once(rate.error().message);
  return rate.value_or(0);
}

void MachineRates::measure(int threads) {
  const RateLoops loops = rate_loops(target_);
  Rates& best = rates_[threads];
  const auto keep = [](double& rate, double measured) { rate = std::max(rate, measured); };
  const auto loop = [&](const RateLoop& l) {
    const Result<double> rate = measure_loop(l, static_cast<size_t>(std::max(threads, 1)));
    if (!rate) warn_once(rate.error().message);
    return rate.value_or(0);
  };
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
