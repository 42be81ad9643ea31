// The tree of a parsed template. Nodes and constants are owned flat by Tree, so a deep tree is freed without recursion.
// Immutable after parse; any thread may read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace kvarto::jinja {

struct Expr;

struct CallArgs {
  std::vector<Expr*> positional;
  std::vector<std::pair<const Text*, Expr*>> named;
};

enum class ExprKind {
  constant,     // value
  name,         // name
  list,         // items
  tuple,        // items
  dict,         // items: key, value, key, value, ...
  negate,       // a
  plus,         // a
  binary,       // a op b
  concat,       // items, joined by ~
  logical_and,  // a, b
  logical_or,   // a, b
  logical_not,  // a
  compare,      // a, then ops[i] items[i]
  conditional,  // b if a else c (c may be null)
  attribute,    // a.name
  item,         // a[b]
  slice,        // a[items[0]:items[1]:items[2]], each may be null
  call,         // a(args)
  filter,       // a | native(args)
  predicate,    // a is native(args)
};

struct Expr {
  ExprKind kind;
  int line;
  Expr* a = nullptr;
  Expr* b = nullptr;
  Expr* c = nullptr;
  const Text* name = nullptr;
  const Native* native = nullptr;
  Value value = {};
  std::string_view op = {};
  std::vector<Expr*> items = {};
  std::vector<std::string_view> ops = {};
  CallArgs args = {};
};

using Block = std::vector<Stmt*>;

enum class StmtKind {
  data,          // text
  output,        // expr
  branch,        // branches, other
  loop,          // target in expr [if condition]: body, other
  set,           // target = expr
  set_block,     // target = body, through filters
  macro,         // name(parameters): body
  call_block,    // expr is the call; parameters and body are its caller
  filter_block,  // body, through filters
  with,          // assignments; body
  group,         // body in a scope of its own (generation)
  break_loop,
  continue_loop,
};

struct Parameter {
  const Text* name;
  Expr* otherwise;  // default, or null
};

struct Stmt {
  StmtKind kind;
  int line;
  const Text* text = nullptr;  // data: the text; macro: its name
  Expr* expr = nullptr;
  Expr* target = nullptr;  // name, tuple of targets, or attribute of a namespace
  Expr* condition = nullptr;
  std::vector<std::pair<Expr*, Block>> branches = {};
  std::vector<std::pair<Expr*, Expr*>> assignments = {};
  std::vector<Parameter> parameters = {};
  std::vector<Expr*> filters = {};  // filter nodes whose `a` is null at the innermost
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;  // the macro's body uses these names
  Block body = {};
  Block other = {};
};

struct Tree {
  Block body;
  std::vector<std::unique_ptr<Expr>> exprs;
  std::vector<std::unique_ptr<Stmt>> stmts;
  std::vector<std::unique_ptr<Text>> texts;
};

}  // namespace kvarto::jinja
