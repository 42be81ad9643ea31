#include "text/jinja/value.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja/unicode.h"

namespace kvarto::jinja {

Text::Text(std::string s) : bytes(std::move(s)), length(count_code_points(bytes)) {}

Value Value::of(bool b) {
  Value v;
  v.kind = Kind::boolean;
  v.boolean = b;
  return v;
}
Value Value::of(int64_t i) {
  Value v;
  v.kind = Kind::integer;
  v.integer = i;
  return v;
}
Value Value::of(double d) {
  Value v;
  v.kind = Kind::real;
  v.real = d;
  return v;
}
Value Value::of(const Text* t) {
  Value v;
  v.kind = Kind::string;
  v.text = t;
  return v;
}
Value Value::none() {
  Value v;
  v.kind = Kind::none;
  return v;
}
Value Value::absent() {
  Value v;
  v.kind = Kind::absent;
  return v;
}
Value Value::undefined(const Text* name, Kind owner) {
  Value v;
  v.owner = owner;
  v.text = name;
  return v;
}

Runtime::Runtime(const Options& o) : options(o) {}
Runtime::~Runtime() = default;

void Runtime::charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ > options.limits.steps) {
    error("the template needs more than " + std::to_string(options.limits.steps) + " steps; simplify its loops");
  }
}

void Runtime::charge_memory(uint64_t bytes) {
  if (bytes > options.limits.memory_bytes - memory_) {
    error("the template needs more than " + std::to_string(options.limits.memory_bytes) +
          " bytes of memory; simplify its strings and lists");
  }
  memory_ += bytes;
}

Value Runtime::text(std::string s) {
  charge_scan(s.size());
  charge_memory(s.size() + sizeof(Text));
  texts_.push_back(std::make_unique<Text>(std::move(s)));
  return Value::of(texts_.back().get());
}

Value Runtime::list(std::vector<Value> values, Kind kind) {
  charge(values.size() / 8 + 1);
  charge_memory(values.size() * sizeof(Value) + sizeof(Items));
  items_.push_back(std::make_unique<Items>(Items{std::move(values)}));
  Value v;
  v.kind = kind;
  v.items = items_.back().get();
  return v;
}

Value Runtime::dict(Kind kind) {
  charge(1);
  charge_memory(sizeof(Dict));
  dicts_.push_back(std::make_unique<Dict>());
  Value v;
  v.kind = kind;
  v.dict = dicts_.back().get();
  return v;
}

Value Runtime::loop(std::span<const Value> items) {
  charge_memory(sizeof(Loop));
  loops_.push_back(std::make_unique<Loop>(Loop{items, 0, std::nullopt}));
  Value v;
  v.kind = Kind::loop;
  v.loop = loops_.back().get();
  return v;
}

Value Runtime::callable(Callable c) {
  charge_memory(sizeof(Callable));
  callables_.push_back(std::make_unique<Callable>(c));
  Value v;
  v.kind = Kind::callable;
  v.callable = callables_.back().get();
  return v;
}

Scope* Runtime::scope(Scope* parent) {
  if (free_scopes_.empty()) {
    charge_memory(sizeof(Scope));
    scopes_.push_back(std::make_unique<Scope>());
    free_scopes_.push_back(scopes_.back().get());
  }
  Scope* s = free_scopes_.back();
  free_scopes_.pop_back();
  s->parent = parent;
  return s;
}

void Runtime::release(Scope* scope) {
  if (scope->captured) return;
  scope->names.clear();
  free_scopes_.push_back(scope);
}

