// Waste: 64 concurrent sequences of log-uniform lengths. Bytes of active blocks and tails that hold no live token stay
// under 4 % of the active bytes, and the memory holds three times the sequences that reserving the longest length
// would.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include "kvarto/engine.h"
#include "tests/support/golden.h"

namespace kvarto::testing {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr uint32_t kSequences = 64, kLongest = 2048, kOutput = 40;

struct Stream {
  uint32_t prompt = 0;
  uint32_t emitted = 0;  // tokens so far
};

// Prompt and output together: log-uniform in [50, 2000].
std::vector<Stream> draw_streams() {
  std::mt19937_64 random(kSeed);
  std::vector<Stream> streams(kSequences);
  for (Stream& s : streams) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    s.prompt = static_cast<uint32_t>(std::lround(50.0 * std::pow(2000.0 / 50.0, uniform))) - kOutput;
  }
  return streams;
}

// What the lengths alone say about a step in which all sequences decode: sequence i holds its prompt and all but the
// newest of its tokens, in whole blocks.
struct Expected {
  size_t allocated = 0, live = 0;
};
Expected expected_bytes(const std::vector<Stream>& streams, const std::vector<uint32_t>& before, const KvGroup& group) {
  Expected bytes;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i].emitted == before[i]) continue;  // it had ended
    const size_t tokens = streams[i].prompt + streams[i].emitted - 1;
    bytes.allocated += (tokens + 15) / 16 * group.block_bytes;
    bytes.live += tokens * group.block_bytes / 16;
  }
  return bytes;
}

TEST(Waste, OfLogUniformLengthsIsUnderFourPercent) {
  std::cout << "seed " << kSeed << "\n";
  EngineOptions options;
  options.threads = 2;
  options.max_model_len = kLongest;
  options.max_num_seqs = kSequences;
  options.max_num_batched_tokens = 1024;
  options.max_step_ms = 1e6;  // the clock decides nothing: every step takes 1024 tokens
  options.kv_cache_memory_bytes = size_t{64} << 20;
  const std::string model = "tiny_llama.gguf";
  auto loaded = Engine::load(source_path("tests/tiny/" + model), options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  Engine& engine = **loaded;
  const KvLayout& layout = engine.cache().layout();
  ASSERT_EQ(layout.groups().size(), 1u);
  ASSERT_EQ(layout.block_tokens(), 16u);

  // Mixed steps are small until a decode-only step was measured; here is one.
  Request warm_up;
  warm_up.prompt.assign(500, 1);
  warm_up.sampling = {.max_tokens = 4, .ignore_eos = true};
  ASSERT_TRUE(engine.generate(std::move(warm_up)));
  ASSERT_TRUE(engine.cache().clear());

  std::vector<Stream> streams = draw_streams();
  std::mt19937_64 random(kSeed + 1);
  for (Stream& s : streams) {
    Request request;
    for (uint32_t i = 0; i < s.prompt; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random() % engine.info().vocabulary));
    }
    request.sampling = {.max_tokens = kOutput, .temperature = 0.0f, .ignore_eos = true};
    request.on_token = [&s](const TokenEvent&) { ++s.emitted; };
    ASSERT_TRUE(engine.submit(std::move(request)));
  }
  Expected peak;
  uint32_t most_running = 0;
  bool more = true;
  while (more) {
    std::vector<uint32_t> before;
    for (const Stream& s : streams) before.push_back(s.emitted);
    more = engine.step();
    most_running = std::max(most_running, engine.stats().running);
    // Before the last prompt is computed less is allocated than when all are.
    if (std::ranges::any_of(streams, [](const Stream& s) { return s.emitted == 0; })) continue;
    const Expected now = expected_bytes(streams, before, layout.groups()[0]);
    if (now.allocated > peak.allocated) peak = now;
  }
  const EngineStats stats = engine.stats();
  EXPECT_EQ(most_running, kSequences) << "they were not concurrent";
  for (const Stream& s : streams) EXPECT_EQ(s.emitted, kOutput);

  EXPECT_EQ(stats.peak_active_bytes, peak.allocated);
  const double at_peak = 1.0 - static_cast<double>(peak.live) / static_cast<double>(peak.allocated);
  EXPECT_NEAR(stats.waste_at_peak, at_peak, 1e-9);
  EXPECT_GT(at_peak, 0.0);
  EXPECT_LT(stats.waste_at_peak, 0.04);
  EXPECT_LT(stats.waste_mean, 0.04);

  const size_t reserved = layout.bytes_for_sequence(kLongest, options.max_num_batched_tokens);
  const size_t would_hold = stats.peak_active_bytes / reserved;
  EXPECT_GE(kSequences, 3 * would_hold);
  std::cout << "waste: mean " << 100 * stats.waste_mean << " %, at the peak " << 100 * stats.waste_at_peak << " % of "
            << stats.peak_active_bytes << " bytes; " << kSequences << " sequences where reservations of " << kLongest
            << " tokens hold " << would_hold << " (" << engine.stats().steps << " steps)\n";
}

}  // namespace
}  // namespace kvarto::testing
