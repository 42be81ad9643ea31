// Statements: what stands in {% %}.
#include <utility>

#include "text/jinja/parser_state.h"

namespace kvarto::jinja {

Block Parser::body_until(Words ends) {
  skip_op(":");
  expect(TokenKind::block_end, "'%}'");
  return statements(ends);
}

Block Parser::statements(Words ends) {
  Nesting nesting(*this);
  Block out;
  while (true) {
    int line = now().line;
    switch (now().kind) {
      case TokenKind::data: {
        Stmt* s = make(StmtKind::data, line);
        s->text = text(take().text);
        out.push_back(s);
        break;
      }
      case TokenKind::variable_begin: {
        take();
        Stmt* s = make(StmtKind::output, line);
        s->expr = tuple(true);
        expect(TokenKind::variable_end, "'}}'");
        out.push_back(s);
        break;
      }
      case TokenKind::block_begin:
        take();
        if (is_any_word(ends)) return out;
        if (now().kind != TokenKind::name) fail("expected the name of a tag, got " + describe(now()));
        statement(out);
        expect(TokenKind::block_end, "'%}'");
        break;
      default:
        if (ends.size() == 0) return out;
        std::string wanted;
        for (std::string_view w : ends) wanted += (wanted.empty() ? "'" : " or '") + std::string(w) + "'";
        fail("the template ends, expected " + wanted);
    }
  }
}

void Parser::statement(Block& out) {
  Token tag = take();
  if (tag.text == "if") return out.push_back(parse_if(tag.line));
  if (tag.text == "for") return out.push_back(parse_for(tag.line));
  if (tag.text == "set") return out.push_back(parse_set(tag.line));
  if (tag.text == "macro") return out.push_back(parse_macro(tag.line));
  if (tag.text == "call") return out.push_back(parse_call(tag.line));
  if (tag.text == "filter") return out.push_back(parse_filter(tag.line));
  if (tag.text == "with") return out.push_back(parse_with(tag.line));
  if (tag.text == "generation") {
    Stmt* s = make(StmtKind::group, tag.line);
    s->body = body_until({"endgeneration"});
    take();
    return out.push_back(s);
  }
  bool jump = tag.text == "break" || tag.text == "continue";
  if (jump && loops_ > 0) {
    return out.push_back(make(tag.text == "break" ? StmtKind::break_loop : StmtKind::continue_loop, tag.line));
  }
  fail_at(tag.line, jump ? "'" + tag.text + "' outside of a for loop"
                         : "unknown tag '" + tag.text +
                               "', expected if, for, set, macro, call, filter, with, generation" +
                               " or the end of an open block");
}

Stmt* Parser::parse_if(int line) {
  Stmt* s = make(StmtKind::branch, line);
  ++branches_;
  while (true) {
    Expr* test = tuple(false);
    Block body = body_until({"elif", "else", "endif"});
    s->branches.emplace_back(test, std::move(body));
    std::string word = take().text;
    if (word == "elif") continue;
    if (word == "else") {
      s->other = body_until({"endif"});
      take();
    }
    --branches_;
    return s;
  }
}

Stmt* Parser::parse_for(int line) {
  Stmt* s = make(StmtKind::loop, line);
  s->target = target({"in"}, false);
  expect_word("in");
  s->expr = tuple(false, {"recursive"});
  if (skip_word("if")) s->condition = expression();
  if (is_word("recursive")) fail("expected '%}': recursive loops are not supported");
  ++loops_;
  s->body = body_until({"endfor", "else"});
  --loops_;
  if (take().text == "else") {
    s->other = body_until({"endfor"});
    take();
  }
  return s;
}

Stmt* Parser::parse_set(int line) {
  Expr* to = target({}, true);
  if (skip_op("=")) {
    Stmt* s = make(StmtKind::set, line);
    s->target = to;
    s->expr = tuple(true);
    return s;
  }
  Stmt* s = make(StmtKind::set_block, line);
  s->target = to;
  while (skip_op("|")) s->filters.push_back(filter(nullptr));
  if (now().kind != TokenKind::block_end) fail("expected '=' or '%}', got " + describe(now()));
  s->body = body_until({"endset"});
  take();
  return s;
}

Expr* Parser::target(Words ends, bool attribute) {
  int line = now().line;
  if (attribute && ahead().kind == TokenKind::op && ahead().text == ".") {
    Expr* space = make(ExprKind::name, line);
    space->name = expect_name();
    take();
    Expr* e = make(ExprKind::attribute, line, space);
    e->name = expect_name();
    return e;
  }
  std::vector<Expr*> items;
  bool many = false;
  while (!is_any_word(ends) && !is_op("=") && !is_op(")") && now().kind != TokenKind::block_end) {
    Nesting nesting(*this);
    if (skip_op("(")) {
      items.push_back(target({}, false));
      expect_op(")");
    } else {
      Expr* e = make(ExprKind::name, now().line);
      e->name = expect_name();
      for (std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
        if (e->name->bytes == reserved) fail_at(e->line, "cannot assign to '" + e->name->bytes + "'");
      }
      items.push_back(e);
    }
    if (!skip_op(",")) break;
    many = true;
  }
  if (items.empty()) fail("expected a name, got " + describe(now()));
  if (!many) return items[0];
  Expr* e = make(ExprKind::tuple, line);
  e->items = std::move(items);
  return e;
}

void Parser::signature(Stmt* macro) {
  expect_op("(");
  while (!is_op(")")) {
    const Text* name = expect_name();
    Expr* otherwise = skip_op("=") ? expression() : nullptr;
    if (!otherwise && !macro->parameters.empty() && macro->parameters.back().otherwise) {
      fail("expected a default for '" + name->bytes + "', as for the parameter before it");
    }
    macro->parameters.push_back({name, otherwise});
    if (!is_op(")")) expect_op(",");
  }
  take();
}

void Parser::macro_body(Stmt* macro, std::string_view end) {
  Stmt* outer = std::exchange(macro_, macro);
  int loops = std::exchange(loops_, 0);
  macro->body = body_until({end});
  take();
  loops_ = loops;
  macro_ = outer;
}

Stmt* Parser::parse_macro(int line) {
  Stmt* s = make(StmtKind::macro, line);
  s->text = expect_name();
  signature(s);
  macro_body(s, "endmacro");
  return s;
}

Stmt* Parser::parse_call(int line) {
  Stmt* s = make(StmtKind::call_block, line);
  s->text = text("caller");
  if (is_op("(")) signature(s);
  s->expr = expression();
  if (s->expr->kind != ExprKind::call) fail_at(line, "expected a call of a macro after 'call'");
  macro_body(s, "endcall");
  return s;
}

Stmt* Parser::parse_filter(int line) {
  Stmt* s = make(StmtKind::filter_block, line);
  do s->filters.push_back(filter(nullptr));
  while (skip_op("|"));
  s->body = body_until({"endfilter"});
  take();
  return s;
}

Stmt* Parser::parse_with(int line) {
  Stmt* s = make(StmtKind::with, line);
  while (now().kind != TokenKind::block_end) {
    Expr* to = target({}, false);
    expect_op("=");
    s->assignments.emplace_back(to, expression());
    if (now().kind != TokenKind::block_end) expect_op(",");
  }
  s->body = body_until({"endwith"});
  take();
  return s;
}

}  // namespace kvarto::jinja
