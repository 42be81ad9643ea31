// Thousands of random operations on a small cache against a simple model: whatever happens, every sequence reads back
// what was written for it, hits are prefixes that somebody computed under the same salt, audit() finds nothing, and
// whoever applies the events knows exactly the names that there are.
// RapidCheck draws a list of numbers, one per operation; from its number an operation draws what it needs, so a failing
// list shrinks to the operations that matter.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
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
  size_t event_bytes = size_t{16} << 20;
};

constexpr size_t kFewEvents = 3000;  // bytes; some get lost

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  const KvLayoutOptions in_place;
  const KvLayoutOptions apart{.separate_tails = true};
  const KvLayoutOptions wide{.block_tokens = 32};
  const LayerKv ragged{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 24, .value_dim = 16};
  return {
      {"full", {full_layer(), ragged}, in_place, 26},
      {"full_fifo", {full_layer()}, in_place, 27, Replacement::fifo},
      {"full_lfu", {full_layer()}, in_place, 27, Replacement::lfu, kFewEvents},
      {"mixed", {window_layer(32), full_layer(), window_layer(32)}, in_place, 21},
      {"mixed_apart", {window_layer(32, 2), full_layer(), window_layer(32, 2)}, apart, 20},
      {"two_windows",
       {window_layer(32), window_layer(50, 4), full_layer(1)},
       in_place,
       20,
       Replacement::lru,
       kFewEvents},
      {"full_apart", {full_layer(), full_layer(1)}, apart, 27},
      {"latent", {latent_layer(32, 16), latent_layer(32, 16)}, in_place, 26},
      {"latent_apart", {latent_layer(32, 16)}, apart, 27},
      {"windows_only", {window_layer(40)}, in_place, 14},
      {"window_of_one", {window_layer(1), full_layer(1)}, in_place, 13},
      {"wide_blocks", {full_layer(), window_layer(48)}, wide, 14},
  };
}

// What a router knows that applies the events of a cache.
class Router {
 public:
  explicit Router(const KvLayout& layout, size_t arena_bytes) : layout_(layout), arena_bytes_(arena_bytes) {}

  // What is wrong with them, or nothing.
  std::string apply(const KvEvents& events) {
    if (events.lost && (events.list.empty() || events.list[0].kind != KvEvent::Kind::cleared)) {
      return "events were lost and the list does not start anew";
    }
    for (const KvEvent& event : events.list) {
      std::string wrong;
      if (event.kind == KvEvent::Kind::cleared) names_.clear();
      if (event.kind == KvEvent::Kind::stored) wrong = store(event);
      if (event.kind == KvEvent::Kind::removed) {
        if (event.hashes.size() != 1 || names_.erase({event.hashes[0], event.group}) != 1) {
          wrong = "a name is removed that was not stored";
        }
      }
      if (!wrong.empty()) return wrong;
      // Memory is given up before it is used again.
      size_t bytes = 0;
      for (const auto& [hash, group] : names_) bytes += layout_.groups()[group].block_bytes;
      if (bytes > arena_bytes_) return "more is announced than the arena holds";
    }
    return {};
  }

  using Names = std::set<std::pair<BlockHash, uint32_t>>;  // hash, group
  const Names& names() const { return names_; }

  // The tokens that `text` shares at most with an announced prefix of the same salt, if one goes on from there with
  // another token.
  std::optional<uint64_t> parting(const std::vector<TokenId>& text, const std::string& salt) const {
    uint64_t best = 0;
    bool goes_on = false;
    for (const auto& [hash, group] : names_) {
      const auto& [its_salt, prefix] = prefixes_.at(hash);
      if (its_salt != salt) continue;
      const uint64_t common = static_cast<uint64_t>(std::ranges::mismatch(text, prefix).in1 - text.begin());
      if (common > best) goes_on = false;
      best = std::max(best, common);
      goes_on |= common == best && prefix.size() > common;
    }
    if (best == 0 || best == text.size() || !goes_on) return std::nullopt;
    return best;
  }

 private:
  std::string store(const KvEvent& event) {
    const KvGroup& group = layout_.groups()[event.group];
    const uint32_t b = layout_.block_tokens();
    if (event.block_tokens != b || event.group_kind != group.kind || event.window != group.window) {
      return "an event says the wrong things about its group";
    }
    if (event.hashes.empty() || event.tokens.size() != event.hashes.size() * b) return "tokens do not match hashes";
    if (event.parent && !event.cache_salt.empty()) return "a salt behind the first block";
    std::optional<BlockHash> parent = event.parent;
    for (size_t i = 0; i < event.hashes.size(); ++i) {
      const std::span<const TokenId> tokens = std::span(event.tokens).subspan(i * b, b);
      const std::optional<std::string_view> salt =
          parent || event.cache_salt.empty() ? std::nullopt : std::optional<std::string_view>(event.cache_salt);
      if (chain_hash(parent.value_or(root_hash()), tokens, salt) != event.hashes[i]) return "a name of other tokens";
      if (!names_.insert({event.hashes[i], event.group}).second) return "a name is stored twice";
      remember(parent, event.hashes[i], tokens, event.cache_salt);
      parent = event.hashes[i];
    }
    return {};
  }

