#include "base/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "base/simd_limit.h"

namespace kvarto {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

// A made-up /proc and /sys.
class FakeRoot : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ =
        std::filesystem::temp_directory_path() / (std::string("kvarto_cpu_") + info->name() + std::to_string(getpid()));
    write("/proc/meminfo", "MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   67108864 kB\n");  // 64 GiB
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path.substr(1)).parent_path());
    std::ofstream(root_ / path.substr(1)) << text;
  }
  void group(const std::string& dir, const std::string& max, const std::string& current, const std::string& stat = "") {
    write(dir + "/cgroup.procs", "1\n");
    write(dir + "/memory.max", max + "\n");
    write(dir + "/memory.current", current + "\n");
    write(dir + "/memory.stat", stat);
  }
  std::string root() const { return root_.string(); }
  std::filesystem::path root_;
};

TEST_F(FakeRoot, WithoutCgroupsTheHostDecides) { EXPECT_EQ(available_memory_bytes(root()), 64 * kGiB); }

TEST_F(FakeRoot, CgroupV2Limits) {
  write("/proc/self/cgroup", "0::/\n");
  group("/sys/fs/cgroup", std::to_string(2 * kGiB), std::to_string(kGiB / 2));
  EXPECT_EQ(available_memory_bytes(root()), 2 * kGiB - kGiB / 2);
}

TEST_F(FakeRoot, DroppableCacheIsNotUsed) {
  write("/proc/self/cgroup", "0::/\n");
  group("/sys/fs/cgroup", std::to_string(2 * kGiB), std::to_string(kGiB),
        "anon 1\nactive_file 7\ninactive_file " + std::to_string(kGiB / 4) + "\n");
  EXPECT_EQ(available_memory_bytes(root()), 2 * kGiB - kGiB + kGiB / 4);
}

TEST_F(FakeRoot, CgroupV2MaxIsNoLimit) {
  write("/proc/self/cgroup", "0::/\n");
  group("/sys/fs/cgroup", "max", "123456");
  EXPECT_EQ(available_memory_bytes(root()), 64 * kGiB);
}

TEST_F(FakeRoot, TheTightestOfNestedGroupsDecides) {
  write("/proc/self/cgroup", "0::/user.slice/job\n");
  group("/sys/fs/cgroup/user.slice", std::to_string(3 * kGiB), std::to_string(2 * kGiB));
  group("/sys/fs/cgroup/user.slice/job", std::to_string(8 * kGiB), "0");
  EXPECT_EQ(available_memory_bytes(root()), kGiB);
  group("/sys/fs/cgroup/user.slice", "max", std::to_string(2 * kGiB));
  EXPECT_EQ(available_memory_bytes(root()), 8 * kGiB);
}

TEST_F(FakeRoot, OverItsLimitNothingIsLeft) {
  write("/proc/self/cgroup", "0::/\n");
  group("/sys/fs/cgroup", std::to_string(kGiB), std::to_string(2 * kGiB));
  EXPECT_EQ(available_memory_bytes(root()), 0u);
}

TEST_F(FakeRoot, AHostPathThatIsNotMountedMeansTheMountItself) {
  write("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  group("/sys/fs/cgroup", std::to_string(2 * kGiB), "0");
  EXPECT_EQ(available_memory_bytes(root()), 2 * kGiB);
}

TEST_F(FakeRoot, CgroupV1LimitsAndItsWordForNone) {
  write("/proc/self/cgroup", "9:name=systemd:/\n5:memory:/\n2:cpu,cpuacct:/\n0::/\n");
  const std::string dir = "/sys/fs/cgroup/memory/";
  write(dir + "memory.limit_in_bytes", "9223372036854771712\n");
  write(dir + "memory.usage_in_bytes", std::to_string(kGiB) + "\n");
  EXPECT_EQ(available_memory_bytes(root()), 64 * kGiB);
  write(dir + "memory.limit_in_bytes", std::to_string(2 * kGiB) + "\n");
  write(dir + "memory.stat", "inactive_file 5\ntotal_inactive_file 4096\n");
  EXPECT_EQ(available_memory_bytes(root()), kGiB + 4096);
}

size_t logical_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

TEST_F(FakeRoot, CoresAreThoseOfTheMask) {
  // No topology at all: every logical CPU counts as a core.
  const std::vector<int> cores = usable_cores(root());
  EXPECT_EQ(cores.size(), logical_cpus());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
}

TEST_F(FakeRoot, SiblingsCountOnce) {
  const std::vector<int> all = usable_cores(root());
  for (int cpu : all) {
    write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          std::to_string(all.front()) + "," + std::to_string(all.back()) + "\n");
  }
  EXPECT_EQ(usable_cores(root()), std::vector<int>{all.front()});
}

