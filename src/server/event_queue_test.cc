#include "server/event_queue.h"

#include <gtest/gtest.h>

#include <utility>

#include "server/exchange_testing.h"
#include "server/scripted_engine.h"

namespace kvarto {
namespace {

class EventQueueTest : public testing::Test {
 protected:
  struct Stream {
    std::shared_ptr<RecordedExchange> exchange = std::make_shared<RecordedExchange>();
    std::shared_ptr<Reply> reply;
    int results = 0, given_up = 0;
  };
  std::unique_ptr<Stream> stream() {
    auto made = std::make_unique<Stream>();
    ReplyOptions options;
    options.stream = true;
    options.id = "cmpl-1";
    made->reply = std::make_shared<Reply>(
        options, std::vector<ReplyPrompt>(1), made->exchange, *engine_,
        [s = made.get()](uint32_t, const RequestResult&) { ++s->results; }, [] {}, [s = made.get()] { ++s->given_up; });
    return made;
  }
  static EngineEvent token(const std::string& text) {
    EngineEvent event;
    event.token = 65;
    event.text = text;
    return event;
  }
  static EngineEvent result() {
    EngineEvent event;
    event.result = std::make_unique<RequestResult>();
    event.result->samples.resize(1);
    event.result->samples[0].finish = FinishReason::length;
    return event;
  }
  static bool holds(const Stream& s, std::string_view text) {
    return s.exchange->written.find(text) != std::string::npos;
  }

  std::unique_ptr<Engine> engine_ = *scripted_engine(R"({"answers": [{"pieces": ["a"]}]})", {});
  int wakes_ = 0;
};

TEST_F(EventQueueTest, AnAnswerThatCannotGoOnTakesNobodyWithIt) {
  EventQueue queue([this] { ++wakes_; });
  const auto bad = stream(), good = stream();
  bad->exchange->broken = true;
  queue.push(bad->reply, token("lost"));
  queue.push(good->reply, token("first"));
  queue.push(bad->reply, token("late"));
  EXPECT_EQ(wakes_, 1);
  queue.drain();
  EXPECT_TRUE(holds(*good, "first"));
  EXPECT_TRUE(bad->exchange->finished);
  EXPECT_TRUE(holds(*bad, "Internal server error"));
  EXPECT_FALSE(holds(*bad, "late"));
  EXPECT_EQ(bad->given_up, 1) << "the engine goes on for nobody";

  queue.push(good->reply, token("second"));
  EXPECT_EQ(wakes_, 2) << "later events wake the front thread again";
  queue.push(bad->reply, result());
  queue.push(good->reply, result());
  queue.drain();
  EXPECT_TRUE(holds(*good, "second"));
  EXPECT_TRUE(holds(*good, "\"finish_reason\":\"length\""));
  EXPECT_TRUE(good->exchange->finished);
  EXPECT_EQ(bad->results, 1) << "the metrics still learn how it ended";
  EXPECT_EQ(good->given_up, 0);
}

TEST_F(EventQueueTest, StreamsThatLoseEventsEndWithAnErrorAndResultsAreKept) {
  EventQueue queue([this] { ++wakes_; }, 3);
  const auto whole = stream(), cut = stream();
  queue.push(whole->reply, token("one"));
  queue.push(cut->reply, token("two"));
  queue.push(whole->reply, token("three"));
  queue.push(cut->reply, token("four"));  // no room
  queue.push(cut->reply, result());
  queue.push(whole->reply, result());
  EXPECT_EQ(wakes_, 1);
  queue.drain();
  EXPECT_TRUE(holds(*whole, "three"));
  EXPECT_TRUE(holds(*whole, "\"finish_reason\":\"length\""));
  EXPECT_TRUE(holds(*cut, "fell behind"));
  EXPECT_FALSE(holds(*cut, "\"finish_reason\":\"length\"")) << "it does not look complete";
  EXPECT_EQ(cut->results, 1);
  EXPECT_EQ(cut->given_up, 1);
  EXPECT_EQ(whole->given_up, 0);
}

TEST_F(EventQueueTest, AWakeThatFailsIsTriedAgain) {
  EventQueue queue([this] {
    if (++wakes_ == 1) throw std::bad_alloc();
  });
  const auto one = stream();
  queue.push(one->reply, token("first"));
  queue.push(one->reply, token("second"));
  queue.push(one->reply, token("third"));
  EXPECT_EQ(wakes_, 2);
  queue.drain();
  EXPECT_TRUE(holds(*one, "first"));
  EXPECT_TRUE(holds(*one, "third"));
}

}  // namespace
}  // namespace kvarto
