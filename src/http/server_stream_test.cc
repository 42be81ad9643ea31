// Replies in pieces, and clients that go, in every state and manner.
#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <utility>

#include "http/testing.h"

namespace kvarto {
namespace {

using namespace http_testing;
using std::chrono::milliseconds;

// Keeps the front thread busy from its making until go_on(), or its end.
class BusyFront {
 public:
  explicit BusyFront(TestServer& server) {
    server->post([state = state_] {
      state->begun.set_value();
      state->released.get_future().wait();
    });
    state_->begun.get_future().wait();
  }
  ~BusyFront() { go_on(); }
  void go_on() {
    if (const auto state = std::exchange(state_, nullptr)) state->released.set_value();
  }

 private:
  struct State {
    std::promise<void> begun, released;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(ServerStream, PiecesArriveAsTheyAreWritten) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold"));
  const auto held = server.held();
  held->start({200, {{"Content-Type", "text/event-stream"}}, "first"});
  std::string seen = client.receive_until("first\r\n");
  EXPECT_NE(seen.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_TRUE(held->write("second"));
  EXPECT_EQ(client.receive_until("second\r\n"), "6\r\nsecond\r\n");
  EXPECT_TRUE(held->write(""));  // an empty chunk would end the reply
  EXPECT_TRUE(held->write("third"));
  EXPECT_EQ(client.receive_until("third\r\n"), "5\r\nthird\r\n");
  held->finish();
  held->finish();
  EXPECT_EQ(client.receive_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(held->write("too late"));
  EXPECT_EQ(client.ask(get("/after")).body, "GET /after?\n");
}

TEST(ServerStream, PiecesOfManyThreadsArriveInOrderAndWhole) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold"));
  const auto held = server.held();
  held->start({200, {}, ""});
  constexpr int kThreads = 8, kPieces = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPieces; ++i) EXPECT_TRUE(held->write(std::to_string(t) + ":" + std::to_string(i) + "\n"));
    });
  }
  std::thread closer([&] {
    for (std::thread& thread : threads) thread.join();
    held->finish();
  });
  const Answer answer = client.answer();
  closer.join();
  EXPECT_TRUE(answer.whole);
  std::vector<int> next(kThreads, 0);
  size_t lines = 0;
  for (size_t at = 0; at < answer.body.size(); ++lines) {
    const size_t end = answer.body.find('\n', at), colon = answer.body.find(':', at);
    ASSERT_NE(end, std::string::npos);
    const auto thread = static_cast<size_t>(std::stoi(answer.body.substr(at, colon - at)));
    ASSERT_LT(thread, next.size());
    ASSERT_EQ(std::stoi(answer.body.substr(colon + 1, end - colon - 1)), next[thread]++);
    at = end + 1;
  }
  EXPECT_EQ(lines, static_cast<size_t>(kThreads * kPieces));
}

TEST(ServerStream, WaitingPiecesShareAChunk) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold"));
  const auto held = server.held();
  BusyFront front(server);  // so that all of them have to wait
  held->start({200, {}, ""});
  for (int i = 0; i < 100; ++i) held->write("0123456789");
  held->finish();
  front.go_on();
  const std::string all = client.receive_until("0\r\n\r\n");
  EXPECT_NE(all.find("\r\n\r\n3e8\r\n0123456789"), std::string::npos);
}

// --- clients that go

enum class Manner { fin, rst };
const auto kManners = testing::Values(Manner::fin, Manner::rst);
void leave(RawClient& client, Manner manner) { manner == Manner::fin ? client.leave() : client.reset(); }

class Disconnect : public testing::TestWithParam<Manner> {
 protected:
  // Held, and counting its on_close.
  std::shared_ptr<HttpExchange> hold() {
    auto held = server_.held();
    held->on_close([this] { ++closed_; });
    return held;
  }
  void expect_gone(HttpExchange& held) {
    EXPECT_TRUE(eventually([&] { return closed_ == 1; }));
    ASSERT_TRUE(held.closed());
    EXPECT_FALSE(held.write("x"));
    std::atomic<int> again{0};
    held.on_close([&] { ++again; });  // it has gone already
    EXPECT_TRUE(eventually([&] { return again == 1; }));
    EXPECT_TRUE(server_.all_closed());
    EXPECT_EQ(closed_, 1);
  }

  std::atomic<int> closed_{0};
  TestServer server_;
};
INSTANTIATE_TEST_SUITE_P(Server, Disconnect, kManners);

