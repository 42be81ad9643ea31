// What this processor and this process may use. Features count only when the OS enables their registers (XCR0). Free
// functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvarto {

// Kernel sets, slowest first. All give the same bits.
enum class SimdTarget : uint8_t { scalar, avx2, avx512, amx };
std::string_view simd_target_name(SimdTarget target);  // "scalar", "avx2", "avx512", "amx"

// Targets this machine can run: scalar always; avx2 with FMA and F16C; avx512 with F, BW, DQ, VL, VBMI, VNNI and
// AVX-VNNI; amx is avx512 with AMX int8 tiles for products of many rows, for which the first call asks the kernel's
// permission. Each also asks for whatever else the compiler may use in that target's functions.
std::span<const SimdTarget> available_targets();
SimdTarget best_target();
inline constexpr SimdTarget kAllTargets[] = {SimdTarget::scalar, SimdTarget::avx2, SimdTarget::avx512, SimdTarget::amx};
// Why a target is not among the available ones; empty when it is.
const std::string& why_not(SimdTarget target);

// One logical CPU per physical core of the process's affinity mask, at most the cgroup's CPU quota (rounded up), at
// least 1. `root` prefixes /proc and /sys in tests.
std::vector<int> usable_cores(const std::string& root = "");

std::string cpu_model_name();
// Bytes this process may still use: MemAvailable, or what the cgroup (v2 or v1) leaves, whichever is less. `root`
// prefixes /proc and /sys in tests.
size_t available_memory_bytes(const std::string& root = "");

}  // namespace kvarto
