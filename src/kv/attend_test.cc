// Paged attention against an oracle in double that knows nothing of pages, and against itself: shuffled pages, chunks,
// targets.
#include "kv/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/half.h"
#include "codec/list.h"

namespace kvarto {
namespace {

struct Case {
  uint32_t heads = 4, kv_heads = 2, key_dim = 32, value_dim = 32, window = 0, block_tokens = 16;
  KvDtype dtype = KvDtype::f32;
  float scale = 0.2f, soft_cap = 0.0f, spread = 1.0f;
  bool sinks = false;
};

float rounded(KvDtype dtype, float x) {
  if (dtype == KvDtype::f16) return f16_to_f32(f32_to_f16(x));
  if (dtype == KvDtype::bf16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

// One layer, one sequence: inputs, pages scattered over an arena that is poisoned with NaN, and the outputs.
class Scene {
 public:
  Scene(const Case& c, uint32_t tokens, uint64_t seed) : c_(c), tokens_(tokens), random_(seed) {
    const KvGeometry geometry{{{.kind = c.window ? GroupKind::window : GroupKind::full,
                                .window = c.window,
                                .kv_heads = c.kv_heads,
                                .key_dim = c.key_dim,
                                .value_dim = c.value_dim}}};
    layout_ =
        KvLayout::make(geometry, {.block_tokens = c.block_tokens, .k_dtype = c.dtype, .v_dtype = c.dtype}).value();
    q = normal(size_t{tokens} * c.heads * c.key_dim);
    k = normal(size_t{tokens} * c.kv_heads * c.key_dim);
    v = normal(size_t{tokens} * c.kv_heads * c.value_dim);
    sinks_ = normal(c.heads);
  }

  // Computes all tokens in chunks of `chunk`, on pages in an order drawn from `page_seed`.
  std::vector<float> attend_all(SimdTarget target, uint32_t chunk, uint64_t page_seed, int threads = 1) {
    const uint32_t b = c_.block_tokens, pages = (tokens_ + b - 1) / b;
    const size_t page_bytes = layout_.groups()[0].block_bytes;
    std::vector<std::byte> arena(page_bytes * pages + 64, std::byte{0xff});  // 0xff.. is NaN in every float type
    auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(arena.data()) + 63) / 64 * 64);
    std::vector<uint32_t> order(pages);
    for (uint32_t i = 0; i < pages; ++i) order[i] = i;
    std::mt19937_64 shuffle(page_seed);
    std::ranges::shuffle(order, shuffle);
    std::vector<std::byte*> blocks(pages);
    std::vector<RawBlock> raw(pages);
    for (uint32_t i = 0; i < pages; ++i) {
      blocks[i] = base + order[i] * page_bytes;
      raw[i].base = blocks[i];
    }
    KvList list{blocks.data(), raw.data(), 0, tokens_};
    const KvView view{&layout_.groups()[0], b, &list, 0};
    ThreadPool pool(threads, false);
    AttendScratch scratch;
    std::vector<float> out(size_t{tokens_} * c_.heads * c_.value_dim, std::numeric_limits<float>::quiet_NaN());
    const size_t qs = size_t{c_.heads} * c_.key_dim, ks = size_t{c_.kv_heads} * c_.key_dim,
                 vs = size_t{c_.kv_heads} * c_.value_dim, os = size_t{c_.heads} * c_.value_dim;
    for (uint32_t first = 0; first < tokens_; first += chunk) {
      const uint32_t count = std::min(chunk, tokens_ - first);
      const AppendRows append_rows{&view, 0, first, count, &k[first * ks], ks, &v[first * vs], vs};
      append(target, {&append_rows, 1}, pool);
      const AttendRows rows{&view, 0, first, count, &q[first * qs], qs, &out[first * os], os};
      const AttentionShape shape{.heads = c_.heads,
                                 .scale = c_.scale,
                                 .soft_cap = c_.soft_cap,
                                 .sinks = c_.sinks ? sinks_.data() : nullptr,
                                 .hidden = hidden.empty() ? nullptr : hidden.data()};
      attend(target, {&rows, 1}, shape, pool, scratch);
    }
    return out;
  }

  // Writes all tokens at once and computes the last `count` of them.
  std::vector<float> attend_last(uint32_t count, int threads, AttendScratch& scratch) {
    const uint32_t b = c_.block_tokens, pages = (tokens_ + b - 1) / b, first = tokens_ - count;
    const size_t page_bytes = layout_.groups()[0].block_bytes;
    const Slab arena = Slab::allocate(page_bytes * pages, MemoryTag::kv_arena, nullptr).value();
    std::vector<std::byte*> blocks(pages);
    std::vector<RawBlock> raw(pages);
    for (uint32_t i = 0; i < pages; ++i) raw[i].base = blocks[i] = arena.data() + i * page_bytes;
    const KvList list{blocks.data(), raw.data(), 0, tokens_};
    const KvView view{&layout_.groups()[0], b, &list, 0};
    ThreadPool pool(threads, false);
    std::vector<float> out(size_t{count} * c_.heads * c_.value_dim);
    const size_t qs = size_t{c_.heads} * c_.key_dim, ks = size_t{c_.kv_heads} * c_.key_dim,
                 vs = size_t{c_.kv_heads} * c_.value_dim, os = size_t{c_.heads} * c_.value_dim;
    const AppendRows append_rows{&view, 0, 0, tokens_, k.data(), ks, v.data(), vs};
    append(best_target(), {&append_rows, 1}, pool);
    const AttendRows rows{&view, 0, first, count, &q[first * qs], qs, out.data(), os};
    attend(best_target(), {&rows, 1}, {c_.heads, c_.scale, c_.soft_cap, nullptr}, pool, scratch);
    return out;
  }

  // How many values append() says it saturated, all tokens in one block.
  uint64_t saturated() {
    std::vector<std::byte> block(layout_.groups()[0].block_bytes + 64);
    auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(block.data()) + 63) / 64 * 64);
    const RawBlock raw{.base = base};
    const KvList list{&base, &raw, 0, tokens_};
    const KvView view{&layout_.groups()[0], c_.block_tokens, &list, 0};
    const AppendRows rows{
        &view, 0, 0, tokens_, k.data(), size_t{c_.kv_heads} * c_.key_dim, v.data(), size_t{c_.kv_heads} * c_.value_dim};
    ThreadPool pool(1, false);
    return append(best_target(), {&rows, 1}, pool);
  }

