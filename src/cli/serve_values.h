// Values of serve's flags: numbers and choices with limits, errors with the remedy. Pure functions; main thread.
#pragma once

#include <charconv>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include "cli/serve_flags.h"
#include "format/printable.h"

namespace kvarto {

inline tl::unexpected<Error> bad_value(const FlagValue& value, const std::string& remedy) {
  return fail(ErrorCode::invalid_argument, "'" + printable(value.text()) + "' is not " + remedy);
}

// A whole number in decimal digits.
template <typename T>
Status set_count(T& target, const FlagValue& value, T least = 0, T most = std::numeric_limits<T>::max()) {
  const std::string& text = value.text();
  T number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size() || number < least || number > most) {
    return bad_value(value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  target = number;
  return {};
}

// The same, with human sizes.
template <typename T>
Status set_human(T& target, const FlagValue& value, T least = 0, T most = std::numeric_limits<T>::max()) {
  const Result<uint64_t> number = parse_human(value.text());
  if (!number) return tl::unexpected<Error>(number.error());
  if (*number < least || *number > most) {
    return bad_value(value, "from " + std::to_string(least) + " to " + std::to_string(most));
  }
  target = static_cast<T>(*number);
  return {};
}

// A number in [least, most]; `open`: least itself is not allowed.
Status set_number(double& target, const FlagValue& value, double least, double most, bool open = false);

inline Status set_text(std::string& target, const FlagValue& value) {
  target = value.text();
  return {};
}
inline Status set_on(bool& target, const FlagValue& value) {
  target = value.on;
  return {};
}
inline Status set_off(bool& target, const FlagValue& value) {
  target = !value.on;
  return {};
}
inline Status set_list(std::vector<std::string>& target, const FlagValue& value) {
  target = value.words;
  return {};
}

// Nothing that a key may be: empty, or what no header carries. The key is not told.
Status check_api_key(std::string_view key);
// 0 or 1, as variables have it, or true and false.
Status set_switch(bool& target, const FlagValue& value);

// The place of the value among `names`.
Result<size_t> choice(const FlagValue& value, std::initializer_list<std::string_view> names);

}  // namespace kvarto

// The setter of a row: `f` and `v` are its arguments.
#define KVARTO_SET(...) [](ServeFlags& f, const FlagValue& v) -> Status { __VA_ARGS__ }
