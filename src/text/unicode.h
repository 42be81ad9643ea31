// UTF-8 and Unicode at the level the tokenizers need: validation, walking by characters, NFC. Free functions, any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

// What stands at one position of a byte string.
struct Utf8Char {
  enum class Kind : uint8_t {
    valid,       // `bytes` bytes that encode `code_point`
    invalid,     // `bytes` bytes that no valid text contains here: a "maximal subpart", replaced by one U+FFFD
    incomplete,  // the text ends inside a character that is valid so far; `bytes` bytes are there
  };
  Kind kind;
  uint8_t bytes;  // 1 to 4
  char32_t code_point;
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Reads the character at `at`; needs at < text.size().
Utf8Char read_utf8(std::string_view text, size_t at);
// Offset of the first byte that is not part of valid UTF-8.
std::optional<size_t> find_invalid_utf8(std::string_view text);
void append_utf8(std::string& out, char32_t code_point);

// Normalisation form C of valid UTF-8, in time proportional to the text (n log n for runs of combining marks).
Result<std::string> to_nfc(std::string_view text);

}  // namespace kvarto
