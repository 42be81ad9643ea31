// The tests after `is`.
#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

template <Kind kKind>
Value is_kind(Runtime&, Value self, const Args&) {
  return Value::of(self.is(kKind));
}

Value is_defined(Runtime&, Value self, const Args&) { return Value::of(!self.is(Kind::undefined)); }
Value is_number(Runtime&, Value self, const Args&) { return Value::of(self.is_number()); }
Value is_true(Runtime&, Value self, const Args&) { return Value::of(self.is(Kind::boolean) && self.boolean); }
Value is_false(Runtime&, Value self, const Args&) { return Value::of(self.is(Kind::boolean) && !self.boolean); }

// An undefined value of Jinja has all of Python's protocols, so it is a sequence, can be iterated and called.
Value is_sequence(Runtime&, Value self, const Args&) {
  return Value::of(self.is_sequence() || self.is(Kind::string) || self.is(Kind::dict) || self.is(Kind::undefined));
}
Value is_iterable(Runtime& rt, Value self, const Args& args) {
  return self.is(Kind::loop) ? Value::of(true) : is_sequence(rt, self, args);
}
Value is_callable(Runtime&, Value self, const Args&) {
  return Value::of(self.is(Kind::callable) || self.is(Kind::undefined));
}

Value divides(Runtime& rt, Value self, Value by, int64_t rest) {
  return Value::of(equal(rt, binary(rt, "%", self, by), Value::of(rest)));
}
Value is_odd(Runtime& rt, Value self, const Args&) { return divides(rt, self, Value::of(int64_t{2}), 1); }
Value is_even(Runtime& rt, Value self, const Args&) { return divides(rt, self, Value::of(int64_t{2}), 0); }
Value is_divisible(Runtime& rt, Value self, const Args& args) { return divides(rt, self, args[0], 0); }

Value is_equal(Runtime& rt, Value self, const Args& args) { return Value::of(equal(rt, self, args[0])); }
Value is_not_equal(Runtime& rt, Value self, const Args& args) { return Value::of(!equal(rt, self, args[0])); }
Value is_less(Runtime& rt, Value self, const Args& args) { return Value::of(compare(rt, self, args[0], "<") == -1); }
Value is_greater(Runtime& rt, Value self, const Args& args) { return Value::of(compare(rt, self, args[0], ">") == 1); }
Value is_at_most(Runtime& rt, Value self, const Args& args) {
  return Value::of(compare(rt, self, args[0], "<=").value_or(1) <= 0);
}
Value is_at_least(Runtime& rt, Value self, const Args& args) {
  return Value::of(compare(rt, self, args[0], ">=").value_or(-1) >= 0);
}
Value is_in(Runtime& rt, Value self, const Args& args) { return Value::of(contains(rt, args[0], self)); }

Value is_same(Runtime& rt, Value self, const Args& args) {
  Value other = args[0];
  if (self.kind != other.kind) return Value::of(false);
  if (self.is_sequence()) return Value::of(self.items == other.items);
  if (self.is(Kind::dict)) return Value::of(self.dict == other.dict);
  return Value::of(equal(rt, self, other));
}

Value has_case(Runtime& rt, Value self, bool upper) {
  bool cased = false;
  std::string text = str_of(rt, self);
  for (size_t pos = 0; pos < text.size();) {
    char32_t c = decode_at(text, pos);
    if (is_cased(c) && !(upper ? is_upper(c) : is_lower(c))) return Value::of(false);
    cased |= is_cased(c);
  }
  return Value::of(cased);
}
Value is_all_lower(Runtime& rt, Value self, const Args&) { return has_case(rt, self, false); }
Value is_all_upper(Runtime& rt, Value self, const Args&) { return has_case(rt, self, true); }

Value is_filter(Runtime&, Value self, const Args&) {
  return Value::of(self.is(Kind::string) && find_filter(self.str()) != nullptr);
}
Value is_test(Runtime&, Value self, const Args&) {
  return Value::of(self.is(Kind::string) && find_predicate(self.str()) != nullptr);
}

constexpr Native kPredicates[] = {
    {"defined", "", 0, is_defined},
    {"undefined", "", 0, is_kind<Kind::undefined>},
    {"none", "", 0, is_kind<Kind::none>},
    {"string", "", 0, is_kind<Kind::string>},
    {"integer", "", 0, is_kind<Kind::integer>},
    {"float", "", 0, is_kind<Kind::real>},
    {"boolean", "", 0, is_kind<Kind::boolean>},
    {"mapping", "", 0, is_kind<Kind::dict>},
    {"number", "", 0, is_number},
    {"true", "", 0, is_true},
    {"false", "", 0, is_false},
    {"sequence", "", 0, is_sequence},
    {"iterable", "", 0, is_iterable},
    {"callable", "", 0, is_callable},
    {"odd", "", 0, is_odd},
    {"even", "", 0, is_even},
    {"divisibleby", "num", 1, is_divisible},
    {"eq", "b", 1, is_equal},
    {"equalto", "b", 1, is_equal},
    {"==", "b", 1, is_equal},
    {"ne", "b", 1, is_not_equal},
    {"!=", "b", 1, is_not_equal},
    {"lt", "b", 1, is_less},
    {"lessthan", "b", 1, is_less},
    {"<", "b", 1, is_less},
    {"gt", "b", 1, is_greater},
    {"greaterthan", "b", 1, is_greater},
    {">", "b", 1, is_greater},
    {"le", "b", 1, is_at_most},
    {"<=", "b", 1, is_at_most},
    {"ge", "b", 1, is_at_least},
    {">=", "b", 1, is_at_least},
    {"in", "seq", 1, is_in},
    {"sameas", "other", 1, is_same},
    {"lower", "", 0, is_all_lower},
    {"upper", "", 0, is_all_upper},
    {"filter", "", 0, is_filter},
    {"test", "", 0, is_test},
};

}  // namespace

const Native* find_predicate(std::string_view name) {
  for (const Native& row : kPredicates) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kvarto::jinja
