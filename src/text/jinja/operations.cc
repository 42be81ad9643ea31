// Operators, look-ups and iteration on values.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace kvarto::jinja {
namespace {

[[noreturn]] void unsupported(Runtime& rt, std::string_view op, Value a, Value b) {
  rt.error("unsupported operand type(s) for " + std::string(op) + ": '" + std::string(type_name(a)) + "' and '" +
           std::string(type_name(b)) + "'");
}

[[noreturn]] void overflow(Runtime& rt, std::string_view op) {
  rt.error("the result of " + std::string(op) + " does not fit a 64-bit integer");
}

double floor_modulo(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0 && (r < 0) != (b < 0)) r += b;
  return r == 0 ? std::copysign(0.0, b) : r;
}

Value real_arithmetic(Runtime& rt, std::string_view op, double a, double b) {
  if (b == 0 && (op == "/" || op == "//" || op == "%")) rt.error("division by zero");
  if (op == "+") return Value::of(a + b);
  if (op == "-") return Value::of(a - b);
  if (op == "*") return Value::of(a * b);
  if (op == "/") return Value::of(a / b);
  if (op == "//") return Value::of(std::floor(a / b));
  if (op == "%") return Value::of(floor_modulo(a, b));
  if (a == 0 && b < 0) rt.error("0.0 cannot be raised to a negative power");
  if (a < 0 && b != std::floor(b)) rt.error("a negative number cannot be raised to a broken power");
  return Value::of(std::pow(a, b));
}

Value integer_power(Runtime& rt, int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) overflow(rt, "**");
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) overflow(rt, "**");
  }
  return Value::of(result);
}

Value integer_arithmetic(Runtime& rt, std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+"   ? __builtin_add_overflow(a, b, &result)
      : op == "-" ? __builtin_sub_overflow(a, b, &result)
                  : op == "*" && __builtin_mul_overflow(a, b, &result)) {
    overflow(rt, op);
  }
  if (op == "+" || op == "-" || op == "*") return Value::of(result);
  if (op == "**") {
    if (b < 0) return real_arithmetic(rt, op, static_cast<double>(a), static_cast<double>(b));
    return integer_power(rt, a, b);
  }
  if (b == 0) rt.error("division by zero");
  if (op == "/") return Value::of(static_cast<double>(a) / static_cast<double>(b));
  if (a == INT64_MIN && b == -1) {
    if (op == "//") overflow(rt, op);
    return Value::of(int64_t{0});
  }
  int64_t remainder = a % b;
  bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  return Value::of(op == "%" ? remainder + (adjust ? b : 0) : a / b - (adjust ? 1 : 0));
}

Value repeat(Runtime& rt, Value v, int64_t times) {
  uint64_t n = times > 0 ? static_cast<uint64_t>(times) : 0;
  size_t unit = v.is(Kind::string) ? v.str().size() : v.items->values.size() * sizeof(Value);
  if (unit == 0) n = 0;
  if (n > 0 && unit > rt.options.limits.memory_bytes / n) rt.charge_memory(UINT64_MAX);
  rt.charge_memory(unit * n);
  if (v.is(Kind::string)) {
    std::string out;
    out.reserve(unit * n);
    for (; n > 0; --n) out += v.str();
    return rt.text(std::move(out));
  }
  std::vector<Value> out;
  out.reserve(n * v.items->values.size());
  for (; n > 0; --n) out.insert(out.end(), v.items->values.begin(), v.items->values.end());
  return rt.list(std::move(out), v.kind);
}

Value concatenate(Runtime& rt, Value a, Value b) {
  if (a.is(Kind::string)) {
    std::string out;
    rt.charge_memory(a.str().size() + b.str().size());
    out.reserve(a.str().size() + b.str().size());
    out.append(a.str()).append(b.str());
    return rt.text(std::move(out));
  }
  rt.charge_memory((a.items->values.size() + b.items->values.size()) * sizeof(Value));
  std::vector<Value> out;
  out.reserve(a.items->values.size() + b.items->values.size());
  out = a.items->values;
  out.insert(out.end(), b.items->values.begin(), b.items->values.end());
  return rt.list(std::move(out), a.kind);
}

