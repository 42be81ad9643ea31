// Binding of arguments, the global functions, and the methods of lists, dicts and loops.
#include "text/jinja/builtins.h"

#include <algorithm>

#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

// ---- functions -----------------------------------------------------------------------------------------------------

Value range(Runtime& rt, Value, const Args& args) {
  int64_t start = 0, stop = integer_arg(rt, args, 0, 0, "range"), step = integer_arg(rt, args, 2, 1, "range");
  if (args.has(1)) {
    start = stop;
    stop = integer_arg(rt, args, 1, 0, "range");
  }
  if (step == 0) rt.error("range() arg 3 must not be zero");
  std::vector<Value> out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(out.size()) >= rt.options.limits.range_items) {
      rt.error("range() has more than " + std::to_string(rt.options.limits.range_items) + " items");
    }
    out.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return rt.list(std::move(out));
}

Value make_dict(Runtime& rt, const Args& args, Kind kind) {
  Value d = rt.dict(kind);
  if (args.positional.size() > 1) rt.error("dict() and namespace() take at most one positional argument");
  for (Value from : args.positional) {
    if (from.is(Kind::dict)) {
      d.dict->entries = from.dict->entries;
      rt.charge_memory(from.dict->entries.size() * 2 * sizeof(Value));
      continue;
    }
    for (Value pair : iterate(rt, from)) {
      std::vector<Value> parts = iterate(rt, pair);
      if (parts.size() != 2) rt.error("dict() takes pairs of key and value");
      dict_set(rt, *d.dict, parts[0], parts[1]);
    }
  }
  for (const auto& [name, v] : args.named) dict_set(rt, *d.dict, rt.text(std::string(name)), v);
  return d;
}

Value dict_function(Runtime& rt, Value, const Args& args) { return make_dict(rt, args, Kind::dict); }
Value namespace_function(Runtime& rt, Value, const Args& args) { return make_dict(rt, args, Kind::space); }

Value raise_exception(Runtime& rt, Value, const Args& args) { rt.error(str_of(rt, args[0])); }

Value strftime_now(Runtime& rt, Value, const Args& args) {
  std::string form(string_arg(rt, args, 0, "", "strftime_now"));
  if (form.size() > 1000) rt.error("the format of strftime_now is longer than 1000 bytes");
  std::time_t now = rt.options.now();
  std::tm local{};
  localtime_r(&now, &local);
  // A mark in front tells an empty result from one that did not fit.
  std::string out(64 * (form.size() + 2), '\0');
  out.resize(std::strftime(out.data(), out.size(), ("|" + form).c_str(), &local));
  return rt.text(out.empty() ? "" : out.substr(1));
}

constexpr Native kFunctions[] = {
    {"range", "start stop step", 1, range},      {"dict", "*", 0, dict_function},
    {"namespace", "*", 0, namespace_function},   {"raise_exception", "message", 1, raise_exception},
    {"strftime_now", "format", 1, strftime_now},
};

// ---- methods of lists and tuples -----------------------------------------------------------------------------------
// Python's sandbox forbids those that change a list; templates written for other engines use them, so they work here.

Value list_append(Runtime& rt, Value self, const Args& args) {
  rt.charge_memory(sizeof(Value));
  self.items->values.push_back(args[0]);
  return Value::none();
}

Value list_extend(Runtime& rt, Value self, const Args& args) {
  std::vector<Value> more = iterate(rt, args[0]);
  rt.charge_memory(more.size() * sizeof(Value));
  self.items->values.insert(self.items->values.end(), more.begin(), more.end());
  return Value::none();
}

Value list_insert(Runtime& rt, Value self, const Args& args) {
  auto size = static_cast<int64_t>(self.items->values.size());
  int64_t at = integer_arg(rt, args, 0, 0, "insert");
  at = std::clamp(at < 0 ? at + size : at, int64_t{0}, size);
  rt.charge(self.items->values.size() / 8);
  rt.charge_memory(sizeof(Value));
  self.items->values.insert(self.items->values.begin() + at, args[1]);
  return Value::none();
}

