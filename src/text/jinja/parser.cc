#include "text/jinja/parser.h"

#include <charconv>
#include <cstdlib>

#include "text/jinja/builtins.h"
#include "text/jinja/parser_state.h"

namespace kvarto::jinja {

Token Parser::take() {
  Token t = now();
  if (at_ + 1 < tokens_.size()) ++at_;
  return t;
}

bool Parser::is_any_word(Words words) const {
  for (std::string_view w : words) {
    if (is_word(w)) return true;
  }
  return false;
}

bool Parser::skip_op(std::string_view op) {
  bool found = is_op(op);
  if (found) take();
  return found;
}

bool Parser::skip_word(std::string_view word) {
  bool found = is_word(word);
  if (found) take();
  return found;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail("expected '" + std::string(op) + "', got " + describe(now()));
}

void Parser::expect_word(std::string_view word) {
  if (!skip_word(word)) fail("expected '" + std::string(word) + "', got " + describe(now()));
}

void Parser::expect(TokenKind kind, std::string_view what) {
  if (now().kind != kind) fail("expected " + std::string(what) + ", got " + describe(now()));
  take();
}

const Text* Parser::expect_name() {
  if (now().kind != TokenKind::name) fail("expected a name, got " + describe(now()));
  return text(take().text);
}

Expr* Parser::make(ExprKind kind, int line, Expr* a, Expr* b) {
  tree_->exprs.push_back(std::make_unique<Expr>(Expr{.kind = kind, .line = line, .a = a, .b = b}));
  return tree_->exprs.back().get();
}

Stmt* Parser::make(StmtKind kind, int line) {
  tree_->stmts.push_back(std::make_unique<Stmt>(Stmt{.kind = kind, .line = line}));
  return tree_->stmts.back().get();
}

const Text* Parser::text(std::string s) {
  tree_->texts.push_back(std::make_unique<Text>(std::move(s)));
  return tree_->texts.back().get();
}

Expr* Parser::constant(Value v, int line) {
  Expr* e = make(ExprKind::constant, line);
  e->value = v;
  return e;
}

Expr* Parser::expression(bool conditional) {
  Nesting nesting(*this);
  int line = now().line;
  Expr* e = logical_or();
  while (conditional && skip_word("if")) {
    Expr* test = logical_or();
    Expr* otherwise = skip_word("else") ? expression() : nullptr;
    e = make(ExprKind::conditional, line, test, e);
    e->c = otherwise;
  }
  return e;
}

Expr* Parser::tuple(bool conditional, Words ends, bool parentheses) {
  int line = now().line;
  std::vector<Expr*> items;
  bool comma = false;
  while (true) {
    bool end = now().kind == TokenKind::variable_end || now().kind == TokenKind::block_end || is_op(")");
    if (end || is_any_word(ends)) break;
    items.push_back(expression(conditional));
    if (!skip_op(",")) break;
    comma = true;
  }
  if (!comma && !items.empty()) return items[0];
  if (!comma && !parentheses) fail("expected an expression, got " + describe(now()));
  Expr* e = make(ExprKind::tuple, line);
  e->items = std::move(items);
  return e;
}

Expr* Parser::logical_or() {
  int line = now().line;
  Expr* e = logical_and();
  while (skip_word("or")) e = make(ExprKind::logical_or, line, e, logical_and());
  return e;
}

Expr* Parser::logical_and() {
  int line = now().line;
  Expr* e = logical_not();
  while (skip_word("and")) e = make(ExprKind::logical_and, line, e, logical_not());
  return e;
}

Expr* Parser::logical_not() {
  Nesting nesting(*this);
  int line = now().line;
  if (skip_word("not")) return make(ExprKind::logical_not, line, logical_not());
  return comparison();
}

Expr* Parser::comparison() {
  int line = now().line;
  Expr* first = sum();
  Expr* e = nullptr;
  while (true) {
    std::string_view op;
    for (std::string_view known : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_op(known)) op = known;
    }
    if (op.empty() && is_word("in")) op = "in";
    if (op.empty() && is_word("not") && ahead().kind == TokenKind::name && ahead().text == "in") {
      take();
      op = "not in";
    }
    if (op.empty()) return e ? e : first;
    take();
    if (!e) e = make(ExprKind::compare, line, first);
    e->ops.push_back(op);
    e->items.push_back(sum());
  }
}

