// A chat on a terminal: the history goes through the template anew each turn, and the prefix cache keeps that cheap.
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/figures.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/run.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// Backspace on a terminal line should take a whole UTF-8 character.
class Utf8Terminal {
 public:
  Utf8Terminal() : known_(::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!known_) return;
    termios with_utf8 = before_;
    with_utf8.c_iflag |= IUTF8;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &with_utf8);
  }
  ~Utf8Terminal() {
    if (known_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }

 private:
  termios before_;
  bool known_;
};

enum class LineEnd { line, interrupted, end };

class LineReader {
 public:
  LineEnd read(std::string& line) {
    while (true) {
      const size_t end = pending_.find('\n');
      if (end != std::string::npos) {
        line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return LineEnd::line;
      }
      // A signal may come just before a wait, and to another thread: the flag is asked again and again.
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&input, 1, /*timeout_ms=*/100);
      if (interrupted()) {
        pending_.clear();
        return LineEnd::interrupted;
      }
      if (ready <= 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (count > 0) {
        pending_.append(buffer, static_cast<size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        line = std::exchange(pending_, {});
        return line.empty() ? LineEnd::end : LineEnd::line;
      }
    }
  }

 private:
  std::string pending_;
};

constexpr char kCommands[] =
    "/exit or Ctrl-D leaves, /clear starts anew, /help says this, Ctrl-C stops an answer; a space in front of / makes "
    "a "
    "message of it";

// The word of a line that is a command or wants to be one: a slash and letters. Paths (/etc/hosts) are messages.
std::string_view command_of(std::string_view line) {
  if (!line.starts_with('/')) return {};
  const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return word.size() > 1 && std::ranges::all_of(word.substr(1), is_letter) ? word : std::string_view();
}

class Chat {
 public:
  Chat(Engine& engine, const RunFlags& flags) : engine_(engine), flags_(flags) { clear(); }

  Result<int> run() {
    Utf8Terminal terminal;
    InterruptScope scope;
    note(kCommands);
    std::string line;
    while (true) {
      clear_interrupt();
      RETURN_IF_ERROR(put("> "));
      const LineEnd end = lines_.read(line);
      if (end == LineEnd::end) return put("\n").map([] { return 0; });
      if (end == LineEnd::interrupted) {
        note_lines("\n/exit or Ctrl-D leaves");
      } else if (const std::string_view command = command_of(line); command == "/exit") {
        return 0;
      } else if (command == "/clear") {
        clear();
      } else if (command == "/help") {
        note(kCommands);
      } else if (!command.empty()) {
        note("there is no " + printable(command) + ": " + kCommands);
      } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
        RETURN_IF_ERROR(turn(line));
      }
    }
  }

 private:
  void clear() {
    history_ = Json::array();
    if (!flags_.system.empty()) history_.push_back({{"role", "system"}, {"content", flags_.system}});
  }

  // What goes wrong with one message leaves the session as it was; only a lost terminal or engine ends it.
  Status turn(const std::string& line) {
    Json with_line = history_;
    with_line.push_back({{"role", "user"}, {"content", line}});
    const std::string messages = dump(with_line);
    Result<std::vector<TokenId>> ids = encode_chat(engine_, messages);
    if (!ids) return complain(ids.error());
    const Result<Generation> answer = generate(engine_, make_request(flags_.sampling, 0.7f, *std::move(ids)),
                                               [](std::string_view text) { return put(text); });
    if (!answer) return complain(answer.error());
    RETURN_IF_ERROR(put("\n"));
    with_line.push_back({{"role", "assistant"}, {"content", answer->result.samples.front().text}});
    history_ = std::move(with_line);
    if (!flags_.model.quiet) note_lines(describe_turn(make_figures(engine_, *answer)));
    return {};
  }

  Status complain(const Error& error) {
    RETURN_IF_ERROR(engine_.health());
    if (error.message.empty()) return tl::unexpected<Error>(error);
    note("kvarto: error: " + error.message + (history_.size() > 2 ? " (/clear starts anew)" : ""));
    return {};
  }

  Engine& engine_;
  const RunFlags& flags_;
  LineReader lines_;
  Json history_;
};

}  // namespace

Result<int> run_chat(Engine& engine, const RunFlags& flags) {
  if (flags.raw || !engine.has_chat_template()) {
    return fail(ErrorCode::invalid_argument, flags.raw
                                                 ? "a chat needs the chat template; leave out --raw or give --prompt"
                                                 : "the model has no chat template to chat with; give --prompt");
  }
  if (flags.sampling.params.n > 1 || flags.sampling.params.beam_width > 0) {
    return fail(ErrorCode::invalid_argument, "a chat has one answer; leave out --n and --beam-width or give --prompt");
  }
  return Chat(engine, flags).run();
}

}  // namespace kvarto