Value loop_attribute(Runtime& rt, Value v, const Text* name) {
  const Loop& loop = *v.loop;
  auto index = static_cast<int64_t>(loop.index);
  auto size = static_cast<int64_t>(loop.items.size());
  std::string_view n = name->bytes;
  if (n == "index") return Value::of(index + 1);
  if (n == "index0") return Value::of(index);
  if (n == "revindex") return Value::of(size - index);
  if (n == "revindex0") return Value::of(size - index - 1);
  if (n == "first") return Value::of(index == 0);
  if (n == "last") return Value::of(index + 1 == size);
  if (n == "length") return Value::of(size);
  if (n == "depth") return Value::of(int64_t{1});
  if (n == "depth0") return Value::of(int64_t{0});
  if (n == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (n == "nextitem" && index + 1 < size) return loop.items[loop.index + 1];
  if (const Native* method = find_method(v, n)) return rt.callable({method, v});
  return Value::undefined(name, Kind::loop);
}

// A position of Python: negative counts from the end. nullopt when outside.
std::optional<size_t> position(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

}  // namespace

Value binary(Runtime& rt, std::string_view op, Value a, Value b) {
  require_defined(rt, a);
  if (op == "%" && a.is(Kind::string)) return format_percent(rt, a.str(), b);
  require_defined(rt, b);
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? integer_arithmetic(rt, op, a.as_integer(), b.as_integer())
                                              : real_arithmetic(rt, op, a.as_real(), b.as_real());
  }
  if (op == "+" && a.kind == b.kind && (a.is(Kind::string) || a.is_sequence())) return concatenate(rt, a, b);
  if (op == "*" && (a.is(Kind::string) || a.is_sequence()) && b.is_integral()) return repeat(rt, a, b.as_integer());
  if (op == "*" && (b.is(Kind::string) || b.is_sequence()) && a.is_integral()) return repeat(rt, b, a.as_integer());
  if (op == "+" && a.is(Kind::string)) {
    rt.error("can only concatenate str (not \"" + std::string(type_name(b)) + "\") to str");
  }
  unsupported(rt, op, a, b);
}

std::vector<Value> iterate(Runtime& rt, Value v) {
  std::vector<Value> out;
  switch (v.kind) {
    case Kind::undefined:
      break;
    case Kind::list:
    case Kind::tuple:
      out = v.items->values;
      break;
    case Kind::dict:
      for (auto& entry : v.dict->entries) out.push_back(entry.first);
      break;
    case Kind::string:
      rt.charge_memory(v.text->length * sizeof(Value));
      for (size_t pos = 0; pos < v.str().size();) {
        size_t start = pos;
        decode_at(v.str(), pos);
        out.push_back(rt.text(std::string(v.str().substr(start, pos - start))));
      }
      break;
    default:
      rt.error("'" + std::string(type_name(v)) + "' object is not iterable");
  }
  rt.charge(out.size() / 8 + 1);
  return out;
}

size_t length_of(Runtime& rt, Value v) {
  switch (v.kind) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return v.text->length;
    case Kind::list:
    case Kind::tuple:
      return v.items->values.size();
    case Kind::dict:
      return v.dict->entries.size();
    case Kind::loop:
      return v.loop->items.size();
    default:
      rt.error("object of type '" + std::string(type_name(v)) + "' has no len()");
  }
}

Value get_attribute(Runtime& rt, Value object, const Text* name) {
  require_defined(rt, object);
  if (object.is(Kind::loop)) return loop_attribute(rt, object, name);
  if (const Native* method = find_method(object, name->bytes)) return rt.callable({method, object});
  if (object.is(Kind::dict) || object.is(Kind::space)) {
    if (Value* v = dict_find(rt, *object.dict, name->bytes)) return *v;
  }
  return Value::undefined(name, object.kind);
}

