// Planted bugs: builds with KVARTO_FAULTS carry one known bug per number and KVARTO_FAULT=n turns number n on, so that
// tools/check_faults can show that some test notices each. In every other build fault() is the constant false. Any
// thread.
#pragma once

#ifdef KVARTO_FAULTS
#include <cstdlib>
#endif

namespace kvarto {

#ifdef KVARTO_FAULTS
inline bool fault(int number) {
  static const int on = [] {
    const char* text = std::getenv("KVARTO_FAULT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return on == number;
}
#else
constexpr bool fault(int) { return false; }
#endif

}  // namespace kvarto
