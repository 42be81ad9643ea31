// What on_served tells of each request: for the access log.
#include "http/testing.h"

namespace kvarto {
namespace {

using namespace http_testing;

// What was told, copied.
class Served {
 public:
  struct One {
    std::string peer, method, path, label;
    int status = 0;
    uint64_t bytes = 0;
    bool http_1_0 = false, whole = false;
  };

  HttpServerOptions options(HttpServerOptions others = {}) {
    others.on_served = [this](const ServedRequest& r) {
      const std::lock_guard lock(mutex_);
      all_.push_back({std::string(r.peer), std::string(r.method), std::string(r.path), std::string(r.label), r.status,
                      r.bytes, r.http_1_0, r.whole});
    };
    return others;
  }
  std::vector<One> wait_for(size_t count) {
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex_);
      return all_.size() >= count;
    }));
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(all_.size(), count);
    all_.resize(count);
    return all_;
  }

 private:
  std::mutex mutex_;
  std::vector<One> all_;
};

TEST(ServerServed, EveryRequestIsToldOnce) {
  Served served;
  TestServer server(served.options());
  RawClient client(server.port());
  const std::string bytes = "POST /a%20b?key=secret HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
  const Answer first = client.ask(bytes);
  const size_t first_bytes = first.head.size() + 2 + first.body.size();
  const Answer second = client.ask("HEAD /head HTTP/1.0\r\n\r\n", true);
  const std::vector<Served::One> all = served.wait_for(2);
  EXPECT_EQ(all[0].peer, "127.0.0.1");
  EXPECT_EQ(all[0].method, "POST");
  EXPECT_EQ(all[0].path, "/a b");
  EXPECT_EQ(all[0].label, "");
  EXPECT_EQ(all[0].status, 200);
  EXPECT_EQ(all[0].bytes, first_bytes);
  EXPECT_TRUE(all[0].whole);
  EXPECT_FALSE(all[0].http_1_0);
  EXPECT_EQ(all[1].method, "HEAD");
  EXPECT_EQ(all[1].bytes, second.head.size() + 2);
  EXPECT_TRUE(all[1].http_1_0);
}

TEST(ServerServed, AStreamHasItsLabelAndAllItsBytes) {
  Served served;
  TestServer server(served.options());
  RawClient client(server.port());
  client.send(get("/hold"));
  const auto held = server.held();
  held->set_label("request 7");
  held->start({200, {}, "first"});
  std::string seen = client.receive_until("first\r\n");
  held->write("second");
  held->finish();
  seen += client.receive_until("0\r\n\r\n");
  const Served::One one = served.wait_for(1)[0];
  EXPECT_EQ(one.label, "request 7");
  EXPECT_EQ(one.bytes, seen.size());
  EXPECT_TRUE(one.whole);
}

TEST(ServerServed, ClientsThatGoAreTold) {
  Served served;
  TestServer server(served.options());
  RawClient early(server.port());
  early.send(get("/hold/early"));
  const auto first = server.held();
  early.leave();
  EXPECT_EQ(served.wait_for(1)[0].status, 0);
  first->reply({200, {}, "nobody reads it"});
  RawClient late(server.port());
  late.send(get("/hold/late"));
  const auto second = server.held();
  second->start({200, {}, "begun"});
  late.receive_until("begun");
  late.reset();
  const Served::One one = served.wait_for(2)[1];
  EXPECT_EQ(one.path, "/hold/late");
  EXPECT_EQ(one.status, 200);
  EXPECT_FALSE(one.whole);
  second->finish();
  RawClient idle(server.port());
  EXPECT_EQ(idle.ask(get("/third")).status, 200);
  idle.leave();  // between requests there is nothing to tell
  EXPECT_TRUE(server.all_closed());
  EXPECT_EQ(served.wait_for(3)[2].path, "/third");
}

TEST(ServerServed, RefusalsAreTold) {
  Served served;
  HttpServerOptions options;
  options.max_body_bytes = 10;
  TestServer server(served.options(options));
  EXPECT_EQ(RawClient(server.port()).ask("nonsense\r\n\r\n").status, 400);
  EXPECT_EQ(RawClient(server.port()).ask(post("/", std::string(100, 'x'))).status, 413);
  const std::vector<Served::One> all = served.wait_for(2);
  EXPECT_EQ(all[0].status, 400);
  EXPECT_EQ(all[0].method, "");
  EXPECT_EQ(all[1].status, 413);
  EXPECT_GT(all[1].bytes, 0u);
}

TEST(ServerServed, WhatThrowsDisturbsNobody) {
  HttpServerOptions options;
  options.on_served = [](const ServedRequest&) { throw std::runtime_error("from the log"); };
  TestServer server(options);
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ask(get("/")).status, 200);
}

}  // namespace
}  // namespace kvarto