Value Runtime::from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > options.limits.value_depth) {
    error("the context is nested deeper than " + std::to_string(options.limits.value_depth) + " levels");
  }
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value::of(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value::of(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned: {
      auto u = json.get<uint64_t>();
      if (u > INT64_MAX) error("the number " + std::to_string(u) + " in the context does not fit 64 bits with a sign");
      return Value::of(static_cast<int64_t>(u));
    }
    case nlohmann::ordered_json::value_t::number_float:
      return Value::of(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return text(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> values;
      values.reserve(json.size());
      for (const auto& item : json) values.push_back(from_json(item, depth + 1));
      return list(std::move(values));
    }
    case nlohmann::ordered_json::value_t::object: {
      Value d = dict();
      charge_memory(json.size() * 2 * sizeof(Value));
      // Keys of a JSON object are distinct, so no look-up is needed.
      for (const auto& [key, item] : json.items()) d.dict->entries.emplace_back(text(key), from_json(item, depth + 1));
      return d;
    }
    default:
      return Value::none();
  }
}

Value* Scope::find_here(Runtime& rt, std::string_view name) {
  rt.charge(names.size() / 32);
  for (auto& [n, v] : names) {
    if (n == name) return &v;
  }
  return nullptr;
}

void Scope::set(Runtime& rt, std::string_view name, Value v) {
  if (Value* old = find_here(rt, name)) {
    *old = v;
  } else {
    // A scope is reused round after round of a loop, so only growth costs.
    if (names.size() == names.capacity()) rt.charge_memory((names.size() + 1) * sizeof(names[0]));
    names.emplace_back(name, v);
  }
}

std::string_view type_name(Value v) {
  switch (v.kind) {
    case Kind::absent:
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::space:
      return "Namespace";
    case Kind::loop:
      return "LoopContext";
    case Kind::callable:
      return v.callable->macro ? "Macro" : "method";
  }
  return "object";
}

std::string undefined_message(Value v) {
  std::string name = v.text ? v.text->bytes : "";
  if (v.owner == Kind::absent && !v.text)
    return "the value of an inline if without else, or of an empty list, is undefined";
  if (v.owner == Kind::absent) return "'" + name + "' is undefined";
  Value owner;
  owner.kind = v.owner;
  std::string type = v.owner == Kind::callable ? "function" : std::string(type_name(owner));
  if (!v.text) return type + " object has no such element";
  return "'" + type + " object' has no attribute '" + name + "'";
}

void require_defined(Runtime& rt, Value v) {
  if (v.is(Kind::undefined)) rt.error(undefined_message(v));
}

bool truthy(Value v) {
  switch (v.kind) {
    case Kind::absent:
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return v.boolean;
    case Kind::integer:
      return v.integer != 0;
    case Kind::real:
      return v.real != 0;
    case Kind::string:
      return !v.text->bytes.empty();
    case Kind::list:
    case Kind::tuple:
      return !v.items->values.empty();
    case Kind::dict:
      return !v.dict->entries.empty();
    default:
      return true;
  }
}

namespace {

void check_depth(Runtime& rt, int depth) {
  if (depth > rt.options.limits.value_depth) {
    rt.error("a value is nested deeper than " + std::to_string(rt.options.limits.value_depth) + " levels");
  }
}

bool equal_dicts(Runtime& rt, Value a, Value b, int depth) {
  if (a.dict->entries.size() != b.dict->entries.size()) return false;
  for (auto& [key, v] : a.dict->entries) {
    Value* other = dict_find(rt, *b.dict, key);
    if (!other || !equal(rt, v, *other, depth + 1)) return false;
  }
  return true;
}

}  // namespace

bool equal(Runtime& rt, Value a, Value b, int depth) {
  check_depth(rt, depth);
  rt.charge(1);
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.as_integer() == b.as_integer() : a.as_real() == b.as_real();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::string:
      if (a.text == b.text) return true;
      rt.charge_scan(std::min(a.str().size(), b.str().size()));
      return a.str() == b.str();
    case Kind::list:
    case Kind::tuple: {
      if (a.items == b.items) return true;
      if (a.items->values.size() != b.items->values.size()) return false;
      for (size_t i = 0; i < a.items->values.size(); ++i) {
        if (!equal(rt, a.items->values[i], b.items->values[i], depth + 1)) return false;
      }
      return true;
    }
    case Kind::dict:
      return a.dict == b.dict || equal_dicts(rt, a, b, depth);
    case Kind::space:
      return a.dict == b.dict;
    case Kind::loop:
      return a.loop == b.loop;
    case Kind::callable:
      return a.callable == b.callable;
    default:
      return true;
  }
}

std::optional<int> compare(Runtime& rt, Value a, Value b, std::string_view op, int depth) {
  check_depth(rt, depth);
  rt.charge(1);
  require_defined(rt, a);
  require_defined(rt, b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) {
      return a.as_integer() < b.as_integer() ? -1 : a.as_integer() > b.as_integer();
    }
    if (std::isnan(a.as_real()) || std::isnan(b.as_real())) return std::nullopt;
    return a.as_real() < b.as_real() ? -1 : a.as_real() > b.as_real();
  }
  if (a.is(Kind::string) && b.is(Kind::string)) {
    rt.charge_scan(std::min(a.str().size(), b.str().size()));
    int order = a.str().compare(b.str());  // bytes of UTF-8 have the order of code points
    return order < 0 ? -1 : order > 0;
  }
  if (a.is_sequence() && a.kind == b.kind) {
    const auto &x = a.items->values, &y = b.items->values;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(rt, x[i], y[i], depth + 1)) return compare(rt, x[i], y[i], op, depth + 1);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  rt.error("'" + std::string(op) + "' not supported between instances of '" + std::string(type_name(a)) + "' and '" +
           std::string(type_name(b)) + "'");
}

