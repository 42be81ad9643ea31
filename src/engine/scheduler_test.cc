#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvarto {
namespace {

// A step costs 1000 us, 50 us per token and 0.01 us per attended key.
class ScriptedCost : public CostModel {
 public:
  double estimate(const StepWork& work) const override {
    return 1000.0 + 50.0 * static_cast<double>(work.tokens) + 0.01 * static_cast<double>(work.context);
  }
  double estimate_decodes(const StepWork& work) const override { return estimate(work); }
  double decode_spread() const override { return spread; }
  bool decode_measured() const override { return measured; }
  bool decode_due() const override { return due; }
  void observe(const StepWork&, double, StepKind, uint32_t) override {}
  bool measured = true, due = false;
  double spread = 2.9 / 2.8;  // so that a step with prompts may take 2.9 of decodes
};

SequenceLoad decode(uint64_t depth) { return {.computed = depth, .remaining = 1}; }
SequenceLoad prefill(uint64_t tokens, uint64_t computed = 0) { return {.computed = computed, .remaining = tokens}; }

StepPlan plan_of(const std::vector<SequenceLoad>& loads, const CostModel& cost, SchedulerOptions options = {}) {
  StepPlan plan;
  Scheduler(options).plan(loads, cost, plan);
  return plan;
}

uint64_t count_of(const StepPlan& plan, size_t sequence) {
  for (const PlannedChunk& chunk : plan.chunks) {
    if (chunk.sequence == sequence) return chunk.count;
  }
  return 0;
}

// Sixteen decodes could fill a step of sixteen tokens for ever; the prefill still goes on.
TEST(Scheduler, DecodesThatFillTheStepLeaveRoomForAPrefill) {
  OnlineCostModel cost;
  for (const uint32_t budget : {16u, 2u}) {
    std::vector<SequenceLoad> loads(16, decode(100));
    loads.push_back(prefill(40));
    const Scheduler scheduler({.max_num_batched_tokens = budget});
    StepPlan plan;
    scheduler.plan(loads, cost, plan);
    EXPECT_LE(plan.work.tokens, budget);
    ASSERT_FALSE(plan.chunks.empty());
    EXPECT_EQ(plan.chunks.back().sequence, 16u) << budget;
    EXPECT_GT(plan.chunks.size(), 1u) << "decodes go on too";
  }
}

TEST(Scheduler, PrefillAloneFillsTheTokenBudgetInOrder) {
  const ScriptedCost cost;
  const StepPlan plan = plan_of({prefill(300), prefill(300), prefill(300)}, cost);
  EXPECT_EQ(plan.work.tokens, 512u);
  EXPECT_EQ(count_of(plan, 0), 300u);
  EXPECT_EQ(count_of(plan, 1), 212u);
  EXPECT_FALSE(plan.decodes_only);
}

TEST(Scheduler, DecodesBoundTheStepInTime) {
  const ScriptedCost cost;
  // Decode-only: 1000 + 24 x 50 + 0.01 x 2424 = 2224.24 us; 2.9 times that is 6450.3 us: 83 prefill tokens from depth 0
  // on (4150 us and 0.01 x 3486), but not 84 (4200 and 35.7).
  std::vector<SequenceLoad> loads(24, decode(100));
  loads.push_back(prefill(400));
  StepPlan plan = plan_of(loads, cost);
  EXPECT_EQ(count_of(plan, 24), 83u);
  EXPECT_FALSE(plan.cut);
  const StepWork decodes{24, 2424, 24};
  EXPECT_LE(cost.estimate(plan.work), 2.9 * cost.estimate(decodes));
  EXPECT_GT(cost.estimate({plan.work.tokens + 1, plan.work.context + 84, 24}), 2.9 * cost.estimate(decodes));
  EXPECT_NEAR(plan.prefill_us, 1.9 * 2224.24, 1e-6);
  // An explicit limit holds too: 2224.2 + 50 n + 0.01 n (n + 1) / 2 <= 7000.
  plan = plan_of(loads, cost, {.max_step_us = 7000.0});
  EXPECT_EQ(count_of(plan, 24), 94u);
  EXPECT_FALSE(plan.cut);
  EXPECT_NEAR(plan.prefill_us, 7000.0 - 2224.24, 1e-6);
  // Where 64 tokens do not fit they are cut; two steps of 2775.8 us each, nine
  // tenths full, hold 98 (4900 us and 0.01 x 4851).
  plan = plan_of(loads, cost, {.max_step_us = 5000.0});
  EXPECT_EQ(count_of(plan, 24), 98u);
  EXPECT_TRUE(plan.cut);
  EXPECT_NEAR(plan.prefill_us, 5000.0 - 2224.24, 1e-6);
  plan = plan_of(loads, cost, {.max_step_us = 1.0});
  EXPECT_EQ(count_of(plan, 24), 64u);
  EXPECT_TRUE(plan.cut);
  EXPECT_EQ(plan.prefill_us, 0.0);
  // Deep prefills are dearer: one token takes 50 us and 0.01 for each of 20,000 keys, 64 take 5 steps of nine tenths of
  // 4226 us.
  loads[24] = prefill(400, 20000);
  plan = plan_of(loads, cost);
  EXPECT_EQ(count_of(plan, 24), 75u);
  EXPECT_TRUE(plan.cut);
  loads[24] = prefill(20, 20000);  // 20 tokens: 1000 us, and 0.01 for each of 400,210 keys
  plan = plan_of(loads, cost);
  EXPECT_EQ(count_of(plan, 24), 20u);
  EXPECT_TRUE(plan.cut);
  loads[24] = prefill(15, 20000);
  plan = plan_of(loads, cost);
  EXPECT_EQ(count_of(plan, 24), 15u);
  EXPECT_FALSE(plan.cut);
}

// Beside a pass that is cut, a step is planned of decodes alone: what the pass may take of it is said.
TEST(Scheduler, DecodesAloneLeaveTimeForPrompts) {
  const ScriptedCost cost;
  StepPlan plan = plan_of({decode(100), decode(100)}, cost);
  EXPECT_FALSE(plan.cut);
  EXPECT_NEAR(plan.prefill_us, 1.9 * (1000.0 + 100.0 + 0.01 * 202), 1e-6);
  EXPECT_EQ(plan_of({prefill(100)}, cost).prefill_us, std::numeric_limits<double>::infinity());
}

// One token decodes: 1050.01 us alone, so prompts get 1.9 times that, 1995 us. The 64 tokens that go on are 3 of one
// prompt and 61 of the other: two steps' worth, of which 71 fill nine tenths (3 x 50, 68 x 50 and 0.01 x 2346).
TEST(Scheduler, TheEndOfOnePromptAndAnotherFillTheStepsThatTheyAreCutInto) {
  const ScriptedCost cost;
  SequenceLoad ending = prefill(3);
  ending.idle_steps = 2;
  const StepPlan plan = plan_of({decode(0), prefill(8000), ending}, cost);
  EXPECT_TRUE(plan.cut);
  EXPECT_EQ(count_of(plan, 2), 3u);
  EXPECT_EQ(count_of(plan, 1), 68u);
}

TEST(Scheduler, NowAndThenAStepOfDecodesAloneIsMeasured) {
  ScriptedCost cost;
  cost.due = true;
  EXPECT_TRUE(plan_of({decode(100), prefill(400)}, cost).decodes_only);
  EXPECT_EQ(plan_of({prefill(400)}, cost).work.tokens, 400u) << "there are no decodes";
  // A prefill that was left out already does not wait for that, nor does an explicit limit need it.
  SequenceLoad waiting = prefill(400);
  waiting.idle_steps = 1;
  EXPECT_GT(count_of(plan_of({decode(100), waiting}, cost), 1), 0u);
  EXPECT_EQ(count_of(plan_of({decode(100), prefill(400)}, cost, {.max_step_us = 1.0}), 1), 64u);
}

TEST(Scheduler, BeforeTheFirstDecodeOnlyStepAMixedOneTakes64) {
  ScriptedCost cost;
  cost.measured = false;
  const StepPlan plan = plan_of({decode(10), prefill(400), prefill(400)}, cost);
  EXPECT_EQ(count_of(plan, 0), 1u);
  EXPECT_EQ(plan.work.tokens, 1u + 64u);
}

TEST(Scheduler, DecodesOnlyIsSaid) {
  const ScriptedCost cost;
  EXPECT_TRUE(plan_of({decode(1), decode(2)}, cost).decodes_only);
  EXPECT_FALSE(plan_of({decode(1), prefill(2)}, cost).decodes_only);
  EXPECT_FALSE(plan_of({prefill(2)}, cost).decodes_only);
  EXPECT_EQ(plan_of({}, cost).chunks.size(), 0u);
}

TEST(Scheduler, MoreDecodesThanTokensTakeTurns) {
  const ScriptedCost cost;
  std::vector<SequenceLoad> loads(10, decode(5));
  std::vector<int> served(10, 0);
  for (int step = 0; step < 10; ++step) {
    const StepPlan plan = plan_of(loads, cost, {.max_num_batched_tokens = 3});
    EXPECT_EQ(plan.work.tokens, 3u);
    for (SequenceLoad& load : loads) ++load.idle_steps;
    for (const PlannedChunk& chunk : plan.chunks) {
      loads[chunk.sequence].idle_steps = 0;
      ++served[chunk.sequence];
    }
  }
  EXPECT_GE(*std::ranges::min_element(served), 2);
  EXPECT_LE(*std::ranges::max_element(served), 4);
}

struct LongestWaits {
  uint32_t prefill = 0, decode = 0;
};

// Runs plans over prefills that never end and returns the longest wait of any of each kind.
LongestWaits longest_waits(size_t prefills, size_t decodes, const CostModel& cost, SchedulerOptions options) {
  std::vector<SequenceLoad> loads(decodes, decode(50));
  loads.resize(prefills + decodes, prefill(1 << 20));
  LongestWaits longest;
  const auto note = [&](const SequenceLoad& load) {
    uint32_t& wait = load.remaining > 1 ? longest.prefill : longest.decode;
    wait = std::max(wait, load.idle_steps);
  };
  for (int step = 0; step < 40; ++step) {
    const StepPlan plan = plan_of(loads, cost, options);
    EXPECT_LE(plan.work.tokens, options.max_num_batched_tokens);
    for (SequenceLoad& load : loads) ++load.idle_steps;
    for (const PlannedChunk& chunk : plan.chunks) {
      SequenceLoad& load = loads[chunk.sequence];
      note(load);
      load.idle_steps = 0;
      if (load.remaining > 1) load.computed += chunk.count;
    }
  }
  for (const SequenceLoad& load : loads) note(load);
  return longest;
}

TEST(Scheduler, EveryPrefillAdvancesAtLeastEveryFourthStep) {
  ScriptedCost cost;
  for (const size_t prefills : {1u, 2u, 3u, 5u, 13u, 40u, 63u, 100u}) {
    for (const size_t decodes : {0u, 1u, 8u}) {
      for (const double max_step_us : {0.0, 1.0}) {
        const LongestWaits waits = longest_waits(prefills, decodes, cost, {.max_step_us = max_step_us});
        EXPECT_LE(waits.prefill, 4u) << prefills << " prefills, " << decodes << " decodes";
        EXPECT_LE(waits.decode, 1u) << prefills << " prefills, " << decodes << " decodes";
      }
    }
  }
}

TEST(Scheduler, EvenATinyBudgetServesEveryPrefillEveryFourthStep) {
  ScriptedCost cost;
  for (const uint32_t budget : {1u, 2u, 3u, 5u}) {
    for (size_t prefills = 1; prefills <= 4 * budget; ++prefills) {
      for (const size_t decodes : {1u, 2u, 9u}) {
        const LongestWaits waits = longest_waits(prefills, decodes, cost, {.max_num_batched_tokens = budget});
        const std::string what = std::to_string(budget) + " tokens, " + std::to_string(prefills) + " prefills, " +
                                 std::to_string(decodes) + " decodes";
        EXPECT_LE(waits.prefill, 4u) << what;
        // What prefills leave, at least one token in 4 steps, goes round the decodes.
        if (prefills < 4 * budget) {
          EXPECT_LE(waits.decode, 4 * decodes) << what;
        }
      }
    }
  }
}

TEST(Scheduler, MorePrefillsThanABudgetCanServeTakeTurnsWithTheDecodes) {
  ScriptedCost cost;
  for (const uint32_t budget : {1u, 2u}) {
    const LongestWaits waits = longest_waits(9, 5, cost, {.max_num_batched_tokens = budget});
    EXPECT_LE(waits.prefill, 14 / budget) << budget;
    EXPECT_LE(waits.decode, 14 / budget) << budget;
  }
}

TEST(Scheduler, VictimIsNotThriceTheSameThenTheLeastImportantThenTheLeastLost) {
  // priority, preemptions, lost, order
  EXPECT_EQ(Scheduler::victim({}), std::nullopt);
  const auto victim = [](std::vector<VictimLoad> loads) { return *Scheduler::victim(loads); };
  EXPECT_EQ(victim({{0, 0, 5, 1}, {0, 0, 3, 2}, {0, 0, 9, 3}}), 1u);
  EXPECT_EQ(victim({{0, 0, 3, 1}, {0, 0, 3, 2}}), 1u);   // the youngest of equals
  EXPECT_EQ(victim({{0, 2, 0, 1}, {0, 1, 90, 2}}), 1u);  // never the third time while another can go
  EXPECT_EQ(victim({{0, 2, 7, 1}, {0, 3, 2, 2}}), 1u);   // all were twice: least lost again
  EXPECT_EQ(victim({{1, 1, 90, 1}, {0, 0, 0, 2}}), 0u);  // the less important one
  EXPECT_EQ(victim({{1, 2, 0, 1}, {0, 1, 90, 2}}), 1u);  // nor is that one sent away a third time
  EXPECT_EQ(victim({{1, 2, 90, 1}, {0, 2, 0, 2}}), 0u);  // all were twice: importance again
}

TEST(Scheduler, AdmissionLeavesRoomForWhoRuns) {
  AdmissionLoad load{.available_bytes = 100,
                     .needed_bytes = 60,
                     .promised_bytes = 40,
                     .others_running = true,
                     .slots_wanted = 1,
                     .slots_free = 1};
  EXPECT_TRUE(Scheduler::may_admit(load));
  load.promised_bytes = 41;
  EXPECT_FALSE(Scheduler::may_admit(load));
  load.others_running = false;
  EXPECT_TRUE(Scheduler::may_admit(load));
  load.slots_wanted = 2;
  EXPECT_FALSE(Scheduler::may_admit(load));
}

TEST(Scheduler, AdmissionKeepsTheWatermarkFree) {
  AdmissionLoad load{.available_bytes = 100, .needed_bytes = 60, .promised_bytes = 20, .kept_bytes = 20};
  load.others_running = true;
  load.slots_free = 1;
  EXPECT_TRUE(Scheduler::may_admit(load));
  load.kept_bytes = 21;
  EXPECT_FALSE(Scheduler::may_admit(load));
  load.others_running = false;
  EXPECT_TRUE(Scheduler::may_admit(load));
}

TEST(Scheduler, APrefillGetsNoMoreThanItsOwnMost) {
  const ScriptedCost cost;
  SequenceLoad capped = prefill(400);
  capped.most = 30;
  StepPlan plan = plan_of({capped, prefill(400)}, cost);
  EXPECT_EQ(count_of(plan, 0), 30u);
  EXPECT_EQ(count_of(plan, 1), 400u);
  plan = plan_of({decode(100), capped}, cost, {.max_step_us = 1e6});
  EXPECT_EQ(count_of(plan, 1), 30u);
}

// What comes after the last layer cannot be cut: a prompt whose every token is scored gets what a step holds. One row
// of logits takes 300 us here, and a decode 1360.01 us, so 2.9 times that leaves 2584 us: 7 rows of 360 us, not 8.
TEST(Scheduler, ScoredPromptsAreNeverCut) {
  class LogitCost : public ScriptedCost {
   public:
    double estimate(const StepWork& work) const override {
      return 1000.0 + 60.0 * static_cast<double>(work.tokens) + 300.0 * static_cast<double>(work.logit_rows);
    }
  };
  const LogitCost cost;
  SequenceLoad scored = prefill(100);
  scored.every_row = true;
  StepPlan plan = plan_of({decode(0), scored}, cost);
  EXPECT_EQ(count_of(plan, 1), 7u);
  EXPECT_FALSE(plan.cut);
  // With no time at all one goes on, and beside a prompt that is cut no more than fits.
  plan = plan_of({decode(0), scored}, cost, {.max_step_us = 1.0});
  EXPECT_EQ(count_of(plan, 1), 1u);
  EXPECT_FALSE(plan.cut);
  plan = plan_of({decode(0), scored, prefill(100)}, cost);
  EXPECT_LE(count_of(plan, 1), 7u);
  EXPECT_GE(count_of(plan, 1), 1u);
}

// Rows with logits: of a decode, of the end of a prompt, of every token of one that is scored.
TEST(Scheduler, ThePlanCountsLogitRows) {
  const ScriptedCost cost;
  SequenceLoad scored = prefill(100);
  scored.every_row = true;
  scored.most = 20;
  EXPECT_EQ(plan_of({decode(5), prefill(600)}, cost, {.max_step_us = 1e6}).work.logit_rows, 1u);
  EXPECT_EQ(plan_of({decode(5), prefill(60)}, cost, {.max_step_us = 1e6}).work.logit_rows, 2u);
  EXPECT_EQ(plan_of({decode(5), scored}, cost, {.max_step_us = 1e6}).work.logit_rows, 21u);
}

TEST(OnlineCostModel, LearnsWhatStepsCost) {
  OnlineCostModel model;
  EXPECT_FALSE(model.decode_measured());
  const auto truth = [](const StepWork& work) {
    return 4000.0 + 120.0 * static_cast<double>(work.tokens) + 0.02 * static_cast<double>(work.context) +
           50.0 * static_cast<double>(work.logit_rows);
  };
  for (uint64_t step = 0; step < 60; ++step) {
    const uint64_t tokens = step % 3 == 0 ? 512 : 1 + step % 8;
    const StepWork work{tokens, tokens * (100 + 37 * step), step % 3 == 0 ? step % 5 : tokens};
    model.observe(work, truth(work), step % 3 != 0 ? StepKind::decodes : StepKind::mixed, 1);
  }
  EXPECT_TRUE(model.decode_measured());
  for (const StepWork& work : {StepWork{4, 4000, 4}, StepWork{64, 20000, 6}, StepWork{500, 100000, 2}}) {
    EXPECT_NEAR(model.estimate(work) / truth(work), 1.0, 0.05) << work.tokens;
  }
}

// One step in ten takes 1.15 times as long as the others: what one in twenty exceeds is that; later all are alike.
TEST(OnlineCostModel, KnowsHowLongSlowStepsOfDecodesTake) {
  OnlineCostModel model;
  EXPECT_EQ(model.decode_spread(), 1.0);
  const StepWork work{4, 4000, 4};
  for (int step = 0; step < 600; ++step) model.observe(work, step % 10 == 5 ? 11500.0 : 10000.0, StepKind::decodes, 1);
  EXPECT_NEAR(model.decode_spread(), 1.14, 0.03);
  for (int step = 0; step < 900; ++step) model.observe(work, 10000.0, StepKind::decodes, 1);
  EXPECT_LT(model.decode_spread(), 1.01);
  for (int step = 0; step < 300; ++step) model.observe(work, step % 2 == 0 ? 10000.0 : 90000.0, StepKind::decodes, 1);
  EXPECT_EQ(model.decode_spread(), 1.2) << "there is an end to what a noisy machine excuses";
}

TEST(OnlineCostModel, FollowsAMachineThatSlowsDown) {
  OnlineCostModel model;
  const StepWork one{1, 100, 1}, many{100, 10000, 1};
  for (int step = 0; step < 50; ++step) model.observe(one, 1000.0, StepKind::decodes, 1);
  EXPECT_NEAR(model.estimate(one), 1000.0, 20.0);
  for (int step = 0; step < 150; ++step) model.observe(one, 3000.0, StepKind::decodes, 1);
  EXPECT_NEAR(model.estimate(one), 3000.0, 100.0);
  // Where only single tokens were ever seen, more of them are not taken to be free.
  EXPECT_GT(model.estimate(many), 3.0 * model.estimate(one));
  model.observe(one, 0.0, StepKind::decodes, 1);  // a clock that stood still teaches nothing
  EXPECT_GT(model.estimate(one), 1000.0);
}

// While a long prompt enters, no step decodes alone. What such a step took is what the budget is made from.
TEST(OnlineCostModel, RemembersDecodesThroughManyMixedSteps) {
  OnlineCostModel model;
  const StepWork decodes{4, 2000, 4};
  for (int step = 0; step < 30; ++step) model.observe(decodes, 6000.0, StepKind::decodes, 1);
  for (uint64_t step = 0; step < 1000; ++step) {
    const StepWork mixed{24, 2000 + 20 * 20 * step, 4};
    model.observe(mixed, 6000.0 + 450.0 * 20 + 0.4 * static_cast<double>(mixed.context - 2000), StepKind::mixed, 1);
  }
  EXPECT_NEAR(model.estimate(decodes), 6000.0, 300.0);
  EXPECT_NEAR(model.estimate_decodes(decodes), 6000.0, 6.0) << "mixed steps say nothing about these";
}

TEST(OnlineCostModel, AsksForAStepOfDecodesAloneAfter32MixedOnesAndBelievesIt) {
  OnlineCostModel model;
  const StepWork decodes{4, 2000, 4}, mixed{24, 4000, 4};
  for (int step = 0; step < 30; ++step) model.observe(decodes, 6000.0, StepKind::decodes, 1);
  for (int step = 0; step < 31; ++step) model.observe(mixed, 20000.0, StepKind::mixed, 1);
  EXPECT_FALSE(model.decode_due());
  model.observe(mixed, 20000.0, StepKind::mixed, 1);
  EXPECT_TRUE(model.decode_due());
  model.observe(decodes, 9000.0, StepKind::decodes, 1);
  EXPECT_FALSE(model.decode_due());
  EXPECT_GT(model.estimate_decodes(decodes), 6050.0);
  for (int step = 0; step < 12; ++step) {
    model.observe(mixed, 20000.0, StepKind::mixed, 1);
    model.observe(decodes, 9000.0, StepKind::decodes, 1);
  }
  EXPECT_NEAR(model.estimate_decodes(decodes), 9000.0, 450.0) << "streams that grow, or a machine that slows down";
}

// A prompt alone goes through in large chunks, cheap per token; small ones beside decodes cost more, and count.
TEST(OnlineCostModel, ForgetsPromptsAloneAsSoonAsMixedStepsAreSeen) {
  OnlineCostModel model;
  for (int step = 0; step < 30; ++step) model.observe({512, 130000, 1}, 512 * 400.0, StepKind::prefills, 1);
  for (int step = 0; step < 30; ++step) model.observe({4, 2000, 4}, 6000.0, StepKind::decodes, 1);
  for (int step = 0; step < 6; ++step) model.observe({24, 4000, 4}, 6000.0 + 20 * 800.0, StepKind::mixed, 1);
  EXPECT_NEAR(model.estimate({24, 4000, 4}), 22000.0, 1100.0);
}

}  // namespace
}  // namespace kvarto
