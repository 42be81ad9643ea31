// The f32 path against goldens that PyTorch computed: tiny random models of every architecture, and (suite Golden) the real
// ones, where their files are present.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/model_golden.h"

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
    check_golden_file(loaded, "tests/tiny/" + GetParam() + ".json", {.logit = 1e-3, .nll_mean = 1e-5, .gap = 1e-3, .trace = 1e-4});
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
  check_golden_file(load_for_test(path, SimdTarget::scalar), smollm2.golden, {}, 60);
}

}  // namespace
}  // namespace kvarto::testing
