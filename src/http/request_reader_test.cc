// RequestReader: every request at every cut, and what it refuses.
#include "http/request_reader.h"

#include <gtest/gtest.h>

#include <random>

namespace kvarto {
namespace {

constexpr ReadLimits kLimits{2048, 8, 1000};
using State = RequestReader::State;

const std::string kChunked =
    "POST /a%20b/%7E?x=%20y HTTP/1.1\r\nHost: h\r\nX-Two:  spaced \r\nTransfer-Encoding: Chunked\r\n\r\n"
    "5\r\nhello\r\n6;ext=\"v\"\r\n world\r\n0\r\nAuthorization: from a trailer\r\n\r\n";
const std::string kCounted = "PUT /p HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello world";

void expect_chunked(RequestReader& reader) {
  ASSERT_EQ(reader.state(), State::complete) << reader.refusal().message;
  EXPECT_TRUE(reader.keep_alive());
  const ServerRequest request = reader.release();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/a b/~");
  EXPECT_EQ(request.query, "x=%20y");
  EXPECT_EQ(request.body, "hello world");
  ASSERT_NE(request.header("x-two"), nullptr);
  EXPECT_EQ(*request.header("x-two"), "spaced");
  EXPECT_EQ(request.header("authorization"), nullptr);
}

// As a connection does it: what was not taken is offered again with more behind it.
size_t feed(RequestReader& reader, std::string& waiting, std::string_view bytes) {
  waiting += bytes;
  const size_t taken = reader.take(waiting);
  waiting.erase(0, taken);
  return taken;
}

TEST(RequestReader, EveryCutGivesTheSameRequests) {
  const std::string both = kChunked + kCounted;
  for (size_t cut = 0; cut <= both.size(); ++cut) {
    RequestReader reader(kLimits);
    std::string waiting;
    feed(reader, waiting, std::string_view(both).substr(0, cut));
    if (cut < kChunked.size()) {
      ASSERT_NE(reader.state(), State::complete) << cut;
      ASSERT_NE(reader.state(), State::refused) << cut << reader.refusal().message;
    }
    feed(reader, waiting, std::string_view(both).substr(cut));
    expect_chunked(reader);
    feed(reader, waiting, "");
    ASSERT_EQ(reader.state(), State::complete) << cut;
    EXPECT_EQ(reader.release().body, "hello world");
    EXPECT_EQ(waiting, "");
  }
}

TEST(RequestReader, ByteByByte) {
  RequestReader reader(kLimits);
  std::string waiting;
  for (const char c : kChunked) feed(reader, waiting, {&c, 1});
  expect_chunked(reader);
  EXPECT_EQ(reader.state(), State::idle);
  for (const char c : kCounted) feed(reader, waiting, {&c, 1});
  ASSERT_EQ(reader.state(), State::complete);
  EXPECT_EQ(reader.release().body, "hello world");
}

TEST(RequestReader, KeepAliveByVersionAndHeader) {
  const auto kept = [](const std::string& text) {
    RequestReader reader(kLimits);
    reader.take(text);
    EXPECT_EQ(reader.state(), State::complete) << text;
    return reader.keep_alive();
  };
  EXPECT_TRUE(kept("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_FALSE(kept("GET / HTTP/1.1\r\nHost: h\r\nConnection: Close\r\n\r\n"));
  EXPECT_FALSE(kept("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(kept("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(RequestReader, TargetsOfEveryForm) {
  const auto path = [](const std::string& target) {
    RequestReader reader(kLimits);
    reader.take("GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_EQ(reader.state(), State::complete) << target;
    const ServerRequest request = reader.release();
    return request.path + "|" + request.query;
  };
  EXPECT_EQ(path("/%41%zz%4"), "/A%zz%4|");
  EXPECT_EQ(path("/a+b?c?d"), "/a+b|c?d");
  EXPECT_EQ(path("http://h:80/x?y"), "/x|y");
  EXPECT_EQ(path("http://h"), "/|");
  EXPECT_EQ(path("*"), "*|");
  EXPECT_EQ(path("/x?u=http://z/"), "/x|u=http://z/");
}

TEST(RequestReader, EmptyLinesBeforeARequestAreSkipped) {
  RequestReader reader(kLimits);
  std::string waiting;
  feed(reader, waiting, "\r\n\r\n");
  EXPECT_EQ(reader.state(), State::idle);
  feed(reader, waiting, kCounted);
  EXPECT_EQ(reader.state(), State::complete);
}

TEST(RequestReader, ContinueIsWantedBeforeTheBody) {
  RequestReader reader(kLimits);
  reader.take("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_TRUE(reader.wants_continue());
  reader.take("a");
  EXPECT_FALSE(reader.wants_continue());
}

TEST(RequestReader, Refusals) {
  const auto head = [](const std::string& lines) { return "POST / HTTP/1.1\r\nHost: h\r\n" + lines + "\r\n"; };
  const std::string chunked = head("Transfer-Encoding: chunked\r\n");
  std::string many;
  for (int i = 0; i < 8; ++i) many += "X: y\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"hello\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},                        // no Host
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},  // two
      {"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n\r\n\r\n", 400},  // bare LF
      {head("bad name: x\r\n"), 400},
      {head("X: a\rb\r\n"), 400},
      {head("Content-Length: -1\r\n"), 400},
      {head("Content-Length: 1\r\nContent-Length: 2\r\n"), 400},
      {head("Content-Length: 99999999999999999999999\r\n"), 400},
      {head("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), 400},  // the two sides of a smuggled request
      {head("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"), 400},
      {head("Transfer-Encoding: gzip, chunked\r\n"), 501},
      {head("Transfer-Encoding: identity\r\nContent-Length: 3\r\n"), 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {head("Expect: a-miracle\r\n"), 417},
      {head("Content-Length: 1001\r\n"), 413},
      {head(many), 431},
      {head("X: " + std::string(2048, 'x') + "\r\n"), 431},
      {"GET /" + std::string(3000, 'x'), 431},
      {std::string(3000, 'x'), 431},
      {chunked + "x\r\n", 400},
      {chunked + "-1\r\n", 400},
      {chunked + "\r\n", 400},
      {chunked + "3 4\r\n", 400},
      {chunked + "3\nabc\r\n", 400},
      {chunked + "3\r\nabcd\r\n", 400},
      {chunked + "3\r\nabc0\r\n", 400},
      {chunked + "3e9\r\n", 413},
      {chunked + "fffffffffffffffff\r\n", 413},
      {chunked + "3;" + std::string(2000, 'x'), 400},
      {chunked + "0\r\nX: " + std::string(3000, 'x'), 400},
  };
  for (const auto& [bytes, status] : cases) {
    for (const bool split : {false, true}) {
      RequestReader reader(kLimits);
      std::string waiting;
      if (split) {
        for (const char c : bytes) feed(reader, waiting, {&c, 1});
      } else {
        feed(reader, waiting, bytes);
      }
      EXPECT_EQ(reader.state(), State::refused) << bytes.substr(0, 100);
      EXPECT_TRUE(reader.refusal().status == status || (bytes.find("identity") != std::string::npos))
          << bytes.substr(0, 100) << ": " << reader.refusal().status << " " << reader.refusal().message;
      EXPECT_EQ(reader.refusal().message.find('\n'), std::string::npos);
    }
  }
}

TEST(RequestReader, ABodyOfExactlyTheLimitIsTaken) {
  RequestReader counted(kLimits), chunked(kLimits);
  counted.take("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'b'));
  EXPECT_EQ(counted.state(), State::complete);
  chunked.take("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1F4\r\n" + std::string(500, 'b') +
               "\r\n1f4\r\n" + std::string(500, 'b') + "\r\n0\r\n\r\n");
  ASSERT_EQ(chunked.state(), State::complete);
  EXPECT_EQ(chunked.release().body, std::string(1000, 'b'));
}

TEST(RequestReader, RandomChangesNeverBreakIt) {
  std::mt19937 random(7);
  const std::string seed = kChunked + kCounted;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = seed;
    for (int changes = static_cast<int>(random() % 6); changes >= 0; --changes) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 9);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 30));
          break;
      }
    }
    RequestReader reader(kLimits);
    std::string waiting;
    for (size_t sent = 0; sent < bytes.size() && reader.state() != State::refused;) {
      const size_t piece = 1 + random() % 64;
      feed(reader, waiting, std::string_view(bytes).substr(sent, piece));
      sent += piece;
      while (reader.state() == State::complete) {
        ASSERT_LE(reader.release().body.size(), kLimits.body_bytes);
        feed(reader, waiting, "");
      }
      ASSERT_LE(waiting.size(), kLimits.header_bytes + 64);
    }
    if (reader.state() == State::refused) {
      ASSERT_GE(reader.refusal().status, 400);
      ASSERT_LE(reader.refusal().status, 501);
    }
  }
}

}  // namespace
}  // namespace kvarto
