#include "server/scrape_waiters.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kvarto {
namespace {

TEST(ScrapeWaiters, TheEngineIsAskedOnceForAllThatWait) {
  ScrapeWaiters waiters;
  std::vector<uint64_t> told;
  const auto note = [&](const MetricsSnapshot& snapshot) { told.push_back(snapshot.ignored_fields); };
  const auto first = waiters.add(note), second = waiters.add(note);
  EXPECT_TRUE(first.first && first.ask);
  EXPECT_FALSE(second.first || second.ask);
  MetricsSnapshot snapshot;
  snapshot.ignored_fields = 7;
  const uint64_t round = waiters.round();
  waiters.tell(snapshot);  // their patience is at its end; the engine has not answered
  EXPECT_EQ(told, (std::vector<uint64_t>{7, 7}));
  EXPECT_TRUE(waiters.empty());
  EXPECT_NE(waiters.round(), round);

  const auto third = waiters.add(note);
  EXPECT_TRUE(third.first) << "it has patience of its own";
  EXPECT_FALSE(third.ask) << "the engine is still busy with the first question";
  waiters.answered();
  waiters.tell(snapshot);
  EXPECT_EQ(told.size(), 3u);
  EXPECT_TRUE(waiters.add(note).ask);
}

TEST(ScrapeWaiters, OneThatThrowsTakesNobodyWithIt) {
  ScrapeWaiters waiters;
  int told = 0;
  waiters.add([](const MetricsSnapshot&) { throw std::runtime_error("planted"); });
  waiters.add([&](const MetricsSnapshot&) { ++told; });
  waiters.tell({});
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace kvarto
