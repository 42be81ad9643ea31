// Values as JSON text, byte for byte what Python's json.dumps writes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

void append_string(Runtime& rt, Builder& out, std::string_view s, bool ascii) {
  rt.charge_scan(s.size());
  std::string text = "\"";
  char buffer[16];
  for (size_t pos = 0; pos < s.size();) {
    char32_t c = decode_at(s, pos);
    constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    size_t known = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      text += {'\\', kTo[known]};
    } else if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000)) {
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
      text += buffer;
    } else if (ascii && c >= 0x10000) {
      unsigned v = static_cast<unsigned>(c) - 0x10000;
      std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
      text += buffer;
    } else {
      append_code_point(text, c);
    }
  }
  out << text << "\"";
}

std::string json_real(double d) {
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return real_repr(d);
}

std::string key_text(Runtime& rt, Value key) {
  switch (key.kind) {
    case Kind::string:
      return std::string(key.str());
    case Kind::boolean:
      return key.boolean ? "true" : "false";
    case Kind::none:
      return "null";
    case Kind::integer:
      return std::to_string(key.integer);
    case Kind::real:
      return json_real(key.real);
    default:
      rt.error("tojson: keys must be str, int, float, bool or None, not " + std::string(type_name(key)));
  }
}

void new_line(Builder& out, const JsonStyle& style, int depth) {
  if (!style.indent) return;
  out << "\n";
  for (int i = 0; i < depth; ++i) out << *style.indent;
}

void append_array(Runtime& rt, Builder& out, Value v, const JsonStyle& style, int depth) {
  const auto& values = v.items->values;
  out << "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out << style.item_separator;
    new_line(out, style, depth + 1);
    append_json(rt, out, values[i], style, depth + 1);
  }
  if (!values.empty()) new_line(out, style, depth);
  out << "]";
}

void append_object(Runtime& rt, Builder& out, Value v, const JsonStyle& style, int depth) {
  const auto& entries = v.dict->entries;
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (style.sort_keys) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return compare(rt, entries[a].first, entries[b].first) == -1; });
  }
  out << "{";
  for (size_t i = 0; i < order.size(); ++i) {
    if (i) out << style.item_separator;
    new_line(out, style, depth + 1);
    append_string(rt, out, key_text(rt, entries[order[i]].first), style.ascii);
    out << style.key_separator;
    append_json(rt, out, entries[order[i]].second, style, depth + 1);
  }
  if (!entries.empty()) new_line(out, style, depth);
  out << "}";
}

}  // namespace

void append_json(Runtime& rt, Builder& out, Value v, const JsonStyle& style, int depth) {
  if (depth > rt.options.limits.value_depth) {
    rt.error("tojson: nested deeper than " + std::to_string(rt.options.limits.value_depth) + " levels");
  }
  rt.charge(1);
  switch (v.kind) {
    case Kind::none:
      out << "null";
      break;
    case Kind::boolean:
      out << (v.boolean ? "true" : "false");
      break;
    case Kind::integer:
      out << std::to_string(v.integer);
      break;
    case Kind::real:
      out << json_real(v.real);
      break;
    case Kind::string:
      append_string(rt, out, v.str(), style.ascii);
      break;
    case Kind::list:
    case Kind::tuple:
      append_array(rt, out, v, style, depth);
      break;
    case Kind::dict:
      append_object(rt, out, v, style, depth);
      break;
    case Kind::undefined:
      rt.error("tojson: " + undefined_message(v));
    default:
      rt.error("tojson: an object of type " + std::string(type_name(v)) + " is not JSON serializable");
  }
}

}  // namespace kvarto::jinja