Value list_pop(Runtime& rt, Value self, const Args& args) {
  auto size = static_cast<int64_t>(self.items->values.size());
  int64_t at = integer_arg(rt, args, 0, -1, "pop");
  if (at < 0) at += size;
  if (at < 0 || at >= size) rt.error(size == 0 ? "pop from empty list" : "pop index out of range");
  rt.charge(self.items->values.size() / 8);
  Value v = self.items->values[static_cast<size_t>(at)];
  self.items->values.erase(self.items->values.begin() + at);
  return v;
}

Value list_index(Runtime& rt, Value self, const Args& args) {
  for (size_t i = 0; i < self.items->values.size(); ++i) {
    if (equal(rt, self.items->values[i], args[0])) return Value::of(static_cast<int64_t>(i));
  }
  rt.error("index(): the value is not in the " + std::string(type_name(self)));
}

Value list_count(Runtime& rt, Value self, const Args& args) {
  int64_t n = 0;
  for (Value v : self.items->values) n += equal(rt, v, args[0]);
  return Value::of(n);
}

Value list_copy(Runtime& rt, Value self, const Args&) { return rt.list(self.items->values); }

constexpr Native kListMethods[] = {
    {"append", "item", 1, list_append}, {"extend", "items", 1, list_extend}, {"insert", "index item", 2, list_insert},
    {"pop", "index", 0, list_pop},      {"copy", "", 0, list_copy},          {"index", "item", 1, list_index},
    {"count", "item", 1, list_count},
};
constexpr Native kTupleMethods[] = {{"index", "item", 1, list_index}, {"count", "item", 1, list_count}};

// ---- methods of dicts ----------------------------------------------------------------------------------------------

Value dict_items(Runtime& rt, Value self, const Args&) {
  std::vector<Value> out;
  for (auto& [key, v] : self.dict->entries) out.push_back(rt.list({key, v}, Kind::tuple));
  return rt.list(std::move(out));
}

Value dict_keys(Runtime& rt, Value self, const Args&) { return rt.list(iterate(rt, self)); }

Value dict_values(Runtime& rt, Value self, const Args&) {
  std::vector<Value> out;
  for (auto& entry : self.dict->entries) out.push_back(entry.second);
  return rt.list(std::move(out));
}

Value dict_get(Runtime& rt, Value self, const Args& args) {
  if (Value* v = dict_find(rt, *self.dict, args[0])) return *v;
  return args.has(1) ? args[1] : Value::none();
}

Value dict_update(Runtime& rt, Value self, const Args& args) {
  Value more = make_dict(rt, args, Kind::dict);
  for (auto& [key, v] : more.dict->entries) dict_set(rt, *self.dict, key, v);
  return Value::none();
}

Value dict_pop(Runtime& rt, Value self, const Args& args) {
  for (size_t i = 0; i < self.dict->entries.size(); ++i) {
    if (!equal(rt, self.dict->entries[i].first, args[0])) continue;
    Value v = self.dict->entries[i].second;
    self.dict->entries.erase(self.dict->entries.begin() + static_cast<ptrdiff_t>(i));
    return v;
  }
  if (!args.has(1)) rt.error("pop(): no key " + str_of(rt, args[0]) + " in the dict");
  return args[1];
}

Value dict_setdefault(Runtime& rt, Value self, const Args& args) {
  if (Value* v = dict_find(rt, *self.dict, args[0])) return *v;
  Value v = args.has(1) ? args[1] : Value::none();
  dict_set(rt, *self.dict, args[0], v);
  return v;
}

Value dict_copy(Runtime& rt, Value self, const Args&) {
  return make_dict(rt, Args{.positional = {self}, .named = {}}, Kind::dict);
}

