// CallObject: the JSON object by which a model calls a tool, {"name": "f", "arguments": {...}} or with "parameters", as
// it is generated. The arguments are handed on as they were written, never reformatted. Single thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/json_scanner.h"

namespace kvarto {

class CallObject {
 public:
  using State = JsonScanner::State;

  // `needs_arguments` false: a call without arguments has {} for them.
  explicit CallObject(bool needs_arguments) : needs_arguments_(needs_arguments) {}
  // The object is the arguments themselves; the name came before it.
  explicit CallObject(std::string name) : name_(std::move(name)), bare_(true) {}

  // The first byte must be '{'. A byte that breaks the object is not taken.
  State push(char c);
  // Everything so far; empty once begin() was called.
  const std::string& text() const { return text_; }
  // Name and the first byte of the arguments are known, so that the rest could be handed on as it comes.
  bool can_begin() const { return name_ && kind_ == Kind::object && !refused_; }
  // From here on only arguments are kept, until they are taken.
  void begin();
  // A complete object that is a call: fills in missing arguments, opens those that are JSON in a string.
  bool settle();
  const std::string& name() const { return *name_; }
  std::string take_arguments();  // those that came since the last take

 private:
  enum class Kind : uint8_t { missing, null, object, string, other };  // of the arguments
  enum class Part : uint8_t { other, key, name, arguments };           // what of the object is being read

  void begin_value(char c);
  void end_part();

  JsonScanner scanner_;
  std::string text_, key_;  // key_: as written
  std::optional<std::string> name_;
  std::string name_text_, arguments_;
  Kind kind_ = Kind::missing;
  Part part_ = Part::other;
  bool needs_arguments_ = false, bare_ = false, begun_ = false;
  bool refused_ = false;  // JSON, but not a call
};

}  // namespace kvarto
