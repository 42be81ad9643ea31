// The promise: reuse is bit-exact. Each test runs the same requests in two ways and compares SHA-256 over all raw
// logits rows that the generated tokens came from, and shows that the other way was really taken. Tiny models x codecs
// x tails x SIMD targets x both paths; the real models (suite Golden) run each equivalence once.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <set>

#include "codec/list.h"
#include "engine/load.h"
#include "kvarto/engine.h"
#include "model/config.h"
#include "tests/support/golden.h"

namespace kvarto::testing {
namespace {

struct Setting {
  std::string path;  // of the model, from the root of the repository
  KvDtype dtype = KvDtype::f16;
  bool separate_tails = false;
  bool slow = false;       // every token takes its time: shorter outputs
  bool reference = false;  // the f32 path
  SimdTarget target = best_target();
};

EngineOptions options_for(const Setting& s) {
  EngineOptions options;
  options.threads = 2;
  options.k_dtype = options.v_dtype = s.dtype;
  options.separate_tails = s.separate_tails;
  options.reference = s.reference;
  options.max_model_len = 1024;
  options.kv_cache_memory_bytes = size_t{256} << 20;
  return options;
}

std::unique_ptr<Engine> load(const Setting& s, const EngineOptions& options) {
  const auto file = GgufFile::open(source_path(s.path)).value();
  auto parts = load_parts(file, options, s.target);
  if (!parts) throw std::runtime_error(parts.error().message);
  EXPECT_EQ(parts->info.simd_target, simd_target_name(s.target));
  return Engine::assemble(std::move(*parts)).value();
}

std::vector<TokenId> random_ids(size_t n, uint32_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % std::min(vocabulary, 500u));
  return ids;
}

Request request(std::vector<TokenId> prompt, uint32_t max_tokens, uint64_t seed = 7) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = 0.8f;
  r.sampling.seed = seed;
  r.sampling.ignore_eos = true;
  r.hash_logits = true;
  return r;
}

// Submits all, steps until idle, returns results in order of submission.
std::vector<RequestResult> run_all(Engine& engine, std::vector<Request> requests) {
  std::vector<RequestResult> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_finish = [&results, i](const RequestResult& r) { results[i] = r; };
    const auto id = engine.submit(std::move(requests[i]));
    EXPECT_TRUE(id.has_value()) << (id ? "" : id.error().message);
  }
  while (engine.step()) {
  }
  EXPECT_TRUE(engine.cache().balanced());
  EXPECT_EQ(engine.cache().audit(), "");
  EXPECT_EQ(engine.stats().kv.blocks_active, 0u) << "blocks left behind";
  return results;
}

RequestResult run_one(Engine& engine, Request r) {
  std::vector<Request> one;
  one.push_back(std::move(r));
  return run_all(engine, std::move(one))[0];
}

void expect_same(const RequestResult& a, const RequestResult& b, const std::string& what) {
  ASSERT_FALSE(a.error) << a.error->message;
  ASSERT_FALSE(b.error) << b.error->message;
  ASSERT_EQ(a.samples.size(), b.samples.size());
  for (size_t i = 0; i < a.samples.size(); ++i) {
    EXPECT_FALSE(a.samples[i].logits_sha256.empty());
    EXPECT_EQ(a.samples[i].tokens, b.samples[i].tokens) << what;
    EXPECT_EQ(a.samples[i].logits_sha256, b.samples[i].logits_sha256) << what;
  }
}

// Bytes that `streams` sequences of `tokens` tokens take at once.
size_t pool_bytes(const Setting& s, uint64_t tokens, uint32_t chunk, double streams) {
  const auto file = GgufFile::open(source_path(s.path)).value();
  KvLayoutOptions layout_options;
  layout_options.k_dtype = layout_options.v_dtype = s.dtype;
  layout_options.separate_tails = s.separate_tails;
  const KvLayout layout = KvLayout::make(read_config(*file).value().kv_geometry(), layout_options).value();
  return static_cast<size_t>(static_cast<double>(layout.bytes_for_sequence(tokens, chunk)) * streams);
}

