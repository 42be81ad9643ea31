// The client against scripted bytes on a local socket, and the pure parts: URLs and the choice of a proxy. Redirects,
// TLS and proxies are tested over the whole program in tests/http/pull_test.py.
#include "http/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <thread>
#include <vector>

#include "http/testing.h"

namespace kvarto {
namespace {

TEST(Url, PartsAreSplit) {
  const Result<Url> url = parse_url("HTTPS://Hub.Example:8443/a/b?c=d#frag");
  ASSERT_TRUE(url) << url.error().message;
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "hub.example");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->target, "/a/b?c=d");
  EXPECT_EQ(origin(*url), "https://hub.example:8443");
  EXPECT_EQ(shown(*url), "https://hub.example:8443/a/b");  // a query may hold a signature
}

TEST(Url, DefaultsAndOddForms) {
  EXPECT_EQ(parse_url("http://a")->port, 80);
  EXPECT_EQ(parse_url("https://a")->port, 443);
  EXPECT_EQ(parse_url("http://a")->target, "/");
  EXPECT_EQ(parse_url("http://a?q")->target, "/?q");
  EXPECT_EQ(authority(*parse_url("https://a:443/")), "a");
  EXPECT_EQ(authority(*parse_url("http://a:443/")), "a:443");
  EXPECT_EQ(parse_url("http://[::1]:81/x")->host, "::1");
  EXPECT_EQ(authority(*parse_url("http://[::1]:81/x")), "[::1]:81");
  EXPECT_EQ(parse_url("http://u:p%40x@h/")->user_info, "u:p@x");
  EXPECT_EQ(parse_url("http://h/a b\xc3\xa4")->target, "/a%20b%C3%A4");
  EXPECT_EQ(parse_url("http://h/%41%zz")->target, "/%41%zz");  // what is encoded already stays
}

TEST(Url, NonsenseIsRefused) {
  for (const char* text :
       {"", "a", "ftp://a", "http:/a", "http://", "http:///x", "http://a:0", "http://a:65536", "http://a:1x",
        "http://a b/", "http://[::1", "http://a/\r\nX: y", "http://a\t/", "http://[zz]/", "://a"}) {
    EXPECT_FALSE(parse_url(text)) << text;
  }
  EXPECT_FALSE(parse_url("http://a/" + std::string(20'000, 'x')));
  EXPECT_FALSE(parse_url(std::string_view("http://a/\0b", 11)));
}

TEST(Url, LocationsAreSeenFromTheirPage) {
  const Url base = *parse_url("https://h:444/a/b/c?d");
  const auto resolved = [&](std::string_view location) {
    const Url url = *resolve_location(base, location);
    return origin(url) + url.target;
  };
  EXPECT_EQ(resolved("http://other/x?y"), "http://other/x?y");
  EXPECT_EQ(resolved("//other/x"), "https://other/x");
  EXPECT_EQ(resolved("/x?u=http://z/"), "https://h:444/x?u=http://z/");
  EXPECT_EQ(resolved("x"), "https://h:444/a/b/x");
  EXPECT_FALSE(resolve_location(base, "javascript:1"));
  EXPECT_FALSE(resolve_location(base, "/x\r\nSet-Cookie: y"));
}

TEST(Url, PercentEncoding) {
  EXPECT_EQ(percent_encode("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(percent_encode("a b/c+~.gguf", true), "a%20b/c%2B~.gguf");
}

TEST(Proxy, ExceptionsByHostDomainAndPort) {
  ProxySettings settings;
  settings.http = *parse_url("http://proxy:3128");
  settings.exceptions = "plain.test, .dotted.test,with.port:8080  ::1";
  const auto proxied = [&](const char* url) { return proxy_for(settings, *parse_url(url)).has_value(); };
  EXPECT_TRUE(proxied("http://elsewhere.test/"));
  EXPECT_FALSE(proxied("http://plain.test/"));
  EXPECT_FALSE(proxied("http://sub.plain.test/"));
  EXPECT_TRUE(proxied("http://notplain.test/"));
  EXPECT_FALSE(proxied("http://dotted.test/"));
  EXPECT_FALSE(proxied("http://with.port:8080/"));
  EXPECT_TRUE(proxied("http://with.port:8081/"));
  EXPECT_FALSE(proxied("http://[::1]/"));
  EXPECT_FALSE(proxied("https://elsewhere.test/"));  // no proxy is set for https
  settings.exceptions = "*";
  EXPECT_FALSE(proxied("http://elsewhere.test/"));
}

// Answers one connection with the given bytes, whatever was asked, then closes or keeps silent.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::string answer, bool then_silence = false)
      : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), then_silence] { serve(answer, then_silence); });
  }
  ~ScriptedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  Url url() const { return *parse_url("http://127.0.0.1:" + std::to_string(port_) + "/x"); }
  const std::string& request() const { return request_; }  // once the client is done

 private:
  void serve(const std::string& answer, bool then_silence) {
    const int client = ::accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    char buffer[4096];
    while (request_.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      request_.append(buffer, static_cast<size_t>(n));
    }
    ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    if (!then_silence) ::shutdown(client, SHUT_WR);
    while (::recv(client, buffer, sizeof buffer, 0) > 0) {
    }
    ::close(client);
  }

  int listener_;
  uint16_t port_ = 0;
  std::string request_;
  std::thread thread_;
};

