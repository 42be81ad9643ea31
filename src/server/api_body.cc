#include "server/api_body.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "format/printable.h"
#include "text/json_tree.h"
#include "text/unicode.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) return "the string " + kvarto::quoted(value.get_ref<const std::string&>(), 40);
  return value.dump();
}

struct Longest {
  size_t bytes = 0;
  std::string key;  // of the top level, under which it stands
};

// The longest string token, before a parser copies it. Anything may come in; only JSON gives a meaningful answer.
Longest longest_string(std::string_view body) {
  Longest longest;
  std::string_view key;
  int depth = 0;
  bool key_next = false;
  for (size_t at = 0; at < body.size(); ++at) {
    const char c = body[at];
    if (c == '{' || c == '[') key_next = ++depth == 1 && c == '{';
    if (c == '}' || c == ']') --depth;
    if (c == ',') key_next = depth == 1;
    if (c != '"') continue;
    const size_t begin = ++at;
    while (at < body.size() && body[at] != '"') at += body[at] == '\\' ? 2 : 1;
    const size_t bytes = std::min(at, body.size()) - begin;
    if (key_next) key = body.substr(begin, bytes);
    if (bytes > longest.bytes) longest = {bytes, key_next ? std::string() : std::string(key.substr(0, 100))};
    key_next = false;
  }
  return longest;
}

// Builds a value from the parser's events and stops at the first thing that is not allowed.
class Builder {
 public:
  Builder(const ApiLimits& limits, std::string prefix, size_t deepest, IdsField ids_field,
          std::vector<ApiPrompt>* prompts)
      : limits_(limits), prefix_(std::move(prefix)), deepest_(deepest), ids_field_(ids_field), prompts_(prompts) {}

  Json take() { return tree_.take(); }
  const std::optional<ApiError>& error() const { return error_; }

  // --- events, as nlohmann's SAX interface names them
  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(int64_t value) { return id(value) || put(value); }
  bool number_unsigned(uint64_t value) {
    return id(value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value)) || put(value);
  }
  bool number_float(double value, const std::string&) {
    const std::optional<int64_t> whole = whole_number(value);
    return (whole && id(*whole)) || put(value);
  }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not of JSON texts
  bool start_object(size_t) {
    if (!may_open("an object")) return false;
    tree_.open_object();
    return true;
  }
  bool start_array(size_t) {
    if (ids_depth_ == 0 && tree_.depth() == 1 && prompts_ != nullptr && tree_.key_at(0) == ids_field_.name) {
      return begin_ids();
    }
    if (ids_depth_ == 1) return begin_list();
    if (!may_open("an array")) return false;
    tree_.open_array();
    return true;
  }
  bool key(std::string& name) {
    tree_.key(std::move(name));
    const bool is_bias = tree_.depth() == 2 && tree_.key_at(0) == "logit_bias";
    if (tree_.size() < limits_.max_keys || is_bias) return true;
    return refuse("an object has more than " + std::to_string(limits_.max_keys) + " keys");
  }
  bool end_object() { return keys_differ() && close(); }
  bool end_array() {
    if (ids_depth_ > 0) {
      --ids_depth_;
      return ids_depth_ > 0 || put(Json::array());
    }
    return close();
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception& error) {
    if (error.id == kJsonNumberOutOfRange) {
      return refuse("a number is beyond the range of floating point; give a finite one");
    }
    byte_ = byte;
    return false;
  }
  // Where it stopped being JSON.
  size_t byte() const { return byte_; }

 private:
  bool refuse(std::string message, bool as_type_error = true) {
    const std::string where = path();
    message = (where.empty() ? "the body" : where) + ": " + std::move(message);
    if (!error_) error_ = as_type_error ? bad_body(where, std::move(message)) : bad_field(where, std::move(message));
    return false;
  }

  // Where the next value goes.
  std::string path() const {
    std::string out = tree_.path(prefix_);
    if (ids_depth_ == 0) return out;
    if (flat_) return out + '[' + std::to_string(prompts_->back().ids.size()) + ']';
    if (ids_depth_ == 1) return out + '[' + std::to_string(prompts_->size()) + ']';
    return out + '[' + std::to_string(prompts_->size() - 1) + "][" + std::to_string(prompts_->back().ids.size()) + ']';
  }

  bool put(Json value) {
    if (ids_depth_ > 0) return put_prompt(std::move(value));
    if (!count()) return false;
    tree_.put(std::move(value));
    return true;
  }

  bool count() {
    if (++values_ <= limits_.max_values) return true;
    return refuse("the body has more than " + std::to_string(limits_.max_values) + " values; send less at once");
  }

  bool may_open(std::string_view what) {
    if (ids_depth_ > 0) {
      return refuse("must be a token id, or of the kind of the entries before, got " + std::string(what));
    }
    if (tree_.depth() < deepest_) return true;
    return refuse("the JSON is nested deeper than " + std::to_string(deepest_) + " levels");
  }

  bool close() {
    if (!count()) return false;
    tree_.close();
    return true;
  }

  bool keys_differ() {
    const std::string* twin = tree_.repeated_key();
    if (twin == nullptr) return true;
    tree_.key(*twin);
    return refuse("this key comes twice in one object; give it once");
  }

  // --- the field of token ids: [1, 2], [[1, 2], [3]] or ["a", "b"]
  bool begin_ids() {
    ids_depth_ = 1;
    flat_ = false;
    return true;
  }
  bool begin_list() {
    if (!ids_field_.prompts) return refuse("must be a token id");
    if (flat_) return refuse("must be a token id, like the entries before");
    if (!prompts_->empty() && prompts_->back().text) return refuse("must be a string, like the entries before");
    if (!add_prompt()) return false;
    ids_depth_ = 2;
    return true;
  }
  bool add_prompt() {
    if (prompts_->size() == limits_.max_prompts) {
      return refuse("there are more than " + std::to_string(limits_.max_prompts) + " prompts; send several requests",
                    /*as_type_error=*/false);
    }
    prompts_->emplace_back();
    return true;
  }
  // False: not an id of the field, or refused.
  bool id(int64_t value) {
    if (ids_depth_ == 0) return false;
    if (ids_depth_ == 1 && !flat_) {
      if (!prompts_->empty()) return false;
      flat_ = true;
      prompts_->emplace_back();
    }
    if (value < 0 || value >= int64_t{limits_.vocabulary} || value > std::numeric_limits<TokenId>::max()) {
      const std::string most =
          limits_.vocabulary == UINT32_MAX ? " up" : " to " + std::to_string(limits_.vocabulary - 1);
      return refuse("token id " + std::to_string(value) + " is out of vocabulary; ids are 0" + most,
                    /*as_type_error=*/false);
    }
    if (++ids_ > limits_.max_prompt_ids) {
      return refuse("there are more than " + std::to_string(limits_.max_prompt_ids) + " token ids; send less at once",
                    /*as_type_error=*/false);
    }
    prompts_->back().ids.push_back(static_cast<TokenId>(value));
    return true;
  }
  bool put_prompt(Json value) {
    if (error_) return false;
    const bool text = ids_field_.prompts && value.is_string() && ids_depth_ == 1 && !flat_ &&
                      (prompts_->empty() || prompts_->back().text.has_value());
    if (!text) return refuse("must be a token id, or of the kind of the entries before, got " + shown(value));
    if (!add_prompt()) return false;
    prompts_->back().text = std::move(value.get_ref<std::string&>());
    return true;
  }

  const ApiLimits& limits_;
  const std::string prefix_;
  const size_t deepest_;
  const IdsField ids_field_;
  std::vector<ApiPrompt>* const prompts_;
  JsonTree tree_;
  size_t values_ = 0, ids_ = 0, byte_ = 0;
  int ids_depth_ = 0;  // inside the field of ids: 1 or 2
  bool flat_ = false;  // it is one list of ids
  std::optional<ApiError> error_;
};

