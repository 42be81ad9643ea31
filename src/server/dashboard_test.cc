#include "server/dashboard.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

namespace kvarto {
namespace {

std::string file(const std::string& name) {
  std::ifstream in(KVARTO_SOURCE_DIR "/src/server/web/" + name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string header(const ServerReply& reply, std::string_view name) {
  for (const HttpHeader& one : reply.headers) {
    if (one.name == name) return one.value;
  }
  return "";
}

const char* const kOurs[] = {"dashboard.css", "dashboard.js", "state.js",     "block_map.js",
                             "charts.js",     "tables.js",    "try_prompt.js"};

TEST(DashboardAsset, ServesTheFiles) {
  EXPECT_EQ(dashboard_asset("/").body, file("index.html"));
  EXPECT_EQ(header(dashboard_asset("/"), "Content-Type"), "text/html; charset=utf-8");
  for (const std::string name : kOurs) {
    const ServerReply reply = dashboard_asset("/dashboard/" + name);
    EXPECT_EQ(reply.status, 200) << name;
    EXPECT_EQ(reply.body, file(name)) << name;
    EXPECT_EQ(header(reply, "Content-Type"),
              name.ends_with(".css") ? "text/css; charset=utf-8" : "text/javascript; charset=utf-8");
    EXPECT_EQ(header(reply, "X-Content-Type-Options"), "nosniff");
  }
  const ServerReply chart = dashboard_asset("/dashboard/chart.js");
  EXPECT_EQ(chart.status, 200);
  EXPECT_NE(chart.body.find("Chart.js v3"), std::string::npos);
  EXPECT_GT(chart.body.size(), 100'000u);
}

TEST(DashboardAsset, NothingElse) {
  for (const char* path : {"", "/dashboard", "/dashboard/", "/dashboard/state", "/dashboard/../secret",
                           "/dashboard/index.html", "/favicon.ico"}) {
    EXPECT_FALSE(is_dashboard_asset(path)) << path;
    EXPECT_EQ(dashboard_asset(path).status, 404) << path;
  }
}

// Whoever adds a link to a page of others sees this fail; the browser would refuse to load it anyway.
TEST(DashboardAsset, NamesNobodyElse) {
  for (const std::string name : {"index.html", "dashboard.css", "dashboard.js", "state.js", "block_map.js", "charts.js",
                                 "tables.js", "try_prompt.js"}) {
    for (const char* way :
         {"http:", "https:", "//cdn", "url(", "@import", "style=\"", "onclick=", "innerHTML", "eval("}) {
      EXPECT_EQ(file(name).find(way), std::string::npos) << name << " has " << way;
    }
  }
  const std::string policy = header(dashboard_asset("/"), "Content-Security-Policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none';")) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(policy.find('*'), std::string::npos);
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
}

TEST(DashboardAsset, ThePageNamesWhatIsThere) {
  std::string sources = file("index.html");
  for (const char* name : kOurs) sources += file(name);
  std::set<std::string> found;
  for (size_t at = 0; (at = sources.find('"', at)) != std::string::npos; ++at) {
    for (const std::string start : {"dashboard/", "./"}) {
      if (sources.compare(at + 1, start.size(), start) != 0) continue;
      const size_t from = at + 1 + start.size();
      found.insert(sources.substr(from, sources.find('"', from) - from));
    }
  }
  EXPECT_TRUE(found.erase("state"));  // data
  EXPECT_EQ(found.size(), 8u);
  for (const std::string& name : found) EXPECT_TRUE(is_dashboard_asset("/dashboard/" + name)) << name;
}

TEST(AllowedHost, Loopback) {
  const HostRules rules{.bound_host = "127.0.0.1", .allowed_hosts = {}};
  for (const char* host :
       {"localhost", "LocalHost:8000", "localhost.", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000"}) {
    EXPECT_TRUE(allowed_host(host, rules)) << host;
  }
  for (const char* host :
       {"", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
        "[::2]", "[::1", "::1", "localhost:80:80", "localhost:evil", "a b", "localhost@evil.example", ":8000"}) {
    EXPECT_FALSE(allowed_host(host, rules)) << host;
  }
}

TEST(AllowedHost, TheBoundAddressAndNames) {
  EXPECT_TRUE(allowed_host("10.1.2.3:8000", {.bound_host = "10.1.2.3", .allowed_hosts = {}}));
  EXPECT_FALSE(allowed_host("10.1.2.4:8000", {.bound_host = "10.1.2.3", .allowed_hosts = {}}));
  EXPECT_TRUE(allowed_host("[fd00::5]:8000", {.bound_host = "fd00::5", .allowed_hosts = {}}));
  const HostRules names{.bound_host = "127.0.0.1", .allowed_hosts = {"GPU-box.lan", "[fd00::7]"}};
  EXPECT_TRUE(allowed_host("gpu-box.lan:8000", names));
  EXPECT_TRUE(allowed_host("[fd00::7]", names));
  EXPECT_FALSE(allowed_host("box.lan", names));
  EXPECT_FALSE(allowed_host("x.gpu-box.lan", names));
  EXPECT_TRUE(allowed_host("any.example", {.bound_host = "127.0.0.1", .allowed_hosts = {"*"}}));
}

TEST(AllowedHost, BoundToEveryAddressMeansAnyInDigits) {
  for (const char* bound : {"0.0.0.0", "::", "[::]"}) {
    const HostRules rules{.bound_host = bound, .allowed_hosts = {}};
    for (const char* host : {"192.168.1.7:8000", "[fe80::1]:8000", "localhost"})
      EXPECT_TRUE(allowed_host(host, rules)) << host;
    for (const char* host :
         {"evil.example", "1.2.3.4.evil.example", "1.2.3", "1.2.3.4.5", "1.2.3.", "1234.1.1.1", "[evil.example]"}) {
      EXPECT_FALSE(allowed_host(host, rules)) << host;
    }
  }
}

TEST(SameOrigin, AsTheHostSaysIt) {
  EXPECT_TRUE(same_origin("http://localhost:8000", "localhost:8000"));
  EXPECT_TRUE(same_origin("http://LOCALHOST", "localhost:80"));
  EXPECT_TRUE(same_origin("https://box.lan", "box.lan"));
  EXPECT_TRUE(same_origin("http://[::1]:8000", "[::1]:8000"));
  EXPECT_FALSE(same_origin("http://localhost:3000", "localhost:8000"));
  EXPECT_FALSE(same_origin("http://evil.example", "localhost:8000"));
  for (const char* origin : {"null", "", "file://", "localhost:8000", "ftp://localhost:8000"}) {
    EXPECT_FALSE(same_origin(origin, "localhost:8000")) << origin;
  }
}

TEST(FromBrowser, ByWhatOnlyBrowsersSend) {
  const auto browser = [](std::vector<HttpHeader> headers) {
    ServerRequest request;
    request.headers = std::move(headers);
    return from_browser(request);
  };
  EXPECT_TRUE(browser({{"Origin", "http://a"}}));
  EXPECT_TRUE(browser({{"Sec-Fetch-Site", "same-origin"}}));
  EXPECT_TRUE(browser({{"user-agent", "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"}}));
  EXPECT_FALSE(browser({}));
  EXPECT_FALSE(browser({{"User-Agent", "node"}, {"Sec-Fetch-Mode", "cors"}, {"Accept-Language", "*"}}));
  EXPECT_FALSE(browser({{"User-Agent", "OpenAI/Python 2.8.0"}}));
}

TEST(RefuseForeign, SaysWhy) {
  const HostRules rules{.bound_host = "127.0.0.1", .allowed_hosts = {}};
  const auto refused = [&](std::vector<HttpHeader> headers) {
    ServerRequest request;
    request.headers = std::move(headers);
    const auto reply = refuse_foreign(request, rules);
    return reply ? std::to_string(reply->status) + " " + reply->body : "";
  };
  EXPECT_EQ(refused({{"Host", "localhost:8000"}}), "");
  EXPECT_EQ(refused({{"Host", "localhost:8000"}, {"Origin", "http://localhost:8000"}}), "");
  const std::string rebound = refused({{"Host", "evil.example:8000"}});
  EXPECT_TRUE(rebound.starts_with("403 ")) << rebound;
  EXPECT_NE(rebound.find("evil.example:8000"), std::string::npos);
  EXPECT_NE(rebound.find("--allowed-hosts"), std::string::npos);
  const std::string foreign = refused({{"Host", "localhost:8000"}, {"Origin", "http://evil.example"}});
  EXPECT_TRUE(foreign.starts_with("403 ")) << foreign;
  EXPECT_NE(foreign.find("http://evil.example"), std::string::npos);
  EXPECT_TRUE(refused({}).starts_with("403 "));
}

}  // namespace
}  // namespace kvarto
