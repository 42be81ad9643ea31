#include "cli/serve_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

namespace kvarto {
namespace {

constexpr std::string_view kSmall = "kmgt", kCapital = "KMGT";

std::string shown(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

}  // namespace

Result<uint64_t> parse_human(std::string_view text) {
  const auto wrong = [&] {
    return fail(ErrorCode::invalid_argument, "'" + printable(text) +
                                                 "' is not a count; write 25600, 25.6k (1,000s) or 25K (1,024s, no "
                                                 "decimals)");
  };
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string_view unit(rest, static_cast<size_t>(text.data() + text.size() - rest));
  const std::string_view digits = text.substr(0, text.size() - unit.size());
  const bool whole = digits.find('.') == std::string_view::npos;
  if (error != std::errc() || unit.size() > 1 || !(number >= 0)) return wrong();
  double scale = 1;
  if (!unit.empty()) {
    const size_t small = kSmall.find(unit[0]), capital = kCapital.find(unit[0]);
    if (small == std::string_view::npos && capital == std::string_view::npos) return wrong();
    if (capital != std::string_view::npos && !whole) return wrong();
    scale = small != std::string_view::npos ? std::pow(1000.0, static_cast<double>(small + 1))
                                            : std::pow(1024.0, static_cast<double>(capital + 1));
  } else if (!whole) {
    return wrong();
  }
  // As Python's int() does: what is less than one is dropped. The nudge undoes what binary fractions lose (25.6k).
  const double value = std::floor(number * scale + 1e-6);
  if (!(value < 1e18)) return wrong();
  return static_cast<uint64_t>(value);
}

Status set_number(double& target, const FlagValue& value, double least, double most, bool open) {
  const std::string& text = value.text();
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool inside = (open ? number > least : number >= least) && number <= most;  // false for NaN
  if (error != std::errc() || rest != text.data() + text.size() || !inside) {
    return bad_value(value, "a number " + std::string(open ? "above " : "from ") + shown(least) + " to " + shown(most));
  }
  target = number;
  return {};
}

Status check_api_key(std::string_view key) {
  if (key.find_first_not_of(" \t") == std::string_view::npos) {
    return fail(ErrorCode::invalid_argument,
                "is empty, which would leave the server open to everybody; give a key, or leave it out");
  }
  const auto is_control = [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f; };
  if (std::ranges::any_of(key, is_control)) {
    return fail(ErrorCode::invalid_argument,
                "has a line break or another control character, which no header carries; give the key alone");
  }
  return {};
}

Status set_switch(bool& target, const FlagValue& value) {
  std::string text = value.text();
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (text == "true" || text == "false") {
    target = text == "true";
    return {};
  }
  int64_t number = 0;
  if (!set_count(number, value)) return bad_value(value, "0 or 1");
  target = number != 0;
  return {};
}

Result<size_t> choice(const FlagValue& value, std::initializer_list<std::string_view> names) {
  std::string known;
  size_t index = 0;
  for (const std::string_view name : names) {
    if (value.text() == name) return index;
    known += (known.empty() ? "" : ", ") + std::string(name);
    ++index;
  }
  return bad_value(value, "one of " + known);
}

}  // namespace kvarto
