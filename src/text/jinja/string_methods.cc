// Methods of str.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace kvarto::jinja {
namespace {

constexpr size_t kNpos = std::string_view::npos;

using TextFunction = std::string (*)(std::string_view);

template <TextFunction kFunction>
Value by_text(Runtime& rt, Value self, const Args&) {
  return rt.text(kFunction(self.str()));
}

template <bool kLeft, bool kRight>
Value strip_method(Runtime& rt, Value self, const Args& args) {
  bool chosen = args.has(0) && !args[0].is(Kind::none);
  std::string_view chars = chosen ? string_arg(rt, args, 0, "", "strip") : "";
  rt.charge_scan(self.str().size() * (chars.size() + 1));
  return rt.text(std::string(strip(self.str(), kLeft, kRight, chosen ? &chars : nullptr)));
}

Value texts(Runtime& rt, const std::vector<std::string_view>& parts) {
  std::vector<Value> out;
  for (std::string_view p : parts) out.push_back(rt.text(std::string(p)));
  return rt.list(std::move(out));
}

// Words between runs of white space; those beyond `most` stay one part, with the white space inside and outside of it.
std::vector<std::string_view> split_space(std::string_view s, size_t most, bool from_right) {
  std::vector<std::string_view> words;
  size_t begin = kNpos;
  for (size_t pos = 0; pos < s.size();) {
    size_t start = pos;
    bool space = is_space(decode_at(s, pos));
    if (!space && begin == kNpos) begin = start;
    if (space && begin != kNpos) {
      words.push_back(s.substr(begin, start - begin));
      begin = kNpos;
    }
  }
  if (begin != kNpos) words.push_back(s.substr(begin));
  if (words.size() <= most) return words;
  if (from_right) {
    const std::string_view& last = words[words.size() - most - 1];
    std::string_view rest(s.data(), static_cast<size_t>(last.data() + last.size() - s.data()));
    words.erase(words.begin(), words.end() - static_cast<ptrdiff_t>(most));
    words.insert(words.begin(), rest);
  } else {
    std::string_view rest = s.substr(static_cast<size_t>(words[most].data() - s.data()));
    words.resize(most);
    words.push_back(rest);
  }
  return words;
}

// A search from the right is not linear, so it costs by the length of what is sought.
void charge_backward(Runtime& rt, std::string_view text, std::string_view part) {
  rt.charge_scan(text.size() / 8 * (part.size() + 8));
}

Value split_method(Runtime& rt, Value self, const Args& args, bool from_right) {
  int64_t limit = integer_arg(rt, args, 1, -1, "split");
  size_t most = limit < 0 ? kNpos : static_cast<size_t>(limit);
  std::string_view s = self.str();
  rt.charge_scan(s.size());
  if (!args.has(0) || args[0].is(Kind::none)) return texts(rt, split_space(s, most, from_right));
  std::string_view by = string_arg(rt, args, 0, "", "split");
  if (by.empty()) rt.error("split: empty separator");
  std::vector<std::string_view> parts;
  if (from_right) charge_backward(rt, s, by);
  while (parts.size() < most) {
    size_t at = from_right ? s.rfind(by) : find_bytes(s, by);
    if (at == kNpos) break;
    parts.push_back(from_right ? s.substr(at + by.size()) : s.substr(0, at));
    s = from_right ? s.substr(0, at) : s.substr(at + by.size());
  }
  parts.push_back(s);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return texts(rt, parts);
}
Value str_split(Runtime& rt, Value self, const Args& args) { return split_method(rt, self, args, false); }
Value str_rsplit(Runtime& rt, Value self, const Args& args) { return split_method(rt, self, args, true); }

Value str_splitlines(Runtime& rt, Value self, const Args& args) {
  return texts(rt, split_lines(self.str(), flag_arg(args, 0, false)));
}

Value partition(Runtime& rt, Value self, const Args& args, bool from_right) {
  std::string_view by = string_arg(rt, args, 0, "", "partition"), s = self.str();
  if (by.empty()) rt.error("partition: empty separator");
  charge_backward(rt, s, by);
  size_t at = from_right ? s.rfind(by) : find_bytes(s, by);
  auto tuple = [&](std::string_view a, std::string_view b, std::string_view c) {
    return rt.list({rt.text(std::string(a)), rt.text(std::string(b)), rt.text(std::string(c))}, Kind::tuple);
  };
  if (at == kNpos) return from_right ? tuple("", "", s) : tuple(s, "", "");
  return tuple(s.substr(0, at), by, s.substr(at + by.size()));
}
Value str_partition(Runtime& rt, Value self, const Args& args) { return partition(rt, self, args, false); }
Value str_rpartition(Runtime& rt, Value self, const Args& args) { return partition(rt, self, args, true); }

// The part of the text that the optional start and end (arguments 1 and 2) leave.
Value windowed(Runtime& rt, Value self, const Args& args) {
  if (!args.has(1) && !args.has(2)) return self;
  return slice(rt, self, args[1], args[2], Value::none());
}

bool affix(Runtime& rt, Value self, const Args& args, bool front, std::string_view what) {
  std::string_view s = windowed(rt, self, args).str();
  std::vector<Value> wanted = args[0].is(Kind::tuple) ? args[0].items->values : std::vector<Value>{args[0]};
  for (Value w : wanted) {
    require_defined(rt, w);
    if (!w.is(Kind::string)) {
      rt.error(std::string(what) + " needs a string or a tuple of strings, got " + std::string(type_name(w)));
    }
    if (front ? s.starts_with(w.str()) : s.ends_with(w.str())) return true;
  }
  return false;
}
Value str_startswith(Runtime& rt, Value self, const Args& args) {
  return Value::of(affix(rt, self, args, true, "startswith"));
}
Value str_endswith(Runtime& rt, Value self, const Args& args) {
  return Value::of(affix(rt, self, args, false, "endswith"));
}
Value str_removeprefix(Runtime& rt, Value self, const Args& args) {
  std::string_view part = string_arg(rt, args, 0, "", "removeprefix"), s = self.str();
  return rt.text(std::string(s.starts_with(part) ? s.substr(part.size()) : s));
}
Value str_removesuffix(Runtime& rt, Value self, const Args& args) {
  std::string_view part = string_arg(rt, args, 0, "", "removesuffix"), s = self.str();
  return rt.text(std::string(s.ends_with(part) ? s.substr(0, s.size() - part.size()) : s));
}

Value str_replace(Runtime& rt, Value self, const Args& args) {
  std::string_view s = self.str(), from = string_arg(rt, args, 0, "", "replace"),
                   to = string_arg(rt, args, 1, "", "replace");
  int64_t left = args.has(2) && !args[2].is(Kind::none) ? integer_arg(rt, args, 2, -1, "replace") : -1;
  rt.charge_scan(s.size());
  Builder out(rt);
  size_t pos = 0;
  while (left != 0) {
    size_t at = find_bytes(s, from, pos);
    if (at == kNpos) break;
    --left;
    out << s.substr(pos, at - pos) << to;
    pos = at + from.size();
    if (from.empty()) {  // Python puts `to` before every code point and at the end
      size_t next = pos;
      if (pos >= s.size()) break;
      decode_at(s, next);
      out << s.substr(pos, next - pos);
      pos = next;
    }
  }
  out << s.substr(std::min(pos, s.size()));
  return rt.text(out.take());
}

Value str_join(Runtime& rt, Value self, const Args& args) {
  require_defined(rt, args[0]);
  Builder out(rt);
  bool first = true;
  for (Value v : iterate(rt, args[0])) {
    if (!v.is(Kind::string)) rt.error("join needs strings, got " + std::string(type_name(v)));
    if (!first) out << self.str();
    first = false;
    out << v.str();
  }
  return rt.text(out.take());
}

int64_t find_code_point(Runtime& rt, Value self, const Args& args, bool from_right) {
  std::string_view part = string_arg(rt, args, 0, "", "find");
  Value window = windowed(rt, self, args);
  charge_backward(rt, window.str(), part);
  size_t at = from_right ? window.str().rfind(part) : find_bytes(window.str(), part);
  if (at == kNpos) return -1;
  int64_t start = args.has(1) && args[1].is_integral() ? args[1].as_integer() : 0;
  auto length = static_cast<int64_t>(self.text->length);
  start = start < 0 ? std::max<int64_t>(start + length, 0) : start;
  return start + static_cast<int64_t>(count_code_points(window.str().substr(0, at)));
}
Value str_find(Runtime& rt, Value self, const Args& args) { return Value::of(find_code_point(rt, self, args, false)); }
Value str_rfind(Runtime& rt, Value self, const Args& args) { return Value::of(find_code_point(rt, self, args, true)); }
Value str_index(Runtime& rt, Value self, const Args& args) {
  int64_t at = find_code_point(rt, self, args, false);
  if (at < 0) rt.error("index: substring not found");
  return Value::of(at);
}

Value str_count(Runtime& rt, Value self, const Args& args) {
  std::string_view part = string_arg(rt, args, 0, "", "count");
  Value window = windowed(rt, self, args);
  if (part.empty()) return Value::of(static_cast<int64_t>(window.text->length) + 1);
  rt.charge_scan(window.str().size());
  int64_t n = 0;
  for (size_t at = find_bytes(window.str(), part); at != kNpos; at = find_bytes(window.str(), part, at + part.size()))
    ++n;
  return Value::of(n);
}

template <bool (*kTest)(char32_t)>
Value all_of(Runtime&, Value self, const Args&) {
  std::string_view s = self.str();
  for (size_t pos = 0; pos < s.size();) {
    if (!kTest(decode_at(s, pos))) return Value::of(false);
  }
  return Value::of(!s.empty());
}
bool is_letter_or_number(char32_t c) { return is_letter(c) || is_number(c); }

Value str_isupper(Runtime& rt, Value self, const Args& args) {
  return call_native(rt, *find_predicate("upper"), "test", self, args);
}
Value str_islower(Runtime& rt, Value self, const Args& args) {
  return call_native(rt, *find_predicate("lower"), "test", self, args);
}

// Python's center puts the odd space left when the width is odd.
Value justify(Runtime& rt, Value self, const Args& args, double left_share, std::string_view otherwise) {
  int64_t width = integer_arg(rt, args, 0, 0, "width");
  std::string fill(args.positional.size() > 1 ? string_arg(rt, args, 1, otherwise, "fill") : otherwise);
  auto length = static_cast<int64_t>(self.text->length);
  if (width > 10'000'000) rt.error("the width " + std::to_string(width) + " is too large");
  if (width <= length) return self;
  int64_t missing = width - length, left = left_share == 1 ? missing : 0;
  if (left_share == 0.5) left = missing / 2 + (missing & width & 1);
  Builder out(rt);
  for (int64_t i = 0; i < left; ++i) out << fill;
  out << self.str();
  for (int64_t i = left; i < missing; ++i) out << fill;
  return rt.text(out.take());
}
Value str_ljust(Runtime& rt, Value self, const Args& args) { return justify(rt, self, args, 0, " "); }
Value str_rjust(Runtime& rt, Value self, const Args& args) { return justify(rt, self, args, 1, " "); }
Value str_center(Runtime& rt, Value self, const Args& args) { return justify(rt, self, args, 0.5, " "); }
Value str_zfill(Runtime& rt, Value self, const Args& args) {
  std::string_view s = self.str();
  bool sign = !s.empty() && (s[0] == '-' || s[0] == '+');
  if (!sign) return justify(rt, self, args, 1, "0");
  Value digits = rt.text(std::string(s.substr(1)));
  Args narrower{.positional = {Value::of(integer_arg(rt, args, 0, 0, "zfill") - 1)}, .named = {}};
  return rt.text(std::string(s.substr(0, 1)) + str_of(rt, justify(rt, digits, narrower, 1, "0")));
}

Value str_format(Runtime& rt, Value self, const Args& args) { return format_braces(rt, self.str(), args); }

constexpr Native kMethods[] = {
    {"strip", "chars", 0, strip_method<true, true>},
    {"lstrip", "chars", 0, strip_method<true, false>},
    {"rstrip", "chars", 0, strip_method<false, true>},
    {"split", "sep maxsplit", 0, str_split},
    {"rsplit", "sep maxsplit", 0, str_rsplit},
    {"splitlines", "keepends", 0, str_splitlines},
    {"partition", "sep", 1, str_partition},
    {"rpartition", "sep", 1, str_rpartition},
    {"startswith", "prefix start end", 1, str_startswith},
    {"endswith", "suffix start end", 1, str_endswith},
    {"removeprefix", "prefix", 1, str_removeprefix},
    {"removesuffix", "suffix", 1, str_removesuffix},
    {"replace", "old new count", 2, str_replace},
    {"upper", "", 0, by_text<to_upper>},
    {"lower", "", 0, by_text<to_lower>},
    {"title", "", 0, by_text<to_title>},
    {"capitalize", "", 0, by_text<to_capitalized>},
    {"join", "items", 1, str_join},
    {"format", "*", 0, str_format},
    {"find", "sub start end", 1, str_find},
    {"rfind", "sub start end", 1, str_rfind},
    {"index", "sub start end", 1, str_index},
    {"count", "sub start end", 1, str_count},
    {"isspace", "", 0, all_of<is_space>},
    {"isalpha", "", 0, all_of<is_letter>},
    {"isdigit", "", 0, all_of<is_number>},
    {"isdecimal", "", 0, all_of<is_number>},
    {"isalnum", "", 0, all_of<is_letter_or_number>},
    {"isupper", "", 0, str_isupper},
    {"islower", "", 0, str_islower},
    {"ljust", "width fillchar", 1, str_ljust},
    {"rjust", "width fillchar", 1, str_rjust},
    {"center", "width fillchar", 1, str_center},
    {"zfill", "width", 1, str_zfill},
};

}  // namespace

const Native* find_string_method(std::string_view name) {
  for (const Native& row : kMethods) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kvarto::jinja
