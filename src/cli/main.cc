// The program `kvarto`: finds the verb, hands it its flags, prints its error. Exit codes: 0, 1 (failed), 2 (wrong
// usage), 130 (Ctrl-C).
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <map>
#include <new>
#include <sstream>
#include <system_error>
#include <vector>

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
  } catch (const std::system_error& error) {
    const bool threads = error.code() == std::errc::resource_unavailable_try_again;
    print_error(threads ? std::string("a thread could not be started (") + error.what() +
                              "); give fewer --threads, or allow more (ulimit -u and -v, a container's pids limit)"
                        : std::string("unexpected: ") + error.what());
  } catch (const std::exception& error) {
    print_error(std::string("unexpected: ") + error.what());
  }
  return 1;
}

using Words = std::vector<const char*>;  // the command line, the program's own name first

// `help`, `help VERB` and `version` are the flags that others spell with dashes.
Words in_flags(int argc, char** argv) {
  Words words(argv, argv + argc);
  if (argc < 2) return words;
  const std::string_view first = words[1];
  if (first == "version") words[1] = "--version";
  if (first != "help") return words;
  words.erase(words.begin() + 1);
  const auto is_named = [&](const Verb& verb) { return words.size() > 1 && verb.name == words[1]; };
  if (words.size() == 1 || words[1][0] == '-' || std::ranges::any_of(verbs(), is_named)) words.push_back("--help");
  return words;
}

// A first word that is no verb, for which the parser has only a general complaint.
std::string unknown_verb(const CLI::App& app, const Words& words) {
  if (!app.get_subcommands().empty() || words.size() < 2 || words[1][0] == '-') return "";
  std::string names;
  for (const Verb& verb : verbs()) names += (names.empty() ? "" : ", ") + std::string(verb.name);
  return "there is no verb " + quoted(words[1]) + "; the verbs are " + names;
}

// The first line only: CLI11 adds advice of its own on further ones.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// What is wrong and where to look. CLI11 lists what it does not know last word first.
std::string complaint(const CLI::App& app, const CLI::ParseError& error, const Words& words) {
  std::string verb, text = unknown_verb(app, words);
  for (auto chosen = app.get_subcommands(); !chosen.empty(); chosen = chosen.front()->get_subcommands()) {
    verb += " " + chosen.front()->get_name();
  }
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  if (text.empty() && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !left.empty()) {
    text = "not expected:";
    for (const std::string& word : left) text += " " + printable(word);
  }
  return (text.empty() ? first_line(error.what()) : text) + "; see `kvarto" + verb + " --help`";
}

// CLI11 shows the value that a --no-x stands for behind its name.
class Help : public CLI::Formatter {
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    constexpr std::string_view kOff = "{false}";
    for (size_t at = name.find(kOff); at != std::string::npos; at = name.find(kOff)) name.erase(at, kOff.size());
    return name;
  }
};

int run_program(int argc, char** argv) {
  CLI::App app("Runs language models through a paged, bit-exact KV cache", "kvarto");
  app.set_version_flag("--version", std::string("kvarto ") + KVARTO_VERSION);
  app.formatter(std::make_shared<Help>());  // verbs inherit it
  app.require_subcommand(1);
  app.footer(
      "`kvarto VERB --help` or `kvarto help VERB` has a verb's flags and examples.\n"
      "KVARTO_MAX_SIMD=scalar, avx2, avx512 or amx in the environment: no faster kernels than these; the bits are the "
      "same.");
  app.option_defaults()->always_capture_default();
  std::map<const CLI::App*, VerbAction> actions;
  for (const Verb& verb : verbs()) {
    CLI::App* sub = app.add_subcommand(std::string(verb.name), std::string(verb.summary));
    sub->footer("Examples:\n" + std::string(verb.examples));
    actions[sub] = verb.declare(*sub);
  }
  const Words words = in_flags(argc, argv);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    app.exit(help, text, text);
    return run_verb([&]() -> Result<int> {
      RETURN_IF_ERROR(put(text.str()));
      return 0;
    });
  } catch (const CLI::ParseError& error) {
    print_error(complaint(app, error, words));
    return 2;
  }
  if (const Result<SimdTarget> limit = simd_limit(); !limit) {
    print_error(limit.error().message);
    return 2;
  }
  return run_verb(actions.at(app.get_subcommands().front()));
}

// A stream that is closed when the program starts would be the first file that it opens, and get what is said on it.
// For reading only, so that writing to it fails as it would have.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1) [[maybe_unused]]
      const int taken = ::open("/dev/null", O_RDONLY);
  }
}

std::atomic_flag bus_error_said;

// Reading a mapped file beyond where somebody has cut it off meanwhile, or where its disk fails, ends in SIGBUS.
// Threads may meet it at the same time: one of them speaks, the others wait for its end.
void end_with_a_line(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (info->si_code != BUS_ADRERR) {  // no file's fault: the default, which leaves a trace of ours
    std::signal(SIGBUS, SIG_DFL);
    std::raise(SIGBUS);
    return;
  }
  if (bus_error_said.test_and_set()) {
    while (true) ::pause();
  }
  constexpr char kText[] =
      "kvarto: error: a file that is mapped (the model?) was changed or cut while it was read; start again with a "
      "whole file\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(1);
}

}  // namespace
}  // namespace kvarto

int main(int argc, char** argv) {
  kvarto::occupy_closed_streams();
  struct sigaction on_bus_error = {};
  on_bus_error.sa_sigaction = kvarto::end_with_a_line;
  on_bus_error.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &on_bus_error, nullptr);
  // A reader that goes away shows as a failed write, so that a run can end its requests and files in order.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // likewise a file that may grow no more
  return kvarto::run_program(argc, argv);
}