ApiResult<Json> build(std::string_view text, const std::string& path, Builder& builder) {
  const std::string what = path.empty() ? "the body" : path;
  bool done = false;
  try {
    done = Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception&) {
    done = false;
  }
  if (done) return builder.take();
  if (builder.error()) return tl::unexpected<ApiError>(*builder.error());
  if (const std::optional<size_t> at = find_invalid_utf8(text)) {
    return tl::unexpected(bad_body(path, what + " is not valid UTF-8 from byte " + std::to_string(*at) + " on"));
  }
  if (text.empty()) return tl::unexpected(bad_body(path, what + " is empty; it must be JSON"));
  return tl::unexpected(bad_body(path, what + " is not JSON from byte " + std::to_string(builder.byte()) + " on"));
}

}  // namespace

ApiResult<Json> parse_api_body(std::string_view body, const ApiLimits& limits, IdsField ids_field,
                               std::vector<ApiPrompt>& prompts) {
  const Longest longest = longest_string(body);
  if (longest.bytes > limits.max_string_bytes) {
    const std::string where = printable(longest.key);
    return tl::unexpected(bad_field(where, (where.empty() ? "the body" : where) + ": a string of " +
                                               std::to_string(longest.bytes) + " bytes is longer than the " +
                                               std::to_string(limits.max_string_bytes) + " allowed; shorten it"));
  }
  Builder builder(limits, "", kDeepestBody, ids_field, &prompts);
  ApiResult<Json> value = build(body, "", builder);
  if (value && !value->is_object()) {
    return tl::unexpected(bad_body("", "the body must be a JSON object, got " + shown(*value)));
  }
  return value;
}

ApiResult<Json> parse_inner_json(std::string_view text, const ApiLimits& limits, std::string path, size_t deepest) {
  Builder builder(limits, path, deepest, {}, nullptr);
  return build(text, path, builder);
}

ApiError wrong_value(std::string path, std::string_view wanted, const Json& value) {
  std::string message = path + " must be " + std::string(wanted) + ", got " + shown(value);
  return bad_body(std::move(path), std::move(message));
}

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (std::trunc(number) != number || std::abs(number) > kExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace kvarto