Value get_item(Runtime& rt, Value object, Value key) {
  require_defined(rt, object);
  if (object.is(Kind::dict)) {
    bool unhashable = key.is(Kind::list) || key.is(Kind::dict);
    if (Value* v = unhashable ? nullptr : dict_find(rt, *object.dict, key)) return *v;
  } else if (key.is_integral() && (object.is_sequence() || object.is(Kind::string))) {
    auto at = position(key.as_integer(), length_of(rt, object));
    if (!at) return Value::undefined(nullptr, object.kind);
    if (object.is_sequence()) return object.items->values[*at];
    rt.charge_scan(object.str().size());
    size_t begin = byte_offset(object.str(), *at), end = begin;
    decode_at(object.str(), end);
    return rt.text(std::string(object.str().substr(begin, end - begin)));
  }
  if (key.is(Kind::string)) return get_attribute(rt, object, key.text);
  return Value::undefined(nullptr, object.kind);
}

Value get_path(Runtime& rt, Value object, Value path) {
  if (path.is_integral()) return get_item(rt, object, path);
  if (!path.is(Kind::string)) rt.error("attribute= takes a name, got " + std::string(type_name(path)));
  std::string_view rest = path.str();
  while (true) {
    size_t dot = rest.find('.');
    Value part = rt.text(std::string(rest.substr(0, dot)));
    bool digits = !part.str().empty() && part.str().find_first_not_of("0123456789") == std::string_view::npos;
    if (digits && part.str().size() < 18) part = Value::of(int64_t{std::stoll(part.text->bytes)});
    // Jinja looks up paths by subscript, so that entries win over methods.
    object = get_item(rt, object, part);
    if (dot == std::string_view::npos) return object;
    rest.remove_prefix(dot + 1);
  }
}

Value slice(Runtime& rt, Value object, Value start, Value stop, Value step) {
  require_defined(rt, object);
  if (!object.is_sequence() && !object.is(Kind::string)) return Value::undefined(nullptr, object.kind);
  auto bound = [&](Value v, int64_t otherwise) {
    if (v.is(Kind::none) || v.is(Kind::absent)) return otherwise;
    if (!v.is_integral()) rt.error("slice indices must be integers or None, got " + std::string(type_name(v)));
    return v.as_integer();
  };
  int64_t by = bound(step, 1);
  if (by == 0) rt.error("slice step cannot be zero");
  auto size = static_cast<int64_t>(length_of(rt, object));
  int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  auto clamp = [&](Value v, int64_t otherwise) {
    int64_t i = bound(v, otherwise);
    if (v.is(Kind::none) || v.is(Kind::absent)) return i;
    return std::clamp(i < 0 ? i + size : i, low, high);
  };
  int64_t first = clamp(start, by > 0 ? low : high), last = clamp(stop, by > 0 ? high : low);
  rt.charge_scan(object.is(Kind::string) ? object.str().size() : 2 * static_cast<size_t>(size));
  if (object.is(Kind::string) && by == 1) {
    if (first >= last) return rt.text("");
    size_t begin = byte_offset(object.str(), static_cast<size_t>(first));
    std::string_view rest = object.str().substr(begin);
    return rt.text(std::string(rest.substr(0, byte_offset(rest, static_cast<size_t>(last - first)))));
  }
  std::vector<int64_t> picks;
  for (int64_t i = first; by > 0 ? i < last : i > last;) {
    picks.push_back(i);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (object.is(Kind::string)) {
    std::u32string points = to_code_points(object.str()), out;
    for (int64_t i : picks) out += points[static_cast<size_t>(i)];
    return rt.text(from_code_points(out));
  }
  std::vector<Value> out;
  for (int64_t i : picks) out.push_back(object.items->values[static_cast<size_t>(i)]);
  return rt.list(std::move(out), object.kind);
}

}  // namespace kvarto::jinja
