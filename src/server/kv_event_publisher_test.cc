// The publisher seen from outside: frames, numbers, replays in both forms, what happens when nobody keeps up.
#include "server/kv_event_publisher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <zmq.hpp>

#include "server/kv_event_encoding.h"

namespace kvarto {
namespace {

using Frames = std::vector<std::string>;
constexpr int kWatchdogMs = 30'000;  // ends a hung test
const std::string kEnd(8, '\xff');

std::string number(uint64_t n) {
  std::string out(8, '\0');
  for (int i = 7; i >= 0; --i, n >>= 8) out[static_cast<size_t>(i)] = static_cast<char>(n & 0xff);
  return out;
}

uint64_t number_of(const std::string& frame) {
  uint64_t out = 0;
  for (const char c : frame) out = out << 8 | static_cast<uint8_t>(c);
  return out;
}

std::vector<KvEvent> events(int n) {
  BlockHash hash{};
  hash[31] = static_cast<uint8_t>(n);
  return {{.kind = KvEvent::Kind::removed, .hashes = {hash}}};
}

std::string payload(int n, bool array = false) {
  return encode_kv_events(events(n), {.array_encoding = array}, 100.0 + n, 0);
}

KvEventsOptions options() {
  return {.enabled = true,
          .publisher = "zmq",
          .endpoint = "tcp://127.0.0.1:*",
          .replay_endpoint = "tcp://127.0.0.1:*",
          .topic = "kv"};
}

std::unique_ptr<KvEventPublisher> started(const KvEventsOptions& options, int rank = 0) {
  auto publisher = KvEventPublisher::start(options, rank);
  EXPECT_TRUE(publisher.has_value()) << publisher.error().message;
  return std::move(*publisher);
}

class Peer {
 public:
  Peer(zmq::socket_type type, const std::string& endpoint) : socket_(context_, type) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, kWatchdogMs);
    socket_.set(zmq::sockopt::rcvhwm, 0);
    if (type == zmq::socket_type::sub) socket_.set(zmq::sockopt::subscribe, "");
    socket_.connect(endpoint);
  }
  void send(const Frames& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      socket_.send(zmq::buffer(frames[i]), i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  // One message; empty when none came in time.
  Frames receive(int timeout_ms = kWatchdogMs) {
    socket_.set(zmq::sockopt::rcvtimeo, timeout_ms);
    Frames out;
    zmq::message_t frame;
    do {
      if (!socket_.recv(frame)) return {};
      out.push_back(frame.to_string());
    } while (frame.more());
    return out;
  }
  // A replay from `first` on, up to its end, which is left out. `number_at`: the frame with the number.
  std::vector<Frames> replay(uint64_t first, size_t number_at) {
    send({"", number(first)});
    std::vector<Frames> out;
    for (;;) {
      Frames message = receive();
      if (message.size() <= number_at) return {{"no answer"}};
      if (message[number_at] == kEnd) {
        end = message;
        return out;
      }
      out.push_back(std::move(message));
    }
  }
  Frames end;

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

// Publishes until `listener` hears something (a subscription takes a moment to arrive), then everything up to the last
// one published. Returns how many were published.
int publish_until_heard(KvEventPublisher& publisher, Peer& listener, Frames& last) {
  for (int n = 0; n < 3000; ++n) {
    publisher.publish(events(n), 100.0 + n);
    last = listener.receive(10);
    while (!last.empty() && number_of(last[1]) != static_cast<uint64_t>(n)) last = listener.receive();
    if (!last.empty()) return n + 1;
  }
  return 0;
}

// What was published is in the replay buffer once a replay shows it: the thread sends before it answers.
void publish(KvEventPublisher& publisher, int count) {
  for (int n = 0; n < count; ++n) publisher.publish(events(n), 100.0 + n);
}

TEST(KvEventPublisher, ThreeFramesPerBatchNumberedWithoutGaps) {
  const auto publisher = started(options());
  Peer listener(zmq::socket_type::sub, publisher->endpoint());
  Frames heard;
  const int published = publish_until_heard(*publisher, listener, heard);
  ASSERT_GT(published, 0);
  EXPECT_EQ(heard, (Frames{"kv", number(static_cast<uint64_t>(published - 1)), payload(published - 1)}));
  publisher->publish({}, 5.0);  // a step without events is no batch
  for (int n = published; n < published + 20; ++n) {
    publisher->publish(events(n), 100.0 + n);
    EXPECT_EQ(listener.receive(), (Frames{"kv", number(static_cast<uint64_t>(n)), payload(n)}));
  }
}

TEST(KvEventPublisher, ReplaysFromANumberOn) {
  const auto publisher = started(options());
  Peer asker(zmq::socket_type::dealer, publisher->replay_endpoint());
  publish(*publisher, 12);
  // The queue may still hold some of the twelve when the first request is read.
  while (publisher->counts().batches < 12) usleep(1000);
  const std::vector<Frames> found = asker.replay(7, 2);
  ASSERT_EQ(found.size(), 5u);
  for (int n = 7; n < 12; ++n) {
    EXPECT_EQ(found[static_cast<size_t>(n - 7)], (Frames{"", "kv", number(static_cast<uint64_t>(n)), payload(n)}));
  }
  EXPECT_EQ(asker.end, (Frames{"", "", kEnd, ""}));
  EXPECT_TRUE(asker.replay(12, 2).empty());
  EXPECT_EQ(asker.replay(0, 2).size(), 12u);
  const KvEventPublisher::Counts counts = publisher->counts();
  EXPECT_EQ(counts.replays, 3u);
  EXPECT_EQ(counts.replayed_batches, 17u);
  EXPECT_EQ(counts.batches, 12u);
  EXPECT_EQ(counts.events, 12u);
  EXPECT_EQ(counts.bytes, 12 * payload(0).size());
}

TEST(KvEventPublisher, TheOlderFormRepliesWithoutTopic) {
  KvEventsOptions older = options();
  older.array_encoding = true;
  const auto publisher = started(older);
  Peer asker(zmq::socket_type::dealer, publisher->replay_endpoint());
  publish(*publisher, 3);
  while (publisher->counts().batches < 3) usleep(1000);
  const std::vector<Frames> found = asker.replay(2, 1);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], (Frames{"", number(2), payload(2, true)}));
  EXPECT_EQ(asker.end, (Frames{"", kEnd, ""}));
}

TEST(KvEventPublisher, TheNewestBatchesAreKeptForReplay) {
  KvEventsOptions few = options();
  few.buffer_steps = 4;
  const auto publisher = started(few);
  Peer asker(zmq::socket_type::dealer, publisher->replay_endpoint());
  publish(*publisher, 10);
  while (publisher->counts().batches < 10) usleep(1000);
  const std::vector<Frames> found = asker.replay(0, 2);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0][2], number(6));
  EXPECT_EQ(found[3][2], number(9));
}

