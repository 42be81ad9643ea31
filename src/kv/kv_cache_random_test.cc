// Thousands of random operations on a small cache against a simple model: whatever happens, every sequence reads back
// what was written for it, hits are prefixes that somebody computed under the same salt, and audit() finds nothing.
// RapidCheck draws a list of numbers, one per operation; from its number an operation draws what it needs, so a failing
// list shrinks to the operations that matter.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kv/cache_core.h"
#include "kv/layout.h"
#include "kv/testing.h"

namespace kvarto {
namespace {

using namespace kvarto::testing;

struct Setting {
  const char* name;
  std::vector<LayerKv> layers;
  KvLayoutOptions options;
  size_t arena_blocks;  // in blocks of all groups together
  Replacement replacement = Replacement::lru;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  const KvLayoutOptions in_place;
  const KvLayoutOptions apart{.separate_tails = true};
  const KvLayoutOptions wide{.block_tokens = 32};
  const LayerKv ragged{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 24, .value_dim = 16};
  return {
      {"full", {full_layer(), ragged}, in_place, 26},
      {"full_fifo", {full_layer()}, in_place, 27, Replacement::fifo},
      {"full_lfu", {full_layer()}, in_place, 27, Replacement::lfu},
      {"mixed", {window_layer(32), full_layer(), window_layer(32)}, in_place, 21},
      {"mixed_apart", {window_layer(32, 2), full_layer(), window_layer(32, 2)}, apart, 20},
      {"two_windows", {window_layer(32), window_layer(50, 4), full_layer(1)}, in_place, 20},
      {"full_apart", {full_layer(), full_layer(1)}, apart, 27},
      {"latent", {latent_layer(32, 16), latent_layer(32, 16)}, in_place, 26},
      {"latent_apart", {latent_layer(32, 16)}, apart, 27},
      {"windows_only", {window_layer(40)}, in_place, 14},
      {"window_of_one", {window_layer(1), full_layer(1)}, in_place, 13},
      {"wide_blocks", {full_layer(), window_layer(48)}, wide, 14},
  };
}

class World {
 public:
  explicit World(const Setting& setting) : memory_(std::make_shared<PlainMemory>()) {
    KvLayout layout = *KvLayout::make({setting.layers}, setting.options);
    block_ = layout.block_tokens();
    full_only_ = layout.groups().size() == 1 && layout.groups()[0].kind != GroupKind::window;
    const KvCacheOptions options{.bytes = setting.arena_blocks * layout.bytes_per_token() * block_,
                                 .replacement = setting.replacement,
                                 .max_step_tokens = kMostChunk};
    core_ = std::move(*CacheCore::create(layout, memory_, options));
  }

  ~World() { drop_all(); }

  // The operation that `number` stands for; what is wrong after it, or nothing.
  std::string step(uint32_t number) {
    random_.seed(number);
    std::string wrong;
    const uint64_t dice = below(100);
    if (dice < 12 || sequences_.empty()) {
      wrong = open();
    } else if (dice < 70) {
      wrong = grow(pick(), 1 + below(below(4) == 0 ? kMostChunk : 5));
    } else if (dice < 74) {
      wrong = reserve_and_cancel(pick());
    } else if (dice < 80) {
      fork(pick());
    } else if (dice < 86) {
      wrong = trim(pick());
    } else if (dice < 99) {
      drop(pick());
    } else if (below(4) == 0) {
      const bool all = core_->clear();
      if (all != (core_->stats().active_bytes == 0)) wrong = "clear() says the wrong thing";
      if (core_->stats().cached_bytes != 0) wrong = "clear() left something";
      cleared_ = true;
    }
    if (wrong.empty()) wrong = core_->audit();
    if (wrong.empty()) wrong = read_all();
    return wrong;
  }

  void drop_all() {
    while (!sequences_.empty()) drop(sequences_.size() - 1);
  }