  // Plain attention in double over rounded K and V.
  std::vector<double> oracle() const {
    std::vector<double> out(size_t{tokens_} * c_.heads * c_.value_dim);
    for (uint32_t t = 0; t < tokens_; ++t) {
      for (uint32_t h = 0; h < c_.heads; ++h) oracle_row(t, h, &out[(size_t{t} * c_.heads + h) * c_.value_dim]);
    }
    return out;
  }

  std::vector<float> q, k, v;
  std::vector<uint8_t> hidden;  // [tokens] or empty

 private:
  std::vector<float> normal(size_t n) {
    std::normal_distribution<float> d(0.0f, c_.spread);
    std::vector<float> x(n);
    for (float& value : x) value = d(random_);
    return x;
  }

  void oracle_row(uint32_t t, uint32_t h, double* out) const {
    const uint32_t g = h / (c_.heads / c_.kv_heads),
                   oldest = c_.window == 0 || t + 1 < c_.window ? 0 : t + 1 - c_.window;
    std::vector<double> score;
    for (uint32_t j = oldest; j <= t; ++j) {
      if (j < t && !hidden.empty() && hidden[j] != 0) {
        score.push_back(-std::numeric_limits<double>::infinity());  // a weight of 0
        continue;
      }
      double dot = 0;
      for (uint32_t d = 0; d < c_.key_dim; ++d) {
        dot += double{q[(size_t{t} * c_.heads + h) * c_.key_dim + d]} *
               rounded(c_.dtype, k[(size_t{j} * c_.kv_heads + g) * c_.key_dim + d]);
      }
      dot *= c_.scale;
      score.push_back(c_.soft_cap == 0.0f ? dot : c_.soft_cap * std::tanh(dot / c_.soft_cap));
    }
    double m = *std::ranges::max_element(score), sum = 0;
    if (c_.sinks) m = std::max<double>(m, sinks_[h]);
    if (c_.sinks) sum = std::exp(sinks_[h] - m);
    for (double& s : score) sum += s = std::exp(s - m);
    for (uint32_t d = 0; d < c_.value_dim; ++d) {
      for (size_t j = 0; j < score.size(); ++j) {
        out[d] += score[j] / sum * rounded(c_.dtype, v[((oldest + j) * c_.kv_heads + g) * c_.value_dim + d]);
      }
    }
  }

  Case c_;
  uint32_t tokens_;
  std::mt19937_64 random_;
  KvLayout layout_;
  std::vector<float> sinks_;
};

