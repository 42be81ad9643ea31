#include "server/call_object.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvarto {
namespace {

using Json = nlohmann::json;

std::optional<std::string> read_string(const std::string& literal) {
  const Json value = Json::parse(literal, nullptr, false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

CallObject::State CallObject::push(char c) {
  const size_t depth = scanner_.depth();
  const bool outer = depth == 1 && !scanner_.in_string();
  const bool key = outer && scanner_.at_key() && c == '"';
  const bool value = outer && scanner_.at_value() && !is_json_space(c);
  const State state = scanner_.push(c);
  if (state == State::broken) return state;
  if (!begun_) text_ += c;
  if (bare_) {
    kind_ = Kind::object;
    arguments_ += c;
    return state;
  }
  if (key) {
    part_ = Part::key;
    key_.clear();
  }
  if (value) begin_value(c);
  if (part_ == Part::key) key_ += c;
  if (part_ == Part::name) name_text_ += c;
  if (part_ == Part::arguments) arguments_ += c;
  const bool closes = scanner_.depth() == 1 && !scanner_.in_string() && (c == '"' || c == '}' || c == ']');
  if (part_ != Part::other && closes) end_part();
  return state;
}

void CallObject::begin_value(char c) {
  if (key_ == "\"name\"") {
    // A second name, or one that is no text.
    if (name_ || c != '"') refused_ = true;
    part_ = name_ || c != '"' ? Part::other : Part::name;
  } else if (key_ == "\"arguments\"" || key_ == "\"parameters\"") {
    if (kind_ != Kind::missing) {
      refused_ = true;
      return;
    }
    kind_ = c == '{' ? Kind::object : c == '"' ? Kind::string : c == 'n' ? Kind::null : Kind::other;
    if (kind_ == Kind::object || kind_ == Kind::string) part_ = Part::arguments;
  }
}

void CallObject::end_part() {
  if (part_ == Part::name) {
    name_ = read_string(name_text_);
    if (!name_ || name_->empty()) refused_ = true;
  }
  part_ = Part::other;
}

void CallObject::begin() {
  begun_ = true;
  text_.clear();
}

bool CallObject::settle() {
  if (refused_ || !name_ || kind_ == Kind::other) return false;
  if (kind_ == Kind::missing || kind_ == Kind::null) {
    if (needs_arguments_) return false;
    arguments_ = "{}";
  } else if (kind_ == Kind::string) {
    auto inner = read_string(arguments_);
    if (!inner || !Json::parse(*inner, nullptr, false).is_object()) return false;
    arguments_ = std::move(*inner);
  }
  return true;
}

std::string CallObject::take_arguments() { return std::exchange(arguments_, {}); }

}  // namespace kvarto
