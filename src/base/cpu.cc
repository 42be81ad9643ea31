#include "base/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/simd_limit.h"

namespace kvarto {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

struct CpuidRegisters {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

CpuidRegisters cpuid(unsigned leaf, unsigned subleaf) {
  CpuidRegisters r;
  if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}

// The OS saves and restores exactly the register sets whose bits are set here.
uint64_t enabled_register_sets() {
  constexpr unsigned kOsxsave = 1u << 27;
  if (!(cpuid(1, 0).c & kOsxsave)) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

constexpr bool has_all(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

constexpr unsigned bits_of(std::initializer_list<int> positions) {
  unsigned mask = 0;
  for (int p : positions) mask |= 1u << p;
  return mask;
}

// Each says why its target does not run here, or nothing. A target needs those before it.
std::string avx2_obstacle() {
  constexpr uint64_t kSseAvxState = 0x6;
  // PCLMUL, SSSE3, FMA, SSE4.1, SSE4.2, AES, AVX, F16C
  constexpr unsigned kLeaf1C = bits_of({1, 9, 12, 19, 20, 25, 28, 29});
  constexpr unsigned kLeaf7B = bits_of({3, 5, 8});  // BMI1, AVX2, BMI2
  if (!has_all(cpuid(1, 0).c, kLeaf1C) || !has_all(cpuid(7, 0).b, kLeaf7B)) {
    return "the processor lacks AVX2, FMA, F16C or what comes with them";
  }
  if (!has_all(enabled_register_sets(), kSseAvxState)) return "the system does not enable the AVX registers";
  return "";
}

std::string avx512_obstacle() {
  constexpr uint64_t kAvx512State = 0xe6;
  constexpr unsigned kLeaf7B = bits_of({16, 17, 30, 31});  // F, DQ, BW, VL
  constexpr unsigned kLeaf7C =
      bits_of({1, 6, 8, 9, 10, 11, 12, 14});   // VBMI VBMI2 GFNI VAES VPCLMULQDQ VNNI BITALG VPOPCNTDQ
  constexpr unsigned kLeaf71A = bits_of({4});  // AVX-VNNI
  if (std::string obstacle = avx2_obstacle(); !obstacle.empty()) return obstacle;
  if (!has_all(cpuid(7, 0).b, kLeaf7B) || !has_all(cpuid(7, 0).c, kLeaf7C) || !has_all(cpuid(7, 1).a, kLeaf71A)) {
    return "the processor lacks AVX-512 with VBMI and VNNI, AVX-VNNI or what comes with them";
  }
  if (!has_all(enabled_register_sets(), kAvx512State)) return "the system does not enable the AVX-512 registers";
  return "";
}

// The tile registers are large, so a process has to ask for them (Linux: Documentation/arch/x86/xstate.rst).
std::string amx_obstacle() {
  constexpr uint64_t kTileState = 0x60000;         // XTILECFG, XTILEDATA
  constexpr unsigned kLeaf7D = bits_of({24, 25});  // AMX-TILE, AMX-INT8
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (std::string obstacle = avx512_obstacle(); !obstacle.empty()) return obstacle;
  if (!has_all(cpuid(7, 0).d, kLeaf7D)) return "the processor has no AMX int8 tiles";
  if (!has_all(enabled_register_sets(), kTileState)) return "the system does not enable the tile registers";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return std::string("the kernel refused this process the tile registers: ") + std::strerror(errno);
  }
  return "";
}

std::string obstacle_of(SimdTarget target) {
  if (target > simd_limit().value_or(SimdTarget::scalar)) return std::string("ruled out by ").append(kSimdLimitName);
  switch (target) {
    case SimdTarget::scalar:
      return "";
    case SimdTarget::avx2:
      return avx2_obstacle();
    case SimdTarget::avx512:
      return avx512_obstacle();
    case SimdTarget::amx:
      return amx_obstacle();
  }
  return "unknown";
}

struct Targets {
  std::array<std::string, std::size(kAllTargets)> obstacles = {
      obstacle_of(SimdTarget::scalar), obstacle_of(SimdTarget::avx2), obstacle_of(SimdTarget::avx512),
      obstacle_of(SimdTarget::amx)};
  size_t count = static_cast<size_t>(std::ranges::count(obstacles, ""));
};
const Targets& targets() {
  static const Targets found;
  return found;
}

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = s.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kSpace) - first + 1);
}

std::optional<int64_t> parse_number(std::string_view s) {
  s = trimmed(s);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end == s.data()) return std::nullopt;
  return value;
}