TEST_F(FakeRoot, CpuQuotaRoundsUpAndLeavesOne) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(usable_cores(root()).size(), 1u);
  write("/sys/fs/cgroup/cpu.max", "110000 100000\n");
  EXPECT_EQ(usable_cores(root()).size(), std::min<size_t>(2, logical_cpus()));
  write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(root()).size(), logical_cpus());
}

TEST_F(FakeRoot, CpuQuotaOfCgroupV1) {
  write("/proc/self/cgroup", "4:memory:/\n2:cpu,cpuacct:/\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(usable_cores(root()).size(), 1u);
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(usable_cores(root()).size(), logical_cpus());
}

TEST(Cpu, ThisMachineHasMemoryCoresAndAName) {
  EXPECT_GT(available_memory_bytes(), size_t{1} << 20);
  EXPECT_LT(available_memory_bytes(), SIZE_MAX);
  EXPECT_GE(usable_cores().size(), 1u);
  EXPECT_LE(usable_cores().size(), logical_cpus());
  EXPECT_FALSE(cpu_model_name().empty());
}

// libgcc reads CPUID and XCR0 with code of its own.
TEST(Cpu, TargetsAgreeWithTheCompilersOwnDetection) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
                      __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avxvnni");
  const auto targets = available_targets();
  EXPECT_EQ(targets.front(), SimdTarget::scalar);
  // The kernel says which register sets this process was granted (ARCH_GET_XCOMP_PERM); bit 18 is the tiles' data.
  uint64_t granted = 0;
  syscall(SYS_arch_prctl, 0x1022, &granted);
  const bool amx =
      avx512 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") && (granted >> 18 & 1) != 0;
  EXPECT_EQ(targets.size(), amx ? 4u : avx512 ? 3u : avx2 ? 2u : 1u);
  EXPECT_EQ(best_target(), targets.back());
  EXPECT_EQ(simd_target_name(SimdTarget::avx512), "avx512");
  for (const SimdTarget target : kAllTargets) {
    EXPECT_EQ(why_not(target).empty(), std::ranges::count(targets, target) == 1) << simd_target_name(target);
  }
}

// In a process of its own: targets are found out once.
[[noreturn]] void exit_unless_limited() {
  setenv("KVARTO_MAX_SIMD", "avx2", 1);
  if (best_target() > SimdTarget::avx2 || why_not(SimdTarget::avx512) != "ruled out by KVARTO_MAX_SIMD") _exit(2);
  if (why_not(SimdTarget::avx2).find("ruled out") != std::string::npos ||
      simd_limit().value_or(SimdTarget::scalar) != SimdTarget::avx2)
    _exit(3);
  _exit(0);
}
[[noreturn]] void exit_unless_limit_is_refused() {
  setenv("KVARTO_MAX_SIMD", "avx1024", 1);
  const Result<SimdTarget> limit = simd_limit();
  if (limit || !limit.error().message.starts_with("KVARTO_MAX_SIMD=avx1024 is none of scalar, avx2, avx512, amx;"))
    _exit(2);
  _exit(best_target() == SimdTarget::scalar ? 0 : 3);
}
TEST(CpuDeathTest, TheEnvironmentLimitsTheTargets) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_unless_limited(), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_unless_limit_is_refused(), testing::ExitedWithCode(0), "");
}

// Linux grants no tile registers to a process with a signal stack too small to save them on.
[[noreturn]] void exit_unless_only_amx_is_refused() {
  static std::array<std::byte, 8192> stack;  // enough for AVX-512
  const stack_t small{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  if (sigaltstack(&small, nullptr) != 0) _exit(2);
  if (best_target() != SimdTarget::avx512 || available_targets().size() != 3) _exit(3);
  if (!why_not(SimdTarget::avx2).empty() || !why_not(SimdTarget::avx512).empty()) _exit(4);
  _exit(why_not(SimdTarget::amx).starts_with("the kernel refused this process the tile registers: ") ? 0 : 5);
}
TEST(CpuDeathTest, RefusedTileRegistersLeaveTheOtherTargets) {
  // Asking available_targets() would also ask the kernel, and the child comes by here too: it starts anew, since an
  // answer is kept and what was granted is inherited.
  if (!__builtin_cpu_supports("amx-int8")) GTEST_SKIP() << "no AMX here";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_unless_only_amx_is_refused(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kvarto