void check_hit_equals_cold(const Setting& s) {
  const auto engine = load(s, options_for(s));
  const auto prompt = random_ids(150, engine->info().vocabulary, 1);
  const RequestResult cold = run_one(*engine, request(prompt, 24));
  const RequestResult hit = run_one(*engine, request(prompt, 24));
  EXPECT_EQ(cold.cached_tokens, 0u);
  EXPECT_EQ(hit.cached_tokens, 144u);  // the largest multiple of 16 up to 149
  expect_same(cold, hit, "hit");
  // The conversation goes on: prompt, answer and more. Generated blocks are found again too.
  auto longer = prompt;
  longer.insert(longer.end(), cold.samples[0].tokens.begin(), cold.samples[0].tokens.end());
  const auto more = random_ids(9, engine->info().vocabulary, 2);
  longer.insert(longer.end(), more.begin(), more.end());
  const RequestResult turn = run_one(*engine, request(longer, 16));
  EXPECT_GE(turn.cached_tokens, 160u);
  const auto fresh = load(s, options_for(s));
  expect_same(run_one(*fresh, request(longer, 16)), turn, "second turn");
}

void check_chunks(const Setting& s) {
  std::optional<RequestResult> whole;
  const auto file_vocabulary = load(s, options_for(s))->info().vocabulary;
  for (const uint32_t chunk : {512u, 64u, 16u, 7u}) {
    EngineOptions options = options_for(s);
    options.max_num_batched_tokens = chunk;
    options.max_num_seqs = 4;
    const auto engine = load(s, options);
    const RequestResult result = run_one(*engine, request(random_ids(300, file_vocabulary, 3), 12));
    const uint64_t least_steps = (300 + chunk - 1) / chunk + 11;
    EXPECT_GE(engine->stats().steps, least_steps);
    if (!whole) whole = result;
    expect_same(*whole, result, "chunk " + std::to_string(chunk));
  }
}

void check_batch_and_threads(const Setting& s) {
  const auto crowd = load(s, options_for(s));
  EngineOptions one_thread = options_for(s);
  one_thread.threads = 1;
  const auto solo = load(s, one_thread);
  std::vector<Request> together, alone;
  const uint32_t output = s.slow ? 12 : 40;
  for (uint64_t i = 0; i < 8; ++i) {
    const auto prompt = random_ids(20 + 17 * i, crowd->info().vocabulary, 100 + i);
    together.push_back(request(prompt, output, i));
    alone.push_back(request(prompt, output, i));
  }
  const std::vector<RequestResult> batched = run_all(*crowd, std::move(together));
  uint32_t peers = 0;
  for (size_t i = 0; i < batched.size(); ++i) {
    peers = std::max(peers, batched[i].batch_peers_max);
    const RequestResult single = run_one(*solo, std::move(alone[i]));
    EXPECT_EQ(single.batch_peers_max, 1u);
    expect_same(single, batched[i], "batched " + std::to_string(i));
  }
  EXPECT_EQ(peers, 8u);
  EXPECT_EQ(crowd->info().threads, 2);
  EXPECT_EQ(solo->info().threads, 1);
}

// Prompts that enter beside a stream, with no time or little for them: a layer or a few in each step, in several
// passes.
void check_cut_passes(const Setting& s, double max_step_ms) {
  EngineOptions options = options_for(s);
  options.max_step_ms = max_step_ms;
  options.max_num_seqs = 3;
  const auto cut = load(s, options);
  const auto plain = load(s, options_for(s));
  const Request stream = request(random_ids(20, plain->info().vocabulary, 200), s.slow ? 100 : 120);
  const Request prompts[] = {request(random_ids(150, plain->info().vocabulary, 201), 8),
                             request(random_ids(70, plain->info().vocabulary, 202), 8)};
  std::vector<RequestResult> results(3);
  const auto submit = [&](Request r, size_t i) {
    r.on_finish = [&results, i](const RequestResult& result) { results[i] = result; };
    ASSERT_TRUE(cut->submit(std::move(r)).has_value());
  };
  submit(stream, 0);
  for (int i = 0; i < 3; ++i) cut->step();
  submit(prompts[0], 1);
  submit(prompts[1], 2);
  while (cut->step()) {
  }
  if (max_step_ms < 0.01) {  // otherwise the machine's speed decides
    EXPECT_GE(cut->stats().cut_passes, 3u);
  }
  EXPECT_EQ(cut->cache().audit(), "");
  expect_same(run_one(*plain, stream), results[0], "the stream");
  for (size_t i = 0; i < 2; ++i) expect_same(run_one(*plain, prompts[i]), results[i + 1], "a cut prompt");
  EXPECT_EQ(plain->stats().cut_passes, 0u);
}