Expr* Parser::sum() {
  int line = now().line;
  Expr* e = concat();
  while (is_op("+") || is_op("-")) {
    std::string_view op = take().text == "+" ? "+" : "-";
    e = make(ExprKind::binary, line, e, concat());
    e->op = op;
  }
  return e;
}

Expr* Parser::concat() {
  int line = now().line;
  Expr* e = product();
  if (!is_op("~")) return e;
  Expr* all = make(ExprKind::concat, line);
  all->items.push_back(e);
  while (skip_op("~")) all->items.push_back(product());
  return all;
}

Expr* Parser::product() {
  int line = now().line;
  Expr* e = power();
  while (true) {
    std::string_view op;
    for (std::string_view known : {"*", "/", "//", "%"}) {
      if (is_op(known)) op = known;
    }
    if (op.empty()) return e;
    take();
    e = make(ExprKind::binary, line, e, power());
    e->op = op;
  }
}

Expr* Parser::power() {
  int line = now().line;
  Expr* e = unary();
  while (skip_op("**")) {
    e = make(ExprKind::binary, line, e, unary());
    e->op = "**";
  }
  return e;
}

Expr* Parser::unary(bool with_filters) {
  Nesting nesting(*this);
  int line = now().line;
  Expr* e;
  if (skip_op("-")) {
    e = make(ExprKind::negate, line, unary(false));
  } else if (skip_op("+")) {
    e = make(ExprKind::plus, line, unary(false));
  } else {
    e = primary();
  }
  e = postfix(e);
  return with_filters ? filters_and_tests(e) : e;
}

Expr* Parser::primary() {
  int line = now().line;
  if (now().kind == TokenKind::name) {
    std::string name = take().text;
    if (name == "true" || name == "True") return constant(Value::of(true), line);
    if (name == "false" || name == "False") return constant(Value::of(false), line);
    if (name == "none" || name == "None") return constant(Value::none(), line);
    if (macro_) {
      macro_->takes_caller |= name == "caller";
      macro_->takes_varargs |= name == "varargs";
      macro_->takes_kwargs |= name == "kwargs";
    }
    Expr* e = make(ExprKind::name, line);
    e->name = text(std::move(name));
    return e;
  }
  if (now().kind == TokenKind::string) {
    std::string joined;
    while (now().kind == TokenKind::string) joined += take().text;
    return constant(Value::of(text(std::move(joined))), line);
  }
  if (now().kind == TokenKind::integer || now().kind == TokenKind::real) return number();
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  if (!skip_op("(")) fail("expected an expression, got " + describe(now()));
  Expr* e = tuple(true, {}, true);
  expect_op(")");
  return e;
}

Expr* Parser::number() {
  Token t = take();
  if (t.kind == TokenKind::real) return constant(Value::of(std::strtod(t.text.c_str(), nullptr)), t.line);
  int base = 10;
  std::string_view digits = t.text;
  if (digits.size() > 1 && digits[0] == '0' && !std::isdigit(static_cast<unsigned char>(digits[1]))) {
    char mark = static_cast<char>(std::tolower(static_cast<unsigned char>(digits[1])));
    base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    fail_at(t.line, "the number " + t.text + " is not a 64-bit integer");
  }
  return constant(Value::of(value), t.line);
}

Expr* Parser::list() {
  Expr* e = make(ExprKind::list, take().line);
  while (!is_op("]")) {
    e->items.push_back(expression());
    if (!is_op("]")) expect_op(",");
  }
  take();
  return e;
}

Expr* Parser::dict() {
  Expr* e = make(ExprKind::dict, take().line);
  while (!is_op("}")) {
    e->items.push_back(expression());
    expect_op(":");
    e->items.push_back(expression());
    if (!is_op("}")) expect_op(",");
  }
  take();
  return e;
}

