// The engine over a real model: load, encode, generate, and the equivalences once. Skipped where the model is not
// there.
#include <gtest/gtest.h>

#include <filesystem>

#include "kvarto/engine.h"

namespace kvarto {
namespace {

class GoldenEngineModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << path_ << " is missing";
  }
  std::unique_ptr<Engine> load(EngineOptions options = {}) {
    options.max_model_len = 512;
    options.kv_cache_memory_bytes =
        options.kv_cache_memory_bytes > 0 ? options.kv_cache_memory_bytes : size_t{64} << 20;
    auto engine = Engine::load(path_, options);
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().message);
    return engine ? std::move(*engine) : nullptr;
  }
  Request request(const Engine& engine) {
    const auto chat = engine.render_chat(
        R"([{"role":"user","content":"Name three colours and say what each of them reminds you of."}])");
    EXPECT_TRUE(chat) << chat.error().message;
    Request r;
    r.prompt = *engine.encode(*chat);
    r.sampling = {.max_tokens = 24, .temperature = 0.0f};
    r.hash_logits = true;
    return r;
  }
  const std::string path_ = std::string(KVARTO_SOURCE_DIR) + "/models/smollm2-135m-q4_1.gguf";
};

TEST_F(GoldenEngineModel, HitChunksNeighboursAndSamplesChangeNoBit) {
  const auto engine = load();
  ASSERT_NE(engine, nullptr);
  const Request r = request(*engine);
  const auto cold = engine->generate(r), hit = engine->generate(r);
  ASSERT_TRUE(cold && hit);
  ASSERT_FALSE(cold->error) << cold->error->message;
  EXPECT_FALSE(cold->samples[0].text.empty());
  EXPECT_EQ(cold->cached_tokens, 0u);
  EXPECT_GT(hit->cached_tokens, 0u);
  EXPECT_EQ(hit->samples[0].logits_sha256, cold->samples[0].logits_sha256);
  EXPECT_EQ(engine->decode(cold->samples[0].tokens), cold->samples[0].text);

  Request drawn = r;
  drawn.sampling.temperature = 1.0f;
  drawn.sampling.n = 3;
  drawn.sampling.seed = 5;
  const auto samples = engine->generate(drawn);
  ASSERT_TRUE(samples);
  drawn.sampling.n = 1;
  drawn.sample_index = 2;
  const auto third = engine->generate(drawn);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->samples[0].logits_sha256, samples->samples[2].logits_sha256);
  EXPECT_EQ(third->samples[0].text, samples->samples[2].text);
  EXPECT_TRUE(engine->cache().balanced());
  EXPECT_EQ(engine->cache().audit(), "");

  const auto chunked = load({.threads = 1, .max_num_batched_tokens = 7});
  ASSERT_NE(chunked, nullptr);
  const auto alone = chunked->generate(r);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->samples[0].logits_sha256, cold->samples[0].logits_sha256);
}

TEST_F(GoldenEngineModel, AMegabyteTooLittleIsRefusedBeforeLoading) {
  bool loading = false;
  const auto refused = Engine::load(
      path_,
      {.kv_cache_memory_bytes = 1 << 20, .max_model_len = 512, .progress = [&](size_t, size_t) { loading = true; }});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(refused.error().message.find("largest length"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(loading);
}

}  // namespace
}  // namespace kvarto
