// Weights that are not numbers give an error, never text: what attention cannot add up reaches the logits on every SIMD
// target and in both paths.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/file.h"
#include "engine/load.h"
#include "kvarto/engine.h"
#include "tests/support/golden.h"

namespace kvarto::testing {
namespace {

// A tiny model with one weight replaced.
class BrokenModel {
 public:
  BrokenModel(const std::string& tensor, float value)
      : bytes_(read_file(source_path("tests/tiny/tiny_llama.gguf")).value()) {
    const GgufTensor* found = parse()->find_tensor(tensor);
    EXPECT_EQ(std::string(found->type->name), "F32");
    const auto at = reinterpret_cast<const char*>(found->bytes.data()) - bytes_.data();
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  std::shared_ptr<const GgufFile> parse() const {
    return GgufFile::parse(std::as_bytes(std::span(bytes_)), "broken").value();
  }

 private:
  std::string bytes_;
};

TEST(BrokenWeights, EndInAnError) {
  const std::pair<const char*, float> breaks[] = {
      {"blk.1.attn_norm.weight", std::numeric_limits<float>::infinity()},
      {"blk.0.attn_norm.weight", std::numeric_limits<float>::quiet_NaN()},
      {"blk.2.ffn_norm.weight", std::numeric_limits<float>::quiet_NaN()},
      {"output_norm.weight", std::numeric_limits<float>::infinity()},
  };
  for (const auto& [tensor, value] : breaks) {
    const BrokenModel model(tensor, value);
    for (const SimdTarget target : available_targets()) {
      for (const bool reference : {false, true}) {
        SCOPED_TRACE(std::string(tensor) + " on " + std::string(simd_target_name(target)) +
                     (reference ? ", reference" : ""));
        EngineOptions options;
        options.threads = 2;
        options.kv_cache_memory_bytes = size_t{16} << 20;
        options.reference = reference;
        auto parts = load_parts(model.parse(), options, target);
        ASSERT_TRUE(parts) << parts.error().message;
        const auto engine = Engine::assemble(std::move(*parts)).value();
        for (const TokenId tokens : {1, 40}) {  // decoding's kernels, and those for many rows
          Request request;
          for (TokenId t = 0; t < tokens; ++t) request.prompt.push_back(3 + t);
          request.sampling = {.max_tokens = 4, .temperature = 0.0f, .ignore_eos = true};
          const auto result = engine->generate(std::move(request));
          ASSERT_TRUE(result) << result.error().message;
          ASSERT_TRUE(result->error);
          EXPECT_NE(result->error->message.find("logit of token 0 is "), std::string::npos) << result->error->message;
          EXPECT_TRUE(result->samples.empty() || result->samples[0].tokens.empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvarto::testing