Expr* Parser::postfix(Expr* e) {
  while (true) {
    int line = now().line;
    if (skip_op(".")) {
      if (now().kind == TokenKind::name) {
        e = make(ExprKind::attribute, line, e);
        e->name = expect_name();
      } else if (now().kind == TokenKind::integer) {
        e = make(ExprKind::item, line, e, number());
      } else {
        fail("expected a name or number after '.', got " + describe(now()));
      }
    } else if (skip_op("[")) {
      e = subscript(e, line);
    } else if (is_op("(")) {
      Expr* call = make(ExprKind::call, line, e);
      call->args = call_args();
      e = call;
    } else {
      return e;
    }
  }
}

Expr* Parser::subscript(Expr* object, int line) {
  Expr* parts[3] = {nullptr, nullptr, nullptr};
  bool slice = false;
  for (int i = 0; i < 3; ++i) {
    if (!is_op(":") && !is_op("]")) parts[i] = expression();
    if (i == 2 || !is_op(":")) break;
    take();
    slice = true;
  }
  expect_op("]");
  if (!slice && !parts[0]) fail_at(line, "expected an expression between '[' and ']'");
  if (!slice) return make(ExprKind::item, line, object, parts[0]);
  Expr* e = make(ExprKind::slice, line, object);
  e->items = {parts[0], parts[1], parts[2]};
  return e;
}

CallArgs Parser::call_args() {
  CallArgs args;
  expect_op("(");
  while (!is_op(")")) {
    if (is_op("*") || is_op("**")) fail("expected an argument: calls with '*' and '**' are not supported");
    if (now().kind == TokenKind::name && ahead().kind == TokenKind::op && ahead().text == "=") {
      const Text* name = expect_name();
      take();
      args.named.emplace_back(name, expression());
    } else {
      if (!args.named.empty()) fail("expected a named argument after the named ones, got " + describe(now()));
      args.positional.push_back(expression());
    }
    if (!is_op(")")) expect_op(",");
  }
  take();
  return args;
}

Expr* Parser::filters_and_tests(Expr* e) {
  while (true) {
    if (skip_op("|")) {
      e = filter(e);
    } else if (is_word("is")) {
      e = predicate(e);
    } else if (is_op("(")) {
      Expr* call = make(ExprKind::call, now().line, e);
      call->args = call_args();
      e = call;
    } else {
      return e;
    }
  }
}

Expr* Parser::filter(Expr* e) {
  int line = now().line;
  Expr* f = make(ExprKind::filter, line, e);
  f->name = expect_name();
  f->native = find_filter(f->name->bytes);
  if (!f->native && branches_ == 0) fail_at(line, "no filter named '" + f->name->bytes + "'");
  if (is_op("(")) f->args = call_args();
  return f;
}

Expr* Parser::predicate(Expr* e) {
  int line = take().line;
  bool negated = skip_word("not");
  Expr* p = make(ExprKind::predicate, line, e);
  p->name = expect_name();
  p->native = find_predicate(p->name->bytes);
  if (!p->native && branches_ == 0) fail_at(line, "no test named '" + p->name->bytes + "'");
  TokenKind next = now().kind;
  bool operand = next == TokenKind::string || next == TokenKind::integer || next == TokenKind::real || is_op("[") ||
                 is_op("{") || (next == TokenKind::name && !is_any_word({"else", "or", "and"}));
  if (is_op("(")) {
    p->args = call_args();
  } else if (operand) {
    if (is_word("is")) fail("tests with 'is' cannot be chained");
    p->args.positional.push_back(postfix(primary()));
  }
  return negated ? make(ExprKind::logical_not, line, p) : p;
}

std::unique_ptr<const Tree> Parser::run() {
  tree_->body = statements({});
  if (now().kind != TokenKind::end) fail("unexpected " + describe(now()));
  return std::move(tree_);
}

std::unique_ptr<const Tree> parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace kvarto::jinja