constexpr Native kDictMethods[] = {
    {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values},
    {"get", "key default", 1, dict_get},
    {"update", "*", 0, dict_update},
    {"pop", "key default", 1, dict_pop},
    {"setdefault", "key default", 1, dict_setdefault},
    {"copy", "", 0, dict_copy},
};

// ---- methods of the loop variable ----------------------------------------------------------------------------------

Value loop_cycle(Runtime& rt, Value self, const Args& args) {
  if (args.positional.empty()) rt.error("loop.cycle() needs at least one item");
  return args.positional[self.loop->index % args.positional.size()];
}

Value loop_changed(Runtime& rt, Value self, const Args& args) {
  Value now = rt.list(args.positional, Kind::tuple);
  bool same = self.loop->last_changed && equal(rt, *self.loop->last_changed, now);
  self.loop->last_changed = now;
  return Value::of(!same);
}

constexpr Native kLoopMethods[] = {{"cycle", "*", 0, loop_cycle}, {"changed", "*", 0, loop_changed}};

// --------------------------------------------------------------------------------------------------------------------

const Native* find_in(std::span<const Native> table, std::string_view name) {
  for (const Native& row : table) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// One argument for each of the parameters, absent where none was given.
Args bind_arguments(Runtime& rt, const Native& native, const std::string& who, const Args& args) {
  Args bound;
  size_t taken = 0, named = 0;
  for (std::string_view rest = native.parameters; !rest.empty();) {
    std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    Value v = Value::absent();
    if (taken < args.positional.size()) v = args.positional[taken++];
    for (const auto& [given, value] : args.named) {
      if (given != name) continue;
      if (!v.is(Kind::absent)) rt.error(who + " got two values for '" + std::string(name) + "'");
      v = value;
      ++named;
    }
    if (v.is(Kind::absent) && bound.positional.size() < native.required) {
      rt.error(who + " needs a value for '" + std::string(name) + "'");
    }
    bound.positional.push_back(v);
  }
  if (taken < args.positional.size() || named < args.named.size()) {
    rt.error(who +
             " takes only these arguments: " + (native.parameters.empty() ? "none" : std::string(native.parameters)));
  }
  return bound;
}

}  // namespace

const Native* find_function(std::string_view name) { return find_in(kFunctions, name); }

const Native* find_method(Value object, std::string_view name) {
  switch (object.kind) {
    case Kind::string:
      return find_string_method(name);
    case Kind::list:
      return find_in(kListMethods, name);
    case Kind::tuple:
      return find_in(kTupleMethods, name);
    case Kind::dict:
      return find_in(kDictMethods, name);
    case Kind::loop:
      return find_in(kLoopMethods, name);
    default:
      return nullptr;
  }
}

Value call_native(Runtime& rt, const Native& native, std::string_view what, Value self, const Args& args) {
  if (native.parameters == "*") return native.function(rt, self, args);
  return native.function(rt, self,
                         bind_arguments(rt, native, std::string(what) + " " + std::string(native.name), args));
}

int64_t integer_arg(Runtime& rt, const Args& args, size_t i, int64_t otherwise, std::string_view what) {
  if (!args.has(i)) return otherwise;
  if (!args[i].is_integral()) {
    rt.error(std::string(what) + " needs an integer, got " + std::string(type_name(args[i])));
  }
  return args[i].as_integer();
}

std::string_view string_arg(Runtime& rt, const Args& args, size_t i, std::string_view otherwise,
                            std::string_view what) {
  if (!args.has(i)) return otherwise;
  require_defined(rt, args[i]);
  if (!args[i].is(Kind::string)) {
    rt.error(std::string(what) + " needs a string, got " + std::string(type_name(args[i])));
  }
  return args[i].str();
}

bool flag_arg(const Args& args, size_t i, bool otherwise) { return args.has(i) ? truthy(args[i]) : otherwise; }

}  // namespace kvarto::jinja