// Four streams of 240 tokens on a pool that holds three and a half of them.
void check_preemption(const Setting& s) {
  EngineOptions options = options_for(s);
  options.max_num_batched_tokens = 64;
  options.max_model_len = 256;
  options.kv_cache_memory_bytes = pool_bytes(s, 240, 1, s.separate_tails ? 3.2 : 3.5);
  const auto tight = load(s, options);
  const auto roomy = load(s, options_for(s));
  std::vector<Request> four;
  std::vector<RequestResult> solo;
  // Short prompts of the tiny models fit all at once, window groups included; then all four grow.
  const uint32_t output = s.slow ? 48 : 216;
  for (uint64_t i = 0; i < 4; ++i) {
    const auto prompt = random_ids(240 - output, roomy->info().vocabulary, 200 + i);
    four.push_back(request(prompt, output, i));
    solo.push_back(run_one(*roomy, request(prompt, output, i)));
  }
  const std::vector<RequestResult> crowded = run_all(*tight, std::move(four));
  uint32_t preemptions = 0;
  for (size_t i = 0; i < 4; ++i) {
    preemptions += crowded[i].preemptions;
    expect_same(solo[i], crowded[i], "stream " + std::to_string(i));
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(tight->stats().preemptions, preemptions);
}

void check_samples(const Setting& s) {
  const auto engine = load(s, options_for(s));
  const auto prompt = random_ids(75, engine->info().vocabulary, 5);
  Request many = request(prompt, 20);
  many.sampling.n = 4;
  many.sampling.temperature = 1.5f;
  const RequestResult group = run_one(*engine, std::move(many));
  ASSERT_EQ(group.samples.size(), 4u);
  EXPECT_GE(engine->stats().kv.copied_tails, 3u * engine->cache().layout().groups().size());
  EXPECT_LE(engine->stats().computed_prompt_tokens, 75u);  // the prompt once
  std::set<std::vector<TokenId>> distinct;
  for (uint32_t i = 0; i < 4; ++i) {
    Request single = request(prompt, 20);
    single.sampling.temperature = 1.5f;
    single.sample_index = i;
    const RequestResult one = run_one(*engine, std::move(single));
    EXPECT_EQ(one.samples[0].tokens, group.samples[i].tokens) << "sample " << i;
    EXPECT_EQ(one.samples[0].logits_sha256, group.samples[i].logits_sha256) << "sample " << i;
    distinct.insert(one.samples[0].tokens);
  }
  EXPECT_EQ(distinct.size(), 4u);
}

bool has_windows(const Setting& s) {
  const ModelConfig config = read_config(*GgufFile::open(source_path(s.path)).value()).value();
  return std::ranges::any_of(config.layers, [](const LayerConfig& layer) { return layer.window > 0; });
}

// Window groups give blocks back, and still find what they need.
void check_windows(const Setting& s) {
  const auto engine = load(s, options_for(s));
  const auto ids = random_ids(700, engine->info().vocabulary, 6);
  const RequestResult first = run_one(*engine, request(ids, 8));
  EXPECT_GT(engine->stats().kv.window_blocks_freed, 0u);
  const RequestResult again = run_one(*engine, request(ids, 8));
  EXPECT_GT(again.cached_tokens, 0u);
  expect_same(first, again, "window hit");
  // A shorter prompt may not use a window that has moved past it, unless those blocks are still cached: right text
  // either way.
  const std::vector<TokenId> shorter(ids.begin(), ids.begin() + 333);
  const auto fresh = load(s, options_for(s));
  expect_same(run_one(*fresh, request(shorter, 8)), run_one(*engine, request(shorter, 8)), "shorter prompt");
}

void check_all(const Setting& s) {
  check_hit_equals_cold(s);
  check_chunks(s);
  check_cut_passes(s, 0.001);
  check_cut_passes(s, 20.0);
  check_batch_and_threads(s);
  check_preemption(s);
  check_samples(s);
  if (has_windows(s)) check_windows(s);
}

std::vector<std::string> tiny_models() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/tiny"))) {
    if (entry.path().extension() == ".gguf") paths.push_back("tests/tiny/" + entry.path().filename().string());
  }
  std::ranges::sort(paths);
  return paths;
}

// The best target with every codec and both kinds of tails, the others with f16. The scalar one, which takes most of
// the time, has a model of full attention and one with windows; EquivalenceOfTargets ties it to the others on all.
std::vector<Setting> tiny_settings() {
  std::vector<Setting> settings;
  for (const std::string& path : tiny_models()) {
    for (const CodecInfo& codec : codec_list()) settings.push_back({path, codec.dtype, false});
    settings.push_back({path, KvDtype::f16, true});
    settings.push_back({.path = path, .reference = true});
    const bool has_scalar = path.ends_with("/tiny_llama.gguf") || path.ends_with("/tiny_gemma3.gguf");
    for (const SimdTarget target : available_targets().first(available_targets().size() - 1)) {
      const bool scalar = target == SimdTarget::scalar;
      if (scalar && !has_scalar) continue;
      for (const bool reference : {false, true}) {
        settings.push_back({.path = path, .slow = scalar, .reference = reference, .target = target});
      }
    }
  }
  return settings;
}