TEST(KvEventPublisher, AReplayLongerThanZeroMqsOwnLimitArrivesWhole) {
  const auto publisher = started(options());
  Peer asker(zmq::socket_type::dealer, publisher->replay_endpoint());
  publish(*publisher, 5000);
  while (publisher->counts().batches < 5000) usleep(1000);
  const std::vector<Frames> found = asker.replay(0, 2);
  ASSERT_EQ(found.size(), 5000u);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i][2], number(i));
}

TEST(KvEventPublisher, StrangeRequestsAreCountedAndNotAnswered) {
  const auto publisher = started(options());
  Peer asker(zmq::socket_type::dealer, publisher->replay_endpoint());
  publish(*publisher, 1);
  asker.send({"", "seven"});
  asker.send({"", ""});
  asker.send({"no empty frame", number(0)});
  asker.send({number(0)});
  asker.send({"", number(0), "one too many", "and another", "and more"});
  EXPECT_EQ(asker.replay(0, 2).size(), 1u);  // the first answer is to this one
  EXPECT_EQ(publisher->counts().bad_requests, 5u);
  EXPECT_EQ(publisher->counts().replays, 1u);
}

TEST(KvEventPublisher, AFullQueueDropsAndLeavesAGapInTheNumbers) {
  KvEventsOptions narrow = options();
  narrow.max_queue_size = 2;
  const auto publisher = started(narrow);
  constexpr int kBatches = 60;
  // Each takes far longer to encode than to hand over.
  KvEvent large{.kind = KvEvent::Kind::stored, .hashes = std::vector<BlockHash>(1000), .block_tokens = 256};
  large.tokens.assign(256'000, 100'000);
  std::vector<std::vector<KvEvent>> prepared(kBatches, {large});
  for (auto& batch : prepared) publisher->publish(std::move(batch), 1.0);
  while (publisher->counts().batches + publisher->counts().dropped_batches < kBatches) usleep(1000);
  const KvEventPublisher::Counts counts = publisher->counts();
  EXPECT_GT(counts.dropped_batches, 0u);
  EXPECT_EQ(counts.batches + counts.dropped_batches, static_cast<uint64_t>(kBatches));
  publisher->publish(events(1), 1.0);
  while (publisher->counts().batches == counts.batches) usleep(1000);
  Peer asker(zmq::socket_type::dealer, publisher->replay_endpoint());
  std::set<uint64_t> numbers;
  for (const Frames& message : asker.replay(0, 2)) numbers.insert(number_of(message[2]));
  EXPECT_EQ(numbers.size(), counts.batches + 1);
  EXPECT_EQ(*numbers.rbegin(), static_cast<uint64_t>(kBatches));
}