bool contains(Runtime& rt, Value container, Value item) {
  switch (container.kind) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (!item.is(Kind::string)) {
        rt.error("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
      }
      rt.charge_scan(container.str().size());
      return find_bytes(container.str(), item.str()) != std::string_view::npos;
    case Kind::list:
    case Kind::tuple:
      for (const Value& v : container.items->values) {
        if (equal(rt, v, item)) return true;
      }
      return false;
    case Kind::dict:
      return dict_find(rt, *container.dict, item) != nullptr;
    default:
      rt.error("argument of type '" + std::string(type_name(container)) + "' is not iterable");
  }
}

Value* dict_find(Runtime& rt, Dict& d, Value key) {
  if (key.is(Kind::string)) return dict_find(rt, d, key.str());
  if (key.is(Kind::list) || key.is(Kind::dict)) rt.error("unhashable type: '" + std::string(type_name(key)) + "'");
  for (auto& [k, v] : d.entries) {
    if (equal(rt, k, key)) return &v;
  }
  return nullptr;
}

Value* dict_find(Runtime& rt, Dict& d, std::string_view key) {
  rt.charge(d.entries.size() / 32);
  for (auto& [k, v] : d.entries) {
    if (k.is(Kind::string) && k.str() == key) return &v;
  }
  return nullptr;
}

void dict_set(Runtime& rt, Dict& d, Value key, Value v) {
  if (Value* old = dict_find(rt, d, key)) {
    *old = v;
  } else {
    rt.charge_memory(2 * sizeof(Value));
    d.entries.emplace_back(key, v);
  }
}

std::string real_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char digits[40] = {};  // zeros, so that atoi ends
  auto sci = std::to_chars(digits, digits + sizeof digits - 1, d, std::chars_format::scientific);
  std::string_view text(digits, static_cast<size_t>(sci.ptr - digits));
  int exponent = std::atoi(text.data() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  char fixed[40];
  auto end = std::to_chars(fixed, fixed + sizeof fixed, d, std::chars_format::fixed);
  std::string out(fixed, end.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

namespace {

void append_quoted(Builder& out, std::string_view s) {
  char quote = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string text(1, quote);
  for (size_t pos = 0; pos < s.size();) {
    char32_t c = decode_at(s, pos);
    char buffer[12];
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      text += {'\\', static_cast<char>(c)};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      text += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (is_printable(c)) {
      append_code_point(text, c);
    } else {
      const char* form = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, form, static_cast<unsigned>(c));
      text += buffer;
    }
  }
  out << text << std::string_view(&quote, 1);
}

void append_items(Runtime& rt, Builder& out, Value v, int depth) {
  const auto& values = v.items->values;
  bool tuple = v.is(Kind::tuple);
  out << (tuple ? "(" : "[");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out << ", ";
    append_repr(rt, out, values[i], depth + 1);
  }
  out << (tuple ? values.size() == 1 ? ",)" : ")" : "]");
}

void append_dict(Runtime& rt, Builder& out, Value v, int depth) {
  out << (v.is(Kind::space) ? "<Namespace {" : "{");
  bool first = true;
  for (auto& [key, item] : v.dict->entries) {
    if (!first) out << ", ";
    first = false;
    append_repr(rt, out, key, depth + 1);
    out << ": ";
    append_repr(rt, out, item, depth + 1);
  }
  out << (v.is(Kind::space) ? "}>" : "}");
}

}  // namespace

void append_repr(Runtime& rt, Builder& out, Value v, int depth) {
  check_depth(rt, depth);
  rt.charge(1);
  switch (v.kind) {
    case Kind::string:
      append_quoted(out, v.str());
      break;
    case Kind::undefined:
      out << "Undefined";
      break;
    case Kind::list:
    case Kind::tuple:
      append_items(rt, out, v, depth);
      break;
    case Kind::dict:
    case Kind::space:
      append_dict(rt, out, v, depth);
      break;
    default:
      append_str(rt, out, v);
  }
}

void append_str(Runtime& rt, Builder& out, Value v) {
  switch (v.kind) {
    case Kind::absent:
    case Kind::undefined:
      break;
    case Kind::none:
      out << "None";
      break;
    case Kind::boolean:
      out << (v.boolean ? "True" : "False");
      break;
    case Kind::integer:
      out << std::to_string(v.integer);
      break;
    case Kind::real:
      out << real_repr(v.real);
      break;
    case Kind::string:
      out << v.str();
      break;
    case Kind::loop:
      out << "<LoopContext>";
      break;
    case Kind::callable:
      out << "<" << type_name(v) << ">";
      break;
    default:
      append_repr(rt, out, v, 0);
  }
}

std::string str_of(Runtime& rt, Value v) {
  Builder out(rt);
  append_str(rt, out, v);
  return out.take();
}

}  // namespace kvarto::jinja
