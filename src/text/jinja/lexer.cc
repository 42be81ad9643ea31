#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace kvarto::jinja {
namespace {

constexpr size_t kNpos = std::string_view::npos;

// As Jinja does: every line end becomes \n, and one at the very end of the text is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_name_char(char c) {
  auto u = static_cast<unsigned char>(c);
  return std::isalnum(u) || c == '_' || u >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}
  std::vector<Token> run();

 private:
  [[noreturn]] void fail(const std::string& what) const { throw JinjaError(line_, what); }
  bool at(std::string_view s) const { return std::string_view(text_).substr(pos_, s.size()) == s; }
  void advance(size_t to);
  void skip_space();
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void data(size_t end, char sign, bool before_variable);
  void comment();
  bool raw(size_t tag_end);
  void tag(bool variable);
  bool close_tag(bool variable);
  void expression_token(std::vector<char>& open);
  void string_token();
  void number_token();
  std::string unescape(std::string_view body) const;

  std::string text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a newline
  std::vector<Token> tokens_;
};

void Lexer::advance(size_t to) {
  line_ += static_cast<int>(
      std::count(text_.begin() + static_cast<ptrdiff_t>(pos_), text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
  pos_ = to;
}

void Lexer::skip_space() {
  size_t p = pos_;
  while (p < text_.size()) {
    size_t next = p;
    if (!is_space(decode_at(text_, next))) break;
    p = next;
  }
  advance(p);
}

// Emits the text up to `end`, where a tag with that sign begins, and steps to `end`.
void Lexer::data(size_t end, char sign, bool before_variable) {
  std::string_view text = std::string_view(text_).substr(pos_, end - pos_);
  if (sign == '-') {
    text = strip(text, false, true);
  } else if (sign != '+' && !before_variable) {
    size_t newline = text.rfind('\n');
    size_t line_begin = newline == kNpos ? 0 : newline + 1;
    if ((line_begin > 0 || line_starting_) && strip(text.substr(line_begin), true, false).empty()) {
      text = text.substr(0, line_begin);
    }
  }
  if (!text.empty()) push(TokenKind::data, std::string(text));
  advance(end);
}

void Lexer::comment() {
  size_t begin = pos_;
  size_t close = text_.find("#}", begin);
  if (close == kNpos) fail("missing '#}', the end of the comment");
  bool minus = close > begin && text_[close - 1] == '-';
  bool plus = close > begin && text_[close - 1] == '+';
  advance(close + 2);
  if (minus) {
    skip_space();
  } else if (!plus && at("\n")) {
    advance(pos_ + 1);
  }
}

// Whether the block tag whose inside begins at `tag_end` is {% raw %}; then everything up to {% endraw %} is text.
bool Lexer::raw(size_t tag_end) {
  auto word = [&](size_t from, std::string_view name) {
    while (from < text_.size() && std::isspace(static_cast<unsigned char>(text_[from]))) ++from;
    if (std::string_view(text_).substr(from, name.size()) != name) return kNpos;
    from += name.size();
    while (from < text_.size() && std::isspace(static_cast<unsigned char>(text_[from]))) ++from;
    return from;
  };
  size_t end = word(tag_end, "raw");
  if (end == kNpos) return false;
  bool minus = text_.compare(end, 3, "-%}") == 0;
  if (!minus && text_.compare(end, 2, "%}") != 0) return false;
  advance(end + (minus ? 3 : 2));
  if (minus) skip_space();
  line_starting_ = text_[pos_ - 1] == '\n';
  for (size_t open = text_.find("{%", pos_); open != kNpos; open = text_.find("{%", open + 2)) {
    char sign = open + 2 < text_.size() && (text_[open + 2] == '-' || text_[open + 2] == '+') ? text_[open + 2] : 0;
    size_t close = word(open + (sign ? 3 : 2), "endraw");
    if (close == kNpos) continue;
    char mark = text_.compare(close, 3, "-%}") == 0 ? '-' : text_.compare(close, 3, "+%}") == 0 ? '+' : 0;
    if (!mark && text_.compare(close, 2, "%}") != 0) continue;
    data(open, sign, false);
    advance(close + (mark ? 3 : 2));
    if (mark == '-') skip_space();
    if (!mark && at("\n")) advance(pos_ + 1);
    return true;
  }
  fail("missing '{% endraw %}', the end of the raw block");
}

bool Lexer::close_tag(bool variable) {
  std::string_view close = variable ? "}}" : "%}";
  bool mark = at(variable ? "-}}" : "-%}");
  bool plus = !variable && at("+%}");
  if (!mark && !plus && !at(close)) return false;
  push(variable ? TokenKind::variable_end : TokenKind::block_end, std::string(close));
  advance(pos_ + (mark || plus ? 3 : 2));
  if (mark) {
    skip_space();
  } else if (!variable && !plus && at("\n")) {
    advance(pos_ + 1);
  }
  return true;
}

void Lexer::tag(bool variable) {
  int begin_line = line_;
  std::vector<char> open;
  while (true) {
    if (open.empty() && close_tag(variable)) return;
    size_t before = pos_;
    skip_space();
    if (pos_ != before) continue;
    if (pos_ >= text_.size()) {
      fail(std::string("the template ends inside a tag that begins in line ") + std::to_string(begin_line) +
           ", expected '" + (open.empty() ? (variable ? "}}" : "%}") : std::string(1, open.back())) + "'");
    }
    expression_token(open);
  }
}

void Lexer::expression_token(std::vector<char>& open) {
  char c = text_[pos_];
  if (is_digit(c)) return number_token();
  if (c == '\'' || c == '"') return string_token();
  if (is_name_char(c)) {
    size_t end = pos_;
    while (end < text_.size() && is_name_char(text_[end])) ++end;
    push(TokenKind::name, text_.substr(pos_, end - pos_));
    return advance(end);
  }
  for (std::string_view two : {"**", "//", "==", "!=", ">=", "<="}) {
    if (at(two)) {
      push(TokenKind::op, std::string(two));
      return advance(pos_ + 2);
    }
  }
  if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == kNpos) {
    size_t end = pos_;
    decode_at(text_, end);
    fail("unexpected character '" + text_.substr(pos_, end - pos_) + "'");
  }
  if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  if (c == ')' || c == ']' || c == '}') {
    if (open.empty()) fail(std::string("unexpected '") + c + "'");
    if (open.back() != c) fail(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
    open.pop_back();
  }
  push(TokenKind::op, std::string(1, c));
  advance(pos_ + 1);
}

void Lexer::number_token() {
  size_t p = pos_;
  auto digits = [&](size_t from) {
    while (from < text_.size() &&
           (is_digit(text_[from]) || (text_[from] == '_' && from + 1 < text_.size() && is_digit(text_[from + 1])))) {
      ++from;
    }
    return from;
  };
  bool real = false;
  if (text_[p] == '0' && p + 1 < text_.size() && std::string_view("xXoObB").find(text_[p + 1]) != kNpos) {
    p += 2;
    while (p < text_.size() && (std::isxdigit(static_cast<unsigned char>(text_[p])) || text_[p] == '_')) ++p;
  } else {
    p = digits(p);
    bool after_dot = pos_ > 0 && text_[pos_ - 1] == '.';  // x.0.1 is two look-ups
    if (!after_dot && p + 1 < text_.size() && text_[p] == '.' && is_digit(text_[p + 1])) {
      real = true;
      p = digits(p + 1);
    }
    if (!after_dot && p < text_.size() && (text_[p] == 'e' || text_[p] == 'E')) {
      size_t e = p + 1;
      if (e < text_.size() && (text_[e] == '+' || text_[e] == '-')) ++e;
      if (e < text_.size() && is_digit(text_[e])) {
        real = true;
        p = digits(e);
      }
    }
  }
  std::string number = text_.substr(pos_, p - pos_);
  std::erase(number, '_');
  push(real ? TokenKind::real : TokenKind::integer, number);
  advance(p);
}

void Lexer::string_token() {
  char quote = text_[pos_];
  size_t end = pos_ + 1;
  while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) fail(std::string("the string that begins here has no closing ") + quote);
  push(TokenKind::string, unescape(std::string_view(text_).substr(pos_ + 1, end - pos_ - 1)));
  advance(end + 1);
}

// The escapes of Python's string literals; an unknown one stays as it is.
std::string Lexer::unescape(std::string_view body) const {
  std::string out;
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      out += body[i];
      continue;
    }
    char c = body[++i];
    constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    if (c == '\n') continue;
    if (size_t known = kFrom.find(c); known != kNpos) {
      out += kTo[known];
      continue;
    }
    size_t want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : c >= '0' && c <= '7' ? 3 : 0;
    int base = want == 3 ? 8 : 16;
    size_t begin = want == 3 ? i : i + 1, end = begin;
    auto is_part = [&](char d) {
      return base == 8 ? d >= '0' && d <= '7' : std::isxdigit(static_cast<unsigned char>(d));
    };
    while (end < body.size() && end < begin + want && is_part(body[end])) ++end;
    if (want == 0) {
      out += {'\\', c};
      continue;
    }
    if (base == 16 && end != begin + want) fail(std::string("truncated \\") + c + " escape in a string");
    auto point = static_cast<char32_t>(std::stoul(std::string(body.substr(begin, end - begin)), nullptr, base));
    append_code_point(out, point >= 0xD800 && point < 0xE000 ? 0xFFFD : point);
    i = end - 1;
  }
  return out;
}

