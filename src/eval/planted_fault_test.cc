#include "eval/planted_fault.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvarto {
namespace {

// Keeps what append() and attend() are given; all else does nothing.
class Recorder : public Backend {
 public:
  std::shared_ptr<BlockMemory> memory() override { return nullptr; }
  int threads() const override { return 3; }
  SimdTarget target() const override { return SimdTarget::scalar; }
  Result<std::unique_ptr<Matrix>> load_matrix(const GgufFile&, const GgufTensor&) override { return nullptr; }
  Result<std::vector<float>> load_vector(const GgufFile&, const GgufTensor&) override { return std::vector<float>(); }
  Status reserve(const StepShape&) override { return {}; }
  void matmul(const float*, size_t, std::span<const Product>) override { ++others; }
  void embed(std::span<const TokenId>, const Matrix&, float, float*) override {}
  void rms_norm(const float*, size_t, size_t, const float*, float, float*) override { ++others; }
  void rope_rows(const RopeTable&, std::span<const uint64_t>, float*, float*) override {}
  void rope(float*, size_t, size_t, size_t, RopePairs, const RopeRows&) override { ++others; }
  void silu_mul(const float*, const float*, size_t, size_t, float*) override { ++others; }
  void gelu_mul(const float*, const float*, size_t, size_t, float*) override { ++others; }
  void add(const float*, size_t, size_t, float*) override { ++others; }
  void soft_cap(float*, size_t, size_t, float) override { ++others; }
  uint64_t saturated_values() const override { return 17; }

  void append(std::span<const AppendRows> sequences) override {
    for (const AppendRows& rows : sequences) {
      const KvGroupLayer& layer = rows.view->group->layers[rows.layer];
      const size_t width = size_t{layer.kv_heads} * layer.planes[0].dims;
      for (uint32_t t = 0; t < rows.count; ++t) {
        keys.insert(keys.end(), rows.k + t * rows.k_stride, rows.k + t * rows.k_stride + width);
      }
      appended.push_back(rows);
    }
  }
  void attend(std::span<const AttendRows>, const AttentionShape& shape) override { shapes.push_back(shape); }

  std::vector<float> keys;
  std::vector<AppendRows> appended;
  std::vector<AttentionShape> shapes;
  int others = 0;
};

constexpr uint32_t kHeads = 2, kDims = 24, kTokens = 500;
constexpr size_t kWidth = size_t{kHeads} * kDims, kStride = kWidth + 5;

// Two layers of one group, and random keys.
struct Scene {
  Scene() {
    const LayerKv layer{.kv_heads = kHeads, .key_dim = kDims, .value_dim = 16};
    layout = KvLayout::make({{layer, layer}}, {}).value();
    view = {.group = &layout.groups()[0], .block_tokens = 16, .lists = nullptr, .list_stride = 0};
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (float& x : keys) x = normal(random);
  }
  AppendRows rows(uint64_t first, uint32_t count, uint32_t layer = 0) const {
    return {.view = &view,
            .layer = layer,
            .first_position = first,
            .count = count,
            .k = &keys[first * kStride],
            .k_stride = kStride,
            .v = keys.data(),
            .v_stride = 7};
  }
  // What is written of all keys, in steps of `chunk`.
  std::vector<float> written(const PlantedFault& fault, uint32_t chunk = kTokens, uint32_t layer = 0) const {
    const auto recorder = std::make_shared<Recorder>();
    const auto faulty = plant(recorder, fault, kTokens);
    for (uint32_t first = 0; first < kTokens; first += chunk) {
      const AppendRows part = rows(first, std::min(chunk, kTokens - first), layer);
      faulty->append({&part, 1});
    }
    return recorder->keys;
  }

  KvLayout layout;
  KvView view;
  std::vector<float> keys = std::vector<float>(kTokens * kStride);
};

TEST(PlantedFault, NoneIsTheBackendItself) {
  const auto backend = std::make_shared<Recorder>();
  EXPECT_EQ(plant(backend, {}, 10), backend);
}

TEST(PlantedFault, NoiseHasTheRatioThatWasAskedFor) {
  const Scene scene;
  for (const double db : {-10.0, 0.0, 10.0, 40.0}) {
    const std::vector<float> got = scene.written({.key_noise_db = db});
    ASSERT_EQ(got.size(), kTokens * kWidth);
    double signal = 0, noise = 0, mean = 0, fourth = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        double energy = 0;
        for (uint32_t d = 0; d < kDims; ++d) energy += std::pow(scene.keys[t * kStride + h * kDims + d], 2);
        const double rms = std::sqrt(energy / kDims);
        signal += energy;
        for (uint32_t d = 0; d < kDims; ++d) {
          const double difference = double{got[t * kWidth + h * kDims + d]} - scene.keys[t * kStride + h * kDims + d];
          const double z = difference / rms * std::pow(10.0, db / 20);
          noise += difference * difference;
          mean += z;
          fourth += z * z * z * z;
        }
      }
    }
    const double n = kTokens * kWidth;  // 24,000
    EXPECT_NEAR(10 * std::log10(signal / noise), db, 0.2);
    EXPECT_NEAR(mean / n, 0.0, 0.03);    // 4.6 standard errors
    EXPECT_NEAR(fourth / n, 3.0, 0.35);  // of a normal number; an even one has 1.8
  }
}

