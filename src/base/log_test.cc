#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace kvarto {
namespace {

using std::chrono::milliseconds;

// In a process of its own, whose stderr is a pipe. Ends with 0, or with the number of what went wrong.
[[noreturn]] void log_into_a_full_pipe() {
  int ends[2];
  if (::pipe(ends) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) ::_exit(2);
  set_log_level(LogLevel::info);
  queue_log_lines();
  log(LogLevel::info, "the first");
  if (!flush_log(std::chrono::minutes(1))) ::_exit(8);
  constexpr int kLines = 20'000;  // a pipe holds about 2,000 of them
  for (int i = 0; i < kLines; ++i) log(LogLevel::info, "line " + std::to_string(i) + ".");
  if (flush_log(milliseconds(50))) ::_exit(3);
  std::string all;
  const std::string last = "line " + std::to_string(kLines - 1) + ".";
  std::thread reader([&] {
    char piece[4096];
    while (all.find(last) == std::string::npos) {
      const ssize_t count = ::read(ends[0], piece, sizeof piece);
      if (count <= 0) return;
      all.append(piece, static_cast<size_t>(count));
    }
  });
  if (!flush_log(std::chrono::minutes(1))) ::_exit(4);
  reader.join();
  if (all.find("the first") == std::string::npos) ::_exit(5);
  if (all.find("log lines were dropped") == std::string::npos) ::_exit(6);
  if (all.find("line 10000.") != std::string::npos) ::_exit(7);  // older than the newest 4,096
  ::_exit(0);
}

TEST(LogDeathTest, AReaderWhoStopsStopsNobody) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(log_into_a_full_pipe(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kvarto
