// The server over plain sockets: what a request becomes, what a reply looks like, order, and how it begins and ends.
// Limits: server_limits_test.cc; replies in pieces and clients that go: server_stream_test.cc; TLS: server_tls_test.cc.
#include "http/server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>

#include "http/testing.h"

namespace kvarto {
namespace {

using namespace http_testing;

TEST(Server, ARequestArrivesWhole) {
  TestServer server;
  RawClient client(server.port());
  const Answer answer = client.ask(post("/a%20b?q=%20", "the body"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.head.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(answer.body, "POST /a b?q=%20\nthe body");
  EXPECT_TRUE(answer.has("Content-Type: text/plain"));
  EXPECT_TRUE(answer.has("X-Peer: 127.0.0.1"));
  EXPECT_TRUE(answer.has("Content-Length: 24"));
  EXPECT_EQ(answer.value("Date").size(), 29u);
  EXPECT_TRUE(answer.value("Date").ends_with(" GMT"));
  EXPECT_EQ(answer.value("Connection"), "");
  EXPECT_EQ(server->counts().requests, 1u);
}

TEST(Server, OneConnectionServesManyRequests) {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 50; ++i) {
    const std::string body(static_cast<size_t>(i) * 1000, 'x');
    EXPECT_EQ(client.ask(post("/", body)).body, "POST /?\n" + body);
  }
  EXPECT_EQ(server->counts().accepted, 1u);
  EXPECT_TRUE(client.ask(get("/", "Connection: close\r\n")).has("Connection: close"));
  EXPECT_EQ(client.receive(), "");
}

TEST(Server, RequestsSentAheadAreAnsweredInOrder) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold/1") + post("/2", "two") + get("/hold/3") + get("/4"));
  const auto first = server.held();
  EXPECT_EQ(server->counts().requests, 1u);  // the next one is not begun before the reply is whole
  first->reply({200, {}, "one"});
  const auto third = server.held();
  EXPECT_EQ(third->request().path, "/hold/3");
  third->reply({200, {}, "three"});
  EXPECT_EQ(client.answer().body, "one");
  EXPECT_EQ(client.answer().body, "POST /2?\ntwo");
  EXPECT_EQ(client.answer().body, "three");
  EXPECT_EQ(client.answer().body, "GET /4?\n");
}

TEST(Server, MoreSentAheadThanIsReadAheadIsNotLost) {
  HttpServerOptions options;
  options.max_body_bytes = options.max_header_bytes = 1000;
  TestServer server(options);
  RawClient client(server.port());
  std::string ahead;
  for (int i = 0; i < 3000; ++i) ahead += post("/" + std::to_string(i), std::string(100, 'b'));
  client.send(get("/hold"));
  const auto held = server.held();
  std::thread sender([&] { client.send(ahead); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that reading pauses
  held->reply({200, {}, "first"});
  EXPECT_EQ(client.answer().body, "first");
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(client.answer().body, "POST /" + std::to_string(i) + "?\n" + std::string(100, 'b'));
  }
  sender.join();
}

TEST(Server, BodiesInChunksByteByByte) {
  TestServer server;
  RawClient client(server.port());
  const std::string request =
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n";
  for (const char c : request) client.send({&c, 1});
  EXPECT_EQ(client.answer().body, "POST /c?\nabcde");
}

TEST(Server, ExpectContinue) {
  TestServer server;
  RawClient client(server.port());
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
  EXPECT_EQ(client.ask(head).status, 100);
  EXPECT_EQ(client.ask("body").body, "POST /?\nbody");
  EXPECT_EQ(client.ask(head + "body").body, "POST /?\nbody");  // nobody waits for the word
}

TEST(Server, HeadHasTheHeadersOnly) {
  TestServer server;
  RawClient client(server.port());
  const Answer answer = client.ask("HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n", true);
  EXPECT_EQ(answer.value("Content-Length"), "9");  // of "HEAD /x?\n"
  client.send("HEAD /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto held = server.held();
  held->start({200, {}, "first"});
  EXPECT_TRUE(held->write("second"));
  held->finish();
  EXPECT_TRUE(client.answer(true).has("Transfer-Encoding: chunked"));
  EXPECT_EQ(client.ask(get("/after")).body, "GET /after?\n");
}

TEST(Server, NoContentHasNoLength) {
  TestServer server;
  RawClient client(server.port());
  const Answer answer = client.ask(get("/empty"));
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.value("Content-Length"), "");
  EXPECT_EQ(client.ask(get("/after")).body, "GET /after?\n");
}

TEST(Server, Http10) {
  TestServer server;
  RawClient plain(server.port());
  EXPECT_EQ(plain.ask("GET /x HTTP/1.0\r\n\r\n").body, "GET /x?\n");
  EXPECT_EQ(plain.receive(), "");
  RawClient kept(server.port());
  EXPECT_TRUE(kept.ask("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").has("Connection: keep-alive"));
  kept.send("GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto held = server.held();
  held->start({200, {}, "pieces "});
  held->write("until the end");
  held->finish();
  const Answer streamed = kept.answer();
  EXPECT_EQ(streamed.value("Transfer-Encoding"), "");
  EXPECT_TRUE(streamed.has("Connection: close"));
  EXPECT_EQ(streamed.body, "pieces until the end");
}

TEST(Server, HeadersCannotBeInjected) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold"));
  server.held()->reply({200,
                        {{"X-A", "v\r\nSet-Cookie: evil\r\n\r\n<html>"},
                         {"X-B", std::string("n\0l", 3)},
                         {"Bad Name", "x"},
                         {"X\r\nY", "x"},
                         {"Content-Length", "999"},
                         {"Transfer-Encoding", "chunked"},
                         {"Date", "never"}},
                        "body"});
  const Answer answer = client.answer();
  EXPECT_TRUE(answer.has("X-A: v  Set-Cookie: evil    <html>"));
  EXPECT_TRUE(answer.has("X-B: n l"));
  EXPECT_FALSE(answer.has("Set-Cookie: evil"));
  EXPECT_EQ(answer.head.find("Bad"), std::string::npos);
  EXPECT_EQ(answer.value("Content-Length"), "4");
  EXPECT_EQ(answer.head.find("999"), std::string::npos);
  EXPECT_EQ(answer.head.find("chunked"), std::string::npos);
  EXPECT_EQ(answer.head.find("never"), std::string::npos);
  EXPECT_EQ(answer.body, "body");
}

TEST(Server, AHandlerThatFailsGivesA500) {
  TestServer server;
  RawClient client(server.port());
  for (const char* path : {"/throw", "/forget"}) {
    const Answer answer = client.ask(get(path));
    EXPECT_EQ(answer.status, 500) << path;
    EXPECT_EQ(answer.body, "refused: internal error");
    EXPECT_TRUE(answer.has("X-Refused: yes"));
  }
  EXPECT_EQ(client.ask(get("/after")).status, 200);
  // A reply that broke off must not look whole.
  RawClient begun(server.port());
  begun.send(get("/start-throw"));
  EXPECT_FALSE(begun.answer().whole);
}

TEST(Server, AReplyLetGoHalfWayBreaksTheConnection) {
  TestServer server;
  RawClient client(server.port());
  client.send(get("/hold"));
  auto held = server.held();
  held->start({200, {}, "begun"});
  EXPECT_NE(client.receive_until("begun").find("begun"), std::string::npos);
  held.reset();
  EXPECT_EQ(client.receive_all().find("0\r\n\r\n"), std::string::npos);
  EXPECT_FALSE(client.hung());
  EXPECT_TRUE(server.all_closed());
}

TEST(Server, TwoHundredConnectionsAtOnce) {
  TestServer server;
  std::vector<RawClient> clients;
  for (int i = 0; i < 200; ++i) clients.emplace_back(server.port());
  for (size_t i = 0; i < clients.size(); ++i) clients[i].send(get("/hold/" + std::to_string(i)));
  ASSERT_TRUE(eventually([&] { return server.waiting() == 200; }));
  EXPECT_EQ(server->counts().open, 200u);
  std::vector<std::shared_ptr<HttpExchange>> held;
  for (int i = 0; i < 200; ++i) held.push_back(server.held());
  for (const auto& exchange : held) exchange->start({200, {}, ""});
  for (int piece = 0; piece < 20; ++piece) {
    for (const auto& exchange : held) EXPECT_TRUE(exchange->write(exchange->request().path + ";"));
  }
  for (const auto& exchange : held) exchange->finish();
  for (size_t i = 0; i < clients.size(); ++i) {
    std::string expected;
    for (int piece = 0; piece < 20; ++piece) expected += "/hold/" + std::to_string(i) + ";";
    const Answer answer = clients[i].answer();
    EXPECT_TRUE(answer.whole);
    EXPECT_EQ(answer.body, expected);
  }
  clients.clear();
  EXPECT_TRUE(server.all_closed());
}

TEST(Server, AnAddressInUseIsRefusedWithARemedy) {
  TestServer server;
  HttpServerOptions options;
  options.port = server.port();
  const auto second = HttpServer::start(
      options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; });
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find("127.0.0.1:" + std::to_string(server.port())), std::string::npos);
  EXPECT_NE(second.error().message.find("--port"), std::string::npos) << second.error().message;
  options.host = "no.such.host.invalid";
  EXPECT_FALSE(HttpServer::start(
      options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; }));
}

