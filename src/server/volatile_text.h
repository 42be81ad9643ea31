// VolatileText: rules that keep what changes with every request (a date, a session number) out of the stable beginning
// of a system prompt, where it would break the prefix for everything behind it. The file of --volatile-text has a rule
// a line, "move REGEX" or "drop REGEX" (PCRE2; empty lines and lines that begin with # do not count). The first rule
// whose expression is found in a line of the system prompt decides: the line goes to the end, or away. Immutable after
// parse; apply() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

struct VolatileResult {
  std::string text;
  uint32_t lines_moved = 0, lines_dropped = 0;
  uint32_t lines_given_up = 0;  // an expression ran into its limit; the line stays where it is
  size_t stable_begin = 0;      // in text: where the first changing line was
  size_t stable_bytes = 0;      // from there: text now in front of the first changing line that was behind it
  std::string_view stable_rest() const { return std::string_view(text).substr(stable_begin, stable_bytes); }
};

class VolatileText {
 public:
  // Steps that one match may take, and how many may end so before the rest of a text is left as it is.
  static constexpr uint32_t kMatchLimit = 100'000, kMaxGivenUp = 8;

  static Result<VolatileText> load(const std::string& path);
  // Errors: the line's number, what is wrong with it. `source` names the rules in errors.
  static Result<VolatileText> parse(std::string_view rules, const std::string& source = "--volatile-text");
  VolatileText(VolatileText&&) noexcept;
  VolatileText& operator=(VolatileText&&) noexcept;
  ~VolatileText();

  VolatileResult apply(std::string_view system_text) const;
  size_t rules() const;

 private:
  VolatileText();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A rule for two lines that differ in dates, times, numbers or ids only: "move ^Today is \d{4}-\d{2}-\d{2}$". Nothing
// when they differ otherwise.
std::optional<std::string> propose_rule(std::string_view line_a, std::string_view line_b);

}  // namespace kvarto
