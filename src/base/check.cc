#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvarto {

void check_failed(const char* file, int line, const char* condition, const std::string& what) {
  const std::string text =
      std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition + ": " + what;
#ifdef KVARTO_DEBUG_CHECKS
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
#else
  throw CheckFailure(text);
#endif
}

}  // namespace kvarto
