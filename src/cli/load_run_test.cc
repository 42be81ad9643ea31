// A scripted clock and a sender that answers at once: what starts when, in which order, and what ends a run.
#include "cli/load_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace kvarto {
namespace {

// Time passes only by waiting and by what the sender takes.
class ScriptedTime : public LoadTime {
 public:
  double now_s() const override { return now_; }
  void wait_until(double time_s, const std::function<bool()>& stop) const override {
    if (!stop() && time_s > now_) now_ = time_s;
  }
  void pass(double seconds) const { now_ = now_ + seconds; }

 private:
  mutable std::atomic<double> now_{0};
};

struct Server {
  explicit Server(const ScriptedTime& time) : time(time) {}
  const ScriptedTime& time;
  double takes_s = 1;  // for each token
  std::function<void(uint64_t number, LoadRecord& record)> spoil = [](uint64_t, LoadRecord&) {};
  std::mutex mutex;
  std::vector<LoadRequest> seen;
};

class Sender : public LoadSender {
 public:
  explicit Sender(Server& server) : server_(server) {}
  LoadAnswer send(const LoadRequest& request, const std::function<bool()>& give_up, LoadRecord& record) override {
    uint64_t number = 0;
    {
      const std::lock_guard lock(server_.mutex);
      number = server_.seen.size();
      server_.seen.push_back(request);
    }
    for (uint32_t i = 0; i < request.output_tokens; ++i) {
      if (give_up()) {
        record.error = "given up";
        return {};
      }
      server_.time.pass(server_.takes_s);
      if (record.events++ == 0) record.first_s = server_.time.now_s();
      record.last_s = server_.time.now_s();
      ++record.output_tokens;
    }
    record.outcome = LoadOutcome::done;
    server_.spoil(number, record);
    return {"answer " + std::to_string(number), record.status == 503 ? 2.0 : 0.0};
  }

 private:
  Server& server_;
};

// Jobs of some turns, each of which asks for its number plus one tokens.
class Steps : public Workload {
 public:
  explicit Steps(size_t turns, std::optional<double> every_s = std::nullopt) : turns_(turns), every_s_(every_s) {}
  LoadJob job(uint64_t number) const override {
    LoadJob job;
    if (every_s_) job.arrival_s = *every_s_ * static_cast<double>(number);
    for (size_t i = 0; i < turns_; ++i) {
      LoadTurn turn;
      turn.text = std::to_string(number) + "." + std::to_string(i);
      turn.output_tokens = static_cast<uint32_t>(number + 1);
      turn.think_s = i == 0 ? 0 : 10;
      job.turns.push_back(turn);
    }
    return job;
  }

 private:
  const size_t turns_;
  const std::optional<double> every_s_;
};

struct Scene {
  ScriptedTime time;
  Server server{time};
  std::vector<LoadRecord> run(
      const Workload& workload, LoadPlan plan, bool chat = false,
      const LoadRun::OnProgress& on_progress = [](const LoadProgress&) { return false; }) {
    const LoadRun run(workload, {.model = "m", .chat = chat}, std::move(plan), time,
                      [this] { return std::make_unique<Sender>(server); });
    return run.run(on_progress);
  }
};

TEST(LoadRun, ClosedLoopOfOneRunsOneAfterTheOther) {
  Scene scene;
  const auto records = scene.run(Steps(1), {.jobs = 4});
  ASSERT_EQ(records.size(), 4u);
  const double starts[] = {0, 1, 3, 6};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(records[i].outcome, LoadOutcome::done);
    EXPECT_DOUBLE_EQ(records[i].start_s, starts[i]);
    EXPECT_DOUBLE_EQ(records[i].end_s, starts[i] + static_cast<double>(i + 1));
  }
}

TEST(LoadRun, ManyThreadsRunEveryJobOnce) {
  Scene scene;
  const auto records = scene.run(Steps(1), {.concurrency = 16, .jobs = 200});
  EXPECT_EQ(records.size(), 200u);
  std::vector<int> seen(201);
  for (const LoadRecord& record : records) ++seen.at(record.output_tokens);
  for (size_t i = 1; i <= 200; ++i) EXPECT_EQ(seen[i], 1) << i;
}

TEST(LoadRun, DurationStartsNothingLater) {
  Scene scene;
  const auto records = scene.run(Steps(1), {.jobs = {}, .duration_s = 5});
  EXPECT_EQ(records.size(), 3u);  // they start at 0, 1, 3; the next would at 6
}

TEST(LoadRun, ChatsCarryTheirAnswersAndThink) {
  Scene scene;
  const auto records = scene.run(Steps(3), {.jobs = 1}, true);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_DOUBLE_EQ(records[1].due_s, 11);  // one token, then ten seconds of thought
  EXPECT_DOUBLE_EQ(records[2].start_s, 22);
  const std::string& last = scene.server.seen[2].body;
  EXPECT_NE(last.find(R"({"role":"user","content":"0.0"},{"role":"assistant","content":"answer 0"},)"
                      R"({"role":"user","content":"0.1"},{"role":"assistant","content":"answer 1"})"),
            std::string::npos)
      << last;
}

