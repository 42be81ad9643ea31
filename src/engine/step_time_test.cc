// The promise of mixed steps, played through in scripted time with the default options: while a prompt of 8,000 tokens
// enters, a running stream's gaps stay within 3x, and the prompt's first token within 2x of what it takes alone. The
// machine is made up: a pass reads the weights once, a row costs less in large chunks, attention costs by depth, and no
// step takes quite what the last one did. The scheduler knows of this only what the cost model learns. What the engine
// does with a plan that is to be cut is played through too: layers of the same pass in several steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "engine/scheduler.h"

namespace kvarto {
namespace {

constexpr uint64_t kPrompt = 8000, kStreamDepth = 300;
constexpr uint32_t kLayers = 30;

struct Machine {
  double step_us, row_us, small_row_us, logit_row_us, key_us;
  const char* name;
};
// About what a model of 135 million weights and one of 3 billion do on a few cores.
constexpr Machine kMachines[] = {{3000, 450, 200, 700, 0.4, "small"}, {120000, 9000, 3000, 2500, 1.5, "large"}};

// A machine with streams that decode, and at most one prompt.
class Play {
 public:
  Play(const Machine& machine, size_t streams) : machine_(machine), loads_(streams) {
    for (SequenceLoad& load : loads_) load = {.computed = 0, .remaining = kStreamDepth};
  }

  void add_prompt() { loads_.push_back({.computed = 0, .remaining = kPrompt}); }

  // One step; its microseconds.
  double step() {
    const std::span<const SequenceLoad> seen(loads_.data(), loads_.size() - (pass_.count > 0 ? 1 : 0));
    scheduler_.plan(seen, cost_, plan_);
    if (plan_.cut) {
      pass_ = plan_.chunks.back();
      plan_.chunks.pop_back();
      pass_us_ = 0.0;
      layers_done_ = pass_steps_ = 0;
    }
    const StepWork work = work_of(plan_.chunks);
    double us = pass_us(plan_.chunks, work) * (0.96 + 0.08 * noise());
    for (SequenceLoad& load : loads_) ++load.idle_steps;
    for (const PlannedChunk& chunk : plan_.chunks) advance(chunk);
    if (pass_.count > 0) return us + advance_pass();
    cost_.observe(work, us,
                  plan_.decodes_only  ? StepKind::decodes
                  : plan_.decodes > 0 ? StepKind::mixed
                                      : StepKind::prefills,
                  1);
    return us;
  }
  bool prompt_done() const { return loads_.back().computed >= kPrompt; }
  bool decoding() const {
    return std::ranges::all_of(loads_, [](const SequenceLoad& load) { return load.remaining == 1; });
  }

 private:
  StepWork work_of(std::span<const PlannedChunk> chunks) const {
    StepWork work;
    for (const PlannedChunk& chunk : chunks) {
      work.tokens += chunk.count;
      work.context += chunk_context(chunk.first, chunk.count);
      work.logit_rows += chunk.count == loads_[chunk.sequence].remaining ? 1 : 0;
    }
    return work;
  }
  double pass_us(std::span<const PlannedChunk> chunks, const StepWork& work) const {
    double us = machine_.step_us + machine_.logit_row_us * static_cast<double>(work.logit_rows) +
                machine_.key_us * static_cast<double>(work.context);
    for (const PlannedChunk& chunk : chunks) {
      const auto rows = static_cast<double>(chunk.count);
      us += machine_.row_us * rows + machine_.small_row_us * rows * 32.0 / (31.0 + rows);
    }
    return us;
  }
  void advance(const PlannedChunk& chunk) {
    SequenceLoad& load = loads_[chunk.sequence];
    load.idle_steps = 0;
    load.computed += chunk.count;
    load.remaining = load.remaining > chunk.count ? load.remaining - chunk.count : 1;
  }
  // As many layers as the step's budget holds.
  double advance_pass() {
    const StepWork work = work_of({&pass_, 1});
    const double layer_us = pass_us({&pass_, 1}, work) / kLayers * (0.96 + 0.08 * noise());
    LayerBudget budget(kLayers, plan_.prefill_us);
    for (; layers_done_ < kLayers && budget.holds_another(); ++layers_done_) budget.took(layer_us);
    pass_us_ += budget.spent_us();
    ++pass_steps_;
    if (layers_done_ == kLayers) {
      cost_.observe({work.tokens, work.context, 0}, pass_us_, StepKind::mixed, pass_steps_);
      advance(pass_);
      pass_.count = 0;
    }
    return budget.spent_us();
  }
  double noise() {  // in [0, 1), the same in every run
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 40) * 0x1p-24;
  }

  Machine machine_;
  std::vector<SequenceLoad> loads_;
  OnlineCostModel cost_;
  Scheduler scheduler_{SchedulerOptions{}};
  StepPlan plan_;
  PlannedChunk pass_;  // that is cut; count 0: none
  double pass_us_ = 0.0;
  uint32_t layers_done_ = 0, pass_steps_ = 0;
  uint64_t state_ = 1;
};

double p99(std::vector<double> gaps) {
  std::ranges::sort(gaps);
  return gaps[gaps.size() * 99 / 100];
}

TEST(StepTime, ALongPromptNeitherFreezesStreamsNorCrawls) {
  for (const Machine& machine : kMachines) {
    Play alone(machine, 0);
    alone.add_prompt();
    double alone_us = 0.0;
    while (!alone.prompt_done()) alone_us += alone.step();
    for (const size_t streams : {1u, 2u, 4u, 8u, 32u}) {
      Play play(machine, streams), without(machine, streams);
      while (!play.decoding()) play.step();
      for (int i = 0; i < 100; ++i) play.step();
      play.add_prompt();
      std::vector<double> gaps, gaps_without;
      double first_token_us = 0.0;
      while (!play.prompt_done()) {
        gaps.push_back(play.step());
        first_token_us += gaps.back();
      }
      while (!without.decoding()) without.step();
      for (int i = 0; i < 100; ++i) without.step();
      for (size_t i = 0; i < gaps.size(); ++i) gaps_without.push_back(without.step());
      const std::string what = std::string(machine.name) + ", " + std::to_string(streams) + " streams";
      EXPECT_LE(p99(gaps), 3.0 * p99(gaps_without)) << what;
      EXPECT_LE(first_token_us, 2.0 * alone_us) << what;
    }
  }
}

}  // namespace
}  // namespace kvarto
