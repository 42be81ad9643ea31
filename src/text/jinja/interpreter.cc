#include "text/jinja/interpreter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/jinja/builtins.h"

namespace kvarto::jinja {
namespace {

enum class Flow { next, leave_loop, next_round };

class Interpreter {
 public:
  explicit Interpreter(Runtime& rt) : rt_(rt) {}
  std::string run(const Tree& tree, const nlohmann::ordered_json& context);

 private:
  // Counts a node: its step, its depth, its line.
  struct Enter {
    Enter(Runtime& rt, int line) : rt(rt) {
      rt.line = line;
      rt.charge(1);
      if (++rt.depth > rt.options.limits.node_depth) {
        --rt.depth;
        rt.error("expressions are nested deeper than " + std::to_string(rt.options.limits.node_depth) + " levels");
      }
    }
    ~Enter() { --rt.depth; }
    Runtime& rt;
  };
  // A block's own names.
  struct Inner {
    Inner(Runtime& rt, Scope* parent) : rt(rt), scope(rt.scope(parent)) {}
    ~Inner() { rt.release(scope); }
    Runtime& rt;
    Scope* scope;
  };

  Flow exec(const Block& block, Scope* scope);
  Flow exec(const Stmt& s, Scope* scope);
  Flow exec_branch(const Stmt& s, Scope* scope);
  Flow exec_loop(const Stmt& s, Scope* scope);
  Flow exec_with(const Stmt& s, Scope* scope);
  void exec_set_block(const Stmt& s, Scope* scope);
  void define_macro(const Stmt& s, Scope* scope);
  Value closure(const Stmt& s, Scope* scope);
  void assign(const Expr& target, Value v, Scope* scope);
  void emit(std::string_view s);
  Value capture(const Block& block, Scope* scope);
  Value through(const std::vector<Expr*>& filters, Value v, Scope* scope);

  Value eval(const Expr& e, Scope* scope);
  Value eval_name(const Expr& e, Scope* scope);
  Value eval_items(const Expr& e, Scope* scope);
  Value eval_dict(const Expr& e, Scope* scope);
  Value eval_binary(const Expr& e, Scope* scope);
  Value eval_sign(const Expr& e, Scope* scope);
  Value eval_concat(const Expr& e, Scope* scope);
  Value eval_compare(const Expr& e, Scope* scope);
  Value eval_slice(const Expr& e, Scope* scope);
  Value eval_filter(const Expr& e, Value self, Scope* scope);
  Value eval_predicate(const Expr& e, Scope* scope);
  Value eval_call(const Expr& e, Scope* scope, Value caller);
  Args eval_args(const CallArgs& args, Scope* scope);
  Value call(Value f, Args args, int line);
  Value call_macro(const Stmt& macro, Scope* defined_in, const Args& args);
  void bind_parameters(const Stmt& macro, const Args& args, Scope* scope);