// Files of /proc and /sys: small, no known size, absent on many machines.
std::optional<std::string> slurp(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The number in the first line that starts with `key`.
std::optional<int64_t> number_after(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(key)) return parse_number(line.substr(key.size()));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

// The process's cgroup directory for a controller and all its ancestors up to the mount, innermost first. Inside a
// container without a cgroup namespace the path of /proc/self/cgroup is the host's and is not there: then the mount
// itself is the container's own group.
struct CgroupDirs {
  bool v2 = false;
  std::vector<std::string> dirs;
};

CgroupDirs cgroup_dirs(const std::string& root, std::string_view controller) {
  const std::string text = slurp(root + "/proc/self/cgroup").value_or("");
  std::string_view rest = text;
  std::string mount, path;
  bool v2 = false;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string controllers(line.substr(first + 1, second - first - 1));
    const bool named = ("," + controllers + ",").find("," + std::string(controller) + ",") != std::string::npos;
    if (!named && (!controllers.empty() || !mount.empty())) continue;
    v2 = controllers.empty();
    mount = root + "/sys/fs/cgroup" + (v2 ? "" : "/" + controllers);
    path = line.substr(second + 1);
  }
  CgroupDirs found{v2, {}};
  if (mount.empty()) return found;
  for (; path.size() > 1; path.resize(path.rfind('/'))) {
    if (std::ifstream(mount + path + "/cgroup.procs")) found.dirs.push_back(mount + path);
  }
  found.dirs.push_back(mount);
  return found;
}

// What one group still allows; page cache that the kernel can drop at once does not count as used.
size_t memory_left(const std::string& dir, bool v2) {
  const std::optional<std::string> limit_text = slurp(dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const std::optional<int64_t> limit = limit_text ? parse_number(*limit_text) : std::nullopt;
  constexpr int64_t kV1Unlimited = int64_t{1} << 62;  // v1 says "none" with a number just below 2^63
  if (!limit || *limit >= kV1Unlimited) return kNoLimit;
  const std::string usage = slurp(dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or("0");
  const std::string stat = slurp(dir + "/memory.stat").value_or("");
  const int64_t reclaimable = number_after(stat, v2 ? "inactive_file " : "total_inactive_file ").value_or(0);
  const int64_t used = std::max<int64_t>(0, parse_number(usage).value_or(0) - reclaimable);
  return static_cast<size_t>(std::max<int64_t>(0, *limit - used));
}

// CPUs' worth of time that the groups allow, rounded up.
size_t cpu_quota(const std::string& root) {
  size_t least = kNoLimit;
  const CgroupDirs groups = cgroup_dirs(root, "cpu");
  for (const std::string& dir : groups.dirs) {
    std::optional<int64_t> quota, period;
    if (groups.v2) {
      const std::string text = slurp(dir + "/cpu.max").value_or("max");  // "max 100000" or "150000 100000"
      quota = parse_number(text);
      period = parse_number(std::string_view(text).substr(std::min(text.find(' '), text.size())));
    } else {
      quota = parse_number(slurp(dir + "/cpu.cfs_quota_us").value_or(""));  // -1: none
      period = parse_number(slurp(dir + "/cpu.cfs_period_us").value_or(""));
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) continue;
    least = std::min(least, static_cast<size_t>((*quota + *period - 1) / *period));
  }
  return least;
}

// The lowest logical CPU of the physical core that `cpu` belongs to.
int first_sibling(const std::string& root, int cpu) {
  const std::string dir = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  std::optional<std::string> list = slurp(dir + "core_cpus_list");
  if (!list) list = slurp(dir + "thread_siblings_list");
  return static_cast<int>(list ? parse_number(*list).value_or(cpu) : cpu);  // "0,32" or "0-1": sorted
}

std::vector<int> affinity_mask() {
  // Room for more CPUs than the default set's 1024: the kernel refuses a set smaller than its own.
  constexpr size_t kMaxCpus = 16384;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (size_t cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(static_cast<int>(cpu));
    }
  }
  CPU_FREE(set);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

std::string_view simd_target_name(SimdTarget target) {
  constexpr std::array<std::string_view, 4> kNames = {"scalar", "avx2", "avx512", "amx"};
  return kNames[static_cast<size_t>(target)];
}

std::span<const SimdTarget> available_targets() { return std::span(kAllTargets).first(targets().count); }
SimdTarget best_target() { return available_targets().back(); }
const std::string& why_not(SimdTarget target) { return targets().obstacles[static_cast<size_t>(target)]; }

std::vector<int> usable_cores(const std::string& root) {
  std::vector<int> cores, seen;
  for (int cpu : affinity_mask()) {
    const int core = first_sibling(root, cpu);
    if (std::find(seen.begin(), seen.end(), core) != seen.end()) continue;
    seen.push_back(core);
    cores.push_back(cpu);
  }
  cores.resize(std::min(cores.size(), std::max<size_t>(1, cpu_quota(root))));
  return cores;
}

std::string cpu_model_name() {
  const std::string text = slurp("/proc/cpuinfo").value_or("");
  const size_t key = text.find("model name");
  const size_t colon = key == std::string::npos ? key : text.find(':', key);
  if (colon == std::string::npos) return "unknown";
  return std::string(trimmed(std::string_view(text).substr(colon + 1, text.find('\n', colon) - colon - 1)));
}

size_t available_memory_bytes(const std::string& root) {
  const std::string meminfo = slurp(root + "/proc/meminfo").value_or("");
  const std::optional<int64_t> host_kib = number_after(meminfo, "MemAvailable:");
  size_t least = host_kib ? static_cast<size_t>(*host_kib) * 1024 : kNoLimit;
  const CgroupDirs groups = cgroup_dirs(root, "memory");
  for (const std::string& dir : groups.dirs) least = std::min(least, memory_left(dir, groups.v2));
  return least;
}

}  // namespace kvarto
