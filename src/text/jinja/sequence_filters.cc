// The filters behind `|` that work on lists: map, select, sort, join, ...
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

Value filter_list(Runtime& rt, Value self, const Args&) { return rt.list(iterate(rt, self)); }

Value filter_join(Runtime& rt, Value self, const Args& args) {
  std::string between = args.has(0) ? str_of(rt, args[0]) : "";
  Builder out(rt);
  bool first = true;
  for (Value v : iterate(rt, self)) {
    if (!first) out << between;
    first = false;
    bool path = args.has(1) && !args[1].is(Kind::none);
    append_str(rt, out, path ? get_path(rt, v, args[1]) : v);
  }
  return rt.text(out.take());
}

Value filter_first(Runtime& rt, Value self, const Args&) {
  std::vector<Value> items = iterate(rt, self);
  return items.empty() ? Value::undefined(nullptr) : items.front();
}

Value filter_last(Runtime& rt, Value self, const Args&) {
  std::vector<Value> items = iterate(rt, self);
  return items.empty() ? Value::undefined(nullptr) : items.back();
}

Value filter_reverse(Runtime& rt, Value self, const Args&) {
  if (self.is(Kind::string)) {
    std::u32string points = to_code_points(self.str());
    std::reverse(points.begin(), points.end());
    return rt.text(from_code_points(points));
  }
  std::vector<Value> items = iterate(rt, self);
  std::reverse(items.begin(), items.end());
  return rt.list(std::move(items));
}

// ---- orders --------------------------------------------------------------------------------------------------------

Value fold_case(Runtime& rt, Value v, bool case_sensitive) {
  return v.is(Kind::string) && !case_sensitive ? rt.text(to_lower(v.str())) : v;
}

// What an item is sorted by: itself, one path, or the tuple of several paths "a,b".
Value sort_key(Runtime& rt, Value item, const Args& args, size_t path, bool case_sensitive) {
  if (!args.has(path) || args[path].is(Kind::none)) return fold_case(rt, item, case_sensitive);
  if (!args[path].is(Kind::string) || args[path].str().find(',') == std::string_view::npos) {
    return fold_case(rt, get_path(rt, item, args[path]), case_sensitive);
  }
  std::vector<Value> parts;
  for (std::string_view rest = args[path].str();;) {
    size_t comma = rest.find(',');
    Value part = rt.text(std::string(rest.substr(0, comma)));
    parts.push_back(fold_case(rt, get_path(rt, item, part), case_sensitive));
    if (comma == std::string_view::npos) return rt.list(std::move(parts), Kind::tuple);
    rest.remove_prefix(comma + 1);
  }
}

using Keyed = std::pair<Value, Value>;  // key, item

void sort_keyed(Runtime& rt, std::vector<Keyed>& items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return (reverse ? compare(rt, b.first, a.first) : compare(rt, a.first, b.first)) == -1;
  });
}

Value values_of(Runtime& rt, const std::vector<Keyed>& items) {
  std::vector<Value> out;
  for (const Keyed& k : items) out.push_back(k.second);
  return rt.list(std::move(out));
}

Value filter_sort(Runtime& rt, Value self, const Args& args) {
  std::vector<Keyed> items;
  for (Value v : iterate(rt, self)) items.emplace_back(sort_key(rt, v, args, 2, flag_arg(args, 1, false)), v);
  sort_keyed(rt, items, flag_arg(args, 0, false));
  return values_of(rt, items);
}

Value filter_unique(Runtime& rt, Value self, const Args& args) {
  std::vector<Value> keys, out;
  for (Value v : iterate(rt, self)) {
    Value key = sort_key(rt, v, args, 1, flag_arg(args, 0, false));
    if (std::any_of(keys.begin(), keys.end(), [&](Value k) { return equal(rt, k, key); })) continue;
    keys.push_back(key);
    out.push_back(v);
  }
  return rt.list(std::move(out));
}

Value extreme(Runtime& rt, Value self, const Args& args, int wanted) {
  std::optional<Keyed> best;
  for (Value v : iterate(rt, self)) {
    Value key = sort_key(rt, v, args, 1, flag_arg(args, 0, false));
    if (!best || compare(rt, key, best->first) == wanted) best = Keyed(key, v);
  }
  return best ? best->second : Value::undefined(nullptr);
}
Value filter_min(Runtime& rt, Value self, const Args& args) { return extreme(rt, self, args, -1); }
Value filter_max(Runtime& rt, Value self, const Args& args) { return extreme(rt, self, args, 1); }

Value filter_dictsort(Runtime& rt, Value self, const Args& args) {
  require_defined(rt, self);
  if (!self.is(Kind::dict)) rt.error("dictsort needs a dict, got " + std::string(type_name(self)));
  std::string_view by = string_arg(rt, args, 1, "key", "dictsort");
  if (by != "key" && by != "value") rt.error("dictsort: by must be 'key' or 'value', got '" + std::string(by) + "'");
  std::vector<Keyed> items;
  for (auto& [key, v] : self.dict->entries) {
    items.emplace_back(fold_case(rt, by == "key" ? key : v, flag_arg(args, 0, false)), rt.list({key, v}, Kind::tuple));
  }
  sort_keyed(rt, items, flag_arg(args, 2, false));
  return values_of(rt, items);
}

