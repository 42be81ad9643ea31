// Prompts beside decodes that would take longer than the step may: their rows go through the model a few layers at a
// time, each step computing its decodes first and then as many layers as its time budget holds. Rows do not know of
// each other, so nothing that is computed depends on where a pass was cut.
#include <algorithm>
#include <iterator>
#include <limits>

#include "engine/engine_impl.h"

namespace kvarto {

// Takes the prefills of the step that was planned out of it. (A decode has one token left, and so has the end of a
// prompt that was left over: both are a row of the step.)
void Engine::Impl::begin_pass() {
  const auto is_prefill = [](const Entry& entry) { return entry.sample->remaining() > 1; };
  std::ranges::copy_if(step.entries, std::back_inserter(pass.rows.entries), is_prefill);
  std::erase_if(step.entries, is_prefill);
  fill(pass.rows);
}

// All that is left when nothing decodes. What the last layer computes belongs to this step.
void Engine::Impl::advance_pass() {
  const uint32_t layers = parts.model->layers();
  const Rows& rows = pass.rows;
  const Batch batch{.tokens = rows.tokens, .sequences = rows.sequences, .logit_rows = rows.logit_rows, .trace = {}};
  auto* const out = reinterpret_cast<float*>(hidden.data()) + step.logit_rows.size() * parts.model->config().width;
  LayerBudget budget(layers, step.entries.empty() ? std::numeric_limits<double>::infinity() : plan.prefill_us);
  for (; pass.layers_done < layers && budget.holds_another(); ++pass.layers_done) {
    const uint64_t start_us = parts.clock->now_us();
    parts.model->run(batch, {pass.layers_done, pass.layers_done + 1}, parts.workspace, out);
    budget.took(static_cast<double>(parts.clock->now_us() - start_us));
  }
  pass.us += budget.spent_us();
  ++pass.steps;
  pass_advanced = true;
  if (pass.layers_done < layers) return;
  totals.cut_passes += pass.steps > 1;
  // Beside decodes, and of all rows that it began with: otherwise it says nothing of the next one.
  if (pass.whole && !step.entries.empty()) {
    parts.cost->observe({rows.tokens.size(), rows.context, 0}, pass.us, StepKind::mixed, pass.steps);
  }
  step.entries.insert(step.entries.end(), rows.entries.begin(), rows.entries.end());
  step.logit_from.insert(step.logit_from.end(), rows.logit_from.begin(), rows.logit_from.end());
  pass.clear();
}

// For one that ends or gives way in the middle. Its rows stay, and are computed for nobody, unless they are most of the
// pass: then the others begin again. (They keep finite values: what attention left there for them before.)
void Engine::Impl::leave_pass(const Sample& sample) {
  Rows& rows = pass.rows;
  const auto found = std::ranges::find(rows.entries, &sample, &Entry::sample);
  if (found == rows.entries.end()) return;
  pass.whole = false;
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
  uint64_t wanted = 0;
  for (const Entry& entry : rows.entries) wanted += entry.count;
  if (2 * wanted < rows.tokens.size()) abandon_pass();
}

// The prompts of the pass begin again. The next pass is not cut: nobody can keep prompts from ever getting through.
void Engine::Impl::abandon_pass() {
  pass_abandoned = pass_abandoned || pass.under_way();
  for (const Entry& entry : pass.rows.entries) cache->cancel(entry.sample->sequence);
  pass.clear();
}

}  // namespace kvarto
