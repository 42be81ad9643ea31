#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <cstring>

namespace kvarto::jinja {
namespace {

constexpr char32_t kByteEscape = 0xDC00;  // an invalid byte b travels as kByteEscape + b

// Letters whose upper case is two letters; utf8proc maps one to one.
std::string_view long_upper(char32_t c) {
  switch (c) {
    case 0xDF:
      return "SS";
    case 0x149:
      return "\xCA\xBCN";
    case 0xFB00:
      return "FF";
    case 0xFB01:
      return "FI";
    case 0xFB02:
      return "FL";
    default:
      return {};
  }
}

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
    return;
  }
  std::string_view two = long_upper(c);
  if (!two.empty()) {
    out += two;
  } else {
    append_code_point(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return;
  }
  append_code_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  std::string_view two = long_upper(c);
  if (!two.empty()) {
    size_t pos = 0;
    append_code_point(out, decode_at(two, pos));
    while (pos < two.size()) append_lower(out, decode_at(two, pos));
  } else {
    append_code_point(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool in_set(char32_t c, const std::string_view* chars) {
  if (!chars) return is_space(c);
  for (size_t pos = 0; pos < chars->size();) {
    if (decode_at(*chars, pos) == c) return true;
  }
  return false;
}

}  // namespace

char32_t decode_at(std::string_view text, size_t& pos) {
  auto lead = static_cast<unsigned char>(text[pos]);
  if (lead < 0x80) {
    ++pos;
    return lead;
  }
  utf8proc_int32_t c = -1;
  utf8proc_ssize_t used = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + pos),
                                           static_cast<utf8proc_ssize_t>(text.size() - pos), &c);
  if (used <= 0) {
    ++pos;
    return kByteEscape + lead;
  }
  pos += static_cast<size_t>(used);
  return static_cast<char32_t>(c);
}

void append_code_point(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c >= kByteEscape + 0x80 && c <= kByteEscape + 0xFF) {
    out += static_cast<char>(c - kByteEscape);
  } else {
    utf8proc_uint8_t bytes[4];
    bool valid = c < 0x110000 && !(c >= 0xD800 && c < 0xE000);
    utf8proc_ssize_t n = utf8proc_encode_char(valid ? static_cast<utf8proc_int32_t>(c) : 0xFFFD, bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
  }
}

std::u32string to_code_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) points += decode_at(text, pos);
  return points;
}

std::string from_code_points(std::u32string_view points) {
  std::string out;
  out.reserve(points.size());
  for (char32_t c : points) append_code_point(out, c);
  return out;
}

size_t count_code_points(std::string_view text) {
  size_t n = 0;
  for (size_t pos = 0; pos < text.size(); ++n) {
    uint64_t eight = 0;
    for (; pos + 8 <= text.size(); pos += 8, n += 8) {  // ASCII
      std::memcpy(&eight, text.data() + pos, 8);
      if (eight & 0x8080808080808080u) break;
    }
    if (pos == text.size()) break;
    decode_at(text, pos);
  }
  return n;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) decode_at(text, pos);
  return pos;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_letter(char32_t c) {
  utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT; }

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_upper(out, decode_at(text, pos));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_lower(out, decode_at(text, pos));
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    char32_t c = decode_at(text, pos);
    inside ? append_lower(out, c) : append_title(out, c);
    inside = is_cased(c);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    bool first = pos == 0;
    char32_t c = decode_at(text, pos);
    first ? append_title(out, c) : append_lower(out, c);
  }
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::string_view* chars) {
  size_t begin = 0;
  while (left && begin < text.size()) {
    size_t next = begin;
    if (!in_set(decode_at(text, next), chars)) break;
    begin = next;
  }
  size_t end = text.size();
  while (right && end > begin) {
    size_t start = end - 1;
    // Back to a byte that starts a character; when what follows is not one character, the last byte stands alone.
    while (start > begin && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t next = start;
    char32_t c = decode_at(text.substr(0, end), next);
    if (next != end) {
      start = end - 1;
      c = decode_at(text.substr(0, end), next = start);
    }
    if (!in_set(c, chars)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    char32_t c = decode_at(text, pos);
    if (!is_line_end(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(start, (keep_ends ? pos : end) - start));
    start = pos;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

size_t find_bytes(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  if (from == text.size()) return std::string_view::npos;
  const void* at = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (!at) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

}  // namespace kvarto::jinja