Value filter_groupby(Runtime& rt, Value self, const Args& args) {
  bool case_sensitive = flag_arg(args, 2, false);
  std::vector<Keyed> items;
  for (Value v : iterate(rt, self)) {
    Value key = get_path(rt, v, args[0]);
    if (key.is(Kind::undefined) && args.has(1)) key = args[1];
    items.emplace_back(fold_case(rt, key, case_sensitive), v);
  }
  sort_keyed(rt, items, false);
  std::vector<Value> out;
  for (size_t i = 0; i < items.size();) {
    std::vector<Value> group;
    Value shown = get_path(rt, items[i].second, args[0]);
    if (shown.is(Kind::undefined)) shown = items[i].first;
    size_t first = i;
    while (i < items.size() && equal(rt, items[i].first, items[first].first)) group.push_back(items[i++].second);
    out.push_back(rt.list({shown, rt.list(std::move(group))}, Kind::tuple));
  }
  return rt.list(std::move(out));
}

Value filter_sum(Runtime& rt, Value self, const Args& args) {
  Value total = args.has(1) ? args[1] : Value::of(int64_t{0});
  for (Value v : iterate(rt, self)) {
    total = binary(rt, "+", total, args.has(0) && !args[0].is(Kind::none) ? get_path(rt, v, args[0]) : v);
  }
  return total;
}

Value filter_batch(Runtime& rt, Value self, const Args& args) {
  int64_t size = integer_arg(rt, args, 0, 1, "batch");
  if (size < 1 || size > rt.options.limits.range_items) {
    rt.error("batch: the size must be from 1 to " + std::to_string(rt.options.limits.range_items));
  }
  std::vector<Value> out, row;
  for (Value v : iterate(rt, self)) {
    if (static_cast<int64_t>(row.size()) == size) out.push_back(rt.list(std::exchange(row, {})));
    row.push_back(v);
  }
  while (!row.empty() && args.has(1) && !args[1].is(Kind::none) && static_cast<int64_t>(row.size()) < size) {
    row.push_back(args[1]);
  }
  if (!row.empty()) out.push_back(rt.list(std::move(row)));
  return rt.list(std::move(out));
}

// ---- map and select ------------------------------------------------------------------------------------------------

// The name at `at` and the arguments behind it: map('join', ', '), selectattr('role', 'equalto', 'user').
struct Inner {
  const Native* native;
  Args args;
};

Inner inner_call(Runtime& rt, const Args& args, size_t at, const Native* (*find)(std::string_view),
                 std::string_view what) {
  Value name = args.positional[at];
  const Native* native = name.is(Kind::string) ? find(name.str()) : nullptr;
  if (!native) rt.error("no " + std::string(what) + " named '" + str_of(rt, name) + "'");
  Inner inner{native, {}};
  inner.args.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(at) + 1, args.positional.end());
  inner.args.named = args.named;
  return inner;
}

Value filter_map(Runtime& rt, Value self, const Args& args) {
  std::vector<Value> out;
  if (!truthy(self)) return rt.list({});
  if (!args.positional.empty()) {
    Inner f = inner_call(rt, args, 0, find_filter, "filter");
    for (Value v : iterate(rt, self)) {
      rt.charge(1);
      out.push_back(call_native(rt, *f.native, "filter", v, f.args));
    }
    return rt.list(std::move(out));
  }
  Value path = Value::absent(), otherwise = Value::absent();
  for (const auto& [name, v] : args.named) {
    if (name != "attribute" && name != "default") rt.error("map takes no argument '" + std::string(name) + "'");
    (name == "attribute" ? path : otherwise) = v;
  }
  if (path.is(Kind::absent)) rt.error("map needs the name of a filter or attribute=");
  for (Value v : iterate(rt, self)) {
    Value found = get_path(rt, v, path);
    out.push_back(found.is(Kind::undefined) && !otherwise.is(Kind::absent) ? otherwise : found);
  }
  return rt.list(std::move(out));
}

Value choose(Runtime& rt, Value self, const Args& args, bool by_attribute, bool keep) {
  if (!truthy(self)) return rt.list({});
  size_t at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) rt.error("selectattr and rejectattr need the name of an attribute");
  std::optional<Inner> test;
  if (args.positional.size() > at) test = inner_call(rt, args, at, find_predicate, "test");
  std::vector<Value> out;
  for (Value v : iterate(rt, self)) {
    rt.charge(1);
    Value subject = by_attribute ? get_path(rt, v, args.positional[0]) : v;
    bool holds = truthy(test ? call_native(rt, *test->native, "test", subject, test->args) : subject);
    if (holds == keep) out.push_back(v);
  }
  return rt.list(std::move(out));
}

Value filter_select(Runtime& rt, Value self, const Args& args) { return choose(rt, self, args, false, true); }
Value filter_reject(Runtime& rt, Value self, const Args& args) { return choose(rt, self, args, false, false); }
Value filter_selectattr(Runtime& rt, Value self, const Args& args) { return choose(rt, self, args, true, true); }
Value filter_rejectattr(Runtime& rt, Value self, const Args& args) { return choose(rt, self, args, true, false); }

constexpr Native kFilters[] = {
    {"batch", "linecount fill_with", 1, filter_batch},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    {"first", "", 0, filter_first},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby},
    {"join", "d attribute", 0, filter_join},
    {"last", "", 0, filter_last},
    {"list", "", 0, filter_list},
    {"map", "*", 0, filter_map},
    {"max", "case_sensitive attribute", 0, filter_max},
    {"min", "case_sensitive attribute", 0, filter_min},
    {"reject", "*", 0, filter_reject},
    {"rejectattr", "*", 0, filter_rejectattr},
    {"reverse", "", 0, filter_reverse},
    {"select", "*", 0, filter_select},
    {"selectattr", "*", 0, filter_selectattr},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort},
    {"sum", "attribute start", 0, filter_sum},
    {"unique", "case_sensitive attribute", 0, filter_unique},
};

}  // namespace

const Native* find_sequence_filter(std::string_view name) {
  for (const Native& row : kFilters) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kvarto::jinja
