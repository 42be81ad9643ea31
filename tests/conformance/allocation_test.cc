// A step that only computes takes no memory: once the first steps have sized everything, a decoding engine allocates
// nothing, apart from the records of a block that is full and, where there is a tokenizer, strings of text.
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

// Every other form of new calls these.
void* operator new(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvarto::testing {
namespace {

constexpr uint32_t kStreams = 4, kPrompt = 33, kOutput = 80, kWarmUp = 20;

class Allocations : public ::testing::TestWithParam<bool> {};

TEST_P(Allocations, ADecodingStepTakesNone) {
  EngineOptions options;
  options.threads = 2;
  options.kv_cache_memory_bytes = size_t{32} << 20;
  options.reference = GetParam();
  const auto file = GgufFile::open(source_path("tests/tiny/tiny_llama.gguf"));
  ASSERT_TRUE(file) << file.error().message;
  auto parts = load_parts(*file, options);
  ASSERT_TRUE(parts) << parts.error().message;
  parts->tokenizer = nullptr;
  auto engine = Engine::assemble(std::move(*parts));
  ASSERT_TRUE(engine) << engine.error().message;
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < kStreams; ++i) {
    Request request;
    for (uint32_t t = 0; t < kPrompt; ++t) request.prompt.push_back(static_cast<TokenId>((i * 131 + t * 7) % 500));
    request.sampling = {.max_tokens = kOutput, .temperature = i % 2 == 0 ? 0.0f : 0.9f, .ignore_eos = true};
    request.on_token = [&](const TokenEvent&) { ++tokens; };
    ASSERT_TRUE((*engine)->submit(std::move(request)));
  }
  uint64_t quiet_steps = 0, most = 0;
  while (!(*engine)->idle()) {
    const uint64_t before = allocations, tokens_before = tokens;
    (*engine)->step();
    const uint64_t taken = allocations - before;
    if (tokens_before < uint64_t{kStreams} * kWarmUp || tokens - tokens_before < kStreams) continue;
    const uint64_t computed = kPrompt + tokens / kStreams - 1;  // by each stream; the newest token is not
    if (computed % options.block_size <= 1) continue;           // a block was filled, or begun
    ++quiet_steps;
    most = std::max(most, taken);
  }
  EXPECT_EQ(tokens, uint64_t{kStreams} * kOutput);
  EXPECT_GT(quiet_steps, 40u);
  EXPECT_EQ(most, 0u) << "allocations of one step";
}
INSTANTIATE_TEST_SUITE_P(Paths, Allocations, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "reference" : "int8"; });

}  // namespace
}  // namespace kvarto::testing