TEST(LoadRun, AFailedTurnEndsItsChatOnly) {
  Scene scene;
  scene.server.spoil = [](uint64_t number, LoadRecord& record) {
    if (number == 1) record.outcome = LoadOutcome::refused;
  };
  const auto records = scene.run(Steps(3), {.jobs = 2}, true);
  EXPECT_EQ(records.size(), 5u);
  EXPECT_EQ(std::ranges::count(records, LoadOutcome::refused, &LoadRecord::outcome), 1);
}

TEST(LoadRun, WaitsAsLongAsAnOverloadedServerAsks) {
  Scene scene;
  scene.server.spoil = [](uint64_t number, LoadRecord& record) {
    if (number != 0) return;
    record.outcome = LoadOutcome::refused;
    record.status = 503;
  };
  const auto records = scene.run(Steps(1), {.jobs = 2});
  ASSERT_EQ(records.size(), 2u);
  EXPECT_DOUBLE_EQ(records[1].start_s, 3);
}

// A server that is gone, or refuses at once, is not asked all the time: 0.1 s, 0.2 s, ... 5 s between tries.
TEST(LoadRun, AClosedLoopPausesBehindFailures) {
  for (const LoadOutcome outcome : {LoadOutcome::broken, LoadOutcome::refused}) {
    Scene scene;
    scene.server.takes_s = 0.001;
    scene.server.spoil = [&](uint64_t, LoadRecord& record) { record.outcome = outcome; };
    const auto records = scene.run(Steps(1), {.jobs = {}, .duration_s = 60});
    // Six pauses up to 3.2 s are 6.3 s; then one try every 5 s.
    EXPECT_GT(records.size(), 15u);
    EXPECT_LT(records.size(), 20u);
    EXPECT_GT(records.back().start_s - records[records.size() - 2].start_s, 5);
  }
}

TEST(LoadRun, ASuccessMakesThePausesShortAgain) {
  Scene scene;
  scene.server.takes_s = 0;
  scene.server.spoil = [](uint64_t number, LoadRecord& record) {
    if (number != 2) record.outcome = LoadOutcome::broken;
  };
  const auto records = scene.run(Steps(1), {.jobs = 5});
  ASSERT_EQ(records.size(), 5u);
  const double starts[] = {0, 0.1, 0.3, 0.3, 0.4};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(records[i].start_s, starts[i], 1e-9) << i;
}

TEST(LoadRun, OpenLoopsFollowTheTraceOrTheSeed) {
  Scene traced;
  traced.server.takes_s = 0;
  const auto records = traced.run(Steps(1, 2.5), {.arrivals = Arrivals::trace, .concurrency = 3, .jobs = 4});
  ASSERT_EQ(records.size(), 4u);
  std::vector<double> due;
  for (const LoadRecord& record : records) due.push_back(record.due_s);
  std::ranges::sort(due);
  EXPECT_EQ(due, (std::vector<double>{0, 2.5, 5, 7.5}));

  const auto poisson = [](uint64_t seed) {
    Scene scene;
    scene.server.takes_s = 0;
    std::vector<double> times;
    for (const LoadRecord& record : scene.run(
             Steps(1), {.seed = seed, .arrivals = Arrivals::poisson, .concurrency = 8, .rate = 10, .duration_s = 50})) {
      times.push_back(record.due_s);
    }
    std::ranges::sort(times);
    return times;
  };
  const auto one = poisson(1);
  EXPECT_EQ(one, poisson(1));
  EXPECT_NE(one, poisson(2));
  EXPECT_NEAR(static_cast<double>(one.size()), 500, 90);  // four standard deviations
  EXPECT_LT(one.back(), 50);
}

TEST(LoadRun, AbortsTheShareAskedForAtVariousMoments) {
  Scene scene;
  const auto records = scene.run(Steps(1), {.jobs = 300, .abort_share = 0.5, .abort_within_s = 100});
  const auto aborted = std::ranges::count(records, LoadOutcome::aborted, &LoadRecord::outcome);
  const auto done = std::ranges::count(records, LoadOutcome::done, &LoadRecord::outcome);
  EXPECT_EQ(aborted + done, 300);
  EXPECT_NEAR(static_cast<double>(aborted), 140, 40);
  bool early = false, late = false;
  for (const LoadRecord& record : records) {
    if (record.outcome != LoadOutcome::aborted) continue;
    early |= record.events < 10;
    late |= record.events > 100;
  }
  EXPECT_TRUE(early && late);
}

TEST(LoadRun, StopsWhenToldAndKeepsWhatWasMeasured) {
  Scene scene;
  scene.server.takes_s = 0;
  std::atomic<int> answered = 0;
  scene.server.spoil = [&](uint64_t, LoadRecord&) { ++answered; };
  const auto records =
      scene.run(Steps(1), {.concurrency = 2}, false, [&](const LoadProgress&) { return answered > 20; });
  EXPECT_GT(records.size(), 20u);
  EXPECT_GT(std::ranges::count(records, LoadOutcome::done, &LoadRecord::outcome), 20);
  EXPECT_EQ(std::ranges::count(records, LoadOutcome::broken, &LoadRecord::outcome), 0);
}

}  // namespace
}  // namespace kvarto
