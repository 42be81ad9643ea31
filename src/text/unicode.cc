#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace kvarto {

namespace {

// Length of the character a lead byte announces and the values its second byte may have; length 0: not a lead byte.
struct Lead {
  uint8_t bytes, second_min, second_max;
};

Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // no overlong forms
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // nothing beyond U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Char read_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  if (byte(0) < 0x80) return {Utf8Char::Kind::valid, 1, byte(0)};
  const Lead lead = lead_of(byte(0));
  if (lead.bytes == 0) return {Utf8Char::Kind::invalid, 1, 0};
  char32_t code_point = byte(0) & (0x7F >> lead.bytes);
  for (uint8_t i = 1; i < lead.bytes; ++i) {
    if (at + i == text.size()) return {Utf8Char::Kind::incomplete, i, 0};
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < min || byte(i) > max) return {Utf8Char::Kind::invalid, i, 0};
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  return {Utf8Char::Kind::valid, lead.bytes, code_point};
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Utf8Char c = read_utf8(text, at);
    if (c.kind != Utf8Char::Kind::valid) return at;
    at += c.bytes;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

Result<std::string> to_nfc(std::string_view text) {
  // Below U+0300 (lead byte 0xCC) every character is its own NFC and combines with nothing before it.
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0xCC; })) {
    return std::string(text);
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = read_utf8(text, at);
    CHECK(c.kind == Utf8Char::Kind::valid, "to_nfc was given text that is not valid UTF-8");
    at += c.bytes;
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto code_point = static_cast<utf8proc_int32_t>(c.code_point);
    const utf8proc_ssize_t count = utf8proc_decompose_char(code_point, parts, 32, options, &boundary);
    if (count < 0 || count > 32) return fail(ErrorCode::internal, "Unicode normalisation failed");
    points.insert(points.end(), parts, parts + count);
  }
  // The library's own canonical ordering is quadratic in a run of combining marks; a stable sort per run is not.
  const auto combining_class = [](utf8proc_int32_t p) { return utf8proc_get_property(p)->combining_class; };
  for (auto run = points.begin(); run != points.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, points.end(), [&](auto p) { return combining_class(p) == 0; });
    std::stable_sort(run, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  if (count < 0) return fail(ErrorCode::internal, "Unicode normalisation failed");
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(points[i]));
  return out;
}

}  // namespace kvarto
