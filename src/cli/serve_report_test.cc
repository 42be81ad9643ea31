#include "cli/serve_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace kvarto {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

TEST(ReachLines, HaveTheUrlAndALineToTryIt) {
  EXPECT_EQ(
      joined(reach_lines({.address = "http://127.0.0.1:8000", .model = "it's", .keys = true, .key_variable = true})),
      "API:       http://127.0.0.1:8000/v1\n"
      "dashboard: http://127.0.0.1:8000/\n"
      "try:       curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
      "-H \"Authorization: Bearer $VLLM_API_KEY\" -d '{\"model\":\"it'\\''s\",\"messages\":[{\"role\":\"user\","
      "\"content\":\"Why is the sky blue?\"}],\"max_tokens\":64,\"temperature\":0}'\n"
      "           where VLLM_API_KEY has the value that it has for this server\n");
  const std::string plain = joined(reach_lines({.address = "https://[::]:1", .model = "m", .chat = false}));
  EXPECT_NE(plain.find("curl -k https://[::1]:1/v1/completions"), std::string::npos) << plain;
  EXPECT_NE(plain.find(R"("prompt":"The sky is","max_tokens":64,"temperature":0}')"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("Bearer"), std::string::npos) << plain;
  EXPECT_NE(plain.find("--api-key"), std::string::npos) << plain;
  EXPECT_NE(
      joined(reach_lines({.address = "unix:/run/k", .model = "m"})).find("--unix-socket '/run/k' http://localhost/v1"),
      std::string::npos);
}

// The shell that runs the line has no variable with a key of the command line.
TEST(ReachLines, AKeyOfTheCommandLineHasAPlaceholder) {
  const std::string lines = joined(reach_lines({.address = "http://127.0.0.1:8000", .model = "m", .keys = true}));
  EXPECT_NE(lines.find("-H \"Authorization: Bearer YOUR_KEY\""), std::string::npos) << lines;
  EXPECT_NE(lines.find("with a key of --api-key or --api-key-file in place of YOUR_KEY"), std::string::npos) << lines;
  EXPECT_EQ(lines.find("VLLM_API_KEY"), std::string::npos) << lines;
}

TEST(ReachLines, WarnInAContainer) {
  const auto warned = [](const std::string& address) {
    return joined(reach_lines({.address = address, .model = "m", .container = true})).find("nothing outside") !=
           std::string::npos;
  };
  EXPECT_TRUE(warned("http://127.0.0.1:8000"));
  EXPECT_TRUE(warned("http://[::1]:8000"));
  EXPECT_FALSE(warned("http://0.0.0.0:8000"));
  EXPECT_FALSE(warned("unix:/run/k"));
}

TEST(InContainer, LooksForMarks) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "kvarto_container";
  std::filesystem::create_directories(root / "proc/1");
  std::ofstream(root / "proc/1/cgroup") << "0::/init.scope\n";
  EXPECT_FALSE(in_container(root.string()));
  std::ofstream(root / "proc/1/cgroup") << "1:cpu:/kubepods/burstable/pod1\n";
  EXPECT_TRUE(in_container(root.string()));
  std::ofstream(root / "proc/1/cgroup") << "0::/\n";
  std::ofstream(root / ".dockerenv") << "";
  EXPECT_TRUE(in_container(root.string()));
  std::filesystem::remove_all(root);
}

TEST(RouteLines, NameRoutesAsVllmDoes) {
  const std::string lines = joined(route_lines(false));
  EXPECT_NE(lines.find("Route: /v1/chat/completions, Methods: POST\n"), std::string::npos);
  EXPECT_EQ(lines.find("/reset_prefix_cache"), std::string::npos);
  EXPECT_NE(joined(route_lines(true)).find("/reset_prefix_cache"), std::string::npos);
}

}  // namespace
}  // namespace kvarto