  // With nothing else in use, the longest sequence that could ever fit does, on top of whatever is cached.
  std::string run_longest(uint32_t number) {
    random_.seed(number);
    drop_all();
    const uint32_t chunk = static_cast<uint32_t>(1 + below(kMostChunk));
    const uint64_t longest = std::min<uint64_t>(core_->longest_sequence(chunk), 400);
    if (std::string wrong = open(); !wrong.empty()) return wrong;
    Sequence& s = sequences_.back();
    while (s.state->length() < longest) {
      const uint64_t count = std::min<uint64_t>(1 + below(chunk), longest - s.state->length());
      const uint64_t before = s.state->length();
      if (std::string wrong = grow(sequences_.size() - 1, count); !wrong.empty()) return wrong;
      if (s.state->length() == before) {
        return "no room at " + std::to_string(before) + " of " + std::to_string(longest) + " tokens in chunks of " +
               std::to_string(chunk);
      }
    }
    std::string wrong = core_->audit();
    return wrong.empty() ? read_all() : wrong;
  }

  KvCacheStats stats() const { return core_->stats(); }
  uint64_t hits() const { return hits_; }
  uint64_t refused() const { return refused_; }
  int copies() const { return memory_->copies; }
  std::string audit() const { return core_->audit(); }

 private:
  static constexpr uint32_t kMostChunk = 70;

  struct Sequence {
    std::unique_ptr<KvSequenceState> state = std::make_unique<KvSequenceState>();
    std::vector<TokenId> plan;    // what it would like to compute
    std::vector<TokenId> tokens;  // what the model says it holds
    std::string salt;
  };

  uint64_t below(uint64_t n) { return random_() % n; }
  size_t pick() { return below(sequences_.size()); }

  // Texts that share beginnings: a few families, each with few choices per block.
  std::vector<TokenId> text() {
    std::vector<TokenId> out;
    const TokenId family = static_cast<TokenId>(below(3));
    const uint64_t length = 1 + below(150);
    TokenId branch = 0;
    for (uint64_t i = 0; i < length; ++i) {
      if (i % 23 == 22) branch = static_cast<TokenId>(branch * 2 + static_cast<TokenId>(below(2)) + 1);
      out.push_back(family * 100000 + branch * 100 + static_cast<TokenId>(i % 7));
    }
    return out;
  }

  std::string open() {
    if (sequences_.size() >= 6) drop(pick());
    Sequence s;
    s.plan = text();
    s.salt = below(4) == 0 ? "s" : "";
    OpenOptions options{.cache_salt = s.salt};
    if (below(3) == 0) options.max_cached_tokens = s.plan.size();
    const PrefixMatch expected = core_->match(s.plan, options);
    const PrefixMatch found = core_->open(*s.state, s.plan, options);
    if (found.tokens != expected.tokens || found.reason != expected.reason) return "match() and open() disagree";
    const uint64_t most = std::min<uint64_t>(options.max_cached_tokens.value_or(s.plan.size() - 1), s.plan.size());
    s.tokens.assign(s.plan.begin(), s.plan.begin() + static_cast<ptrdiff_t>(found.tokens));
    const uint64_t known = longest_known(s.plan, s.salt, most);
    hits_ += found.tokens;
    const bool nothing_lost = core_->stats().replaced_blocks == 0 && !cleared_;
    sequences_.push_back(std::move(s));
    if (found.tokens % block_ != 0 || found.tokens > known) return "a hit on what nobody computed";
    if (full_only_ && nothing_lost && found.tokens != known) return "nothing was replaced and a prefix is not found";
    if ((found.reason == MissReason::none) != (found.tokens / block_ == most / block_ && most >= block_)) {
      return "a miss without a reason, or a reason without a miss";
    }
    return {};
  }

  uint64_t longest_known(const std::vector<TokenId>& plan, const std::string& salt, uint64_t most) const {
    uint64_t best = 0;
    for (uint64_t n = block_; n <= most; n += block_) {
      if (computed_.contains({salt, std::vector<TokenId>(plan.begin(), plan.begin() + static_cast<ptrdiff_t>(n))})) {
        best = n;
      }
    }
    return best;
  }

