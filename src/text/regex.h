// Regular expressions over UTF-8 with Unicode's classes, bounded so that no text can hang the caller. A Regex is
// immutable once compiled and may be shared by any threads; a RegexMatcher, the memory and limits of matching, belongs
// to one thread at a time. PCRE2 stays behind this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

class Regex {
 public:
  enum class Engine : uint8_t {
    interpreter,
    machine_code
  };  // the latter where the system lets pages of code be written
  // Error: what is wrong and where, "missing closing parenthesis at byte 4".
  static Result<Regex> compile(std::string_view pattern, Engine engine);

 private:
  friend class RegexMatcher;
  struct Free {
    void operator()(void* code) const;
  };
  std::unique_ptr<void, Free> code_;
};

class RegexMatcher {
 public:
  struct Limits {
    uint32_t steps = 0;       // of one match
    uint32_t depth = 0;       // of backtracking; 0: the library's
    uint32_t heap_kib = 0;    // 0: the library's
    bool code_stack = false;  // a stack of 8 MiB at most for patterns of machine code
  };
  struct Range {
    size_t begin = 0, end = 0;
  };
  struct Find {
    size_t from = 0;
    bool valid_utf8 = false;  // known to be: not looked at again
    bool not_empty = false;   // matches of no bytes do not count
  };

  explicit RegexMatcher(const Limits& limits);
  ~RegexMatcher();
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // The first match from `from` on; nullopt: none. Errors: a limit, text that is not UTF-8.
  Result<std::optional<Range>> find(const Regex& regex, std::string_view text, const Find& find);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarto
