// Letters of ASCII without their case, as names of headers, hosts and files are compared: no locale has a say, and
// bytes beyond ASCII stay what they are. Pure; any thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace kvarto {

constexpr char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return ascii_lower(c); });
  return out;
}

inline bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return ascii_lower(x) == ascii_lower(y); });
}

}  // namespace kvarto