void expect_close(std::span<const float> got, std::span<const double> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "value " << i;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {},
      {.heads = 9, .kv_heads = 3, .key_dim = 64, .value_dim = 64, .dtype = KvDtype::f16},
      {.heads = 14, .kv_heads = 2, .key_dim = 64, .value_dim = 64, .dtype = KvDtype::bf16},
      {.heads = 4, .kv_heads = 1, .key_dim = 80, .value_dim = 40, .block_tokens = 32},  // padded dims
      {.heads = 2, .kv_heads = 2, .key_dim = 16, .value_dim = 16, .window = 1},
      {.window = 8},
      {.window = 17, .dtype = KvDtype::f16},
      {.window = 300, .block_tokens = 64},
      {.soft_cap = 5.0f, .spread = 4.0f},
      {.window = 33, .sinks = true},
      {.scale = 1.0f, .spread = 10.0f},  // one key takes nearly all
      {.block_tokens = 256, .dtype = KvDtype::bf16},
      {.heads = 12, .kv_heads = 1, .key_dim = 48, .value_dim = 80, .dtype = KvDtype::f16},  // 12 rows to a token
      {.heads = 10, .kv_heads = 5, .key_dim = 128, .value_dim = 16, .window = 40, .block_tokens = 32},
      {.heads = 1, .kv_heads = 1, .key_dim = 256, .value_dim = 256, .window = 70, .dtype = KvDtype::f16},
  };
  return all;
}

