#include "server/volatile_text.h"

#include <vector>

#include "base/file.h"
#include "format/printable.h"
#include "text/regex.h"

namespace kvarto {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

struct Rule {
  Regex regex;
  bool drops = false;
};

enum class Verdict : uint8_t { stable, move, drop, given_up };

Verdict judge(const std::vector<Rule>& rules, std::string_view line, RegexMatcher& matcher) {
  for (const Rule& rule : rules) {
    const auto found = matcher.find(rule.regex, line, {});
    if (!found) return Verdict::given_up;
    if (*found) return rule.drops ? Verdict::drop : Verdict::move;
  }
  return Verdict::stable;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// Calls `visit` with each line, without its end.
template <typename Visit>
void each_line(std::string_view text, const Visit& visit) {
  while (true) {
    const size_t end = text.find('\n');
    visit(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

Result<Rule> read_rule(std::string_view line, const std::string& place) {
  const size_t space = line.find_first_of(" \t");
  const std::string_view verb = line.substr(0, space);
  const std::string_view pattern = space == std::string_view::npos ? std::string_view() : trim(line.substr(space));
  if (verb != "move" && verb != "drop") {
    return fail(ErrorCode::invalid_argument,
                place + "a rule begins with move or drop, not with " + kvarto::quoted(verb));
  }
  if (pattern.empty()) {
    return fail(ErrorCode::invalid_argument,
                place + "the regular expression is missing; write " + std::string(verb) + " REGEX");
  }
  Result<Regex> regex = Regex::compile(pattern, Regex::Engine::interpreter);
  if (!regex) {
    return fail(ErrorCode::invalid_argument,
                place + kvarto::quoted(pattern) + " is no regular expression: " + regex.error().message);
  }
  return Rule{.regex = *std::move(regex), .drops = verb == "drop"};
}

}  // namespace

struct VolatileText::Impl {
  std::vector<Rule> rules;
};

VolatileText::VolatileText() : impl_(std::make_unique<Impl>()) {}
VolatileText::VolatileText(VolatileText&&) noexcept = default;
VolatileText& VolatileText::operator=(VolatileText&&) noexcept = default;
VolatileText::~VolatileText() = default;

size_t VolatileText::rules() const { return impl_->rules.size(); }

Result<VolatileText> VolatileText::load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string rules, read_file(path, kMaxFileBytes));
  return parse(rules, path);
}

Result<VolatileText> VolatileText::parse(std::string_view rules, const std::string& source) {
  VolatileText result;
  Status status;
  size_t number = 0;
  each_line(rules, [&](std::string_view line) {
    ++number;
    line = trim(line);
    if (!status || line.empty() || line.front() == '#') return;
    auto rule = read_rule(line, source + ", line " + std::to_string(number) + ": ");
    if (rule) {
      result.impl_->rules.push_back(std::move(*rule));
    } else {
      status = tl::unexpected<Error>(std::move(rule.error()));
    }
  });
  RETURN_IF_ERROR(std::move(status));
  return result;
}

VolatileResult VolatileText::apply(std::string_view system_text) const {
  VolatileResult result;
  const bool ends_line = system_text.ends_with('\n');
  if (ends_line) system_text.remove_suffix(1);
  RegexMatcher matcher({.steps = kMatchLimit, .depth = kMatchLimit, .heap_kib = 16 << 10});
  std::string stable, moved;
  std::optional<size_t> first;  // where the first changing line stood
  each_line(system_text, [&](std::string_view line) {
    const Verdict verdict = result.lines_given_up < kMaxGivenUp ? judge(impl_->rules, line, matcher) : Verdict::stable;
    const bool changes = verdict == Verdict::move || verdict == Verdict::drop;
    if (changes && !first) first = static_cast<size_t>(line.data() - system_text.data());
    if (verdict == Verdict::given_up) ++result.lines_given_up;
    if (verdict == Verdict::drop) ++result.lines_dropped;
    if (verdict == Verdict::move) ++result.lines_moved;
    if (verdict != Verdict::drop) (verdict == Verdict::move ? moved : stable).append(line).append(1, '\n');
  });
  if (first) {
    result.stable_begin = *first;
    result.stable_bytes = stable.size() - *first;
  }
  result.text = stable + moved;
  if (!ends_line && !result.text.empty()) result.text.pop_back();
  return result;
}

}  // namespace kvarto