  // A parent may be unknown where a window lost it before the events were lost.
  void remember(const std::optional<BlockHash>& parent, const BlockHash& hash, std::span<const TokenId> tokens,
                const std::string& salt) {
    std::pair<std::string, std::vector<TokenId>> prefix{salt, {}};
    if (parent && prefixes_.contains(*parent)) prefix = prefixes_.at(*parent);
    prefix.second.insert(prefix.second.end(), tokens.begin(), tokens.end());
    prefixes_[hash] = std::move(prefix);
  }

  const KvLayout& layout_;
  size_t arena_bytes_;
  Names names_;
  std::map<BlockHash, std::pair<std::string, std::vector<TokenId>>> prefixes_;  // salt and tokens; kept for good
};

class World {
 public:
  explicit World(const Setting& setting) : memory_(std::make_shared<PlainMemory>()) {
    KvLayout layout = *KvLayout::make({setting.layers}, setting.options);
    block_ = layout.block_tokens();
    full_only_ = layout.groups().size() == 1 && layout.groups()[0].kind != GroupKind::window;
    const KvCacheOptions options{.bytes = setting.arena_blocks * layout.bytes_per_token() * block_,
                                 .replacement = setting.replacement,
                                 .max_step_tokens = kMostChunk,
                                 .record_events = true,
                                 .event_bytes = setting.event_bytes,
                                 .clock_us = [this] { return ++time_; },
                                 .on_life = [this](const BlockLife& life) { hear(life); },
                                 .life_sample = 1.0};
    core_ = std::move(*CacheCore::create(layout, memory_, options));
    router_ = std::make_unique<Router>(core_->layout(), options.bytes);
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
    if (wrong.empty()) wrong = watch();
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

  // What is seen from outside, after some of the steps: the events so far, the map of blocks, a near miss.
  std::string watch() {
    std::string wrong = map_agrees();
    if (wrong.empty() && replaced_lives_ != core_->stats().replaced_blocks) wrong = "a replaced block was not told of";
    if (wrong.empty() && impossible_lives_ > 0) wrong = "a block was used before it was taken";
    if (!wrong.empty() || below(3) != 0) return wrong;
    const KvEvents events = core_->take_events();
    times_lost_ += events.lost;
    wrong = router_->apply(events);
    if (wrong.empty() && router_->names() != named()) wrong = "the events do not lead to the names that there are";
    if (!wrong.empty() || !full_only_) return wrong;
    const std::vector<TokenId> prompt = text();
    const std::string salt = below(4) == 0 ? "s" : "";
    const std::optional<NearMiss> near = core_->nearest(prompt, {.cache_salt = salt});
    const std::optional<uint64_t> parting = router_->parting(prompt, salt);
    if (near.has_value() != parting.has_value()) return "a near miss that is none, or none that is one";
    return !near || near->position() == *parting ? "" : "a near miss at the wrong token";
  }

  KvCacheStats stats() const { return core_->stats(); }
  uint64_t times_lost() const { return times_lost_; }
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

  void hear(const BlockLife& life) {
    replaced_lives_ += life.moment == BlockLife::Moment::replaced;
    impossible_lives_ += life.idle_us > life.lifetime_us || life.lifetime_us > time_;
  }

  // The names that the pool's tags and the index have.
  Router::Names named() const {
    Router::Names out;
    const BlockPool& pool = core_->store().pool();
    std::vector<BlockId> blocks;
    for (uint32_t slab = 0; slab < pool.slab_count(); ++slab) {
      pool.blocks_of(slab, blocks);
      for (const BlockId id : blocks) {
        if (pool.tag(id) == BlockPool::kNoTag) continue;
        const IndexEntry entry = core_->store().index().entry(pool.tag(id));
        out.insert({core_->store().index().hash(entry.node), entry.group});
      }
    }
    return out;
  }

  std::string map_agrees() const {
    std::vector<BlockCell> cells;
    core_->block_map(cells);
    std::map<BlockCell::State, size_t> bytes;
    uint64_t references = 0, held = 0;
    for (const BlockCell& cell : cells) {
      bytes[cell.state] += cell.bytes;
      references += cell.references;
      const bool used = cell.state == BlockCell::State::open || cell.state == BlockCell::State::active;
      if (used != (cell.references > 0)) return "a cell is held and not in use, or in use and not held";
      if (cell.state == BlockCell::State::cached && !cell.named) return "a cached cell that nobody can find";
      if (cell.state == BlockCell::State::open && (cell.named || cell.references != 1)) return "a shared open cell";
    }
    for (const Sequence& s : sequences_) {
      for (const GroupTable& table : s.state->groups) {
        held += static_cast<uint64_t>(std::ranges::count_if(table.ids, [](BlockId id) { return id != kNoBlock; }));
        held += (table.tail != kNoBlock) + (table.next_tail != kNoBlock);
      }
    }
    const KvCacheStats stats = core_->stats();
    if (bytes[BlockCell::State::cached] != stats.cached_bytes) return "the map's cached bytes are off";
    if (bytes[BlockCell::State::open] + bytes[BlockCell::State::active] != stats.active_bytes) {
      return "the map's bytes in use are off";
    }
    return references == held ? "" : "the map's references are off";
  }
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
  std::unique_ptr<Router> router_;
  uint64_t time_ = 0;
  uint64_t hits_ = 0, refused_ = 0, replaced_lives_ = 0, impossible_lives_ = 0, times_lost_ = 0;
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
  uint64_t cases = 0, hits = 0, refused = 0, lost = 0;
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
    lost += world.times_lost();
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
  EXPECT_EQ(lost > 0, GetParam().event_bytes == kFewEvents);
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
