// Runs one golden file (see golden.h) teacher-forced through a Model and compares every figure it holds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/model.h"
#include "tests/support/contiguous.h"
#include "tests/support/golden.h"

namespace kvarto::testing {

struct LoadedModel {
  std::shared_ptr<const GgufFile> file;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
};

inline LoadedModel load_for_test(const std::string& path, const CpuBackendOptions& options) {
  LoadedModel loaded;
  auto file = GgufFile::open(path);
  if (!file) throw std::runtime_error(file.error().message);
  loaded.file = *file;
  loaded.backend = cpu_backend(options);
  auto model = load_model(loaded.file, loaded.backend);
  if (!model) throw std::runtime_error(model.error().message);
  loaded.model = *model;
  return loaded;
}

// Which part of a golden file to run.
struct GoldenScope {
  size_t longest_prompt = SIZE_MAX;
  size_t greedy_steps = SIZE_MAX;  // of the continuation, at most; at least 1
};

struct GoldenTolerance {
  double logit = 0.01, nll_mean = 1e-4, gap = 0.01;
  double trace = 1e-3;  // of values and norms of the layer trace, relative to the norm
};

// log-sum-exp of a row in double.
inline double log_sum_exp(std::span<const float> row) {
  const double m = *std::ranges::max_element(row);
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - m);
  return m + std::log(sum);
}

// Visits the logits row of every position of `ids`, computed in chunks of 64 rows at most.
inline void each_logits_row(const LoadedModel& loaded, std::span<const TokenId> ids, Workspace& workspace,
                            const std::function<void(size_t position, std::span<const float> row)>& visit,
                            const std::function<void(uint32_t layer, std::span<const float> last_row)>& trace = {},
                            KvDtype dtype = KvDtype::f32) {
  const ModelConfig& config = loaded.model->config();
  ContiguousCache cache(config.kv_geometry(), dtype, ids.size());
  std::vector<float> hidden(size_t{64} * config.width), logits(size_t{64} * config.vocabulary);
  for (size_t first = 0; first < ids.size(); first += 64) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(64, ids.size() - first));
    std::vector<uint32_t> rows(count);
    for (uint32_t i = 0; i < count; ++i) rows[i] = i;
    const BatchSequence sequence{0, count, first, cache.views(count)};
    Batch batch{ids.subspan(first, count), {&sequence, 1}, rows, {}};
    if (trace && first + count == ids.size()) {
      batch.trace = [&](uint32_t layer, const float* x) {
        trace(layer, {x + size_t{count - 1} * config.width, config.width});
      };
    }
    loaded.model->forward(batch, workspace, hidden.data());
    if (batch.trace)
      trace(static_cast<uint32_t>(config.layers.size()) + 1,
            {hidden.data() + size_t{count - 1} * config.width, config.width});
    cache.advance(count);
    loaded.model->logits(hidden.data(), count, logits.data());
    for (uint32_t i = 0; i < count; ++i)
      visit(first + i, {logits.data() + size_t{i} * config.vocabulary, config.vocabulary});
  }
}

// Compares one prompt's prediction `row` with the golden's `top20` and `logsumexp`.
inline void compare_top(const nlohmann::json& golden, std::span<const float> row, const GoldenTolerance& tolerance) {
  for (const auto& entry : golden["top20"]) {
    EXPECT_NEAR(row[entry[0].get<size_t>()], entry[1].get<double>(), tolerance.logit) << "token " << entry[0];
  }
  EXPECT_NEAR(log_sum_exp(row), golden["logsumexp"].get<double>(), tolerance.logit);
}