TEST(PlantedFault, NoiseDependsOnThePlaceAlone) {
  const Scene scene;
  const PlantedFault fault{.key_noise_db = 10.0};
  const std::vector<float> whole = scene.written(fault);
  EXPECT_EQ(whole, scene.written(fault, 1));
  EXPECT_EQ(whole, scene.written(fault, 37));
  EXPECT_NE(whole, scene.written(fault, kTokens, 1));
  EXPECT_NE(whole, scene.written({.key_noise_db = 10.0, .seed = 2}));
  EXPECT_NE(whole, scene.written({.key_noise_db = 10.0, .seed = 1 + (uint64_t{1} << 32)}));

  // Two sequences in one call: as alone.
  const auto recorder = std::make_shared<Recorder>();
  const AppendRows both[] = {scene.rows(100, 3), scene.rows(7, 2)};
  plant(recorder, fault, kTokens)->append(both);
  std::vector<float> want(whole.begin() + 100 * kWidth, whole.begin() + 103 * kWidth);
  want.insert(want.end(), whole.begin() + 7 * kWidth, whole.begin() + 9 * kWidth);
  EXPECT_EQ(recorder->keys, want);
  // Values are passed on as they are.
  EXPECT_EQ(recorder->appended[1].v, both[1].v);
  EXPECT_EQ(recorder->appended[1].v_stride, both[1].v_stride);
  EXPECT_EQ(recorder->appended[1].first_position, 7u);
}

TEST(PlantedFault, TokensHeadsAndDimsGetNoiseOfTheirOwn) {
  Scene scene;
  std::fill(scene.keys.begin(), scene.keys.end(), 1.0f);
  const std::vector<float> got = scene.written({.key_noise_db = 0.0});
  std::vector<float> sorted = got;
  std::ranges::sort(sorted);
  const size_t equal = sorted.size() - static_cast<size_t>(std::ranges::unique(sorted).begin() - sorted.begin());
  EXPECT_LE(equal, 200u);  // 24,000 floats near 1 collide by chance now and then
  // A head without a signal gets none.
  for (size_t t = 0; t < kTokens; ++t) std::fill_n(&scene.keys[t * kStride], kDims, 0.0f);
  const std::vector<float> half = scene.written({.key_noise_db = 0.0});
  for (size_t i = 0; i < half.size(); ++i) ASSERT_EQ(half[i], i / kDims % 2 == 0 ? 0.0f : got[i]);
}

std::vector<uint8_t> hidden(const PlantedFault& fault, size_t tokens) {
  const auto recorder = std::make_shared<Recorder>();
  const auto faulty = plant(recorder, fault, tokens);
  const AttendRows rows{.first_position = tokens - 1, .count = 1};
  faulty->attend({&rows, 1}, {.heads = 5, .scale = 0.25f});
  faulty->attend({}, {.heads = 6});
  EXPECT_EQ(recorder->shapes[0].heads, 5u);
  EXPECT_EQ(recorder->shapes[0].scale, 0.25f);
  EXPECT_EQ(recorder->shapes[0].hidden, recorder->shapes[1].hidden);
  const uint8_t* const mask = recorder->shapes[0].hidden;
  return {mask, mask + tokens};
}

TEST(PlantedFault, HidesTheShare) {
  constexpr size_t kMany = 20'000;
  std::vector<uint8_t> before(kMany);
  for (const double share : {0.01, 0.1, 0.5, 0.99}) {
    const std::vector<uint8_t> mask = hidden({.hidden_share = share}, kMany);
    EXPECT_EQ(mask[0], 0);
    const double found = static_cast<double>(std::ranges::count(mask, 1)) / kMany;
    EXPECT_NEAR(found, share, 5 * std::sqrt(share * (1 - share) / kMany));
    for (size_t i = 0; i < kMany; ++i) ASSERT_LE(before[i], mask[i]) << "a smaller share hides " << i;
    before = mask;
  }
  const std::vector<uint8_t> one = hidden({.hidden_share = 0.5}, 300);
  EXPECT_NE(one, hidden({.hidden_share = 0.5, .seed = 2}, 300));
  std::vector<uint8_t> longer = hidden({.hidden_share = 0.5}, 400);
  longer.resize(300);
  EXPECT_EQ(one, longer);
}

TEST(PlantedFault, EachFaultLeavesTheRestAlone) {
  const Scene scene;
  const auto recorder = std::make_shared<Recorder>();
  const auto hides = plant(recorder, {.hidden_share = 0.5}, kTokens);
  const AppendRows rows = scene.rows(0, 4);
  hides->append({&rows, 1});
  EXPECT_EQ(recorder->appended[0].k, rows.k);
  const auto noisy = plant(recorder, {.key_noise_db = 10.0}, kTokens);
  noisy->attend({}, {.heads = 1});
  EXPECT_EQ(recorder->shapes[0].hidden, nullptr);

  EXPECT_EQ(noisy->threads(), 3);
  EXPECT_EQ(noisy->target(), SimdTarget::scalar);
  EXPECT_EQ(noisy->saturated_values(), 17u);
  noisy->matmul(nullptr, 0, {});
  noisy->rms_norm(nullptr, 0, 0, nullptr, 0.0f, nullptr);
  noisy->rope(nullptr, 0, 0, 0, RopePairs::halves, {});
  noisy->silu_mul(nullptr, nullptr, 0, 0, nullptr);
  noisy->gelu_mul(nullptr, nullptr, 0, 0, nullptr);
  noisy->add(nullptr, 0, 0, nullptr);
  noisy->soft_cap(nullptr, 0, 0, 0.0f);
  EXPECT_EQ(recorder->others, 7);
}

}  // namespace
}  // namespace kvarto
