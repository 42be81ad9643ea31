// The program `kvarto`: finds the verb, hands it its flags, prints its error. Exit codes: 0, 1 (failed), 2 (wrong
// usage), 130 (Ctrl-C).
#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <map>
#include <new>

#include "base/simd_limit.h"
#include "cli/list.h"
#include "cli/output.h"
#include "format/printable.h"

namespace kvarto {
namespace {

void print_error(const std::string& message) { note("kvarto: error: " + message); }

// What a library throws although nobody expects it ends as an error like any other, not as a crash.
int run_verb(const VerbAction& action) {
  try {
    const Result<int> outcome = action();
    if (outcome) return *outcome;
    if (!outcome.error().message.empty()) print_error(outcome.error().message);
  } catch (const std::bad_alloc&) {
    print_error("out of memory; close other programs, or ask for less with --kv-cache-memory-bytes or --max-model-len");
  } catch (const std::exception& error) {
    print_error(std::string("unexpected: ") + error.what());
  }
  return 1;
}

// A first word that is no verb, for which the parser has only a general complaint.
std::string unknown_verb(const CLI::App& app, int argc, char** argv) {
  if (!app.get_subcommands().empty() || argc < 2 || argv[1][0] == '-') return "";
  std::string names;
  for (const Verb& verb : verbs()) names += (names.empty() ? "" : ", ") + std::string(verb.name);
  return "there is no verb " + quoted(argv[1]) + "; the verbs are " + names;
}

// The first line only: CLI11 adds advice of its own on further ones.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int run_program(int argc, char** argv) {
  CLI::App app("Runs language models through a paged, bit-exact KV cache", "kvarto");
  app.set_version_flag("--version", std::string("kvarto ") + KVARTO_VERSION);
  app.require_subcommand(1);
  app.footer(
      "`kvarto VERB --help` has a verb's flags and examples.\n"
      "KVARTO_MAX_SIMD=scalar, avx2, avx512 or amx in the environment: no faster kernels than these; the bits are the "
      "same.");
  app.option_defaults()->always_capture_default();
  std::map<const CLI::App*, VerbAction> actions;
  for (const Verb& verb : verbs()) {
    CLI::App* sub = app.add_subcommand(std::string(verb.name), std::string(verb.summary));
    sub->footer("Examples:\n" + std::string(verb.examples));
    actions[sub] = verb.declare(*sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const std::string verb = chosen.empty() ? "" : " " + chosen.front()->get_name();
    const std::string unknown = unknown_verb(app, argc, argv);
    print_error((unknown.empty() ? first_line(error.what()) : unknown) + "; see `kvarto" + verb + " --help`");
    return 2;
  }
  if (const Result<SimdTarget> limit = simd_limit(); !limit) {
    print_error(limit.error().message);
    return 2;
  }
  return run_verb(actions.at(app.get_subcommands().front()));
}

}  // namespace
}  // namespace kvarto

int main(int argc, char** argv) {
  // A reader that goes away shows as a failed write, so that a run can end its requests and files in order.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // likewise a file that may grow no more
  return kvarto::run_program(argc, argv);
}