struct Answer {
  Result<HttpReply> reply;
  std::string body;
};

Answer ask(const ScriptedServer& server, HttpRequest request = {}, HttpClientOptions options = {}) {
  request.url = server.url();
  Answer answer{fail(ErrorCode::internal, ""), ""};
  answer.reply = HttpClient(std::move(options)).get(request, 1000, answer.body);
  return answer;
}

TEST(Client, BodiesOfEveryFraming) {
  for (const char* text :
       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nT: u\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nhello",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"}) {
    ScriptedServer server(text);
    const Answer answer = ask(server);
    ASSERT_TRUE(answer.reply) << text << "\n" << answer.reply.error().message;
    EXPECT_EQ(answer.reply->status, 200);
    EXPECT_EQ(answer.body, "hello") << text;
  }
}

TEST(Client, WhatIsSent) {
  std::string seen;
  {
    ScriptedServer server("HTTP/1.1 204 No Content\r\nx-One: 1\r\nX-ONE: 2\r\n\r\n");
    HttpRequest request;
    request.headers = {{"Range", "bytes=7-"}};
    request.authorization = "Bearer t";
    const Answer answer = ask(server, request);
    ASSERT_TRUE(answer.reply) << answer.reply.error().message;
    EXPECT_EQ(*answer.reply->header("X-One"), "1");
    EXPECT_EQ(answer.reply->header("X-Two"), nullptr);
    seen = server.request();
  }
  EXPECT_TRUE(seen.starts_with("GET /x HTTP/1.1\r\nHost: 127.0.0.1:")) << seen;
  for (const char* line :
       {"\r\nRange: bytes=7-\r\n", "\r\nAuthorization: Bearer t\r\n", "\r\nAccept-Encoding: identity\r\n"}) {
    EXPECT_NE(seen.find(line), std::string::npos) << line;
  }
}

TEST(Client, HeadReadsNoBody) {
  ScriptedServer server("HTTP/1.1 200 OK\r\nContent-Length: 123456\r\n\r\n", true);
  HttpRequest request;
  request.head = true;
  const Answer answer = ask(server, request);
  ASSERT_TRUE(answer.reply) << answer.reply.error().message;
  EXPECT_EQ(answer.reply->content_length, 123456u);
}

TEST(Client, ErrorRepliesKeepTheirText) {
  ScriptedServer server("HTTP/1.1 503 Busy\r\nContent-Length: 9000\r\n\r\n" + std::string(9000, 'x'));
  const Answer answer = ask(server);
  ASSERT_TRUE(answer.reply) << answer.reply.error().message;
  EXPECT_EQ(answer.reply->status, 503);
  EXPECT_EQ(answer.reply->error_text, std::string(4096, 'x'));
  EXPECT_EQ(answer.body, "");
}

