// For the engine's tests: a model without weights over a real cache. It writes each token into the cache's raw tiles
// and makes logits from what it reads back through the views, so a block that is shared, moved or dropped wrongly shows
// as another text. reference() computes the same logits from the tokens alone, without cache, engine or batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cpu_memory.h"
#include "base/check.h"
#include "base/hash.h"
#include "engine/engine_parts.h"
#include "engine/sampler.h"
#include "kv/attend.h"

namespace kvarto {

inline constexpr uint32_t kFakeVocabulary = 64;
inline constexpr uint32_t kFakeWindow = 24;

// Atomic, since submit() reads the clock on the caller's thread while a step moves it on.
class ScriptedClock : public Clock {
 public:
  uint64_t now_us() const override { return now; }
  std::atomic<uint64_t> now = 1;
};

class FakeModel : public Model {
 public:
  FakeModel() : pool_(1, false) {
    config_.architecture = "fake";
    config_.width = config_.vocabulary = kFakeVocabulary;
    config_.context_length = 4096;
    config_.layers.resize(2);
  }

  // Layer 0 sees everything, layer 1 the last kFakeWindow tokens.
  static KvLayout layout(uint32_t block_tokens = 16, bool separate_tails = false) {
    const LayerKv full{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
    LayerKv window = full;
    window.kind = GroupKind::window;
    window.window = kFakeWindow;
    return *KvLayout::make({{full, window}}, {.block_tokens = block_tokens,
                                              .k_dtype = KvDtype::f32,
                                              .v_dtype = KvDtype::f32,
                                              .auto_dtype = KvDtype::f32,
                                              .separate_tails = separate_tails});
  }

  const ModelConfig& config() const override { return config_; }
  size_t pass_bytes() const override { return 0; }

  void run(const Batch& batch, LayerRange range, Workspace&, float* hidden) const override {
    if (range.first == 0) {
      ++forwards;
      computed_rows += batch.tokens.size();
      if (before_forward) before_forward(batch);
    }
    if (range.end - range.first < layers()) {
      ++parts;
      if (range.first > 0 && before_later_part) before_later_part();
    }
    if (clock != nullptr) clock->now += (range.end - range.first) * (500 + 50 * batch.tokens.size());
    // One layer after the other: raw tiles of blocks that this step fills hold one layer at a time. What rows saw in
    // the layers before is kept by position, as those of a sequence that leaves a pass go.
    std::map<std::pair<const KvView*, uint64_t>, uint64_t>& seen = states_[batch.tokens.data()];
    if (range.first == 0) seen.clear();
    std::vector<uint64_t> states(batch.logit_rows.size(), kSeed);
    for (uint32_t layer = range.first; layer < range.end; ++layer) {
      write(batch, layer);
      size_t out = 0;
      for (const BatchSequence& s : batch.sequences) {
        for (; out < states.size() && batch.logit_rows[out] < s.first_row + s.count; ++out) {
          const uint64_t position = s.first_position + batch.logit_rows[out] - s.first_row;
          uint64_t& state = seen.try_emplace({s.views.data(), position}, kSeed).first->second;
          for (uint64_t p = first_seen(layer, position); p <= position; ++p) {
            state = fold(state, p, read(s, layer, p, position));
          }
          states[out] = state;
        }
      }
    }
    if (range.end < layers()) return;
    for (size_t i = 0; i < states.size(); ++i) fill(states[i], hidden + i * kFakeVocabulary);
  }
  void logits(const float* hidden, size_t rows, float* out) const override {
    if (clock != nullptr) clock->now += logits_us;
    std::memcpy(out, hidden, rows * kFakeVocabulary * sizeof(float));
    if (poison_token && rows > 0) out[*poison_token] = std::nanf("");
  }

  static std::vector<float> reference(std::span<const TokenId> tokens) {
    uint64_t state = kSeed;
    for (uint64_t p = 0; p < tokens.size(); ++p) state = fold(state, p, tokens[p]);
    for (uint64_t p = first_seen(1, tokens.size() - 1); p < tokens.size(); ++p) state = fold(state, p, tokens[p]);
    std::vector<float> row(kFakeVocabulary);
    fill(state, row.data());
    return row;
  }

  mutable uint64_t forwards = 0, computed_rows = 0;
  mutable uint64_t parts = 0;  // runs that were not of all layers
  std::function<void(const Batch&)> before_forward;
  std::function<void()> before_later_part;  // of a pass that is cut: not its first
  std::optional<TokenId> poison_token;
  uint64_t logits_us = 0;
  std::shared_ptr<ScriptedClock> clock;  // runs 1 ms per step and 0.1 ms per row

 private:
  static constexpr uint64_t kSeed = 0x9e3779b97f4a7c15u;
  static uint64_t mix(uint64_t x) {  // splitmix64's finaliser
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  static uint64_t fold(uint64_t state, uint64_t position, int64_t token) {
    return mix(state ^ (position * 1000003u + static_cast<uint64_t>(token) + 1));
  }
  static uint64_t first_seen(uint32_t layer, uint64_t position) {
    return layer == 1 && position + 1 > kFakeWindow ? position + 1 - kFakeWindow : 0;
  }
  static void fill(uint64_t state, float* row) {
    for (uint64_t v = 0; v < kFakeVocabulary; ++v) {
      row[v] = static_cast<float>(mix(state + v) >> 40) * 0x1p-24f * 8.0f - 4.0f;
    }
  }

  void write(const Batch& batch, uint32_t layer) const {
    std::vector<float> k(batch.tokens.size() * 16), v(k.size());
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      k[i * 16 + layer] = v[i * 16 + 15] = static_cast<float>(batch.tokens[i]);
    }
    std::vector<AppendRows> rows;
    for (const BatchSequence& s : batch.sequences) {
      rows.push_back({.view = &s.views[layer],
                      .layer = 0,
                      .first_position = s.first_position,
                      .count = s.count,
                      .k = &k[size_t{s.first_row} * 16],
                      .k_stride = 16,
                      .v = &v[size_t{s.first_row} * 16],
                      .v_stride = 16});
    }
    append(SimdTarget::scalar, rows, pool_);
  }

  // The token at `position` as `reader` sees it: its own block raw, earlier ones sealed. -1 where K and V disagree.
  static int64_t read(const BatchSequence& s, uint32_t layer, uint64_t position, uint64_t reader) {
    const KvView& view = s.views[layer];
    const auto block = static_cast<uint32_t>(position / view.block_tokens);
    const auto slot = static_cast<uint32_t>(position % view.block_tokens);
    const bool own = block == reader / view.block_tokens;
    const auto at = [&](uint32_t plane, uint32_t element) {
      const std::byte* tile = own ? view.raw_tile(0, 0, plane, block) : view.tile(0, 0, plane, block);
      float value = 0.0f;
      std::memcpy(&value, tile + (size_t{slot / 16} * 256 + element) * sizeof(float), sizeof value);
      return static_cast<int64_t>(value);
    };
    const int64_t key = at(0, layer * 16 + slot % 16), value = at(1, slot % 16 * 16 + 15);
    return key == value ? key : -1;
  }

  ModelConfig config_;
  mutable ThreadPool pool_;
  mutable std::map<const TokenId*, std::map<std::pair<const KvView*, uint64_t>, uint64_t>> states_;
};

// An engine over a FakeModel; `blocks` blocks of each group fit.
struct FakeSetup {
  size_t blocks = 1000;
  uint32_t block_tokens = 16;
  bool separate_tails = false;
  EngineOptions options = {};
};
struct FakeEngine {
  explicit FakeEngine(FakeSetup setup = {}) {
    clock = std::make_shared<ScriptedClock>();
    model->clock = clock;
    EngineParts parts;
    parts.model = model;
    parts.layout = FakeModel::layout(setup.block_tokens, setup.separate_tails);
    for (const KvGroup& group : parts.layout.groups()) parts.kv_bytes += setup.blocks * group.block_bytes;
    parts.name_space = "fake";
    parts.memory = [this] { return std::make_shared<CpuMemory>(ledger); };
    parts.clock = clock;
    parts.options = setup.options;
    auto made = Engine::assemble(std::move(parts));
    if (!made) throw std::runtime_error(made.error().message);
    engine = std::move(*made);
  }
  Engine* operator->() const { return engine.get(); }