TEST(Server, AddressesAreShownAsUrls) {
  TestServer v4;
  EXPECT_EQ(v4->address(), "http://127.0.0.1:" + std::to_string(v4.port()));
  HttpServerOptions options;
  options.host = "::1";
  options.port = 0;
  const auto v6 = HttpServer::start(
      options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; });
  if (!v6) GTEST_SKIP() << "no IPv6 here: " << v6.error().message;
  EXPECT_EQ((*v6)->address(), "http://[::1]:" + std::to_string((*v6)->port()));
}

TEST(UnixSocket, ServesAndCleansUp) {
  TempFolder folder;
  const std::string path = folder.file("s.sock");
  HttpServerOptions options;
  options.unix_socket = path;
  {
    TestServer server(options);
    EXPECT_EQ(server->address(), "unix:" + path);
    RawClient client(path);
    const Answer answer = client.ask(post("/u", "b"));
    EXPECT_EQ(answer.body, "POST /u?\nb");
    EXPECT_TRUE(answer.has("X-Peer: unix"));
    const auto second = HttpServer::start(
        options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; });
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().message.find("another server"), std::string::npos) << second.error().message;
    EXPECT_EQ(client.ask(get("/still")).status, 200);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(UnixSocket, AStaleFileIsReplacedAndOthersAreKept) {
  TempFolder folder;
  const std::string path = folder.file("s.sock");
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(dead);
  HttpServerOptions options;
  options.unix_socket = path;
  {
    TestServer server(options);
    EXPECT_EQ(RawClient(path).ask(get("/")).status, 200);
    // A file that took our place is not ours to remove.
    std::filesystem::remove(path);
    ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  const auto on_file = HttpServer::start(
      options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; });
  ASSERT_FALSE(on_file);
  EXPECT_NE(on_file.error().message.find("no socket"), std::string::npos);
  options.unix_socket = "/" + std::string(200, 'x');
  EXPECT_FALSE(HttpServer::start(
      options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; }));
}

