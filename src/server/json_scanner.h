// JsonScanner: checks one JSON value byte by byte, as it arrives, and says where in it the next byte would stand. The
// value must be an object or an array, so that its end is a byte of its own. Holds no text; single thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvarto {

class JsonScanner {
 public:
  static constexpr size_t kDeepest = 64;  // as parse_json
  enum class State : uint8_t { open, complete, broken };

  // Bytes after the end, or after one that broke it, must not follow.
  State push(char c);
  size_t depth() const { return closers_.size(); }  // objects and arrays that are open
  // What the next byte that is no white space may begin.
  bool at_key() const { return place_ == Place::key || place_ == Place::first_key; }
  bool at_value() const { return place_ == Place::value || place_ == Place::first_value; }
  bool in_string() const { return place_ == Place::string || place_ == Place::escape || place_ == Place::hex; }

 private:
  enum class Place : uint8_t {
    start,
    first_key,    // or the end of the object
    key,          // after a comma
    colon,        // after a key
    first_value,  // or the end of the array
    value,
    after_value,  // a comma or the end
    string,
    escape,
    hex,
    literal,
    number,
  };
  enum class Digits : uint8_t { sign, zero, whole, point, fraction, exponent, exponent_sign, exponent_digits };

  State begin_value(char c);
  State between(char c);
  State string_byte(char c);
  State number_byte(char c);
  State close(char c);
  State move_to(Place place) {
    place_ = place;
    return State::open;
  }

  std::vector<char> closers_;  // '}' or ']' of what is open
  Place place_ = Place::start;
  bool string_is_key_ = false;
  uint8_t hex_left_ = 0;
  Digits digits_ = Digits::sign;
  std::string_view literal_;  // what is left of true, false or null
};

// JSON's white space, and so that of every answer format here.
inline bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace kvarto
