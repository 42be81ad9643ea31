// Code points of UTF-8 text as Python's str sees them: lengths, slices, case, white space. A byte that is not part of
// valid UTF-8 counts as one code point (kept as U+DC80..U+DCFF) and is written back as that byte. Pure functions, any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarto::jinja {

// The code point at `pos`, which moves behind it; `pos` must be below text.size().
char32_t decode_at(std::string_view text, size_t& pos);
void append_code_point(std::string& out, char32_t c);
std::u32string to_code_points(std::string_view text);
std::string from_code_points(std::u32string_view points);
size_t count_code_points(std::string_view text);
// Byte offset of code point `index`, text.size() when there are fewer.
size_t byte_offset(std::string_view text, size_t index);

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable
bool is_letter(char32_t c);     // str.isalpha
bool is_number(char32_t c);     // str.isdecimal
bool is_cased(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);        // str.title
std::string to_capitalized(std::string_view text);  // str.capitalize

// Without the white space, or the code points of `chars` when that is given, at the chosen ends.
std::string_view strip(std::string_view text, bool left, bool right, const std::string_view* chars = nullptr);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// First occurrence at or after `from` in time linear in the text, npos when there is none.
size_t find_bytes(std::string_view text, std::string_view part, size_t from = 0);

}  // namespace kvarto::jinja
