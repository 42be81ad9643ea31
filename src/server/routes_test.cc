#include "server/routes.h"

#include <gtest/gtest.h>

#include <set>

namespace kvarto {
namespace {

TEST(Routes, AreFoundByTheirPath) {
  std::set<std::string_view> paths;
  for (const RouteInfo& route : server_routes()) {
    EXPECT_TRUE(paths.insert(route.path).second) << route.path;
    EXPECT_EQ(find_route(route.path, true), &route) << route.path;
    EXPECT_FALSE(route.summary.empty()) << route.path;
  }
  EXPECT_EQ(find_route("/reset_prefix_cache", false), nullptr);
  EXPECT_EQ(find_route("/v1/model", true), nullptr);
  EXPECT_EQ(find_route("", true), nullptr);
}

TEST(Routes, TakeTheirMethods) {
  const RouteInfo& ping = *find_route("/ping", false);
  for (const char* method : {"GET", "POST", "HEAD"}) EXPECT_TRUE(ping.takes(method)) << method;
  for (const char* method : {"PUT", "GE", "GET, POST", "", "get"}) EXPECT_FALSE(ping.takes(method)) << method;
  const RouteInfo& chat = *find_route("/v1/chat/completions", false);
  EXPECT_TRUE(chat.takes("POST"));
  EXPECT_FALSE(chat.takes("GET"));
  EXPECT_FALSE(chat.takes("HEAD"));
}

// Of a server with keys everything but four routes is behind them.
TEST(Routes, NeedKeys) {
  std::set<std::string_view> open, with_public_metrics;
  for (const RouteInfo& route : server_routes()) {
    if (!needs_key(route, false)) open.insert(route.path);
    if (!needs_key(route, true)) with_public_metrics.insert(route.path);
  }
  EXPECT_EQ(open, (std::set<std::string_view>{"/health", "/ping", "/"}));
  EXPECT_EQ(with_public_metrics, (std::set<std::string_view>{"/health", "/ping", "/", "/metrics"}));
}

}  // namespace
}  // namespace kvarto