  Runtime& rt_;
  std::string* out_ = nullptr;
};

void Interpreter::emit(std::string_view s) {
  if (s.size() > rt_.options.limits.output_bytes - out_->size()) {
    rt_.error("the rendered text is longer than " + std::to_string(rt_.options.limits.output_bytes) + " bytes");
  }
  rt_.charge_scan(s.size());
  rt_.charge_memory(s.size());
  *out_ += s;
}

Flow Interpreter::exec(const Block& block, Scope* scope) {
  for (const Stmt* s : block) {
    Flow flow = exec(*s, scope);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Flow Interpreter::exec(const Stmt& s, Scope* scope) {
  Enter enter(rt_, s.line);
  switch (s.kind) {
    case StmtKind::data:
      emit(s.text->bytes);
      break;
    case StmtKind::output: {
      Value v = eval(*s.expr, scope);
      v.is(Kind::string) ? emit(v.str()) : emit(str_of(rt_, v));
      break;
    }
    case StmtKind::branch:
      return exec_branch(s, scope);
    case StmtKind::loop:
      return exec_loop(s, scope);
    case StmtKind::set:
      assign(*s.target, eval(*s.expr, scope), scope);
      break;
    case StmtKind::set_block:
      exec_set_block(s, scope);
      break;
    case StmtKind::macro:
      define_macro(s, scope);
      break;
    case StmtKind::call_block:
      emit(str_of(rt_, eval_call(*s.expr, scope, closure(s, scope))));
      break;
    case StmtKind::filter_block: {
      Inner inner(rt_, scope);
      emit(str_of(rt_, through(s.filters, capture(s.body, inner.scope), scope)));
      break;
    }
    case StmtKind::with:
      return exec_with(s, scope);
    case StmtKind::group: {
      Inner inner(rt_, scope);
      return exec(s.body, inner.scope);
    }
    case StmtKind::break_loop:
      return Flow::leave_loop;
    case StmtKind::continue_loop:
      return Flow::next_round;
  }
  return Flow::next;
}

Flow Interpreter::exec_branch(const Stmt& s, Scope* scope) {
  for (const auto& [test, body] : s.branches) {
    if (truthy(eval(*test, scope))) return exec(body, scope);
  }
  return exec(s.other, scope);
}

Flow Interpreter::exec_loop(const Stmt& s, Scope* scope) {
  std::vector<Value> items = iterate(rt_, eval(*s.expr, scope));
  if (s.condition) {
    std::vector<Value> kept;
    for (Value v : items) {
      Inner inner(rt_, scope);
      assign(*s.target, v, inner.scope);
      if (truthy(eval(*s.condition, inner.scope))) kept.push_back(v);
    }
    items = std::move(kept);
  }
  if (items.empty()) return exec(s.other, scope);
  Value owned = rt_.list(std::move(items));
  Value loop = rt_.loop(owned.items->values);
  for (size_t i = 0; i < owned.items->values.size(); ++i) {
    loop.loop->index = i;
    rt_.line = s.line;
    rt_.charge(1);
    Inner inner(rt_, scope);
    inner.scope->set(rt_, "loop", loop);
    assign(*s.target, owned.items->values[i], inner.scope);
    if (exec(s.body, inner.scope) == Flow::leave_loop) break;
  }
  return Flow::next;
}

Flow Interpreter::exec_with(const Stmt& s, Scope* scope) {
  Inner inner(rt_, scope);
  for (const auto& [target, expr] : s.assignments) assign(*target, eval(*expr, scope), inner.scope);
  return exec(s.body, inner.scope);
}

void Interpreter::exec_set_block(const Stmt& s, Scope* scope) {
  Inner inner(rt_, scope);
  assign(*s.target, through(s.filters, capture(s.body, inner.scope), scope), scope);
}

Value Interpreter::closure(const Stmt& s, Scope* scope) {
  for (Scope* p = scope; p && !p->captured; p = p->parent) p->captured = true;
  return rt_.callable({.macro = &s, .scope = scope});
}

void Interpreter::define_macro(const Stmt& s, Scope* scope) { scope->set(rt_, s.text->bytes, closure(s, scope)); }

void Interpreter::assign(const Expr& target, Value v, Scope* scope) {
  if (target.kind == ExprKind::name) return scope->set(rt_, target.name->bytes, v);
  if (target.kind == ExprKind::attribute) {
    Value space = eval(*target.a, scope);
    if (!space.is(Kind::space)) rt_.error("cannot assign attribute on non-namespace object");
    return dict_set(rt_, *space.dict, Value::of(target.name), v);
  }
  std::vector<Value> parts = iterate(rt_, v);
  if (parts.size() != target.items.size()) {
    rt_.error(std::string(parts.size() < target.items.size() ? "not enough" : "too many") +
              " values to unpack (expected " + std::to_string(target.items.size()) + ", got " +
              std::to_string(parts.size()) + ")");
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.items[i], parts[i], scope);
}

Value Interpreter::capture(const Block& block, Scope* scope) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  exec(block, scope);
  out_ = outer;
  return rt_.text(std::move(text));
}

Value Interpreter::through(const std::vector<Expr*>& filters, Value v, Scope* scope) {
  for (const Expr* f : filters) v = eval_filter(*f, v, scope);
  return v;
}

Value Interpreter::eval(const Expr& e, Scope* scope) {
  Enter enter(rt_, e.line);
  switch (e.kind) {
    case ExprKind::constant:
      return e.value;
    case ExprKind::name:
      return eval_name(e, scope);
    case ExprKind::list:
    case ExprKind::tuple:
      return eval_items(e, scope);
    case ExprKind::dict:
      return eval_dict(e, scope);
    case ExprKind::negate:
    case ExprKind::plus:
      return eval_sign(e, scope);
    case ExprKind::binary:
      return eval_binary(e, scope);
    case ExprKind::concat:
      return eval_concat(e, scope);
    case ExprKind::logical_and: {
      Value a = eval(*e.a, scope);
      return truthy(a) ? eval(*e.b, scope) : a;
    }
    case ExprKind::logical_or: {
      Value a = eval(*e.a, scope);
      return truthy(a) ? a : eval(*e.b, scope);
    }
    case ExprKind::logical_not:
      return Value::of(!truthy(eval(*e.a, scope)));
    case ExprKind::compare:
      return eval_compare(e, scope);
    case ExprKind::conditional:
      if (truthy(eval(*e.a, scope))) return eval(*e.b, scope);
      return e.c ? eval(*e.c, scope) : Value::undefined(nullptr);
    case ExprKind::attribute:
      return get_attribute(rt_, eval(*e.a, scope), e.name);
    case ExprKind::item: {
      Value object = eval(*e.a, scope);
      return get_item(rt_, object, eval(*e.b, scope));
    }
    case ExprKind::slice:
      return eval_slice(e, scope);
    case ExprKind::call:
      return eval_call(e, scope, Value::absent());
    case ExprKind::filter:
      return eval_filter(e, eval(*e.a, scope), scope);
    case ExprKind::predicate:
      return eval_predicate(e, scope);
  }
  return Value::none();
}

Value Interpreter::eval_name(const Expr& e, Scope* scope) {
  for (Scope* s = scope; s; s = s->parent) {
    if (Value* v = s->find_here(rt_, e.name->bytes)) return *v;
  }
  if (const Native* f = find_function(e.name->bytes)) return rt_.callable({.native = f});
  return Value::undefined(e.name);
}

Value Interpreter::eval_items(const Expr& e, Scope* scope) {
  std::vector<Value> values;
  values.reserve(e.items.size());
  for (const Expr* item : e.items) values.push_back(eval(*item, scope));
  return rt_.list(std::move(values), e.kind == ExprKind::list ? Kind::list : Kind::tuple);
}

Value Interpreter::eval_dict(const Expr& e, Scope* scope) {
  Value d = rt_.dict();
  for (size_t i = 0; i < e.items.size(); i += 2) {
    Value key = eval(*e.items[i], scope);
    dict_set(rt_, *d.dict, key, eval(*e.items[i + 1], scope));
  }
  return d;
}

Value Interpreter::eval_sign(const Expr& e, Scope* scope) {
  Value v = eval(*e.a, scope);
  require_defined(rt_, v);
  if (!v.is_number()) rt_.error("bad operand type for unary sign: '" + std::string(type_name(v)) + "'");
  if (v.is(Kind::real)) return e.kind == ExprKind::plus ? v : Value::of(-v.real);
  return binary(rt_, e.kind == ExprKind::plus ? "+" : "-", Value::of(int64_t{0}), v);
}

Value Interpreter::eval_binary(const Expr& e, Scope* scope) {
  Value a = eval(*e.a, scope);
  Value b = eval(*e.b, scope);
  rt_.line = e.line;
  return binary(rt_, e.op, a, b);
}

Value Interpreter::eval_concat(const Expr& e, Scope* scope) {
  Builder out(rt_);
  for (const Expr* item : e.items) append_str(rt_, out, eval(*item, scope));
  return rt_.text(out.take());
}

Value Interpreter::eval_compare(const Expr& e, Scope* scope) {
  Value a = eval(*e.a, scope);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value b = eval(*e.items[i], scope);
    rt_.line = e.line;
    std::string_view op = e.ops[i];
    bool holds;
    if (op == "==" || op == "!=") {
      holds = equal(rt_, a, b) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(rt_, b, a) == (op == "in");
    } else {
      std::optional<int> order = compare(rt_, a, b, op);
      holds = order && (op == "<" ? *order < 0 : op == "<=" ? *order <= 0 : op == ">" ? *order > 0 : *order >= 0);
    }
    if (!holds) return Value::of(false);
    a = b;
  }
  return Value::of(true);
}

Value Interpreter::eval_slice(const Expr& e, Scope* scope) {
  Value object = eval(*e.a, scope);
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) parts[i] = e.items[i] ? eval(*e.items[i], scope) : Value::none();
  rt_.line = e.line;
  return slice(rt_, object, parts[0], parts[1], parts[2]);
}

Value Interpreter::eval_filter(const Expr& e, Value self, Scope* scope) {
  Args args = eval_args(e.args, scope);
  rt_.line = e.line;
  if (!e.native) rt_.error("no filter named '" + e.name->bytes + "'");
  return call_native(rt_, *e.native, "filter", self, args);
}

Value Interpreter::eval_predicate(const Expr& e, Scope* scope) {
  Value self = eval(*e.a, scope);
  Args args = eval_args(e.args, scope);
  rt_.line = e.line;
  if (!e.native) rt_.error("no test named '" + e.name->bytes + "'");
  return call_native(rt_, *e.native, "test", self, args);
}

Args Interpreter::eval_args(const CallArgs& from, Scope* scope) {
  Args args;
  args.positional.reserve(from.positional.size());
  for (const Expr* e : from.positional) args.positional.push_back(eval(*e, scope));
  for (const auto& [name, e] : from.named) args.named.emplace_back(name->bytes, eval(*e, scope));
  return args;
}

Value Interpreter::eval_call(const Expr& e, Scope* scope, Value caller) {
  Value f = eval(*e.a, scope);
  Args args = eval_args(e.args, scope);
  if (!caller.is(Kind::absent)) args.named.emplace_back("caller", caller);
  return call(f, std::move(args), e.line);
}

Value Interpreter::call(Value f, Args args, int line) {
  rt_.line = line;
  require_defined(rt_, f);
  if (!f.is(Kind::callable)) rt_.error("'" + std::string(type_name(f)) + "' object is not callable");
  const Callable& c = *f.callable;
  if (c.macro) return call_macro(*c.macro, c.scope, args);
  return call_native(rt_, *c.native, "function", c.self, args);
}

Value Interpreter::call_macro(const Stmt& macro, Scope* defined_in, const Args& args) {
  if (rt_.calls >= rt_.options.limits.call_depth) {
    rt_.error("macros call each other deeper than " + std::to_string(rt_.options.limits.call_depth) + " levels");
  }
  ++rt_.calls;
  Inner inner(rt_, defined_in);
  bind_parameters(macro, args, inner.scope);
  Value text = capture(macro.body, inner.scope);
  --rt_.calls;
  return text;
}

void Interpreter::bind_parameters(const Stmt& macro, const Args& args, Scope* scope) {
  std::string who = "macro '" + macro.text->bytes + "' takes ";
  const auto& parameters = macro.parameters;
  if (args.positional.size() > parameters.size() && !macro.takes_varargs) {
    rt_.error(who + "not more than " + std::to_string(parameters.size()) + " argument(s)");
  }
  std::vector<std::pair<std::string_view, Value>> rest = args.named;
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::string_view name = parameters[i].name->bytes;
    auto named = std::find_if(rest.begin(), rest.end(), [&](const auto& entry) { return entry.first == name; });
    Value v = Value::undefined(parameters[i].name);
    if (named != rest.end()) {
      if (i < args.positional.size()) rt_.error(who + "only one value for '" + std::string(name) + "'");
      v = named->second;
      rest.erase(named);
    } else if (i < args.positional.size()) {
      v = args.positional[i];
    } else if (parameters[i].otherwise) {
      v = eval(*parameters[i].otherwise, scope);
    }
    scope->set(rt_, name, v);
  }
  if (macro.takes_varargs) {
    size_t used = std::min(parameters.size(), args.positional.size());
    std::vector<Value> more(args.positional.begin() + static_cast<ptrdiff_t>(used), args.positional.end());
    scope->set(rt_, "varargs", rt_.list(std::move(more), Kind::tuple));
  }
  Value kwargs = rt_.dict();
  for (const auto& [name, v] : rest) {
    if (name == "caller" && macro.takes_caller) {
      scope->set(rt_, "caller", v);
    } else if (macro.takes_kwargs) {
      dict_set(rt_, *kwargs.dict, rt_.text(std::string(name)), v);
    } else {
      rt_.error(who + "no keyword argument '" + std::string(name) + "'");
    }
  }
  if (macro.takes_kwargs) scope->set(rt_, "kwargs", kwargs);
}

std::string Interpreter::run(const Tree& tree, const nlohmann::ordered_json& context) {
  std::string text;
  out_ = &text;
  Value variables = rt_.from_json(context);
  if (!variables.is(Kind::dict)) rt_.error("the context is not a JSON object");
  Scope* globals = rt_.scope(nullptr);
  for (auto& [name, v] : variables.dict->entries) globals->names.emplace_back(name.str(), v);
  exec(tree.body, rt_.scope(globals));
  return text;
}

}  // namespace

std::string render(const Tree& tree, const nlohmann::ordered_json& context, const Options& options) {
  Runtime rt(options);
  return Interpreter(rt).run(tree, context);
}

}  // namespace kvarto::jinja
