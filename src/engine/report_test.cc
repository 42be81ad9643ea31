// What a step reports, and the numbers that other threads may read. Times and counts are worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "engine/testing.h"

namespace kvarto {
namespace {

struct Noted {
  StepReport report;
  std::vector<AdmittedRequest> admitted;
  std::vector<PreemptedSample> preempted;
  std::vector<ResumedSample> resumed;
};

std::vector<Noted> watch(FakeEngine& fake, const std::function<void()>& run) {
  std::vector<Noted> all;
  fake->observe([&](const StepReport& r) {
    all.push_back({r,
                   {r.admitted.begin(), r.admitted.end()},
                   {r.preempted.begin(), r.preempted.end()},
                   {r.resumed.begin(), r.resumed.end()}});
  });
  run();
  fake->observe({});
  return all;
}

// Steps of 1 ms and 0.1 ms per row.
TEST(StepReports, SayWhatEachStepDid) {
  FakeEngine fake({.options = {.max_num_batched_tokens = 32}});
  fake.clock->now = 100;
  const Request request = fake_request(fake_prompt(40, 1), 3);
  RequestId id = 0;
  const auto all = watch(fake, [&] {
    id = fake.submit(request);
    fake.run();
  });
  ASSERT_EQ(all.size(), 4u);  // 32 and 8 prompt tokens, two decodes
  EXPECT_EQ(all[0].report.start_us, 100u);
  EXPECT_EQ(all[0].report.end_us, 100u + 1000 + 3200);
  EXPECT_EQ(all[0].report.prompt_tokens, 32u);
  EXPECT_EQ(all[0].report.generated_tokens, 0u);
  EXPECT_EQ(all[0].report.running, 1u);
  ASSERT_EQ(all[0].admitted.size(), 1u);
  EXPECT_EQ(all[0].admitted[0].request, id);
  EXPECT_EQ(all[0].admitted[0].query_tokens, 40u);
  EXPECT_EQ(all[0].admitted[0].hit_tokens, 0u);
  EXPECT_EQ(all[0].admitted[0].miss_reason, MissReason::no_match);
  EXPECT_EQ(all[1].report.prompt_tokens, 8u);
  EXPECT_EQ(all[1].report.generated_tokens, 1u);
  EXPECT_FALSE(all[1].report.decodes_only);
  EXPECT_TRUE(all[1].admitted.empty());
  for (const size_t i : {2u, 3u}) {
    EXPECT_EQ(all[i].report.step, i + 1);
    EXPECT_EQ(all[i].report.prompt_tokens, 0u);
    EXPECT_EQ(all[i].report.generated_tokens, 1u);
    EXPECT_EQ(all[i].report.sequences, 1u);
    EXPECT_TRUE(all[i].report.decodes_only);
  }
  EXPECT_EQ(all[3].report.running, 0u);
  EXPECT_EQ(all[3].report.kv.active_bytes, 0u);
  const auto again = watch(fake, [&] {
    fake.submit(request);
    fake.run();
  });
  EXPECT_EQ(again[0].admitted[0].hit_tokens, 32u);
  const auto idle = watch(fake, [&] { fake->step(); });
  ASSERT_EQ(idle.size(), 1u);
  EXPECT_EQ(idle[0].report.start_us, idle[0].report.end_us);
}

TEST(StepReports, TellPreemptionsAndHowTheyWereRestored) {
  for (const bool prefix_caching : {true, false}) {
    FakeEngine fake({.blocks = 19, .options = {.enable_prefix_caching = prefix_caching}});
    std::vector<RequestId> ids;
    const auto all = watch(fake, [&] {
      for (uint32_t i = 0; i < 4; ++i) ids.push_back(fake.submit(fake_request(fake_prompt(40, 10 + i), 88, i)));
      fake.run();
    });
    uint64_t preempted = 0, held = 0, resumed = 0, found = 0;
    for (const Noted& step : all) {
      for (const PreemptedSample& p : step.preempted) ++preempted, held += p.computed_tokens;
      for (const ResumedSample& r : step.resumed) {
        ++resumed;
        found += r.cached_tokens;
        EXPECT_LE(r.cached_tokens, r.computed_tokens);
      }
    }
    const EngineStats stats = fake->stats();
    EXPECT_GT(preempted, 0u);
    EXPECT_EQ(resumed, preempted);
    EXPECT_EQ(stats.preemptions, preempted);
    EXPECT_EQ(stats.preempted_tokens, held);
    EXPECT_EQ(stats.resume_cached_tokens, found);
    EXPECT_EQ(stats.recomputed_tokens, held - found);
    EXPECT_EQ(stats.resumes_from_cache + stats.resumes_in_part + stats.resumes_recomputed, resumed);
    if (!prefix_caching) {
      EXPECT_EQ(stats.resumes_recomputed, resumed);
    }
    uint64_t of_requests = 0, cached = 0;
    for (const RequestId id : ids) {
      of_requests += fake.results[id].resumes;
      cached += fake.results[id].resume_cached_tokens;
    }
    EXPECT_EQ(of_requests, resumed);
    EXPECT_EQ(cached, found);
  }
}

TEST(StepReports, SayWhenTheCacheWasMadeAnew) {
  FakeEngine fake;
  const auto all = watch(fake, [&] {
    fake.submit(fake_request(fake_prompt(30, 1), 10));
    fake->step();
    fake.model->before_forward = [&](const Batch&) {
      fake.model->before_forward = nullptr;
      throw CheckFailure("planted");
    };
    fake.run();
  });
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[0].report.cache_rebuilt);
  EXPECT_TRUE(all[1].report.cache_rebuilt);
}

TEST(Snapshot, CountsWhoWaitsBeforeAndAfterTheyAreTaken) {
  FakeEngine fake({.options = {.max_num_seqs = 1}});
  for (uint32_t i = 0; i < 3; ++i) fake.submit(fake_request(fake_prompt(10 + i, i), 5));
  EXPECT_EQ(fake->stats_snapshot().waiting, 3u);
  EXPECT_EQ(fake->stats_snapshot().queued_tokens, 33u);
  fake->step();
  EXPECT_EQ(fake->stats_snapshot().running, 1u);
  EXPECT_EQ(fake->stats_snapshot().waiting, 2u);
  EXPECT_EQ(fake->stats_snapshot().queued_tokens, 23u);
  fake->cancel(2);
  fake->step();
  EXPECT_EQ(fake->stats_snapshot().queued_tokens, 12u);
  fake.run();
  EXPECT_EQ(fake->stats_snapshot().queued_tokens, 0u);
  EXPECT_EQ(fake->stats_snapshot().generated_tokens, fake->stats().generated_tokens);
}

TEST(Snapshot, MayBeTakenWhileStepsRun) {
  FakeEngine fake;
  std::atomic<bool> done = false;
  std::thread reader([&] {
    uint64_t last = 0;
    while (!done) {
      const EngineStats stats = fake->stats_snapshot();
      EXPECT_GE(stats.generated_tokens, last);
      last = stats.generated_tokens;
    }
  });
  fake.submit(fake_request(fake_prompt(30, 1), 300));
  fake.run();
  done = true;
  reader.join();
}

TEST(ResetPrefixCache, ForgetsWhatIsIdleAndSaysWhetherThatWasAll) {
  FakeEngine fake;
  const Request request = fake_request(fake_prompt(40, 1), 3);
  ASSERT_TRUE(fake->generate(request));
  EXPECT_EQ(fake->generate(request)->cached_tokens, 32u);
  EXPECT_TRUE(fake->reset_prefix_cache());
  EXPECT_EQ(fake->generate(request)->cached_tokens, 0u);
  fake.submit(fake_request(fake_prompt(40, 2), 30));
  fake->step();
  EXPECT_FALSE(fake->reset_prefix_cache());
  fake.run();
  EXPECT_TRUE(fake->reset_prefix_cache());
}

}  // namespace
}  // namespace kvarto