  // Submits and keeps the result in `results` when it comes.
  RequestId submit(Request request) {
    request.on_finish = [this](const RequestResult& r) {
      ++finish_calls[r.request];
      results[r.request] = r;
    };
    auto accepted = engine->submit(std::move(request));
    if (!accepted) throw std::runtime_error(accepted.error().message);
    return *accepted;
  }
  void run() {
    while (engine->step()) {
    }
  }
  // Nothing is held, nothing is lost.
  std::string at_rest() {
    if (!engine->idle()) return "not idle";
    if (!engine->cache().balanced()) return "not balanced";
    if (engine->stats().kv.active_bytes != 0) return "blocks are still held";
    return engine->cache().audit();
  }

  std::shared_ptr<FakeModel> model = std::make_shared<FakeModel>();
  std::shared_ptr<ScriptedClock> clock;
  std::shared_ptr<Ledger> ledger;  // of the next cache; null: no cap
  std::map<RequestId, RequestResult> results;
  std::map<RequestId, int> finish_calls;
  std::unique_ptr<Engine> engine;  // last: its callbacks use the above
};

inline std::vector<TokenId> fake_prompt(size_t length, uint32_t seed) {
  std::vector<TokenId> tokens(length);
  uint32_t x = seed * 2654435761u + 12345u;
  for (TokenId& token : tokens) {
    x = x * 1664525u + 1013904223u;
    token = static_cast<TokenId>(x >> 26);  // 0 to 63
  }
  return tokens;
}

inline Request fake_request(std::vector<TokenId> prompt, uint32_t max_tokens, uint64_t seed = 1) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.seed = seed;
  request.hash_logits = true;
  return request;
}

// What a request's first sample must generate: the sampler over reference() rows, one token after the other.
inline std::vector<TokenId> reference_text(const Request& request, uint32_t sample = 0) {
  Sampler sampler;
  std::vector<TokenId> tokens = request.prompt, stops = request.sampling.stop_token_ids;
  std::sort(stops.begin(), stops.end());
  std::unordered_map<TokenId, uint32_t> counts;
  while (tokens.size() < request.prompt.size() + request.sampling.max_tokens) {
    const std::vector<float> row = FakeModel::reference(tokens);
    const auto next = sampler.sample(row, {.params = &request.sampling,
                                           .stop_ids = stops,
                                           .seed = request.sampling.seed.value_or(0),
                                           .sample_index = request.sample_index + sample,
                                           .tokens = tokens,
                                           .prompt_tokens = request.prompt.size(),
                                           .output_counts = wants_counts(request.sampling) ? &counts : nullptr});
    tokens.push_back(next->token);
    ++counts[next->token];
    if (std::binary_search(stops.begin(), stops.end(), next->token)) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), tokens.end()};
}

// SHA-256 over the rows that the tokens of a text were chosen from.
inline std::string reference_hash(std::span<const TokenId> prompt, std::span<const TokenId> text) {
  Sha256 hash;
  std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  for (const TokenId token : text) {
    const std::vector<float> row = FakeModel::reference(tokens);
    hash.update(std::as_bytes(std::span(row)));
    tokens.push_back(token);
  }
  return to_hex(hash.finish());
}

}  // namespace kvarto
