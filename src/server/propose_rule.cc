#include <array>
#include <vector>

#include "server/volatile_text.h"

namespace kvarto {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_upper(c) || (c >= 'a' && c <= 'z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

// A stretch of a line. Of two lines whose stretches pair up by class, those with an expression may differ.
struct Stretch {
  std::string_view text;
  std::string_view expression;  // empty: literal text
};

constexpr std::string_view kUuid = R"([0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})";
constexpr std::string_view kDate = R"(\d{4}-\d{2}-\d{2})";
constexpr std::string_view kTime = R"(\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)";
constexpr std::string_view kNumber = R"(\d+([.,]\d+)*)";
constexpr std::string_view kName = "[A-Z][a-z]{2,8}";  // of a month or a day
constexpr std::string_view kHalf = "[AaPp][Mm]";
constexpr std::string_view kId = R"([\w-]{6,})";

constexpr std::array<std::string_view, 38> kNames = {
    "January",  "February", "March", "April", "May",    "June",    "July",      "August",   "September", "October",
    "November", "December", "Jan",   "Feb",   "Mar",    "Apr",     "Jun",       "Jul",      "Aug",       "Sep",
    "Sept",     "Oct",      "Nov",   "Dec",   "Monday", "Tuesday", "Wednesday", "Thursday", "Friday",    "Saturday",
    "Sunday",   "Mon",      "Tue",   "Wed",   "Thu",    "Fri",     "Sat",       "Sun"};

// Length of a beginning of `text` in the shape of `shape`: d a digit, h a hexadecimal digit, others themselves. 0:
// none.
size_t shaped(std::string_view text, std::string_view shape) {
  if (text.size() < shape.size()) return 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool fits = shape[i] == 'd' ? is_digit(text[i]) : shape[i] == 'h' ? is_hex(text[i]) : text[i] == shape[i];
    if (!fits) return 0;
  }
  return shape.size();
}

size_t time_length(std::string_view text) {
  size_t length = shaped(text, "dd:dd");
  if (length == 0) length = shaped(text, "d:dd");
  if (length == 0) return 0;
  const size_t seconds = shaped(text.substr(length), ":dd");
  length += seconds;
  if (seconds > 0 && shaped(text.substr(length), ".d") > 0) {
    for (++length; length < text.size() && is_digit(text[length]);) ++length;
  }
  return length;
}

size_t number_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  while (shaped(text.substr(length), ".d") > 0 || shaped(text.substr(length), ",d") > 0) {
    for (++length; length < text.size() && is_digit(text[length]);) ++length;
  }
  return length;
}

// A word of letters and digits mixed, as ids are.
size_t id_length(std::string_view text) {
  size_t length = 0;
  bool letter = false, digit = false;
  for (; length < text.size() && (is_word(text[length]) || text[length] == '-'); ++length) {
    letter = letter || is_letter(text[length]);
    digit = digit || is_digit(text[length]);
  }
  return letter && digit && length >= 6 ? length : 0;
}

// The stretch at the beginning of `text`, where a word may begin.
Stretch first_stretch(std::string_view text) {
  const auto ends_word = [&](size_t length) { return length == text.size() || !is_word(text[length]); };
  const auto found = [&](size_t length, std::string_view expression) {
    return Stretch{text.substr(0, length), expression};
  };
  if (const size_t n = shaped(text, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh"); n > 0 && ends_word(n)) {
    return found(n, kUuid);
  }
  // A time of day may follow directly, after a T.
  if (const size_t n = shaped(text, "dddd-dd-dd"); n > 0 && (ends_word(n) || text[n] == 'T')) return found(n, kDate);
  if (const size_t n = time_length(text); n > 0) return found(n, kTime);
  if (const size_t n = id_length(text); n > 0) return found(n, kId);
  if (const size_t n = number_length(text); n > 0) return found(n, kNumber);
  size_t word = 0;
  while (word < text.size() && is_word(text[word])) ++word;
  const std::string_view name = text.substr(0, word);
  for (const std::string_view known : kNames) {
    if (name == known) return found(word, kName);
  }
  if (name == "AM" || name == "PM" || name == "am" || name == "pm") return found(word, kHalf);
  return found(word > 0 ? word : 1, {});
}

std::vector<Stretch> stretches_of(std::string_view line) {
  std::vector<Stretch> stretches;
  while (!line.empty()) {
    // The T between a date and a time.
    const bool after_date = !stretches.empty() && stretches.back().expression == kDate;
    stretches.push_back(after_date && line.front() == 'T' ? Stretch{line.substr(0, 1), {}} : first_stretch(line));
    line.remove_prefix(stretches.back().text.size());
  }
  return stretches;
}

void append_literal(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (std::string_view(R"(\^$.|?*+()[]{}#)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
}

}  // namespace

std::optional<std::string> propose_rule(std::string_view line_a, std::string_view line_b) {
  const std::vector<Stretch> a = stretches_of(line_a), b = stretches_of(line_b);
  if (a.size() != b.size() || line_a == line_b) return std::nullopt;
  std::string rule = "move ^";
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i].text == b[i].text;
    if (a[i].expression.empty() || b[i].expression.empty() || (same && a[i].expression == kId)) {
      if (!same) return std::nullopt;
      append_literal(rule, a[i].text);
    } else if (a[i].expression == b[i].expression) {
      rule += a[i].expression;
    } else {
      return std::nullopt;
    }
  }
  rule += '$';
  // Looked at once more by the engine that will apply it: a rule that misses its own lines is none.
  const auto check = VolatileText::parse(rule);
  for (const std::string_view line : {line_a, line_b}) {
    if (!check || check->apply(line).lines_moved != 1) return std::nullopt;
  }
  return rule;
}

}  // namespace kvarto
