// Prompts beside decodes that would take longer than the step may: their rows go through the model a few layers at a
// time, each step computing its decodes first and then as many layers as its time budget holds. Rows do not know of
// each other, so nothing that is computed depends on where a pass was cut.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/engine_impl.h"

namespace kvarto {
namespace {

// A pass takes so many steps at most, whatever its layers take: a slow machine still makes headway.
constexpr uint32_t kMostSteps = 32;

}  // namespace

// Takes the prefills of the step that was planned out of it. (A decode has one token left, and so has the end of a
// prompt that was left over: both are a row of the step.)
void Engine::Impl::begin_pass() {
  const auto is_prefill = [](const Entry& entry) { return entry.sample->remaining() > 1; };
  std::ranges::copy_if(step.entries, std::back_inserter(pass.rows.entries), is_prefill);
  std::erase_if(step.entries, is_prefill);
  pass.layers_done = pass.steps = 0;
  pass.us = 0;
  fill(pass.rows);
}

// At least a layer; all that are left when nothing decodes. What it computed last belongs to this step.
void Engine::Impl::advance_pass() {
  const uint32_t layers = parts.model->layers();
  const uint32_t least = pass.layers_done + (layers + kMostSteps - 1) / kMostSteps;
  const double budget_us = step.entries.empty() ? std::numeric_limits<double>::infinity() : plan.prefill_us;
  const Rows& rows = pass.rows;
  auto* const out = reinterpret_cast<float*>(hidden.data()) + step.logit_rows.size() * parts.model->config().width;
  const uint64_t start_us = parts.clock->now_us();
  double spent_us = 0.0, layer_us = 0.0;  // in this step; of the dearest layer in it
  while (pass.layers_done < layers && (pass.layers_done < least || spent_us + layer_us <= budget_us)) {
    parts.model->run({.tokens = rows.tokens, .sequences = rows.sequences, .logit_rows = rows.logit_rows, .trace = {}},
                     {pass.layers_done, pass.layers_done + 1}, parts.workspace, out);
    ++pass.layers_done;
    const double before_us = std::exchange(spent_us, static_cast<double>(parts.clock->now_us() - start_us));
    layer_us = std::max(layer_us, spent_us - before_us);
  }
  pass.us += static_cast<uint64_t>(spent_us);
  ++pass.steps;
  pass_us = spent_us;
  if (pass.layers_done < layers) return;
  totals.cut_passes += pass.steps > 1;
  parts.cost->observe({rows.tokens.size(), rows.context, 0}, static_cast<double>(pass.us), StepKind::mixed, pass.steps);
  step.entries.insert(step.entries.end(), rows.entries.begin(), rows.entries.end());
  step.logit_from.insert(step.logit_from.end(), rows.logit_from.begin(), rows.logit_from.end());
  pass.rows.entries.clear();
}

// For one that ends or gives way in the middle. Its rows stay, and are computed for nobody; they keep finite values.
void Engine::Impl::leave_pass(const Sample& sample) {
  Rows& rows = pass.rows;
  const auto found = std::ranges::find(rows.entries, &sample, &Entry::sample);
  if (found == rows.entries.end()) return;
  rows.sequences.erase(rows.sequences.begin() + (found - rows.entries.begin()));
  rows.entries.erase(found);
  size_t kept = 0;
  for (size_t i = 0; i < rows.logit_from.size(); ++i) {
    if (rows.logit_from[i].sample == &sample) continue;
    rows.logit_from[kept] = rows.logit_from[i];
    rows.logit_rows[kept++] = rows.logit_rows[i];
  }
  rows.logit_from.resize(kept);
  rows.logit_rows.resize(kept);
}

// The prompts of the pass begin again: somebody else needs its buffers.
void Engine::Impl::abandon_pass() {
  for (const Entry& entry : pass.rows.entries) cache->cancel(entry.sample->sequence);
  pass.rows.entries.clear();
}

}  // namespace kvarto