TEST(Server, CallsRunOnTheFrontThread) {
  TestServer server;
  std::atomic<int> posted{0}, delayed{0};
  std::atomic<std::thread::id> first{}, second{};
  server->post([&] { first = std::this_thread::get_id(), ++posted; });
  server->post([] { throw std::runtime_error("must not end the thread"); });
  server->after(std::chrono::milliseconds(5), [&] { second = std::this_thread::get_id(), ++delayed; });
  server->after(std::chrono::hours(1), [&] { delayed += 100; });
  EXPECT_TRUE(eventually([&] { return posted == 1 && delayed == 1; }));
  EXPECT_EQ(first.load(), second.load());
  EXPECT_NE(first.load(), std::this_thread::get_id());
  server.destroy();
  EXPECT_EQ(delayed, 1);
}

TEST(Server, StopAcceptingLetsRepliesFinish) {
  TestServer server;
  RawClient idle(server.port()), streaming(server.port()), sending(server.port());
  EXPECT_EQ(idle.ask(get("/")).status, 200);
  streaming.send(get("/hold"));
  const auto held = server.held();
  held->start({200, {}, "begun "});
  // The server says when it has read the head; until then the connection would count as idle.
  sending.send("POST /late HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  sending.receive_until("100 Continue\r\n\r\n");
  streaming.receive_until("begun");
  ASSERT_TRUE(eventually([&] { return server->counts().open == 3; }));
  server->stop_accepting();
  EXPECT_EQ(idle.receive(), "");
  EXPECT_FALSE(idle.hung());
  const Answer late = sending.ask("body");
  EXPECT_EQ(late.body, "POST /late?\nbody");
  EXPECT_TRUE(late.has("Connection: close"));
  EXPECT_TRUE(eventually([&] { return !RawClient(server.port()).connected(); }));
  EXPECT_TRUE(held->write("whole"));
  held->finish();
  EXPECT_NE(streaming.receive_all().find("5\r\nwhole\r\n0\r\n\r\n"), std::string::npos);
  idle.leave();
  sending.leave();
  streaming.leave();
  EXPECT_TRUE(server.all_closed());
}

TEST(Server, StopEndsEverythingAndExchangesOutliveIt) {
  TestServer server;
  RawClient streaming(server.port()), waiting(server.port()), idle(server.port());
  std::atomic<int> closed{0};
  streaming.send(get("/hold/stream"));
  const auto stream = server.held();
  stream->start({200, {}, "x"});
  stream->on_close([&] { ++closed; });
  waiting.send(get("/hold/wait"));
  const auto wait = server.held();
  wait->on_close([&] { ++closed; });
  std::atomic<bool> go{true};
  std::thread writer([&] {
    while (go) stream->write("piece");
  });
  idle.ask(get("/"));
  server->stop();
  server->stop();
  EXPECT_EQ(closed, 2);
  EXPECT_TRUE(stream->closed());
  server.destroy();
  go = false;
  writer.join();
  EXPECT_FALSE(stream->write("nothing"));
  stream->finish();
  wait->reply({200, {}, "nobody reads this"});
  EXPECT_EQ(wait->request().path, "/hold/wait");
  int late = 0;
  wait->on_close([&] { ++late; });
  EXPECT_EQ(late, 1);
  EXPECT_EQ(idle.receive_all(), "");
}

TEST(Server, StoppedFromItsOwnThread) {
  TestServer server;
  server->post([&] { server->stop(); });
  EXPECT_TRUE(eventually([&] { return !RawClient(server.port()).connected(); }));
}

// Out of descriptors the server neither dies nor forgets to accept later.
TEST(Server, SurvivesTheEndOfDescriptors) {
  TestServer server;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<RawClient> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(server.port());
  ASSERT_TRUE(eventually([&] { return server->counts().open == 8; }));
  const int next = ::dup(0);
  ::close(next);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  RawClient refused(server.port());  // takes the last descriptor; the server finds none for its side
  const bool sent = refused.send(get("/late"));
  const uint64_t accepted = server->counts().accepted;
  EXPECT_EQ(clients[0].ask(get("/meanwhile")).status, 200);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(refused.connected() && sent);
  EXPECT_EQ(accepted, 8u);
  EXPECT_EQ(refused.answer().body, "GET /late?\n");
}

}  // namespace
}  // namespace kvarto
