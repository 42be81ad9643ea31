// A step that only computes takes no memory: once the first steps have sized everything, an engine that decodes or
// works on prompts allocates nothing, apart from the names of blocks that are full (with prefix caching), room for more
// blocks than the prompt has and, where there is a tokenizer, strings of text.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/load.h"
#include "kvarto/engine.h"
#include "tests/support/golden.h"

namespace {
std::atomic<uint64_t> allocations = 0;
}  // namespace

// Every other form of new calls these two.
void* operator new(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto unit = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace kvarto::testing {
namespace {

constexpr uint32_t kStreams = 4, kPrompt = 33, kOutput = 80, kWarmUp = 20;

class Allocations : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Engine> load(EngineOptions options, const char* model = "tiny_llama") {
    options.threads = 2;
    options.kv_cache_memory_bytes = size_t{32} << 20;
    options.reference = GetParam();
    const auto file = GgufFile::open(source_path("tests/tiny/" + std::string(model) + ".gguf")).value();
    auto parts = load_parts(file, options).value();
    parts.tokenizer = nullptr;
    ledger_ = parts.ledger;
    return Engine::assemble(std::move(parts)).value();
  }
  std::shared_ptr<Ledger> ledger_;  // knows of slabs, which are mapped, not made by new
};

TEST_P(Allocations, ADecodingStepTakesNone) {
  const EngineOptions options;
  const auto engine = load(options);
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < kStreams; ++i) {
    Request request;
    for (uint32_t t = 0; t < kPrompt; ++t) request.prompt.push_back(static_cast<TokenId>((i * 131 + t * 7) % 500));
    request.sampling = {.max_tokens = kOutput, .temperature = i % 2 == 0 ? 0.0f : 0.9f, .ignore_eos = true};
    request.on_token = [&](const TokenEvent&) { ++tokens; };
    ASSERT_TRUE(engine->submit(std::move(request)));
  }
  uint64_t quiet_steps = 0, most = 0;
  size_t charged = 0;  // once the first quiet step is done
  while (!engine->idle()) {
    const uint64_t before = allocations, tokens_before = tokens;
    engine->step();
    const uint64_t taken = allocations - before;
    if (tokens_before < uint64_t{kStreams} * kWarmUp || tokens - tokens_before < kStreams) continue;
    const uint64_t computed = kPrompt + tokens / kStreams - 1;  // by each stream; the newest token is not
    if (computed % options.block_size <= 1) continue;           // a block was filled, or begun
    if (quiet_steps++ == 0) charged = ledger_->total();
    most = std::max(most, taken);
  }
  EXPECT_EQ(tokens, uint64_t{kStreams} * kOutput);
  EXPECT_GT(quiet_steps, 40u);
  EXPECT_EQ(most, 0u) << "allocations of one step";
  EXPECT_EQ(ledger_->total(), charged) << "slabs that grew";
}
// Steps of 64 rows of a prompt that comes after another one. With prefix caching those that neither begin nor fill a
// block, without it all but the first.
TEST_P(Allocations, APrefillStepTakesNone) {
  constexpr uint32_t kLong = 900, kStep = 64;
  for (const char* model : {"tiny_llama", "tiny_gemma3"}) {
    for (const bool caching : {true, false}) {
      EngineOptions options;
      options.block_size = caching ? 256 : 16;
      options.enable_prefix_caching = caching;
      options.max_num_batched_tokens = kStep;
      const auto engine = load(options, model);
      uint64_t quiet_steps = 0, most = 0;
      for (const uint32_t seed : {1u, 2u}) {
        Request request;
        for (uint32_t t = 0; t < kLong; ++t) request.prompt.push_back(static_cast<TokenId>((seed * 131 + t * 7) % 500));
        request.sampling = {.max_tokens = 1, .temperature = 0.0f, .ignore_eos = true};
        ASSERT_TRUE(engine->submit(std::move(request)));
        const uint64_t done = engine->stats().computed_prompt_tokens;
        const size_t charged = ledger_->total();
        while (!engine->idle()) {
          const uint64_t first = engine->stats().computed_prompt_tokens - done, before = allocations;
          engine->step();
          const uint64_t taken = allocations - before, end = engine->stats().computed_prompt_tokens - done;
          if (seed == 1 || first == 0 || end == kLong) continue;  // sizes everything; opens; answers
          ASSERT_EQ(end - first, kStep);
          if (caching && (first % 256 == 0 || first / 256 != end / 256)) continue;
          ++quiet_steps;
          most = std::max(most, taken);
        }
        if (seed == 2) EXPECT_EQ(ledger_->total(), charged) << "slabs that grew";
      }
      EXPECT_GE(quiet_steps, caching ? 5u : 12u);
      EXPECT_EQ(most, 0u) << "allocations of one step of " << model << ", caching " << caching;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Paths, Allocations, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "reference" : "int8"; });

}  // namespace
}  // namespace kvarto::testing