TEST(Attend, MatchesTheOracle) {
  for (const Case& c : cases()) {
    for (const uint32_t tokens : {1u, 15u, 16u, 17u, 255u, 257u, 530u}) {
      Scene scene(c, tokens, tokens);
      SCOPED_TRACE("case " + std::to_string(&c - cases().data()) + ", tokens " + std::to_string(tokens));
      // Scores grow with the square of the spread, and with them what their rounding to float does to the weights.
      expect_close(scene.attend_all(best_target(), 64, 1), scene.oracle(),
                   2e-4 * std::max(1.0f, c.spread * c.spread / 4));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Attend, BitsDoNotDependOnPagesChunksThreadsOrTarget) {
  for (const Case& c : cases()) {
    Scene scene(c, 290, 7);
    SCOPED_TRACE("case " + std::to_string(&c - cases().data()));
    const std::vector<float> whole = scene.attend_all(SimdTarget::scalar, 290, 1);
    for (const SimdTarget target : available_targets()) {
      EXPECT_EQ(whole, scene.attend_all(target, 1, 2)) << simd_target_name(target);
      EXPECT_EQ(whole, scene.attend_all(target, 3, 3, 2)) << simd_target_name(target);
      EXPECT_EQ(whole, scene.attend_all(target, 64, 4, 2)) << simd_target_name(target);
    }
  }
}

TEST(Attend, BitsDoNotDependOnBlockSize) {
  Case c{.heads = 6, .kv_heads = 2, .window = 40};
  const std::vector<float> want = Scene(c, 400, 3).attend_all(best_target(), 400, 1);
  for (const uint32_t b : {32u, 64u, 128u, 256u}) {
    c.block_tokens = b;
    EXPECT_EQ(want, Scene(c, 400, 3).attend_all(best_target(), 37, 5)) << b;
  }
}

// A chunk of 16 goes split by split: with 128 heads to a KV head the states of 12 splits do not fit one wave, so a
// chain of splits is carried to the next. A chunk of 17 goes through all splits in one unit.
TEST(Attend, BitsDoNotDependOnWavesOfSplits) {
  const Case c{.heads = 128, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
  Scene scene(c, 12 * kSplitTokens - 5, 1);
  AttendScratch scratch;
  const std::vector<float> want = scene.attend_last(17, 1, scratch);
  for (const int threads : {1, 2}) {
    const std::vector<float> got = scene.attend_last(16, threads, scratch);
    ASSERT_EQ(std::vector<float>(want.end() - static_cast<ptrdiff_t>(got.size()), want.end()), got);
  }
}

// More units than a wave has.
TEST(Attend, ManyHeads) {
  const Case c{.heads = 300, .kv_heads = 300, .key_dim = 16, .value_dim = 16};
  Scene scene(c, 250, 1);
  AttendScratch scratch;
  expect_close(scene.attend_last(250, 2, scratch), scene.oracle(), 2e-4);
}

TEST(Attend, ScratchIsWhatThePlannerIsTold) {
  const Case c{.heads = 8, .kv_heads = 2, .key_dim = 64, .value_dim = 32};
  const AttendSizes sizes{8, 2, 64, 32};
  const size_t bytes = attend_scratch_bytes(sizes, 2);
  const auto ledger = std::make_shared<Ledger>(bytes);
  {
    AttendScratch scratch(ledger);
    ASSERT_TRUE(scratch.reserve(sizes, 2));
    EXPECT_EQ(ledger->used(MemoryTag::activations), bytes);
    const std::byte* const before = scratch.data();
    for (const uint32_t count : {1u, 9u, 64u, 700u}) Scene(c, 700, 1).attend_last(count, 2, scratch);
    EXPECT_EQ(scratch.data(), before);
    EXPECT_EQ(ledger->total(), bytes);
  }
  EXPECT_EQ(ledger->total(), 0u);
  AttendScratch too_small(std::make_shared<Ledger>(bytes - 1));
  EXPECT_FALSE(too_small.reserve(sizes, 2));
}

// Every third token, a whole split, all up to the split of the last tokens, and all.
std::vector<std::vector<uint8_t>> hidden_patterns(uint32_t tokens) {
  std::vector<std::vector<uint8_t>> all(4, std::vector<uint8_t>(tokens));
  for (uint32_t i = 0; i < tokens; ++i) {
    all[0][i] = i % 3 == 1;
    all[1][i] = i / kSplitTokens == 1;
    all[2][i] = i < 2 * kSplitTokens + 3;
    all[3][i] = 1;
  }
  return all;
}

TEST(Attend, HiddenTokensAreSeenByThemselvesAlone) {
  constexpr uint32_t kTokens = 540;
  const std::vector<std::vector<uint8_t>> patterns = hidden_patterns(kTokens);
  for (size_t i = 0; i < cases().size(); ++i) {
    const Case& c = cases()[i];
    Scene scene(c, kTokens, 11);
    for (size_t p = 0; p < patterns.size(); ++p) {
      if (i > 0 && i % patterns.size() != p) continue;  // the oracle takes its time
      scene.hidden = patterns[p];
      SCOPED_TRACE("case " + std::to_string(i) + ", pattern " + std::to_string(p));
      expect_close(scene.attend_all(best_target(), 64, 1), scene.oracle(),
                   2e-4 * std::max(1.0f, c.spread * c.spread / 4));
      if (HasFatalFailure()) return;
    }
  }
}

// Splits that are units of their own, and those that one unit goes through; what is hidden has no weight at all.
TEST(Attend, BitsWithHiddenTokensDoNotDependOnPagesChunksThreadsOrTarget) {
  constexpr uint32_t kTokens = 540;
  const Case small{.heads = 2, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
  Case window = small, capped = small;
  window.window = 300;
  window.dtype = KvDtype::f16;
  capped.soft_cap = 5.0f;
  capped.spread = 4.0f;
  for (const Case& c : {small, window, capped}) {
    for (const std::vector<uint8_t>& hidden : hidden_patterns(kTokens)) {
      Scene scene(c, kTokens, 12);
      scene.hidden = hidden;
      const std::vector<float> whole = scene.attend_all(SimdTarget::scalar, kTokens, 1);
      for (const SimdTarget target : available_targets()) {
        EXPECT_EQ(whole, scene.attend_all(target, 1, 2)) << simd_target_name(target);
        EXPECT_EQ(whole, scene.attend_all(target, 64, 3, 2)) << simd_target_name(target);
      }
      // Later tokens do not feel what values hidden ones have.
      for (uint32_t j = 0; j < kTokens; ++j) {
        if (hidden[j] == 0) continue;
        for (size_t i = 0; i < size_t{c.kv_heads} * c.value_dim; ++i) scene.v[j * c.kv_heads * c.value_dim + i] = 7.0f;
      }
      const std::vector<float> other = scene.attend_all(best_target(), 64, 4);
      const size_t width = size_t{c.heads} * c.value_dim;
      for (size_t t = 0; t < kTokens; ++t) {
        if (hidden[t] != 0) continue;
        ASSERT_TRUE(std::equal(&whole[t * width], &whole[t * width] + width, &other[t * width])) << "token " << t;
      }
    }
  }
}

TEST(Attend, AMaskThatHidesNothingChangesNothing) {
  Scene scene({.soft_cap = 5.0f, .sinks = true}, 300, 13);
  const std::vector<float> plain = scene.attend_all(best_target(), 64, 1);
  scene.hidden.assign(300, 0);
  EXPECT_EQ(scene.attend_all(best_target(), 64, 1), plain);
}

// A window's two edges, by values that are one-hot in their distance: distance W - 1 is seen, W is not.
TEST(Attend, WindowIncludesTheTokenItself) {
  const Case c{.heads = 1, .kv_heads = 1, .key_dim = 16, .value_dim = 16, .window = 8};
  Scene scene(c, 12, 1);
  std::fill(scene.q.begin(), scene.q.end(), 0.0f);  // all scores equal: a plain average over visible keys
  std::fill(scene.v.begin(), scene.v.end(), 0.0f);
  scene.v[3 * 16] = 8.0f;  // at distance 8 of token 11, 7 of token 10
  scene.v[4 * 16 + 1] = 8.0f;
  const std::vector<float> out = scene.attend_all(best_target(), 12, 1);
  EXPECT_FLOAT_EQ(out[10 * 16], 1.0f);
  EXPECT_FLOAT_EQ(out[11 * 16], 0.0f);
  EXPECT_FLOAT_EQ(out[11 * 16 + 1], 1.0f);
}

// NaN and infinity in a query or a key are seen by the rows that meet them, whatever splits lie between, and by no
// other.
TEST(Attend, NaNReachesExactlyTheRowsThatSeeIt) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  constexpr uint32_t kTokens = 600, kWindow = 300;
  for (const uint32_t window : {0u, kWindow}) {
    for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::bf16}) {
      const Case c{.window = window, .dtype = dtype};
      const std::vector<float> clean = Scene(c, kTokens, 5).attend_all(best_target(), 64, 1);
      Scene scene(c, kTokens, 5);
      scene.q[(size_t{20} * 4 + 3) * 32 + 7] = kInf;                               // token 20, head 3
      for (size_t d = 0; d < 32; ++d) scene.q[(size_t{570} * 4) * 32 + d] = kNaN;  // token 570, head 0: no score counts
      scene.k[(size_t{100} * 2 + 1) * 32 + 31] = kNaN;  // KV head 1, which heads 2 and 3 read
      scene.v[(size_t{290} * 2) * 32 + 9] = kNaN;       // KV head 0, one dim
      for (const SimdTarget target : available_targets()) {
        for (const uint32_t chunk : {1u, 64u, kTokens}) {
          const std::vector<float> out = scene.attend_all(target, chunk, 2, 2);
          for (uint32_t i = 0; i < out.size(); ++i) {
            const uint32_t token = i / (4 * 32), head = i / 32 % 4, dim = i % 32;
            const auto sees = [&](uint32_t key) { return key <= token && (window == 0 || token < key + window); };
            const bool broken = (token == 20 && head == 3) || (token == 570 && head == 0) || (sees(100) && head >= 2) ||
                                (sees(290) && head < 2 && dim == 9);
            ASSERT_EQ(std::isnan(out[i]), broken) << "token " << token << ", head " << head << ", dim " << dim;
            if (!broken) ASSERT_EQ(out[i], clean[i]);
          }
        }
      }
    }
  }
}

TEST(Append, CountsWhatAHalfFloatCannotHold) {
  const Case c{.heads = 2, .kv_heads = 2, .key_dim = 16, .value_dim = 16, .dtype = KvDtype::f16};
  Scene scene(c, 3, 1);
  EXPECT_EQ(scene.saturated(), 0u);
  scene.k[5] = 70000.0f;
  scene.v[40] = -1e9f;
  scene.v[41] = 65519.0f;  // rounds to the largest half float
  EXPECT_EQ(scene.saturated(), 2u);
}

// Values worked out by hand (algorithms notes): logits .5, -1, 2, .25 over values (1,0), (0,1), (2,-1), (.5,.5).
TEST(Attend, WorkedExampleWithAndWithoutSink) {
  const Case plain{.heads = 1, .kv_heads = 1, .key_dim = 16, .value_dim = 16, .scale = 1.0f};
  Scene scene(plain, 4, 1);
  std::fill(scene.q.begin(), scene.q.end(), 0.0f);
  std::fill(scene.k.begin(), scene.k.end(), 0.0f);
  std::fill(scene.v.begin(), scene.v.end(), 0.0f);
  scene.q[3 * 16] = 1.0f;
  const float logits[] = {0.5f, -1.0f, 2.0f, 0.25f}, values[][2] = {{1, 0}, {0, 1}, {2, -1}, {0.5f, 0.5f}};
  for (int j = 0; j < 4; ++j) {
    scene.k[static_cast<size_t>(j) * 16] = logits[j];
    scene.v[static_cast<size_t>(j) * 16] = values[j][0];
    scene.v[static_cast<size_t>(j) * 16 + 1] = values[j][1];
  }
  const std::vector<float> out = scene.attend_all(best_target(), 4, 1);
  EXPECT_NEAR(out[3 * 16], 1.596758988, 1e-6);
  EXPECT_NEAR(out[3 * 16 + 1], -0.596758988, 1e-6);
}

}  // namespace
}  // namespace kvarto
