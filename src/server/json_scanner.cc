#include "server/json_scanner.h"

namespace kvarto {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

JsonScanner::State JsonScanner::push(char c) {
  switch (place_) {
    case Place::string:
    case Place::escape:
    case Place::hex:
      return string_byte(c);
    case Place::literal:
      if (c != literal_.front()) return State::broken;
      literal_.remove_prefix(1);
      return literal_.empty() ? move_to(Place::after_value) : State::open;
    case Place::number:
      return number_byte(c);
    default:
      return between(c);
  }
}

// Outside of strings, literals and numbers.
JsonScanner::State JsonScanner::between(char c) {
  if (is_json_space(c)) return place_ == Place::start ? State::broken : State::open;
  switch (place_) {
    case Place::start:
      return c == '{' || c == '[' ? begin_value(c) : State::broken;
    case Place::first_key:
      if (c == '}') return close(c);
      [[fallthrough]];
    case Place::key:
      if (c != '"') return State::broken;
      string_is_key_ = true;
      return move_to(Place::string);
    case Place::colon:
      return c == ':' ? move_to(Place::value) : State::broken;
    case Place::first_value:
      if (c == ']') return close(c);
      [[fallthrough]];
    case Place::value:
      return begin_value(c);
    default:  // after_value
      if (c != ',') return close(c);
      return move_to(closers_.back() == '}' ? Place::key : Place::value);
  }
}

JsonScanner::State JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') {
    if (closers_.size() == kDeepest) return State::broken;
    closers_.push_back(c == '{' ? '}' : ']');
    return move_to(c == '{' ? Place::first_key : Place::first_value);
  }
  if (c == '"') {
    string_is_key_ = false;
    return move_to(Place::string);
  }
  if (c == '-' || is_digit(c)) {
    digits_ = c == '-' ? Digits::sign : c == '0' ? Digits::zero : Digits::whole;
    return move_to(Place::number);
  }
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (c != literal.front()) continue;
    literal_ = literal.substr(1);
    return move_to(Place::literal);
  }
  return State::broken;
}

JsonScanner::State JsonScanner::close(char c) {
  if (c != closers_.back()) return State::broken;
  closers_.pop_back();
  place_ = Place::after_value;
  return closers_.empty() ? State::complete : State::open;
}

JsonScanner::State JsonScanner::string_byte(char c) {
  if (place_ == Place::escape) {
    if (c == 'u') {
      hex_left_ = 4;
      return move_to(Place::hex);
    }
    return std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos ? State::broken : move_to(Place::string);
  }
  if (place_ == Place::hex) {
    if (!is_hex(c)) return State::broken;
    return --hex_left_ == 0 ? move_to(Place::string) : State::open;
  }
  if (c == '\\') return move_to(Place::escape);
  if (c == '"') return move_to(string_is_key_ ? Place::colon : Place::after_value);
  return static_cast<unsigned char>(c) < 0x20 ? State::broken : State::open;
}

// A number has no last byte of its own: what ends it is also what follows it.
JsonScanner::State JsonScanner::number_byte(char c) {
  const auto go = [this](Digits digits) {
    digits_ = digits;
    return State::open;
  };
  switch (digits_) {
    case Digits::sign:
      return !is_digit(c) ? State::broken : go(c == '0' ? Digits::zero : Digits::whole);
    case Digits::point:
      return is_digit(c) ? go(Digits::fraction) : State::broken;
    case Digits::exponent:
      if (c == '+' || c == '-') return go(Digits::exponent_sign);
      [[fallthrough]];
    case Digits::exponent_sign:
      return is_digit(c) ? go(Digits::exponent_digits) : State::broken;
    default:
      break;
  }
  if (is_digit(c)) return digits_ == Digits::zero ? State::broken : State::open;
  const bool integer = digits_ == Digits::zero || digits_ == Digits::whole;
  if (c == '.' && integer) return go(Digits::point);
  if ((c == 'e' || c == 'E') && digits_ != Digits::exponent_digits) return go(Digits::exponent);
  place_ = Place::after_value;
  return between(c);
}

}  // namespace kvarto