TEST_P(Disconnect, BeforeAndWithinARequest) {
  for (const char* begun :
       {"", "G", "GET / HTTP/1.1\r\nHost:", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"}) {
    RawClient client(server_.port());
    client.send(begun);
    const uint64_t accepted = server_->counts().accepted;
    static_cast<void>(eventually([&] { return server_->counts().accepted > accepted; }) || true);
    leave(client, GetParam());
    EXPECT_TRUE(server_.all_closed()) << begun;
  }
  EXPECT_EQ(server_->counts().requests, 0u);
}

TEST_P(Disconnect, WhileTheHandlerWorks) {
  RawClient client(server_.port());
  client.send(get("/hold"));
  const auto held = hold();
  EXPECT_FALSE(held->closed());
  leave(client, GetParam());
  expect_gone(*held);
  held->reply({200, {}, "nobody"});
}

TEST_P(Disconnect, WhileAStreamPauses) {
  RawClient client(server_.port());
  client.send(get("/hold"));
  const auto held = hold();
  held->start({200, {}, "begun"});
  client.receive_until("begun");
  leave(client, GetParam());
  expect_gone(*held);
  held->finish();
}

TEST_P(Disconnect, WhileAStreamIsWritten) {
  RawClient client(server_.port());
  client.send(get("/hold"));
  const auto held = hold();
  held->start({200, {}, "begun"});
  std::thread writer([&] {
    while (held->write("piece")) std::this_thread::yield();
  });
  client.receive_until("piece");
  leave(client, GetParam());
  writer.join();
  expect_gone(*held);
}

TEST_P(Disconnect, WithRequestsSentAhead) {
  RawClient client(server_.port());
  client.send(get("/hold") + get("/hold/never") + "POST /x HT");
  const auto held = hold();
  leave(client, GetParam());
  expect_gone(*held);
  EXPECT_EQ(server_->counts().requests, 1u);
}

TEST_P(Disconnect, WithAWholeLongRequestSentAhead) {
  RawClient client(server_.port());
  client.send(get("/hold") + post("/hold/never", std::string(40'000, 'x')));
  const auto held = hold();
  leave(client, GetParam());
  expect_gone(*held);
}

// More is sent ahead than is read while a reply is under way.
TEST(ServerStream, AResetBehindTooMuchSentAheadIsSeen) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold") + std::string(300'000, 'x'));
  const auto held = server.held();
  client.reset();
  EXPECT_TRUE(server.all_closed());
  EXPECT_TRUE(held->closed());
}

TEST_P(Disconnect, AfterTheReplyNobodyIsCalled) {
  RawClient client(server_.port());
  client.send(get("/hold"));
  const auto held = hold();
  held->reply({200, {}, "whole"});
  EXPECT_EQ(client.answer().body, "whole");
  leave(client, GetParam());
  EXPECT_TRUE(server_.all_closed());
  EXPECT_EQ(closed_, 0);
}

TEST(ServerStream, AnExchangeHeldByItsOwnCallbackIsFreed) {
  TestServer server;
  std::weak_ptr<HttpExchange> watched;
  RawClient client(server.port());
  client.send(get("/hold"));
  {
    auto held = server.held();
    watched = held;
    held->on_close([held] {});
    held->reply({200, {}, "x"});
  }
  client.answer();
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

TEST(ServerStream, WhoReadsNothingIsDropped) {
  HttpServerOptions options;
  options.max_pending_bytes = 1 << 20;
  TestServer server(options);
  RawClient client(server.port(), 4096), other(server.port());
  client.send(get("/hold"));
  const auto held = server.held();
  std::atomic<int> closed{0};
  held->on_close([&] { ++closed; });
  held->start({200, {}, ""});
  size_t written = 0;
  for (const std::string piece(16 << 10, 'x'); held->write(piece); written += piece.size()) {
    ASSERT_LT(written, size_t{1} << 30);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  EXPECT_TRUE(eventually([&] { return closed == 1; }));
  EXPECT_TRUE(held->closed());
  EXPECT_EQ(server->counts().dropped_slow, 1u);
  EXPECT_GE(written, size_t{1} << 20);
  EXPECT_EQ(other.ask(get("/other")).status, 200);
  EXPECT_EQ(server->counts().open, 1u);
}

// Many pieces at once say nothing about the client: it had no time to read them.
TEST(ServerStream, ABurstIsNoSlowReader) {
  HttpServerOptions options;
  options.max_pending_bytes = 1 << 20;
  TestServer server(options);
  RawClient client(server.port());
  client.send(get("/hold"));
  const auto held = server.held();
  held->start({200, {}, "begun"});
  std::string seen = client.receive_until("begun\r\n");
  BusyFront front(server);
  const std::string piece(64 << 10, 'x');
  for (int i = 0; i < 128; ++i) EXPECT_TRUE(held->write(piece)) << i;  // 8 MiB
  front.go_on();
  held->finish();
  seen = client.receive_until("0\r\n\r\n");
  EXPECT_EQ(static_cast<size_t>(std::count(seen.begin(), seen.end(), 'x')), 128 * piece.size());
  EXPECT_EQ(server->counts().dropped_slow, 0u);
}

TEST(ServerStream, AWriteThatHangsEndsAtItsLimit) {
  HttpServerOptions options;
  options.max_pending_bytes = size_t{1} << 30;
  options.write_limit = milliseconds(200);
  TestServer server(options);
  for (const bool whole : {false, true}) {
    RawClient client(server.port(), 4096);
    client.send(get("/hold"));
    const auto held = server.held();
    std::atomic<int> closed{0};
    held->on_close([&] { ++closed; });
    const uint64_t dropped = server->counts().dropped_slow;
    const ServerReply reply{200, {}, std::string(64 << 20, 'x')};
    whole ? held->reply(reply) : held->start(reply);
    EXPECT_TRUE(eventually([&] { return closed == 1; }));
    EXPECT_EQ(server->counts().dropped_slow, dropped + 1);
  }
}

TEST(ServerStream, ASlowReaderGetsAllOfALongReply) {
  TestServer server;
  RawClient client(server.port(), 64 << 10);
  client.send(get("/hold"));
  std::string body;
  for (int i = 0; body.size() < (20 << 20); ++i) body += std::to_string(i) + ";";
  server.held()->reply({200, {}, body});
  const Answer answer = client.answer();
  EXPECT_TRUE(answer.whole);
  EXPECT_TRUE(answer.body == body);
}

}  // namespace
}  // namespace kvarto
