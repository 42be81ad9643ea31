// Portable bits: the sealed KV blocks of a fixed prompt are the same bytes on every SIMD target, and the same as ever.
// tests/tiny/block_hashes.json holds their SHA-256 per numerics id, tiny model and KV dtype. They are change detectors,
// not expected values (those are PyTorch's, in the goldens). If you changed arithmetic on purpose, change the id in
// base/numerics.h and write the file anew:
//   test_conformance --gtest_also_run_disabled_tests --gtest_filter=BlockHashesFile.DISABLED_Write
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/numerics.h"
#include "codec/list.h"
#include "model/model.h"
#include "tests/support/golden.h"

namespace kvarto::testing {
namespace {

constexpr uint32_t kTokens = 64;
constexpr const char* kFile = "tests/tiny/block_hashes.json";
constexpr std::string_view kNumerics[] = {kNumericsF32, kNumericsInt8};

std::vector<std::string> tiny_stems() {
  std::vector<std::string> stems;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/tiny"))) {
    if (entry.path().extension() == ".gguf") stems.push_back(entry.path().stem());
  }
  std::ranges::sort(stems);
  return stems;
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

// A model on one target, and what it writes into a cache of any dtype.
class ModelRun {
 public:
  ModelRun(const std::string& stem, SimdTarget target, std::string_view numerics) {
    const auto file = value_of(GgufFile::open(source_path("tests/tiny/" + stem + ".gguf")));
    model_ = value_of(load_model(
        file, cpu_backend({.threads = 2, .ledger = nullptr, .target = target, .reference = numerics == kNumericsF32})));
    workspace_ = value_of(Workspace::make(model_->config(), kTokens, nullptr));
    for (uint32_t i = 0; i < kTokens; ++i) {
      prompt_.push_back(static_cast<TokenId>((i * 389 + 17) % model_->config().vocabulary));
    }
  }

  std::string hash(KvDtype dtype) {
    const KvLayout layout =
        value_of(KvLayout::make(model_->config().kv_geometry(), {.k_dtype = dtype, .v_dtype = dtype}));
    const auto cache = value_of(KvCache::create(layout, cpu_block_memory(), {.bytes = size_t{8} << 20}));
    KvSequence sequence = cache->open(prompt_).sequence;
    if (const Status reserved = cache->reserve(sequence, kTokens); !reserved) {
      throw std::runtime_error(reserved.error().message);
    }
    const BatchSequence rows{0, kTokens, 0, cache->views(sequence)};
    model_->forward({.tokens = prompt_, .sequences = {&rows, 1}, .logit_rows = {}, .trace = {}}, workspace_, nullptr);
    cache->commit(sequence, prompt_);
    return cache->hash_blocks(sequence);
  }

 private:
  std::shared_ptr<const Model> model_;
  Workspace workspace_;
  std::vector<TokenId> prompt_;
};

class BlockHashes : public ::testing::TestWithParam<std::string> {};

TEST_P(BlockHashes, AreTheSameOnEveryTargetAndAsCommitted) {
  const nlohmann::json committed = read_json(source_path(kFile));
  for (const std::string_view numerics : kNumerics) {
    ASSERT_TRUE(committed["sha256"].contains(numerics))
        << numerics << " is new: write " << kFile << " anew (top of this test)";
    const nlohmann::json& hashes = committed["sha256"][std::string(numerics)][GetParam()];
    ASSERT_EQ(hashes.size(), codec_list().size()) << "a row per KV dtype of the list: write " << kFile << " anew";
    for (const SimdTarget target : available_targets()) {
      ModelRun run(GetParam(), target, numerics);
      for (const CodecInfo& codec : codec_list()) {
        EXPECT_EQ(run.hash(codec.dtype), hashes[std::string(codec.name)])
            << codec.name << ", " << numerics << " on " << simd_target_name(target)
            << ": if you changed arithmetic on purpose, change the id in "
            << "base/numerics.h and write " << kFile << " anew (top of this test)";
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Tiny, BlockHashes, ::testing::ValuesIn(tiny_stems()), [](const auto& i) { return i.param; });

// Says which target is wrong where the committed values cannot: it compares no files.
TEST(BlockHashesOfTargets, AgreeWithPlainScalarLoops) {
  for (const std::string& stem : tiny_stems()) {
    for (const std::string_view numerics : kNumerics) {
      ModelRun scalar(stem, SimdTarget::scalar, numerics);
      for (const SimdTarget target : available_targets()) {
        if (target == SimdTarget::scalar) continue;
        ModelRun run(stem, target, numerics);
        for (const CodecInfo& codec : codec_list()) {
          EXPECT_EQ(run.hash(codec.dtype), scalar.hash(codec.dtype))
              << stem << ' ' << codec.name << ", " << numerics << " on " << simd_target_name(target);
        }
      }
    }
  }
}

TEST(BlockHashesFile, DISABLED_Write) {
  nlohmann::ordered_json out{{"about",
                              "SHA-256 of the sealed KV blocks of a fixed prompt of 64 tokens; written by "
                              "tests/conformance/block_hashes_test.cc, which says when"}};
  for (const std::string_view numerics : kNumerics) {
    auto& hashes = out["sha256"][std::string(numerics)];
    for (const std::string& stem : tiny_stems()) {
      ModelRun run(stem, SimdTarget::scalar, numerics);
      for (const CodecInfo& codec : codec_list()) hashes[stem][std::string(codec.name)] = run.hash(codec.dtype);
    }
  }
  std::ofstream file(source_path(kFile));
  file << out.dump(2) << "\n";
  ASSERT_TRUE(file.good());
}

}  // namespace
}  // namespace kvarto::testing
