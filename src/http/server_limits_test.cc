// Every limit of the server, cut and random input, and that each refusal can be read by who caused it.
#include <atomic>
#include <optional>
#include <random>

#include "http/testing.h"

namespace kvarto {
namespace {

using namespace http_testing;
using std::chrono::milliseconds;

HttpServerOptions small() {
  HttpServerOptions options;
  options.max_header_bytes = 4096;
  options.max_headers = 20;
  options.max_body_bytes = 100'000;
  return options;
}

void expect_refusal(RawClient& client, int status, const std::string& words) {
  const Answer answer = client.answer();
  EXPECT_EQ(answer.status, status) << answer.head;
  EXPECT_TRUE(answer.has("Connection: close"));
  EXPECT_TRUE(answer.has("X-Refused: yes"));
  EXPECT_TRUE(answer.whole);
  EXPECT_NE(answer.body.find(words), std::string::npos) << answer.body;
  EXPECT_EQ(client.receive(), "");
  EXPECT_FALSE(client.hung());
}

TEST(ServerLimits, HeaderBytesAndCount) {
  TestServer server(small());
  RawClient exact(server.port()), longer(server.port()), endless(server.port()), many(server.port());
  const std::string rest = get("/", "X: \r\n");
  EXPECT_EQ(exact.ask(get("/", "X: " + std::string(4096 - rest.size(), 'x') + "\r\n")).status, 200);
  longer.send(get("/", "X: " + std::string(4097 - rest.size(), 'x') + "\r\n"));
  expect_refusal(longer, 431, "4096");
  endless.send("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(1 << 20, 'x'));
  expect_refusal(endless, 431, "4096");
  std::string headers;
  for (int i = 0; i < 20; ++i) headers += "X: y\r\n";
  many.send(get("/", headers));
  expect_refusal(many, 431, "20 headers");
  EXPECT_EQ(server->counts().refused, 3u);
  EXPECT_EQ(server->counts().requests, 1u);
}

TEST(ServerLimits, BodiesTooLong) {
  TestServer server(small());
  RawClient exact(server.port()), announced(server.port()), expecting(server.port()), chunked(server.port());
  EXPECT_EQ(exact.ask(post("/", std::string(100'000, 'b'))).body.size(), 100'000u + 8);
  announced.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n");
  expect_refusal(announced, 413, "100001");
  expecting.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n");
  expect_refusal(expecting, 413, "100000");  // no 100 first
  chunked.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 2; ++i) chunked.send("C350\r\n" + std::string(50'000, 'b') + "\r\n");
  chunked.send("1\r\n");
  expect_refusal(chunked, 413, "100000");
}

TEST(ServerLimits, ARefusalKnowsWhatWasReadOfItsRequest) {
  HttpServerOptions options = small();
  options.on_refused = [](const ServerRequest& read, ServerReply& reply) {
    const std::string* name = read.header("X-Name");
    reply.headers.push_back({"X-Was", read.path + " " + (name == nullptr ? "nobody" : *name)});
  };
  TestServer server(options);
  RawClient named(server.port()), nonsense(server.port());
  EXPECT_EQ(named.ask("POST /a HTTP/1.1\r\nHost: h\r\nX-Name: me\r\nContent-Length: 100001\r\n\r\n").value("X-Was"),
            "/a me");
  EXPECT_EQ(nonsense.ask("nonsense\r\n\r\n").value("X-Was"), " nobody");
}

// Without a word of the body, which may never come.
TEST(ServerLimits, LongBodiesAreRefusedByTheirHeads) {
  HttpServerOptions options;
  std::atomic<int> asked{0};
  options.on_head = [&](const ServerRequest& head) -> std::optional<ServerReply> {
    ++asked;
    if (head.header("X-Key") != nullptr) return std::nullopt;
    return ServerReply{401, {{"X-Refused", "yes"}}, "no key for " + head.path};
  };
  TestServer server(options);
  RawClient announced(server.port()), chunked(server.port()), expecting(server.port()), shorter(server.port()),
      known(server.port());
  announced.send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
  expect_refusal(announced, 401, "no key for /a");
  chunked.send("POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n30D40\r\n" +
               std::string(100'000, 'b'));
  expect_refusal(chunked, 401, "no key for /c");
  expecting.send("POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  expect_refusal(expecting, 401, "no key for /e");
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(shorter.ask(post("/s", "hello")).status, 200);  // its handler may refuse it, and the connection go on
  EXPECT_EQ(asked, 3);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(known.ask(post("/k", std::string(1'000'000, 'b'), "X-Key: k\r\n")).body.size(), 1'000'000u + 9);
  }
  EXPECT_EQ(asked, 5);
}

TEST(ServerLimits, AllBodiesTogetherHaveALimit) {
  HttpServerOptions options = small();
  options.max_bodies_bytes = 150'000;
  TestServer server(options);
  const std::string body(100'000, 'b');
  RawClient first(server.port());
  first.send(post("/hold", body));
  const auto held = server.held();
  RawClient second(server.port());
  second.send(post("/", body));
  expect_refusal(second, 503, "150000 bytes");
  EXPECT_EQ(RawClient(server.port()).ask(post("/", std::string(40'000, 'b'))).status, 200);
  // Who takes the body off makes room, and so does who goes half way.
  EXPECT_EQ(held->take_body(), body);
  EXPECT_EQ(held->request().body, "");
  RawClient half(server.port());
  half.send(post("/", body).substr(0, 90'000));
  half.end_sending();
  EXPECT_EQ(half.receive_all(), "");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(RawClient(server.port()).ask(post("/", body)).status, 200) << i;
  held->reply({200, {}, "done"});
  EXPECT_EQ(first.answer().body, "done");
}

// Who sends all of its body before it reads must not find the connection reset.
TEST(ServerLimits, TheRefusalOfALongBodyReachesWhoStillSends) {
  TestServer server(small());
  RawClient client(server.port());
  const size_t size = 30 << 20;
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n");
  ASSERT_TRUE(client.send(std::string(size, 'b')));
  expect_refusal(client, 413, std::to_string(size));
}

TEST(ServerLimits, NonsenseIsRefusedAlsoWhenItsSenderHasHungUp) {
  TestServer server;
  RawClient client(server.port());
  client.send("nonsense\r\n\r\n");
  client.end_sending();
  expect_refusal(client, 400, "HTTP/1.1");
}

TEST(ServerLimits, ARefusalOfAHeadRequestHasNoBody) {
  TestServer server(small());
  RawClient client(server.port());
  client.send("HEAD / HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n");
  const Answer answer = client.answer(true);
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(client.receive(), "");
}

TEST(ServerLimits, SlowHeadersAndBodies) {
  HttpServerOptions options;
  options.header_limit = options.body_limit = milliseconds(150);
  TestServer server(options);
  RawClient silent(server.port()), head(server.port()), body(server.port()), second(server.port());
  EXPECT_EQ(second.ask(get("/")).status, 200);
  head.send("GET / HTTP/1.1\r\nHo");
  second.send("GET / HT");
  body.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc");
  expect_refusal(head, 408, "150 ms");
  expect_refusal(body, 408, "150 ms");
  expect_refusal(second, 408, "150 ms");
  EXPECT_EQ(silent.receive(), "");  // said nothing, gets nothing
  EXPECT_FALSE(silent.hung());
}

// One byte now and then must not hold a connection, neither in the head nor in the body.
TEST(ServerLimits, TricklesEnd) {
  HttpServerOptions options;
  options.header_limit = options.body_limit = milliseconds(150);
  TestServer server(options);
  for (const std::string begin : {"GET /", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n"}) {
    RawClient client(server.port());
    client.send(begin);
    const uint64_t refused = server->counts().refused;
    EXPECT_TRUE(eventually([&] {
      client.send("x");
      std::this_thread::sleep_for(milliseconds(5));
      return server->counts().refused > refused;
    }));
    EXPECT_EQ(client.answer().status, 408);
  }
}

TEST(ServerLimits, IdleConnectionsClose) {
  HttpServerOptions options;
  options.keep_alive_limit = milliseconds(100);
  TestServer server(options);
  RawClient client(server.port());
  EXPECT_EQ(client.ask(get("/")).status, 200);
  EXPECT_EQ(client.receive(), "");
  EXPECT_FALSE(client.hung());
  client.leave();
  EXPECT_TRUE(server.all_closed());
  // A reply may take longer than any of these.
  RawClient patient(server.port());
  patient.send(get("/hold"));
  const auto held = server.held();
  std::this_thread::sleep_for(milliseconds(300));
  held->reply({200, {}, "late"});
  EXPECT_EQ(patient.answer().body, "late");
}

TEST(ServerLimits, MoreConnectionsThanAllowedGetA503) {
  HttpServerOptions options;
  options.max_connections = 3;
  TestServer server(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    EXPECT_EQ(clients.back().ask(get("/")).status, 200);
  }
  RawClient fourth(server.port());
  fourth.send(get("/"));
  expect_refusal(fourth, 503, "3 connections");
  fourth.leave();
  clients.pop_back();
  ASSERT_TRUE(eventually([&] { return server->counts().open == 2; }));
  EXPECT_EQ(RawClient(server.port()).ask(get("/")).status, 200);
}

TEST(ServerLimits, AFloodOfConnectionsIsCutShort) {
  HttpServerOptions options;
  options.max_connections = 2;
  TestServer server(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 150; ++i) clients.emplace_back(server.port());
  ASSERT_TRUE(eventually([&] { return server->counts().accepted == 150; }));
  EXPECT_LE(server->counts().open, 2u + 64u);
  clients.clear();
  EXPECT_TRUE(server.all_closed());
  EXPECT_EQ(RawClient(server.port()).ask(get("/")).status, 200);
}

// --- broken input, over a Unix socket: ports of the other end would run out

class ServerInput : public testing::Test {
 protected:
  static HttpServerOptions options(const TempFolder& folder) {
    HttpServerOptions out = small();
    out.unix_socket = folder.file("s");
    return out;
  }
  TempFolder folder_;
  std::string path_ = folder_.file("s");
  TestServer server_{options(folder_)};
};

TEST_F(ServerInput, RequestsCutAtEveryByte) {
  const std::string counted = post("/counted", "hello");
  const std::string chunked =
      "POST /chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: "
      "u\r\n\r\n";
  for (const std::string& request : {counted, chunked}) {
    for (size_t cut = 0; cut < request.size(); ++cut) {
      RawClient cut_off(path_);
      ASSERT_TRUE(cut_off.send(std::string_view(request).substr(0, cut)));
      cut_off.end_sending();
      EXPECT_EQ(cut_off.receive_all(), "") << cut;
      ASSERT_FALSE(cut_off.hung()) << cut;
      RawClient split(path_);
      split.send(std::string_view(request).substr(0, cut));
      const Answer answer = split.ask(std::string_view(request).substr(cut));
      ASSERT_EQ(answer.status, 200) << cut;
    }
  }
  EXPECT_EQ(server_->counts().requests, counted.size() + chunked.size());  // the split ones only
}

TEST_F(ServerInput, TwentyThousandRandomRequests) {
  std::mt19937 random(11);
  const std::string seed = post("/echo?x=y", "hello", "Connection: close\r\n");
  int answered = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes;
    const bool pure = round % 2 == 0;
    if (pure) {
      for (size_t n = random() % 300; n > 0; --n) bytes += static_cast<char>(random());
      if (round % 4 == 0) bytes += "\r\n\r\n";
    } else {
      bytes = seed;
      for (size_t n = 1 + random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RawClient client(path_);
    ASSERT_TRUE(client.connected()) << round;
    client.send(bytes);
    client.end_sending();
    const std::string answer = client.receive_all();
    ASSERT_FALSE(client.hung()) << round;
    if (answer.empty()) continue;
    ++answered;
    const std::string status = answer.substr(0, 13);
    const bool refused = status.starts_with("HTTP/1.1 4") || status == "HTTP/1.1 501 ";
    ASSERT_TRUE(refused || (!pure && status.starts_with("HTTP/1.1 200"))) << round << ": " << answer;
  }
  EXPECT_GT(answered, 5000);
  RawClient good(path_);
  EXPECT_EQ(good.ask(post("/good", "b")).body, "POST /good?\nb");
  good.leave();
  EXPECT_TRUE(server_.all_closed());
}

}  // namespace
}  // namespace kvarto