TEST(KvEventPublisher, WhatIsQueuedGoesOutBeforeTheEnd) {
  auto publisher = started(options());
  Peer listener(zmq::socket_type::sub, publisher->endpoint());
  Frames heard;
  const int published = publish_until_heard(*publisher, listener, heard);
  ASSERT_GT(published, 0);
  for (int n = 0; n < 100; ++n) publisher->publish(events(n), 100.0 + n);
  publisher.reset();
  for (int n = 0; n < 100; ++n) {
    const Frames message = listener.receive();
    ASSERT_EQ(message.size(), 3u);
    EXPECT_EQ(number_of(message[1]), static_cast<uint64_t>(published + n));
  }
}

TEST(KvEventPublisher, ConnectsWhereNothingSaysBind) {
  zmq::context_t context;
  zmq::socket_t listener(context, zmq::socket_type::sub);
  listener.set(zmq::sockopt::subscribe, "");
  listener.set(zmq::sockopt::rcvtimeo, 10);
  listener.set(zmq::sockopt::linger, 0);
  listener.bind("tcp://127.0.0.1:*");
  KvEventsOptions connecting = options();
  connecting.endpoint = listener.get(zmq::sockopt::last_endpoint);
  connecting.replay_endpoint = "";
  const auto publisher = started(connecting);
  EXPECT_EQ(publisher->replay_endpoint(), "");
  zmq::message_t frame;
  bool heard = false;
  for (int n = 0; n < 3000 && !heard; ++n) {
    publisher->publish(events(n), 100.0 + n);
    heard = listener.recv(frame).has_value();
  }
  EXPECT_EQ(frame.to_string(), "kv");
}

TEST(KvEventPublisher, ARankHasPortsOfItsOwn) {
  const auto first = started(options());
  // A free port that follows another one: the rank's number is added to what the options say.
  const std::string taken = first->endpoint();
  const size_t colon = taken.rfind(':');
  KvEventsOptions shifted = options();
  shifted.replay_endpoint = "";
  const int port = std::stoi(taken.substr(colon + 1));
  shifted.endpoint = "tcp://*:" + std::to_string(port - 2);
  const auto same_port = KvEventPublisher::start(shifted, 2);
  ASSERT_FALSE(same_port.has_value());
  EXPECT_NE(same_port.error().message.find(":" + std::to_string(port)), std::string::npos) << same_port.error().message;
  shifted.endpoint = "inproc://kv";
  EXPECT_EQ(started(shifted, 3)->endpoint(), "inproc://kv_dp3");
  EXPECT_EQ(started(shifted, 0)->endpoint(), "inproc://kv");
  shifted.endpoint = "tcp://*:*";
  EXPECT_FALSE(KvEventPublisher::start(shifted, 1).has_value());
}

TEST(KvEventPublisher, WhatCannotStartSaysWhyAndWhatToDo) {
  const auto first = started(options());
  const auto message_of = [](const KvEventsOptions& wrong) {
    const auto result = KvEventPublisher::start(wrong, 0);
    return result ? std::string("started") : result.error().message;
  };
  KvEventsOptions wrong = options();
  wrong.replay_endpoint = first->endpoint();
  EXPECT_NE(message_of(wrong).find(first->endpoint() + ": cannot bind the KV replay endpoint: Address already in use"),
            std::string::npos)
      << message_of(wrong);
  wrong = options();
  wrong.endpoint = "carrier-pigeon://*";
  EXPECT_NE(message_of(wrong).find("carrier-pigeon://*: cannot bind"), std::string::npos) << message_of(wrong);
  wrong = options();
  wrong.endpoint = "";
  EXPECT_NE(message_of(wrong).find("cannot connect"), std::string::npos) << message_of(wrong);
  wrong = options();
  wrong.publisher = "kafka";
  EXPECT_NE(message_of(wrong).find("\"kafka\""), std::string::npos);
  wrong = options();
  wrong.max_queue_size = 0;
  EXPECT_NE(message_of(wrong).find("max_queue_size 0"), std::string::npos);
}

}  // namespace
}  // namespace kvarto