// One golden case, teacher-forced over the prompt and the greedy continuation. Returns how many greedy steps were
// compared.
inline size_t check_case(const LoadedModel& loaded, const nlohmann::json& golden, Workspace& workspace,
                         const GoldenTolerance& tolerance, size_t greedy_steps = SIZE_MAX) {
  SCOPED_TRACE(golden.value("name", "case of " + std::to_string(golden["ids"].size())));
  std::vector<TokenId> ids = golden["ids"];
  std::vector<TokenId> greedy = golden["greedy"];
  greedy.resize(std::min(greedy.size(), greedy_steps));
  const std::vector<double> gaps = golden["greedy_gap"];
  const size_t prompt = ids.size();
  ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
  std::vector<TokenId> argmax_golden;
  if (golden.contains("argmax_each_pos") && golden["argmax_each_pos"].is_array()) {
    argmax_golden = golden["argmax_each_pos"].get<std::vector<TokenId>>();
  }
  double nll = 0;
  size_t compared = 0;
  each_logits_row(loaded, ids, workspace, [&](size_t position, std::span<const float> row) {
    const auto best = static_cast<TokenId>(std::ranges::max_element(row) - row.begin());
    if (position + 1 < prompt) nll += log_sum_exp(row) - row[static_cast<size_t>(ids[position + 1])];
    if (position < argmax_golden.size() && best != argmax_golden[position]) {
      // Ties apart, the best token is the golden's: its logit may lie at most the tolerance below.
      EXPECT_NEAR(row[static_cast<size_t>(best)], row[static_cast<size_t>(argmax_golden[position])], tolerance.gap)
          << "argmax at position " << position;
    }
    if (position + 1 == prompt) compare_top(golden, row, tolerance);
    if (position + 1 >= prompt && gaps[position + 1 - prompt] >= tolerance.gap) {
      EXPECT_EQ(best, greedy[position + 1 - prompt]) << "greedy step " << position + 1 - prompt;
      ++compared;
    }
  });
  // One step alone may be a near tie; the file as a whole may not.
  if (greedy_steps > 1) {
    EXPECT_GT(compared, 0u);
  }
  if (golden.contains("prompt_nll_mean") && !golden["prompt_nll_mean"].is_null()) {
    EXPECT_NEAR(nll / static_cast<double>(prompt - 1), golden["prompt_nll_mean"].get<double>(), tolerance.nll_mean);
  }
  return compared;
}

inline void check_layer_trace(const LoadedModel& loaded, const nlohmann::json& goldens, Workspace& workspace,
                              const GoldenTolerance& tolerance) {
  const auto wanted =
      std::ranges::find_if(goldens["cases"], [&](const auto& c) { return c["name"] == goldens["layer_trace_case"]; });
  ASSERT_NE(wanted, goldens["cases"].end());
  const std::vector<TokenId> ids = (*wanted)["ids"];
  const auto& trace = goldens["layer_trace"];
  const size_t layers = loaded.model->config().layers.size();
  ASSERT_EQ(trace.size(), layers + 1);
  size_t seen = 0;
  const auto compare = [&](uint32_t layer, std::span<const float> x) {
    if (layer == layers) return;  // the last entry is after the final norm instead of the last layer
    const auto& golden = trace[layer == layers + 1 ? layers : layer];
    double square = 0;
    for (const float value : x) square += static_cast<double>(value) * value;
    const double norm = golden["l2"];
    EXPECT_NEAR(std::sqrt(square), norm, tolerance.trace * std::max(1.0, norm)) << "layer " << layer;
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(x[i], golden["first8"][i].get<double>(), tolerance.trace * std::max(1.0, norm / 10))
          << "layer " << layer;
    }
    ++seen;
  };
  each_logits_row(
      loaded, ids, workspace, [](size_t, std::span<const float>) {}, compare);
  EXPECT_EQ(seen, layers + 1);
}

inline void check_golden_file(const LoadedModel& loaded, const std::string& json, const GoldenTolerance& tolerance = {},
                              const GoldenScope& scope = {}) {
  const nlohmann::json goldens = read_json(source_path(json));
  Workspace workspace = Workspace::make(loaded.model->config(), 64, nullptr).value();
  size_t run = 0, compared = 0;
  for (const auto& golden : goldens["cases"]) {
    if (golden["ids"].size() > scope.longest_prompt) continue;
    compared += check_case(loaded, golden, workspace, tolerance, scope.greedy_steps);
    ++run;
  }
  EXPECT_GT(run, 0u);
  EXPECT_GT(compared, 0u);
  check_layer_trace(loaded, goldens, workspace, tolerance);
}

}  // namespace kvarto::testing
