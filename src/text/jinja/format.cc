// Python's two ways to format: "%s" % values and "{}".format(values), with the conversions templates use.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

struct Spec {
  bool left = false, zero = false, plus = false, space = false, center = false, right = false;
  std::string fill = " ";
  size_t width = 0;
  int precision = -1;
  char type = 0;
};

constexpr size_t kMaxWidth = 1000;

std::string padded(const std::string& body, const Spec& spec, bool number) {
  size_t length = count_code_points(body);
  if (length >= spec.width) return body;
  size_t missing = spec.width - length;
  if (number && spec.zero) {
    size_t sign = !body.empty() && (body[0] == '-' || body[0] == '+' || body[0] == ' ');
    return body.substr(0, sign) + std::string(missing, '0') + body.substr(sign);
  }
  size_t before = spec.left ? 0 : spec.center ? missing / 2 : number || spec.right ? missing : 0;
  std::string out;
  for (size_t i = 0; i < before; ++i) out += spec.fill;
  out += body;
  for (size_t i = before; i < missing; ++i) out += spec.fill;
  return out;
}

std::string number_text(Runtime& rt, Value v, const Spec& spec) {
  require_defined(rt, v);
  if (!v.is_number()) {
    std::string what = "format %";
    what.push_back(spec.type);
    rt.error(what.append(" needs a number, got ").append(type_name(v)));
  }
  std::string sign = spec.plus ? "+" : spec.space ? " " : "";
  char buffer[512];
  if (spec.type == 'f' || spec.type == 'e' || spec.type == 'g') {
    std::string form = "%" + sign + ".*" + spec.type;
    if (std::abs(v.as_real()) > 1e100) rt.error("format: the number is too large");
    std::snprintf(buffer, sizeof buffer, form.c_str(), std::min(spec.precision < 0 ? 6 : spec.precision, 100),
                  v.as_real());
    return buffer;
  }
  if (v.is(Kind::real) && (spec.type == 'x' || spec.type == 'X' || std::abs(v.real) > 9e18 || std::isnan(v.real))) {
    rt.error("format: " + real_repr(v.real) + " is not an integer");
  }
  int64_t i = v.is(Kind::real) ? static_cast<int64_t>(v.real) : v.as_integer();
  if (spec.type == 'x' || spec.type == 'X') {
    uint64_t u = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
    std::snprintf(buffer, sizeof buffer, spec.type == 'x' ? "%lx" : "%lX", static_cast<unsigned long>(u));
    return (i < 0 ? "-" : sign) + buffer;
  }
  return (i < 0 ? "" : sign) + std::to_string(i);
}

std::string text_of(Runtime& rt, Value v, const Spec& spec) {
  Builder out(rt);
  spec.type == 'r' ? append_repr(rt, out, v, 0) : append_str(rt, out, v);
  std::string s = out.take();
  return spec.precision < 0 ? s : s.substr(0, byte_offset(s, static_cast<size_t>(spec.precision)));
}

size_t read_number(Runtime& rt, std::string_view s, size_t& pos) {
  size_t n = 0;
  while (pos < s.size() && s[pos] >= '0' && s[pos] <= '9') {
    n = n * 10 + static_cast<size_t>(s[pos++] - '0');
    if (n > kMaxWidth) rt.error("format: a width above " + std::to_string(kMaxWidth));
  }
  return n;
}

Spec read_percent_spec(Runtime& rt, std::string_view form, size_t& pos) {
  Spec spec;
  spec.right = true;
  for (; pos < form.size() && std::string_view("-0+ #").find(form[pos]) != std::string_view::npos; ++pos) {
    spec.left |= form[pos] == '-';
    spec.zero |= form[pos] == '0';
    spec.plus |= form[pos] == '+';
    spec.space |= form[pos] == ' ';
  }
  if (spec.left) spec.zero = false;
  spec.width = read_number(rt, form, pos);
  if (pos < form.size() && form[pos] == '.') spec.precision = static_cast<int>(read_number(rt, form, ++pos));
  if (pos >= form.size()) rt.error("incomplete format");
  spec.type = form[pos++];
  return spec;
}

