// Every field that a request may have, in one table: the parser checks values by it, /openapi.json is made from it, and
// the documentation and the tests list it. Immutable; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace kvarto {

enum class ApiRoute : uint8_t { completions, chat, tokenize, detokenize };

enum class FieldUse : uint8_t {
  used,
  harmless,  // accepted; no output depends on it
  refused,   // would change the output and is not built: 400, unless the value is null or the one that changes nothing
};
std::string_view field_use_name(FieldUse use);

enum class FieldKind : uint8_t {
  boolean,
  integer,
  number,
  string,
  choice,  // one of the strings in `choices`
  string_or_strings,
  strings,
  ids,
  object,
  objects,  // an array of objects
  any,
  // Shapes of their own.
  text_prompt,  // a string
  prompt,       // a string, strings, ids, or lists of ids
  messages,
  tools,
  tool_choice,
  response_format,
  stream_options,
  logit_bias,
  modalities,
};

// Limits of the server that bound a value.
enum class FieldCap : uint8_t { none, n, logprobs, model_len, vocabulary };

struct ApiField {
  std::string_view name = {};
  uint8_t routes = 0;  // bits of 1 << ApiRoute
  FieldKind kind = FieldKind::any;
  FieldUse use = FieldUse::used;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool above_low = false;  // `low` itself is not allowed
  FieldCap cap = FieldCap::none;
  std::string_view rule = {};     // of the range: "must be " + rule; empty: made from low and high
  std::string_view choices = {};  // of a choice: "left|right"
  std::string_view fallback =
      {};                      // JSON: what holds without the field; of a refused field, a value that changes nothing
  std::string_view text = {};  // what it does; of a refused field, what to do instead

  bool on(ApiRoute route) const { return (routes >> static_cast<unsigned>(route) & 1) != 0; }
};

std::span<const ApiField> api_fields();
// Null: not a field of that route.
const ApiField* find_api_field(ApiRoute route, std::string_view name);

}  // namespace kvarto
