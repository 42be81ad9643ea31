#include "server/sse.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace kvarto {
namespace {

// What stands behind the backslash; 'u': \u00XX; 0: the byte as it is; 1: a byte beyond ASCII.
constexpr std::array<char, 256> make_escapes() {
  std::array<char, 256> escapes{};
  for (size_t i = 0; i < 0x20; ++i) escapes[i] = 'u';
  for (size_t i = 0x80; i < 0x100; ++i) escapes[i] = 1;
  escapes['\b'] = 'b';
  escapes['\f'] = 'f';
  escapes['\n'] = 'n';
  escapes['\r'] = 'r';
  escapes['\t'] = 't';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  return escapes;
}
constexpr std::array<char, 256> kEscapes = make_escapes();

}  // namespace

void append_sse_event(std::string& out, std::string_view data) {
  while (true) {
    const size_t line = data.find('\n');
    out += "data: ";
    out += data.substr(0, line);
    out += '\n';
    if (line == std::string_view::npos) break;
    data.remove_prefix(line + 1);
  }
  out += '\n';
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  size_t plain = 0;  // where the bytes begin that are copied as they are
  for (size_t at = 0; at < text.size();) {
    const char escape = kEscapes[static_cast<uint8_t>(text[at])];
    if (escape == 0) {
      ++at;
      continue;
    }
    size_t bytes = 1;
    if (escape == 1) {
      const Utf8Char c = read_utf8(text, at);
      bytes = c.bytes;
      if (c.kind == Utf8Char::Kind::valid) {
        at += bytes;
        continue;
      }
    }
    out += text.substr(plain, at - plain);
    if (escape == 1) {
      out += kReplacementCharacter;
    } else {
      out += '\\';
      out += escape;
      if (escape == 'u') out.append("00").append(1, kHex[text[at] >> 4 & 1]).append(1, kHex[text[at] & 15]);
    }
    at += bytes;
    plain = at;
  }
  out += text.substr(plain);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

}  // namespace kvarto
