#include "text/json_text.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "format/printable.h"
#include "text/json_tree.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDeepest = 64;

// Builds a value from the parser's events and stops at the first thing that is refused.
class Builder {
 public:
  Json take() { return tree_.take(); }
  const std::optional<Error>& error() const { return error_; }

  // --- events, as nlohmann's SAX interface names them
  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(int64_t value) { return put(value); }
  bool number_unsigned(uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not of JSON texts
  bool start_object(size_t) {
    if (!may_open()) return false;
    tree_.open_object();
    return true;
  }
  bool start_array(size_t) {
    if (!may_open()) return false;
    tree_.open_array();
    return true;
  }
  bool key(std::string& name) {
    tree_.key(std::move(name));
    return true;
  }
  bool end_object() {
    if (const std::string* twin = tree_.repeated_key()) {
      return refuse("key " + kvarto::quoted(*twin) + " comes twice in one object; give it once");
    }
    return close();
  }
  bool end_array() { return close(); }
  bool parse_error(size_t byte, const std::string&, const Json::exception& error) {
    if (error.id == kJsonNumberOutOfRange)
      return refuse("a number is beyond the range of floating point; give a finite one");
    error_ = Error{ErrorCode::corrupt, "not JSON from byte " + std::to_string(byte) + " on"};
    return false;
  }

 private:
  bool refuse(std::string message) {
    error_ = Error{ErrorCode::invalid_argument, std::move(message)};
    return false;
  }
  bool put(Json value) {
    tree_.put(std::move(value));
    return true;
  }
  bool may_open() {
    if (tree_.depth() < kDeepest) return true;
    return refuse("the JSON is nested deeper than " + std::to_string(kDeepest) + " levels");
  }
  bool close() {
    tree_.close();
    return true;
  }

  JsonTree tree_;
  std::optional<Error> error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  } catch (const Json::exception&) {
    return fail(ErrorCode::corrupt, "not JSON");
  }
  if (builder.error()) return tl::unexpected<Error>(*builder.error());
  return fail(ErrorCode::corrupt, "not JSON");
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace kvarto
