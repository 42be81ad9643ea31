#include "base/simd_limit.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

namespace kvarto {

Result<SimdTarget> simd_limit() {
  const char* const text = std::getenv(kSimdLimitName);
  if (text == nullptr || *text == '\0') return *std::prev(std::end(kAllTargets));
  const auto* const found = std::ranges::find(kAllTargets, std::string_view(text), simd_target_name);
  if (found != std::end(kAllTargets)) return *found;
  std::string names;
  for (const SimdTarget target : kAllTargets)
    names += (names.empty() ? "" : ", ") + std::string(simd_target_name(target));
  return fail(ErrorCode::invalid_argument,
              std::string(kSimdLimitName) + "=" + text + " is none of " + names + "; choose one, or unset it");
}

}  // namespace kvarto
