// Priorities: who runs first, who gives way, and that nobody waits for ever. Time is scripted.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/testing.h"

namespace kvarto {
namespace {

EngineOptions by_priority(uint32_t seqs, uint32_t aging_ms) {
  EngineOptions options;
  options.max_num_seqs = seqs;
  options.scheduling_policy = SchedulingPolicy::priority;
  options.priority_aging_ms = aging_ms;
  return options;
}

TEST(Priority, IsRefusedUnderFcfs) {
  FakeEngine fake;
  Request request = fake_request(fake_prompt(10, 1), 3);
  request.priority = -1;
  const auto refused = fake->submit(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("priority -1"), std::string::npos);
  EXPECT_NE(refused.error().message.find("--scheduling-policy priority"), std::string::npos);
}

// One slot, and every 4 ms another request of priority 0 that takes 4 ms: there is always one before the request of
// priority 3, until it has waited three agings and more.
TEST(Priority, ALowOneFinishesWithinABound) {
  for (const bool aging : {true, false}) {
    FakeEngine fake({.options = by_priority(1, aging ? 100 : 0)});
    Request low = fake_request(fake_prompt(10, 1), 1);
    low.priority = 3;
    uint64_t low_done_us = 0;
    low.on_finish = [&](const RequestResult&) { low_done_us = fake.clock->now; };
    Request busy = fake_request(fake_prompt(10, 2), 2);  // 2 ms, then 1.1 ms
    int others = 0;
    busy.on_finish = [&](const RequestResult&) { ++others; };
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(fake->submit(busy));
    ASSERT_TRUE(fake->submit(low));
    int submitted = 2;
    while (low_done_us == 0 && submitted < 400) {
      while (submitted - others < 2) {
        ASSERT_TRUE(fake->submit(busy));
        ++submitted;
      }
      fake->step();
    }
    if (aging) {
      // Priority 3 needs to have waited 300 ms to be like those that come, which have not waited 100 ms.
      EXPECT_GE(low_done_us, 300'000u);
      EXPECT_LE(low_done_us, 310'000u);
    } else {
      EXPECT_EQ(low_done_us, 0u);
      EXPECT_GT(fake.clock->now, 1'000'000u);
    }
  }
}

// The order of those that wait changes as they do: 1 arrived 150 ms before 0.
TEST(Priority, WaitingCountsFromArrival) {
  FakeEngine fake({.options = by_priority(1, 100)});
  std::vector<int> order;
  const auto submit = [&](int name, int priority) {
    Request request = fake_request(fake_prompt(10, static_cast<uint32_t>(name)), 1);
    request.priority = priority;
    request.on_finish = [&order, name](const RequestResult&) { order.push_back(name); };
    ASSERT_TRUE(fake->submit(request));
  };
  Request holder = fake_request(fake_prompt(10, 90), 3);
  ASSERT_TRUE(fake->submit(holder));
  fake->step();
  submit(1, 1);
  submit(2, 0);
  fake->step();                // both are in the queue now
  fake.clock->now += 150'000;  // 1 counts as 0, 2 as -1
  submit(3, 0);
  submit(4, -1);
  fake.run();
  // 2 (-1), 4 (-1, came later), 1 (0), 3 (0, came later).
  EXPECT_EQ(order, (std::vector<int>{2, 4, 1, 3}));
}

// The pool holds three and a half: somebody must give way, and it is the least important one as it was when it started.
TEST(Priority, TheLeastImportantGivesWay) {
  FakeSetup setup{.blocks = 19, .options = by_priority(8, 1000)};
  FakeEngine fake(setup);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 4; ++i) {
    requests.push_back(fake_request(fake_prompt(40, 10 + i), 88, i));
    requests.back().priority = i == 1 ? 5 : 0;
    ids.push_back(fake.submit(requests.back()));
  }
  fake.run();
  uint32_t others = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(fake.results[ids[i]].samples[0].tokens, reference_text(requests[i])) << i;
    if (i != 1) others += fake.results[ids[i]].preemptions;
  }
  EXPECT_GT(fake.results[ids[1]].preemptions, 0u);
  // Twice is enough for anybody.
  if (fake.results[ids[1]].preemptions < 2) {
    EXPECT_EQ(others, 0u);
  }
  EXPECT_EQ(fake.at_rest(), "");
}

// One that waited long before it started is not the first to go again.
TEST(Priority, AgeIsKeptWhileRunning) {
  FakeEngine fake({.blocks = 19, .options = by_priority(3, 100)});
  Request holder = fake_request(fake_prompt(10, 90), 1);
  for (int i = 0; i < 3; ++i) fake.submit(holder);
  Request aged = fake_request(fake_prompt(40, 1), 88, 1);
  aged.priority = 2;
  const RequestId aged_id = fake.submit(aged);
  fake->step();
  fake.clock->now += 500'000;  // it waits: from 2 to -3
  std::vector<RequestId> ids;
  std::vector<Request> others;
  for (uint32_t i = 0; i < 2; ++i) {
    others.push_back(fake_request(fake_prompt(60, 20 + i), 88, i));
    ids.push_back(fake.submit(others.back()));
  }
  fake.run();
  EXPECT_EQ(fake.results[aged_id].samples[0].tokens, reference_text(aged));
  EXPECT_EQ(fake.results[aged_id].preemptions, 0u);
  EXPECT_EQ(fake.at_rest(), "");
}

}  // namespace
}  // namespace kvarto
