// The f32 path against goldens that PyTorch computed: tiny random models of every architecture, and (suite Golden) the
// real ones, where their files are present.
#include "tests/support/model_golden.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace kvarto::testing {
namespace {

std::vector<std::string> tiny_models() {
  std::vector<std::string> stems;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/tiny"))) {
    if (entry.path().extension() == ".gguf") stems.push_back(entry.path().stem());
  }
  std::ranges::sort(stems);
  return stems;
}

class TinyModel : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyModel, MatchesPyTorchOnEveryTarget) {
  for (const SimdTarget target : available_targets()) {
    SCOPED_TRACE(simd_target_name(target));
    const LoadedModel loaded = load_for_test(source_path("tests/tiny/" + GetParam() + ".gguf"), target);
    check_golden_file(loaded, "tests/tiny/" + GetParam() + ".json",
                      {.logit = 1e-3, .nll_mean = 1e-5, .gap = 1e-3, .trace = 1e-4});
  }
}

// Portable bits: every target and thread count gives the very same logits, at every position of a prompt longer than a
// split.
TEST_P(TinyModel, EveryTargetGivesTheSameLogits) {
  std::vector<TokenId> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>((i * i + 7 * i) % 500);
  std::vector<float> first;
  for (const SimdTarget target : available_targets()) {
    const LoadedModel loaded =
        load_for_test(source_path("tests/tiny/" + GetParam() + ".gguf"), target, target == SimdTarget::scalar ? 1 : 2);
    Workspace workspace = Workspace::make(loaded.model->config(), 64, nullptr).value();
    std::vector<float> all;
    each_logits_row(loaded, ids, workspace,
                    [&](size_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
    ASSERT_EQ(all.size(), ids.size() * loaded.model->config().vocabulary);
    if (first.empty()) first = all;
    EXPECT_TRUE(std::ranges::equal(first, all)) << simd_target_name(target);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel, ::testing::ValuesIn(tiny_models()), [](const auto& i) { return i.param; });

class GoldenModel : public ::testing::TestWithParam<RealModel> {};

TEST_P(GoldenModel, MatchesPyTorch) {
  const std::string path = source_path(GetParam().file);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << GetParam().file << " is not here (tools/fetch_models brings it)";
  check_golden_file(load_for_test(path), GetParam().golden);
}

INSTANTIATE_TEST_SUITE_P(Real, GoldenModel, ::testing::ValuesIn(kRealModels), [](const auto& i) {
  const std::string stem = std::filesystem::path(i.param.golden).stem();
  return stem.substr(0, stem.find('.'));
});

TEST(GoldenScalar, MatchesPyTorchOnShortPrompts) {
  const RealModel smollm2 = kRealModels[0];
  const std::string path = source_path(smollm2.file);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << smollm2.file << " is not here (tools/fetch_models brings it)";
  check_golden_file(load_for_test(path, SimdTarget::scalar), smollm2.golden, {},
                    {.longest_prompt = 60, .greedy_steps = 1});
}

}  // namespace
}  // namespace kvarto::testing