std::vector<Token> Lexer::run() {
  while (pos_ < text_.size()) {
    size_t open = text_.find('{', pos_);
    while (open != kNpos && (open + 1 >= text_.size() || std::string_view("{%#").find(text_[open + 1]) == kNpos)) {
      open = text_.find('{', open + 1);
    }
    if (open == kNpos) {
      push(TokenKind::data, text_.substr(pos_));
      advance(text_.size());
      break;
    }
    char kind = text_[open + 1];
    size_t inside = open + 2;
    char sign = inside < text_.size() && (text_[inside] == '-' || text_[inside] == '+') ? text_[inside] : 0;
    if (sign) ++inside;
    data(open, sign, kind == '{');
    if (kind == '#') {
      advance(inside);
      comment();
    } else if (kind == '{') {
      push(TokenKind::variable_begin, "{{");
      advance(inside);
      tag(true);
    } else if (!raw(inside)) {
      push(TokenKind::block_begin, "{%");
      advance(inside);
      tag(false);
    }
    line_starting_ = text_[pos_ - 1] == '\n';
  }
  push(TokenKind::end, "");
  return std::move(tokens_);
}

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
      return "plain text";
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::string:
      return "a string";
    default:
      return "'" + token.text + "'";
  }
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalize_newlines(source)).run(); }

}  // namespace kvarto::jinja
