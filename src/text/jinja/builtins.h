// The tables of what templates can call by name, and the binding of arguments to their parameters. Constant tables; the
// functions work on the Runtime they get.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace kvarto::jinja {

// nullptr when there is none of that name.
const Native* find_filter(std::string_view name);
const Native* find_predicate(std::string_view name);  // the tests after `is`
const Native* find_function(std::string_view name);   // range, namespace, dict, raise_exception, strftime_now, ...
const Native* find_method(Value object, std::string_view name);

// Binds `args` to the parameters and calls. `what` names the kind in errors: "filter".
Value call_native(Runtime& rt, const Native& native, std::string_view what, Value self, const Args& args);

// Readers of bound arguments.
int64_t integer_arg(Runtime& rt, const Args& args, size_t i, int64_t otherwise, std::string_view what);
std::string_view string_arg(Runtime& rt, const Args& args, size_t i, std::string_view otherwise, std::string_view what);
bool flag_arg(const Args& args, size_t i, bool otherwise);

// json.dumps of Python.
struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void append_json(Runtime& rt, Builder& out, Value v, const JsonStyle& style, int depth = 0);

// "%s and %05.2f" % values; "{} and {name}".format(...).
Value format_percent(Runtime& rt, std::string_view form, Value values);
Value format_braces(Runtime& rt, std::string_view form, const Args& args);

const Native* find_string_method(std::string_view name);

}  // namespace kvarto::jinja