// The part behind the colon of "{:>8.2f}".
Spec read_brace_spec(Runtime& rt, std::string_view form) {
  Spec spec;
  size_t pos = 0;
  auto align = [&](char c) {
    spec.left = c == '<';
    spec.right = c == '>';
    spec.center = c == '^';
    return spec.left || spec.right || spec.center;
  };
  size_t after = 0;
  if (!form.empty()) decode_at(form, after);
  if (after < form.size() && align(form[after])) {
    spec.fill = std::string(form.substr(0, after));
    pos = after + 1;
  } else if (!form.empty() && align(form[0])) {
    pos = 1;
  }
  if (pos < form.size() && (form[pos] == '+' || form[pos] == ' ' || form[pos] == '-')) {
    (form[pos] == '+' ? spec.plus : spec.space) |= form[pos] != '-';
    ++pos;
  }
  if (pos < form.size() && form[pos] == '0') spec.zero = true;
  spec.width = read_number(rt, form, pos);
  if (pos < form.size() && form[pos] == '.') spec.precision = static_cast<int>(read_number(rt, form, ++pos));
  if (pos < form.size()) spec.type = form[pos++];
  if (pos != form.size()) rt.error("format: '" + std::string(form) + "' is not a supported format specifier");
  return spec;
}

std::string apply(Runtime& rt, Value v, Spec spec) {
  switch (spec.type) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'f':
    case 'e':
    case 'g':
      return padded(number_text(rt, v, spec), spec, true);
    case 's':
    case 'r':
      return padded(text_of(rt, v, spec), spec, false);
    default:
      rt.error(std::string("format: unsupported conversion '") + spec.type + "'");
  }
}

}  // namespace

Value format_percent(Runtime& rt, std::string_view form, Value values) {
  Builder out(rt);
  size_t next = 0;
  bool many = values.is(Kind::tuple);
  for (size_t pos = 0; pos < form.size();) {
    size_t mark = form.find('%', pos);
    out << form.substr(pos, mark - pos);
    if (mark == std::string_view::npos) break;
    pos = mark + 1;
    if (pos < form.size() && form[pos] == '%') {
      out << "%";
      ++pos;
      continue;
    }
    Value v = values;
    if (pos < form.size() && form[pos] == '(') {
      size_t end = std::min(form.find(')', pos), form.size() - 1);
      if (!values.is(Kind::dict)) rt.error("format requires a mapping");
      Value* found = dict_find(rt, *values.dict, form.substr(pos + 1, end - pos - 1));
      if (!found) rt.error("format: no key '" + std::string(form.substr(pos + 1, end - pos - 1)) + "'");
      v = *found;
      pos = end + 1;
    } else {
      size_t available = many ? values.items->values.size() : 1;
      if (next >= available) rt.error("not enough arguments for format string");
      if (many) v = values.items->values[next];
      ++next;
    }
    out << apply(rt, v, read_percent_spec(rt, form, pos));
  }
  if (next < (many ? values.items->values.size() : values.is(Kind::dict) ? 0 : 1)) {
    rt.error("not all arguments converted during string formatting");
  }
  return rt.text(out.take());
}

Value format_braces(Runtime& rt, std::string_view form, const Args& args) {
  Builder out(rt);
  size_t next = 0;
  for (size_t pos = 0; pos < form.size(); ++pos) {
    size_t mark = std::min(form.find_first_of("{}", pos), form.size());
    out << form.substr(pos, mark - pos);
    if (mark == form.size()) break;
    pos = mark;
    if (pos + 1 < form.size() && form[pos + 1] == form[pos]) {
      out << form.substr(pos++, 1);
      continue;
    }
    size_t end = form.find('}', pos);
    if (form[pos] == '}' || end == std::string_view::npos) rt.error("format: a single '{' or '}' in the format string");
    std::string_view field = form.substr(pos + 1, end - pos - 1);
    size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    Spec spec = read_brace_spec(rt, field.substr(std::min(field.size(), colon + 1)));
    Value v;
    if (name.empty() || name.find_first_not_of("0123456789") == std::string_view::npos) {
      size_t digit = 0;
      size_t index = name.empty() ? next++ : read_number(rt, name, digit);
      if (index >= args.positional.size()) rt.error("format: no argument " + std::to_string(index));
      v = args.positional[index];
    } else {
      auto named = std::find_if(args.named.begin(), args.named.end(), [&](auto& a) { return a.first == name; });
      if (named == args.named.end()) rt.error("format: no argument '" + std::string(name) + "'");
      v = named->second;
    }
    if (!spec.type) spec.type = v.is(Kind::integer) ? 'd' : v.is(Kind::real) && spec.precision >= 0 ? 'g' : 's';
    bool number = v.is_number() && !v.is(Kind::boolean);
    if (spec.type == 's' && number && !spec.left && !spec.center) spec.right = true;
    out << apply(rt, v, spec);
    pos = end;
  }
  return rt.text(out.take());
}

}  // namespace kvarto::jinja
