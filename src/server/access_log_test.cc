#include "server/access_log.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

using std::chrono::microseconds;

TEST(AccessLog, OneLineSaysItAll) {
  EXPECT_EQ(access_line({.peer = "127.0.0.1",
                         .method = "POST",
                         .path = "/v1/completions",
                         .label = "cmpl-1a2b",
                         .status = 200,
                         .bytes = 512,
                         .time = microseconds(34'149)}),
            "127.0.0.1 - \"POST /v1/completions HTTP/1.1\" 200, 512 bytes, 34.1 ms, cmpl-1a2b");
  EXPECT_EQ(access_line({.peer = "unix", .method = "GET", .path = "/health", .status = 503, .http_1_0 = true}),
            "unix - \"GET /health HTTP/1.0\" 503, 0 bytes, 0.0 ms");
}

TEST(AccessLog, WhoWentIsTold) {
  EXPECT_EQ(access_line({.peer = "::1", .method = "GET", .path = "/", .time = microseconds(1000), .whole = false}),
            "::1 - \"GET / HTTP/1.1\" 499, 0 bytes, 1.0 ms, cut short");
  EXPECT_EQ(access_line({.peer = "::1", .method = "GET", .path = "/", .label = "a", .status = 200, .whole = false}),
            "::1 - \"GET / HTTP/1.1\" 200, 0 bytes, 0.0 ms, a, cut short");
}

TEST(AccessLog, WhatCouldNotBeReadIsADash) {
  EXPECT_EQ(access_line({.peer = "10.0.0.1", .status = 431, .bytes = 9}),
            "10.0.0.1 - \"- - HTTP/1.1\" 431, 9 bytes, 0.0 ms");
}

TEST(AccessLog, NobodyWritesLinesOfHisOwn) {
  const std::string line = access_line(
      {.peer = "10.0.0.1", .method = "GET", .path = "/a\" 200\nfake \x1b[31m", .label = "x\r\ny", .status = 404});
  EXPECT_EQ(line, "10.0.0.1 - \"GET /a' 200\\x0afake \\x1b[31m HTTP/1.1\" 404, 0 bytes, 0.0 ms, x\\x0d\\x0ay");
  const std::string path(100'000, 'p');
  EXPECT_LT(access_line({.peer = "10.0.0.1", .method = "GET", .path = path, .status = 404}).size(), 300u);
}

}  // namespace
}  // namespace kvarto
