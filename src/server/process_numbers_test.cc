#include "server/process_numbers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>

namespace kvarto {
namespace {

double used_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ProcessNumbers, AgreeWithOtherCountsOfTheSystem) {
  const double before = used_cpu_seconds();
  const ProcessNumbers numbers = read_process_numbers();
  const double after = used_cpu_seconds();
  EXPECT_GT(numbers.resident_bytes, 1u << 20);
  EXPECT_GT(numbers.virtual_bytes, numbers.resident_bytes);
  EXPECT_GE(numbers.cpu_seconds, before - 0.05);  // /proc counts in hundredths
  EXPECT_LE(numbers.cpu_seconds, after + 0.05);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(numbers.start_seconds, now + 2);
  EXPECT_GT(numbers.start_seconds, now - 24 * 3600);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(numbers.max_fds, limit.rlim_cur);
}

TEST(ProcessNumbers, CountOpenFiles) {
  const uint64_t before = read_process_numbers().open_fds;
  const int fd = open("/dev/null", O_RDONLY);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(read_process_numbers().open_fds, before + 1);
  close(fd);
  EXPECT_EQ(read_process_numbers().open_fds, before);
}

}  // namespace
}  // namespace kvarto