TEST(Client, BrokenMessagesAreErrorsOfOneLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "closed early"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", "after 5 of 10 bytes: the connection was closed early"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "closed early"},
      {"SSH-2.0-Server\r\n\r\n", "no valid reply"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "no valid reply"},
      {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no valid reply"},
      {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nhello", "gzip"},
      {"HTTP/1.1 200 OK\r\n\r\n" + std::string(1001, 'x'), "longer than 1000 bytes"},
      {"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "without a Location"},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'x') + "\r\n\r\n", "headers longer than 65536 bytes"},
  };
  for (const auto& [text, words] : cases) {
    ScriptedServer server(text);
    const Answer answer = ask(server);
    ASSERT_FALSE(answer.reply) << text.substr(0, 80);
    EXPECT_NE(answer.reply.error().message.find(words), std::string::npos) << answer.reply.error().message;
    EXPECT_EQ(answer.reply.error().message.find('\n'), std::string::npos);
  }
  std::string endless;
  for (int i = 0; i < 20; ++i) endless += "HTTP/1.1 102 Processing\r\n\r\n";
  ScriptedServer server(endless);
  EXPECT_NE(ask(server).reply.error().message.find("endless 1xx"), std::string::npos);
}

TEST(Client, SilenceEndsAtTheLimit) {
  HttpClientOptions options;
  options.idle_limit = std::chrono::milliseconds(100);
  for (const char* text : {"", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"}) {
    ScriptedServer server(text, true);
    const Answer answer = ask(server, {}, options);
    ASSERT_FALSE(answer.reply) << text;
    EXPECT_NE(answer.reply.error().message.find("no answer in time"), std::string::npos)
        << answer.reply.error().message;
  }
}

TEST(Client, ASinkThatRefusesEndsTheTransfer) {
  ScriptedServer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  BodySink sink;
  sink.begin = [](const HttpReply& reply) -> Status {
    EXPECT_EQ(reply.content_length, 5u);
    return fail(ErrorCode::corrupt, "not that");
  };
  sink.data = [](std::string_view) -> Status {
    ADD_FAILURE() << "no data after a refusal";
    return {};
  };
  HttpRequest request;
  request.url = server.url();
  const Result<HttpReply> reply = HttpClient().send(request, sink);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().message, "not that");
}

// --- posts and kept connections, against our own server (tests of its own: server_test.cc)

class ClientOnServer : public testing::Test {
 protected:
  HttpRequest request(const std::string& target) const {
    HttpRequest out;
    out.url = *parse_url("http://127.0.0.1:" + std::to_string(server_.port()) + target);
    return out;
  }
  std::mutex mutex_;
  std::string body_, seen_;
  BodySink sink_{nullptr, [this](std::string_view bytes) -> Status {
                   body_ += bytes;
                   return {};
                 }};
  http_testing::TestServer server_;
};

TEST_F(ClientOnServer, PostsABody) {
  HttpRequest posted = request("/p");
  posted.body = "the body";
  posted.headers = {{"Content-Type", "application/json"}};
  ASSERT_TRUE(HttpClient().send(posted, sink_));
  EXPECT_EQ(body_, "POST /p?\nthe body");
  posted.body = "";
  body_.clear();
  ASSERT_TRUE(HttpClient().send(posted, sink_));
  EXPECT_EQ(body_, "POST /p?\n");
}

TEST_F(ClientOnServer, AConnectionIsKeptAndOpenedAgain) {
  HttpConnection connection;
  for (int i = 0; i < 5; ++i) {
    HttpRequest posted = request("/" + std::to_string(i));
    posted.body = std::to_string(i);
    ASSERT_TRUE(connection.send(posted, sink_));
  }
  EXPECT_EQ(body_, "POST /0?\n0POST /1?\n1POST /2?\n2POST /3?\n3POST /4?\n4");
  const auto refused = connection.send(request("/throw"), sink_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 500);
  EXPECT_EQ(refused->error_text, "refused: internal error");
  EXPECT_EQ(connection.connects(), 1u);
  // A sink that refuses leaves the rest of the reply unread: that connection is of no more use.
  BodySink refusing;
  refusing.begin = [](const HttpReply&) -> Status { return fail(ErrorCode::cancelled, "enough"); };
  EXPECT_FALSE(connection.send(request("/"), refusing));
  EXPECT_TRUE(connection.send(request("/"), sink_));
  EXPECT_EQ(connection.connects(), 2u);
}

TEST_F(ClientOnServer, AnIdleConnectionThatTheServerClosedIsReplaced) {
  HttpServerOptions options;
  options.keep_alive_limit = std::chrono::milliseconds(20);
  http_testing::TestServer impatient(options);
  HttpConnection connection;
  HttpRequest posted = request("/");
  posted.url.port = impatient.port();
  posted.body = "b";
  ASSERT_TRUE(connection.send(posted, sink_));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto reply = connection.send(posted, sink_);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(connection.connects(), 2u);
  EXPECT_EQ(impatient->counts().requests, 2u);
}

TEST_F(ClientOnServer, PiecesReachTheSinkAsTheyCome) {
  std::thread streamer([&] {
    const auto held = server_.held();
    held->start({200, {}, "first"});
    EXPECT_TRUE(http_testing::eventually([&] {
      const std::lock_guard lock(mutex_);
      return seen_ == "first";
    }));
    held->write("second");
    held->finish();
  });
  BodySink sink;
  sink.data = [&](std::string_view bytes) -> Status {
    const std::lock_guard lock(mutex_);
    seen_ += bytes;
    return {};
  };
  ASSERT_TRUE(HttpConnection().send(request("/hold"), sink));
  streamer.join();
  EXPECT_EQ(seen_, "firstsecond");
}

}  // namespace
}  // namespace kvarto