  std::string grow(size_t at, uint64_t count) {
    Sequence& s = sequences_[at];
    std::vector<TokenId> next;
    for (uint64_t i = s.tokens.size(); next.size() < count; ++i) {
      next.push_back(i < s.plan.size() ? s.plan[i] : static_cast<TokenId>(below(2) + 50));
    }
    if (!core_->reserve(*s.state, static_cast<uint32_t>(count))) {
      ++refused_;
      return s.state->reserved == 0 ? "" : "a refused reservation left something";
    }
    std::vector<TokenId> all = s.tokens;
    all.insert(all.end(), next.begin(), next.end());
    if (std::string wrong = core_->audit(); !wrong.empty()) return wrong;
    std::string wrong = fake_forward(s.state->views, core_->layout(), s.tokens.size(), prefix_values(all, s.salt));
    if (!wrong.empty()) return wrong;
    core_->commit(*s.state, next);
    s.tokens = std::move(all);
    for (uint64_t n = block_; n <= s.tokens.size(); n += block_) {
      computed_.insert({s.salt, std::vector<TokenId>(s.tokens.begin(), s.tokens.begin() + static_cast<ptrdiff_t>(n))});
    }
    return {};
  }

  std::string reserve_and_cancel(size_t at) {
    Sequence& s = sequences_[at];
    if (!core_->reserve(*s.state, static_cast<uint32_t>(1 + below(kMostChunk)))) return {};
    if (std::string wrong = core_->audit(); !wrong.empty()) return wrong;
    core_->cancel(*s.state);
    return s.state->reserved == 0 ? "" : "a cancelled reservation is still there";
  }

  void fork(size_t at) {
    if (sequences_.size() >= 6) return;
    Sequence child;
    if (!core_->fork(*sequences_[at].state, *child.state)) {
      ++refused_;
      return;
    }
    child.plan = sequences_[at].plan;
    child.tokens = sequences_[at].tokens;
    child.salt = sequences_[at].salt;
    sequences_.push_back(std::move(child));
  }

  std::string trim(size_t at) {
    Sequence& s = sequences_[at];
    const uint64_t before = s.tokens.size();
    const uint64_t wish = below(before + 1);
    const uint64_t now = core_->trim(*s.state, wish);
    s.tokens.resize(now);
    if (now > wish || now != s.state->length()) return "a trim that is too long";
    if (full_only_ && now != wish && now != wish / block_ * block_) return "a trim that lost too much";
    if (full_only_ && wish / block_ == before / block_ && now != wish) return "a trim that lost an open block";
    return {};
  }

  void drop(size_t at) {
    core_->release(*sequences_[at].state);
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(at));
  }

  // Every tile that the next token of any sequence would see.
  std::string read_all() const {
    for (const Sequence& s : sequences_) {
      if (!std::ranges::equal(s.tokens, s.state->tokens)) return "a sequence holds other tokens";
      const std::vector<uint64_t> prefix = prefix_values(s.tokens, s.salt);
      for (uint32_t g = 0; g < core_->layout().groups().size(); ++g) {
        if (std::string wrong = read_group(s, g, prefix); !wrong.empty()) return wrong;
      }
    }
    return {};
  }

