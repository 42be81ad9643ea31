// The parser itself, shared by its two files: tokens and expressions (parser.cc), statements (statements.cc). Lives for
// one call of parse().
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace kvarto::jinja {

constexpr int kMaxNesting = 200;  // of brackets and blocks

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  std::unique_ptr<const Tree> run();

 private:
  // Tokens.
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is_op(std::string_view op) const { return now().kind == TokenKind::op && now().text == op; }
  bool is_word(std::string_view word) const { return now().kind == TokenKind::name && now().text == word; }
  bool is_any_word(Words words) const;
  bool skip_op(std::string_view op);
  bool skip_word(std::string_view word);
  void expect_op(std::string_view op);
  void expect_word(std::string_view word);
  void expect(TokenKind kind, std::string_view what);
  const Text* expect_name();
  [[noreturn]] void fail(const std::string& what) const { throw JinjaError(now().line, what); }
  [[noreturn]] void fail_at(int line, const std::string& what) const { throw JinjaError(line, what); }

  // Nodes.
  Expr* make(ExprKind kind, int line, Expr* a = nullptr, Expr* b = nullptr);
  Stmt* make(StmtKind kind, int line);
  const Text* text(std::string s);
  Expr* constant(Value v, int line);

  // Expressions, loosest first.
  Expr* expression(bool conditional = true);
  Expr* tuple(bool conditional, Words ends = {}, bool parentheses = false);
  Expr* logical_or();
  Expr* logical_and();
  Expr* logical_not();
  Expr* comparison();
  Expr* sum();
  Expr* concat();
  Expr* product();
  Expr* power();
  Expr* unary(bool with_filters = true);
  Expr* primary();
  Expr* number();
  Expr* list();
  Expr* dict();
  Expr* postfix(Expr* e);
  Expr* filters_and_tests(Expr* e);
  Expr* filter(Expr* e);
  Expr* predicate(Expr* e);
  Expr* subscript(Expr* object, int line);
  CallArgs call_args();

  // Statements.
  Block statements(Words ends);
  Block body_until(Words ends);  // after a tag's own words: '%}' and the block
  void statement(Block& out);
  Stmt* parse_if(int line);
  Stmt* parse_for(int line);
  Stmt* parse_set(int line);
  Stmt* parse_macro(int line);
  Stmt* parse_call(int line);
  Stmt* parse_filter(int line);
  Stmt* parse_with(int line);
  Expr* target(Words ends, bool attribute);
  void signature(Stmt* macro);
  void macro_body(Stmt* macro, std::string_view end);

  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxNesting) parser.fail("nested deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    ~Nesting() { --parser.depth_; }
    Parser& parser;
  };

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int branches_ = 0;  // `if` blocks around: a name unknown there is an error only when it is reached
  int loops_ = 0;
  Stmt* macro_ = nullptr;
  std::unique_ptr<Tree> tree_ = std::make_unique<Tree>();
};

}  // namespace kvarto::jinja
