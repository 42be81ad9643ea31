#include "eval/judge.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/json_text.h"

namespace kvarto {
namespace {

// By byte and without locale: the same verdict everywhere.
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<uint8_t>(c) >= 0x80;
  return letter || is_digit(c) || c == '_';
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view first_line(std::string_view text) { return trimmed(text.substr(0, text.find('\n'))); }

bool contains(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return false;
  return !std::ranges::search(text, wanted, {}, lower, lower).empty();
}

// --- whole numbers

struct Number {
  bool negative = false, whole = true;
  std::string digits;  // no zeros in front
  bool operator==(const Number&) const = default;
};

size_t digits_end(std::string_view text, size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

// Whether a comma and exactly three digits stand at `at`.
bool is_thousands_group(std::string_view text, size_t at) {
  return at < text.size() && text[at] == ',' && digits_end(text, at + 1) == at + 4;
}

// The number whose first digit stands at `at`, which moves behind it. A minus counts where it cannot be one of a
// subtraction: "3-5" ends with 5.
Number read_number(std::string_view text, size_t& at) {
  Number number;
  const bool minus = at > 0 && text[at - 1] == '-';
  number.negative = minus && (at == 1 || (!is_word(text[at - 2]) && text[at - 2] != ')'));
  size_t end = digits_end(text, at);
  number.digits = text.substr(at, end - at);
  if (end - at <= 3) {
    for (; is_thousands_group(text, end); end += 4) number.digits += text.substr(end + 1, 3);
  }
  if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) {
    const size_t fraction_end = digits_end(text, end + 1);
    number.whole = text.substr(end + 1, fraction_end - end - 1).find_first_not_of('0') == std::string_view::npos;
    end = fraction_end;
  }
  number.digits.erase(0, std::min(number.digits.find_first_not_of('0'), number.digits.size()));
  if (number.digits.empty()) number.negative = false;
  at = end;
  return number;
}

std::optional<Number> last_number(std::string_view text) {
  std::optional<Number> last;
  for (size_t at = 0; at < text.size();) {
    if (is_digit(text[at])) {
      last = read_number(text, at);
    } else {
      ++at;
    }
  }
  return last;
}

bool same_last_number(std::string_view text, std::string_view wanted) {
  const std::optional<Number> number = last_number(text);
  return number && number->whole && number == last_number(wanted);
}

// --- JSON

bool same_json(std::string_view text, std::string_view wanted) {
  const Result<nlohmann::ordered_json> given = parse_json(first_line(text)), expected = parse_json(first_line(wanted));
  if (!given || !expected) return false;
  return nlohmann::json(*given) == nlohmann::json(*expected);  // there keys in any order are equal
}

// --- code

// Up to the line that ends a function: the first, after its first, that is not indented.
std::string_view function_body(std::string_view text) {
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    const size_t next = at + 1;
    const bool unindented = next < text.size() && !is_space(text[next]);
    if (unindented && !trimmed(text.substr(0, at)).empty()) return text.substr(0, next);
  }
  return text;
}

size_t token_end(std::string_view code, size_t at) {
  constexpr std::string_view kPairs[] = {"==", "!=", "<=", ">=", "**", "//", "<<", ">>", "->",
                                         "+=", "-=", "*=", "/=", "%=", "&&", "||", ":="};
  const char first = code[at];
  if (first == '"' || first == '\'') {
    size_t end = at + 1;
    while (end < code.size() && code[end] != first && code[end] != '\n') end += code[end] == '\\' ? 2 : 1;
    return std::min(end + 1, code.size());
  }
  if (is_word(first)) {
    while (at < code.size() && is_word(code[at])) ++at;
    return at;
  }
  return at + (std::ranges::find(kPairs, code.substr(at, 2)) != std::end(kPairs) ? 2 : 1);
}

// White space and comments are none.
std::vector<std::string_view> code_tokens(std::string_view code) {
  std::vector<std::string_view> tokens;
  for (size_t at = 0; at < code.size();) {
    if (is_space(code[at])) {
      ++at;
    } else if (code[at] == '#') {
      at = std::min(code.find('\n', at), code.size());
    } else {
      const size_t end = token_end(code, at);
      tokens.push_back(code.substr(at, end - at));
      at = end;
    }
  }
  return tokens;
}

bool same_code(std::string_view text, std::string_view wanted) {
  return code_tokens(function_body(text)) == code_tokens(function_body(wanted));
}

}  // namespace

std::string_view cut_at_stop(const Task& task, std::string_view text) {
  size_t end = text.size();
  for (const std::string& stop : task.stop) {
    if (!stop.empty()) end = std::min(end, text.find(stop));
  }
  return text.substr(0, end);
}

bool is_right(const Task& task, std::string_view text, std::string_view baseline) {
  switch (task.judge) {
    case Judge::first_line:
      return first_line(text) == first_line(task.answer);
    case Judge::contains:
      return contains(text, trimmed(task.answer));
    case Judge::last_number:
      return same_last_number(text, task.answer);
    case Judge::json:
      return same_json(text, task.answer);
    case Judge::code:
      return same_code(text, task.answer);
    case Judge::agreement:
      return text == baseline;
  }
  return false;
}

}  // namespace kvarto
