// Values of a template while it renders, with Python's semantics: what is true, what is equal, how things print. A
// Value is a small handle; strings, lists and dicts live in the Runtime of one render (or, for constants, in the parsed
// template) and die together with it, so values may be copied freely and cycles cost nothing. One thread per Runtime.
//
// Inside this folder errors travel as JinjaError; they stop in chat_template.cc, which turns them into a Result.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarto::jinja {

class JinjaError : public std::runtime_error {
 public:
  JinjaError(int line, const std::string& what) : std::runtime_error(what), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

enum class Kind : uint8_t {
  absent,  // an argument that was not given; never seen by templates
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  dict,
  space,  // namespace()
  loop,
  callable,
};

struct Text {
  explicit Text(std::string s);
  std::string bytes;
  size_t length;  // in code points
};

class Runtime;
struct Value;
struct Items;
struct Dict;
struct Loop;
struct Callable;

struct Value {
  Kind kind = Kind::undefined;
  Kind owner = Kind::absent;  // of an undefined value: the kind it was looked up in; absent for a variable
  union {
    bool boolean;
    int64_t integer = 0;
    double real;
    const Text* text;  // of an undefined value: its name, or null
    Items* items;      // list, tuple
    Dict* dict;        // dict, namespace
    Loop* loop;
    const Callable* callable;
  };

  static Value of(bool b);
  static Value of(int64_t i);
  static Value of(double d);
  static Value of(const Text* t);
  static Value none();
  static Value absent();
  static Value undefined(const Text* name, Kind owner = Kind::absent);

  bool is(Kind k) const { return kind == k; }
  bool is_sequence() const { return kind == Kind::list || kind == Kind::tuple; }
  bool is_integral() const { return kind == Kind::integer || kind == Kind::boolean; }
  bool is_number() const { return is_integral() || kind == Kind::real; }
  int64_t as_integer() const { return kind == Kind::boolean ? boolean : integer; }
  double as_real() const { return kind == Kind::real ? real : static_cast<double>(as_integer()); }
  std::string_view str() const { return text->bytes; }
};

struct Items {
  std::vector<Value> values;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion
};

struct Loop {
  std::span<const Value> items;
  size_t index = 0;
  std::optional<Value> last_changed;
};

// What a call brings: by position, and by name.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
  // After binding to a list of parameter names: `positional` has one entry for each of them, some absent.
  const Value& operator[](size_t i) const { return positional[i]; }
  bool has(size_t i) const { return !positional[i].is(Kind::absent); }
};

using NativeFunction = Value (*)(Runtime&, Value self, const Args&);

// A row of a table of filters, tests, methods or functions.
struct Native {
  std::string_view name;
  std::string_view parameters;  // "width first"; those from `required` on may be left out; "*": takes what comes
  size_t required;
  NativeFunction function;
};

struct Stmt;
struct Scope;

struct Callable {
  const Native* native = nullptr;
  Value self = {};              // receiver of a bound method
  const Stmt* macro = nullptr;  // or a macro (or the body of a call block) and where it was defined
  Scope* scope = nullptr;
};

struct Limits {
  uint64_t steps = 10'000'000;           // evaluated nodes, list items touched, and strings per 16 bytes
  uint64_t output_bytes = 64ull << 20;   // of the rendered text
  uint64_t memory_bytes = 256ull << 20;  // of everything made while rendering
  int call_depth = 200;                  // macros within macros
  int node_depth = 1000;                 // expressions within expressions, over all macros
  int value_depth = 200;                 // lists within lists, when one is printed or compared
  int64_t range_items = 100'000;         // as the sandbox of Python's jinja2 has it
};

struct Options {
  Limits limits;
  std::function<std::time_t()> now = [] { return std::time(nullptr); };  // for strftime_now; local time
};

// Owns what one render makes, and counts what it spends.
class Runtime {
 public:
  explicit Runtime(const Options& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Value text(std::string s);
  Value list(std::vector<Value> values, Kind kind = Kind::list);
  Value dict(Kind kind = Kind::dict);
  Value loop(std::span<const Value> items);
  Value callable(Callable c);
  Scope* scope(Scope* parent);
  void release(Scope* scope);  // for reuse, unless a macro was defined in it
  Value from_json(const nlohmann::ordered_json& json, int depth = 0);

  void charge(uint64_t steps);
  void charge_scan(size_t bytes) { charge(bytes / 16 + 1); }
  void charge_memory(uint64_t bytes);
  [[noreturn]] void error(const std::string& what) const { throw JinjaError(line, what); }

  const Options& options;
  int line = 0;   // of the node being evaluated
  int depth = 0;  // of nodes being evaluated
  int calls = 0;  // macros being called

 private:
  uint64_t steps_ = 0;
  uint64_t memory_ = 0;
  std::vector<std::unique_ptr<Text>> texts_;
  std::vector<std::unique_ptr<Items>> items_;
  std::vector<std::unique_ptr<Dict>> dicts_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::vector<std::unique_ptr<Callable>> callables_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
};

struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // by a macro that may outlive the block
  std::vector<std::pair<std::string_view, Value>> names;
  Value* find_here(Runtime& rt, std::string_view name);
  void set(Runtime& rt, std::string_view name, Value v);
};

// Text that grows within the memory limit.
class Builder {
 public:
  explicit Builder(Runtime& rt) : rt_(rt) {}
  Builder& operator<<(std::string_view s) {
    rt_.charge_memory(s.size());
    text_ += s;
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  Runtime& rt_;
  std::string text_;
};

std::string_view type_name(Value v);  // Python's: "str", "dict", "NoneType"
std::string undefined_message(Value v);
// Raises "'x' is undefined" when it is.
void require_defined(Runtime& rt, Value v);

bool truthy(Value v);
bool equal(Runtime& rt, Value a, Value b, int depth = 0);
// -1, 0, 1; nullopt when either is not a number. Raises for types that have no order.
std::optional<int> compare(Runtime& rt, Value a, Value b, std::string_view op = "<", int depth = 0);
bool contains(Runtime& rt, Value container, Value item);

Value* dict_find(Runtime& rt, Dict& d, Value key);
Value* dict_find(Runtime& rt, Dict& d, std::string_view key);
void dict_set(Runtime& rt, Dict& d, Value key, Value v);

void append_str(Runtime& rt, Builder& out, Value v);              // str(v)
void append_repr(Runtime& rt, Builder& out, Value v, int depth);  // repr(v)
std::string str_of(Runtime& rt, Value v);
std::string real_repr(double d);

// What a for loop sees: items, keys, code points. Raises for what Python cannot iterate.
std::vector<Value> iterate(Runtime& rt, Value v);
size_t length_of(Runtime& rt, Value v);
// obj.name: a method or attribute, else the entry of that key, else undefined.
Value get_attribute(Runtime& rt, Value object, const Text* name);
// obj[key]: the entry, else for a string the attribute, else undefined.
Value get_item(Runtime& rt, Value object, Value key);
// obj.a.b.0 of filters' `attribute=`.
Value get_path(Runtime& rt, Value object, Value path);
Value slice(Runtime& rt, Value object, Value start, Value stop, Value step);
Value binary(Runtime& rt, std::string_view op, Value a, Value b);

}  // namespace kvarto::jinja
