// The filters behind `|` that work on one value.
#include "text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

using TextFunction = std::string (*)(std::string_view);

template <TextFunction kFunction>
Value by_text(Runtime& rt, Value self, const Args&) {
  return rt.text(kFunction(str_of(rt, self)));
}

Value filter_string(Runtime& rt, Value self, const Args&) { return rt.text(str_of(rt, self)); }

Value filter_tojson(Runtime& rt, Value self, const Args& args) {
  JsonStyle style;
  style.ascii = flag_arg(args, 0, false);
  if (args.has(1) && !args[1].is(Kind::none)) {
    int64_t width = args[1].is(Kind::string) ? 0 : integer_arg(rt, args, 1, 0, "tojson indent");
    if (width > 100) rt.error("tojson: an indent above 100");
    style.indent = args[1].is(Kind::string) ? std::string(args[1].str())
                                            : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    style.item_separator = ",";
  }
  if (args.has(2) && !args[2].is(Kind::none)) {
    std::vector<Value> pair = iterate(rt, args[2]);
    if (pair.size() != 2 || !pair[0].is(Kind::string) || !pair[1].is(Kind::string)) {
      rt.error("tojson: separators must be two strings");
    }
    style.item_separator = pair[0].str();
    style.key_separator = pair[1].str();
  }
  style.sort_keys = flag_arg(args, 3, false);
  Builder out(rt);
  append_json(rt, out, self, style);
  return rt.text(out.take());
}

Value filter_trim(Runtime& rt, Value self, const Args& args) {
  std::string text = str_of(rt, self);
  bool chosen = args.has(0) && !args[0].is(Kind::none);
  std::string_view chars = chosen ? string_arg(rt, args, 0, "", "trim") : "";
  rt.charge_scan(text.size() * (chars.size() + 1));
  return rt.text(std::string(strip(text, true, true, chosen ? &chars : nullptr)));
}

Value filter_length(Runtime& rt, Value self, const Args&) {
  return Value::of(static_cast<int64_t>(length_of(rt, self)));
}

std::string jinja_title(std::string_view text) {
  std::string out;
  bool begin = true;
  for (size_t pos = 0; pos < text.size();) {
    size_t start = pos;
    char32_t c = decode_at(text, pos);
    std::string_view one = text.substr(start, pos - start);
    bool separator =
        is_space(c) || (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
    out += separator ? std::string(one) : begin ? to_upper(one) : to_lower(one);
    begin = separator;
  }
  return out;
}

Value filter_default(Runtime& rt, Value self, const Args& args) {
  if (!self.is(Kind::undefined) && !(flag_arg(args, 1, false) && !truthy(self))) return self;
  return args.has(0) ? args[0] : rt.text("");
}

Value filter_replace(Runtime& rt, Value self, const Args& args) {
  Args texts;
  texts.positional = {rt.text(str_of(rt, args[0])), rt.text(str_of(rt, args[1])), args[2]};
  return call_native(
      rt, *find_string_method("replace"), "filter", rt.text(str_of(rt, self)),
      Args{.positional = {texts[0], texts[1], args.has(2) ? args[2] : Value::of(int64_t{-1})}, .named = {}});
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text, true, true);
  bool negative = !text.empty() && text[0] == '-';
  if (negative || (!text.empty() && text[0] == '+')) text.remove_prefix(1);
  std::string digits(text);
  if (digits.starts_with('_') || digits.ends_with('_') || digits.find("__") != std::string::npos) return std::nullopt;
  std::erase(digits, '_');
  if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) digits.erase(0, 2);
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  if (negative) digits.insert(0, 1, '-');
  int64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  text = strip(text, true, true);
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Value filter_int(Runtime& rt, Value self, const Args& args) {
  require_defined(rt, self);
  Value otherwise = args.has(0) ? args[0] : Value::of(int64_t{0});
  int64_t base = integer_arg(rt, args, 1, 10, "int");
  if (base < 2 || base > 36) rt.error("int: the base must be from 2 to 36");
  if (self.is_integral()) return Value::of(self.as_integer());
  std::optional<double> real;
  if (self.is(Kind::string)) {
    if (auto value = parse_integer(self.str(), static_cast<int>(base))) return Value::of(*value);
    real = parse_real(self.str());
  } else if (self.is(Kind::real)) {
    real = self.real;
  }
  if (!real || !std::isfinite(*real)) return otherwise;
  if (std::abs(*real) >= 9.2e18) rt.error("int: " + real_repr(*real) + " does not fit a 64-bit integer");
  return Value::of(static_cast<int64_t>(*real));
}

Value filter_float(Runtime& rt, Value self, const Args& args) {
  require_defined(rt, self);
  if (self.is_number()) return Value::of(self.as_real());
  if (self.is(Kind::string)) {
    if (auto value = parse_real(self.str())) return Value::of(*value);
  }
  return args.has(0) ? args[0] : Value::of(0.0);
}

Value filter_abs(Runtime& rt, Value self, const Args&) {
  require_defined(rt, self);
  if (self.is(Kind::real)) return Value::of(std::abs(self.real));
  if (!self.is_integral()) rt.error("bad operand type for abs(): '" + std::string(type_name(self)) + "'");
  int64_t i = self.as_integer();
  return i < 0 ? binary(rt, "-", Value::of(int64_t{0}), Value::of(i)) : Value::of(i);
}

