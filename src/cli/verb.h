// Verb: one word after `kvarto`, one file each. A verb declares its flags on the command line parser's sub-command;
// what it returns runs once they are parsed. Main thread.
#pragma once

#include <functional>
#include <string_view>

#include "kvarto/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarto {

// Exit code of the program, or an error that main prints as one line. An error without a message ends quietly: whoever
// read our output has gone.
using VerbAction = std::function<Result<int>()>;

struct Verb {
  std::string_view name;
  std::string_view summary;
  std::string_view examples;  // shown at the end of its help
  VerbAction (*declare)(CLI::App& app);
};

inline constexpr int kExitInterrupted = 130;  // what shells say of SIGINT

}  // namespace kvarto