std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  return std::string(std::filesystem::path(info.param.path).stem()) + "_" +
         std::string(kv_dtype_name(info.param.dtype)) + (info.param.separate_tails ? "_separate_tails" : "") +
         (info.param.reference ? "_reference" : "") +
         (info.param.target == best_target() ? "" : "_" + std::string(simd_target_name(info.param.target)));
}

class Equivalence : public ::testing::TestWithParam<Setting> {};
TEST_P(Equivalence, HitEqualsCold) { check_hit_equals_cold(GetParam()); }
TEST_P(Equivalence, ChunkedEqualsWhole) { check_chunks(GetParam()); }
TEST_P(Equivalence, BatchedOnTwoThreadsEqualsAloneOnOne) { check_batch_and_threads(GetParam()); }
TEST_P(Equivalence, CutPassesEqualWholeOnes) { check_cut_passes(GetParam(), 0.001); }
TEST_P(Equivalence, PreemptedEqualsUndisturbed) { check_preemption(GetParam()); }
TEST_P(Equivalence, SamplesEqualSingleRuns) { check_samples(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Tiny, Equivalence, ::testing::ValuesIn(tiny_settings()), setting_name);

std::vector<Setting> window_settings() {
  std::vector<Setting> settings = tiny_settings();
  std::erase_if(settings, [](const Setting& s) { return !has_windows(s); });
  return settings;
}

class WindowEquivalence : public ::testing::TestWithParam<Setting> {};
TEST_P(WindowEquivalence, WindowsMoveOn) { check_windows(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Tiny, WindowEquivalence, ::testing::ValuesIn(window_settings()), setting_name);

// Sealing apart from the tail gives the bits of sealing in place.
TEST(EquivalenceOfTails, SeparateTailsEqualTailsInPlace) {
  for (const std::string& path : tiny_models()) {
    const Setting in_place{.path = path}, apart{.path = path, .separate_tails = true};
    const auto a = load(in_place, options_for(in_place)), b = load(apart, options_for(apart));
    const auto ids = random_ids(100, a->info().vocabulary, 9);
    expect_same(run_one(*a, request(ids, 60)), run_one(*b, request(ids, 60)), path);
  }
}

// Prompts are long enough for the kernels of many rows.
void check_targets(const Setting& best, std::span<const SimdTarget> others, uint32_t output) {
  const auto engine = load(best, options_for(best));
  const auto ids = random_ids(70, engine->info().vocabulary, 10);
  const RequestResult expected = run_one(*engine, request(ids, output));
  for (const SimdTarget target : others) {
    Setting other = best;
    other.target = target;
    const auto same = load(other, options_for(other));
    expect_same(expected, run_one(*same, request(ids, output)),
                best.path + " on " + std::string(simd_target_name(target)));
  }
}

TEST(EquivalenceOfTargets, AllGiveTheSameLogits) {
  for (const std::string& path : tiny_models()) {
    for (const bool reference : {false, true}) {
      check_targets({.path = path, .reference = reference}, available_targets().first(available_targets().size() - 1),
                    30);
    }
  }
}

class GoldenEquivalence : public ::testing::TestWithParam<RealModel> {};
TEST_P(GoldenEquivalence, EachOnce) {
  if (!std::filesystem::exists(source_path(GetParam().file))) {
    GTEST_SKIP() << GetParam().file << " is not here (tools/fetch_models brings it)";
  }
  const Setting setting{.path = GetParam().file, .slow = true};
  check_all(setting);
  // The scalar target takes minutes for a real model; it has the tiny ones.
  const auto others = available_targets().first(available_targets().size() - 1);
  if (others.size() > 1) check_targets(setting, others.subspan(1), 4);
}
INSTANTIATE_TEST_SUITE_P(Real, GoldenEquivalence, ::testing::ValuesIn(kRealModels), [](const auto& i) {
  const std::string stem = std::filesystem::path(i.param.golden).stem();
  return stem.substr(0, stem.find('.'));
});

}  // namespace
}  // namespace kvarto::testing