Value filter_round(Runtime& rt, Value self, const Args& args) {
  int64_t precision = integer_arg(rt, args, 0, 0, "round");
  std::string_view method = string_arg(rt, args, 1, "common", "round");
  require_defined(rt, self);
  if (!self.is_number()) rt.error("round needs a number, got " + std::string(type_name(self)));
  if (precision < -15 || precision > 15) rt.error("round: the precision must be from -15 to 15");
  double x = self.as_real(), scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::of(std::ceil(x * scale) / scale);
  if (method == "floor") return Value::of(std::floor(x * scale) / scale);
  if (method != "common") rt.error("round: the method must be common, ceil or floor");
  if (self.is_integral() && precision >= 0) return Value::of(self.as_integer());
  if (precision < 0) {
    double rounded = std::nearbyint(x * scale) / scale;
    return self.is_integral() ? Value::of(static_cast<int64_t>(rounded)) : Value::of(rounded);
  }
  if (!std::isfinite(x) || std::abs(x) > 1e300) return Value::of(x);
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), x);
  return Value::of(std::strtod(buffer, nullptr));
}

Value filter_indent(Runtime& rt, Value self, const Args& args) {
  std::string text = str_of(rt, self);
  std::string by = args.has(0) && args[0].is(Kind::string) ? std::string(args[0].str()) : "";
  if (by.empty()) {
    int64_t width = args.has(0) && args[0].is(Kind::string) ? 0 : integer_arg(rt, args, 0, 4, "indent");
    if (width > 1000) rt.error("indent: a width above 1000");
    by.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  bool first = flag_arg(args, 1, false), blank = flag_arg(args, 2, false);
  Builder out(rt);
  text += '\n';
  bool begin = true;
  for (std::string_view line : split_lines(text, false)) {
    if (!begin) out << "\n";
    if (begin ? first : blank || !line.empty()) out << by;
    out << line;
    begin = false;
  }
  return rt.text(out.take());
}

Value filter_escape(Runtime& rt, Value self, const Args&) {
  Builder out(rt);
  for (char c : str_of(rt, self)) {
    switch (c) {
      case '&':
        out << "&amp;";
        break;
      case '<':
        out << "&lt;";
        break;
      case '>':
        out << "&gt;";
        break;
      case '"':
        out << "&#34;";
        break;
      case '\'':
        out << "&#39;";
        break;
      default:
        out << std::string_view(&c, 1);
    }
  }
  return rt.text(out.take());
}

Value filter_urlencode(Runtime& rt, Value self, const Args&) {
  Builder out(rt);
  for (char c : str_of(rt, self)) {
    auto u = static_cast<unsigned char>(c);
    bool plain = u < 0x80 && (std::isalnum(u) || std::string_view("_.-~/").find(c) != std::string_view::npos);
    char hex[4];
    std::snprintf(hex, sizeof hex, "%%%02X", u);
    out << (plain ? std::string_view(&c, 1) : std::string_view(hex));
  }
  return rt.text(out.take());
}

Value filter_wordcount(Runtime& rt, Value self, const Args&) {
  std::string text = str_of(rt, self);
  int64_t words = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    char32_t c = decode_at(text, pos);
    bool word = is_letter(c) || is_number(c) || c == '_';
    words += word && !inside;
    inside = word;
  }
  return Value::of(words);
}

Value filter_format(Runtime& rt, Value self, const Args& args) {
  std::string form = str_of(rt, self);
  if (args.named.empty()) return format_percent(rt, form, rt.list(args.positional, Kind::tuple));
  Value named = rt.dict();
  for (const auto& [name, v] : args.named) dict_set(rt, *named.dict, rt.text(std::string(name)), v);
  return format_percent(rt, form, named);
}

Value filter_items(Runtime& rt, Value self, const Args&) {
  if (self.is(Kind::undefined)) return rt.list({});
  if (!self.is(Kind::dict))
    rt.error("items: can only get item pairs from a mapping, got " + std::string(type_name(self)));
  return call_native(rt, *find_method(self, "items"), "method", self, {});
}

Value filter_attr(Runtime& rt, Value self, const Args& args) {
  std::string_view name = string_arg(rt, args, 0, "", "attr");
  if (const Native* method = find_method(self, name)) return rt.callable({.native = method, .self = self});
  return Value::undefined(args[0].text, self.kind);
}

constexpr Native kFilters[] = {
    {"abs", "", 0, filter_abs},
    {"attr", "name", 1, filter_attr},
    {"capitalize", "", 0, by_text<to_capitalized>},
    {"count", "", 0, filter_length},
    {"d", "default_value boolean", 0, filter_default},
    {"default", "default_value boolean", 0, filter_default},
    {"e", "", 0, filter_escape},
    {"escape", "", 0, filter_escape},
    {"float", "default", 0, filter_float},
    {"format", "*", 0, filter_format},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default base", 0, filter_int},
    {"items", "", 0, filter_items},
    {"length", "", 0, filter_length},
    {"lower", "", 0, by_text<to_lower>},
    {"replace", "old new count", 2, filter_replace},
    {"round", "precision method", 0, filter_round},
    {"safe", "", 0, filter_string},
    {"string", "", 0, filter_string},
    {"title", "", 0, by_text<jinja_title>},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {"trim", "chars", 0, filter_trim},
    {"upper", "", 0, by_text<to_upper>},
    {"urlencode", "", 0, filter_urlencode},
    {"wordcount", "", 0, filter_wordcount},
};

}  // namespace

const Native* find_filter(std::string_view name) {
  for (const Native& row : kFilters) {
    if (row.name == name) return &row;
  }
  return find_sequence_filter(name);
}

}  // namespace kvarto::jinja
