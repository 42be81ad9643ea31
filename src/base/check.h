// CHECK(condition, "what is broken"): for our own bugs only, never for what a caller, file or peer can cause (that is a
// Result). In tests and debug builds a failed check aborts; inside an engine step it throws CheckFailure, which poisons
// the engine: running requests end with an error, the cache is rebuilt, the queue goes on. Any thread.
#pragma once

#include <stdexcept>
#include <string>

namespace kvarto {

class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws CheckFailure, or aborts in builds with KVARTO_DEBUG_CHECKS.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& what);

#define CHECK(condition, what)                                        \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::kvarto::check_failed(__FILE__, __LINE__, #condition, (what)); \
  } while (false)

}  // namespace kvarto