  std::string read_group(const Sequence& s, uint32_t g, std::span<const uint64_t> prefix) const {
    const KvGroup& group = core_->layout().groups()[g];
    const GroupTable& table = s.state->groups[g];
    const uint64_t from = first_visible_block(group, block_, prefix.size()) * block_;
    for (uint64_t t = from; t < prefix.size(); ++t) {
      const bool in_tail = !group.tail_is_block && t / block_ == prefix.size() / block_;
      std::byte* base = in_tail ? core_->store().pool().address(table.tail) : table.addresses[t / block_];
      if (base == nullptr) return "a visible block is gone";
      for (const KvGroupLayer& l : group.layers) {
        for (uint32_t head = 0; head < l.kv_heads; ++head) {
          for (uint32_t p = 0; p < l.planes.size(); ++p) {
            const KvPlane& plane = l.planes[p];
            std::byte* tile = in_tail ? base + l.raw_offset + head * l.raw_head_stride + plane.raw_offset
                                      : base + l.offset + head * l.head_stride + plane.offset;
            if (!has_mark(mark_place(tile, plane.tile_bytes, block_, t % block_),
                          mark_of(prefix[t], l.layer, head, p))) {
              return "position " + std::to_string(t) + " of a sequence reads back wrong";
            }
          }
        }
      }
    }
    return {};
  }

  std::minstd_rand random_;  // of the operation being done
  std::shared_ptr<PlainMemory> memory_;
  std::unique_ptr<CacheCore> core_;
  uint32_t block_ = 16;
  bool full_only_ = false, cleared_ = false;
  std::vector<Sequence> sequences_;
  std::set<std::pair<std::string, std::vector<TokenId>>> computed_;
  uint64_t hits_ = 0, refused_ = 0;
};

// A list of operations. Most are short, so that failures shrink fast; the last ones are long enough to fill any cache.
rc::Gen<std::vector<uint32_t>> operations(int most) {
  return rc::gen::withSize([most](int size) {
    const auto number = rc::gen::inRange<uint32_t>(1, 1u << 30);
    return rc::gen::resize(1 + size * size * most / 10'000, rc::gen::container<std::vector<uint32_t>>(number));
  });
}

class KvCacheRandom : public ::testing::TestWithParam<Setting> {};

TEST_P(KvCacheRandom, EverySequenceReadsBackWhatWasWrittenForIt) {
  KvCacheStats total{};
  uint64_t cases = 0, hits = 0, refused = 0;
  EXPECT_TRUE(rc::check(std::string("every sequence reads back what was written for it: ") + GetParam().name, [&] {
    ++cases;
    World world(GetParam());
    for (const uint32_t number : *operations(500)) {
      const std::string wrong = world.step(number);
      RC_ASSERT(wrong == "");
    }
    const KvCacheStats stats = world.stats();
    total.replaced_blocks += stats.replaced_blocks;
    total.window_blocks_freed += stats.window_blocks_freed;
    total.copied_tails += stats.copied_tails;
    hits += world.hits();
    refused += world.refused();
    world.drop_all();
    RC_ASSERT(world.audit() == "");
    RC_ASSERT(world.stats().active_bytes == 0u);
    RC_ASSERT(world.stats().live_bytes == 0u);
  }));
  // The run took the paths it is for. (Sanitizer runs have fewer cases and may miss one.)
  if (cases < 100) return;
  EXPECT_GT(hits, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(total.replaced_blocks, 0u);
  EXPECT_GT(total.copied_tails, 0u);
  const bool windows =
      std::ranges::any_of(GetParam().layers, [](const LayerKv& l) { return l.kind == GroupKind::window; });
  EXPECT_EQ(total.window_blocks_freed > 0, windows);
}

INSTANTIATE_TEST_SUITE_P(Layouts, KvCacheRandom, ::testing::ValuesIn(settings()),
                         [](const auto& info) { return std::string(info.param.name); });

RC_GTEST_PROP(KvCacheRandomFit, WhatCouldEverFitFitsWhenNothingElseIsInUse, ()) {
  const Setting setting = settings()[*rc::gen::inRange<size_t>(0, settings().size())];
  RC_LOG() << setting.name;
  World world(setting);
  for (int round = 0; round < 2; ++round) {
    for (const uint32_t number : *operations(120)) RC_ASSERT(world.step(number) == "");
    RC_ASSERT(world.run_longest(*rc::gen::inRange<uint32_t>(1, 1u << 30)) == "");
  }
}

}  // namespace
}  // namespace kvarto
