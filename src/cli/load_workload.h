// What a load run sends: job number i is one prompt, one chat of several turns, one line of a file or one request of a
// trace. A job follows from the seed and its number alone. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/load_trace.h"
#include "cli/load_words.h"

namespace kvarto {

// "512", "100-900" (each as likely), "log:10-4000" (each magnitude as likely).
struct TokenRange {
  uint32_t low = 1, high = 1;
  bool log = false;
  uint32_t draw(uint64_t bits) const;
};
Result<TokenRange> parse_token_range(const std::string& flag, const std::string& text);

struct TimeRange {
  double low_s = 0, high_s = 0;
  double draw(uint64_t bits) const;
};
Result<TimeRange> parse_time_range(const std::string& flag, const std::string& text);  // "2s", "1s-5s"

struct LoadTurn {
  std::string text;                  // the prompt, or what the user says
  std::string body;                  // instead: a request as a file has it, JSON
  uint32_t output_tokens = 0;        // 0: as the body says
  uint32_t prompt_tokens_asked = 0;  // of the whole prompt as the server counts it; 0: not known before
  double think_s = 0;                // after the turn before
};

struct LoadJob {
  std::optional<double> arrival_s;  // of a trace
  std::string system;
  std::vector<LoadTurn> turns;
};

class Workload {
 public:
  virtual ~Workload() = default;
  virtual LoadJob job(uint64_t number) const = 0;
  virtual std::optional<uint64_t> size() const { return std::nullopt; }  // none: endless
};

struct PromptOptions {
  uint64_t seed = 1;
  bool chat = false;
  TokenRange prompt = {}, output = {};
  std::optional<TokenRange> suffix = {};  // behind the prefix; the prompt is then both together
  uint32_t prefix_tokens = 0, families = 1;
  double prefix_share = 1;  // of the prompts, that belong to a family
};
std::unique_ptr<Workload> make_prompts(PromptOptions options, std::shared_ptr<const Filler> filler);

struct ChatOptions {
  uint64_t seed = 1;
  uint32_t turns = 1, system_tokens = 0;
  TokenRange user = {}, output = {};
  TimeRange think = {};
};
std::unique_ptr<Workload> make_chats(ChatOptions options, std::shared_ptr<const Filler> filler);

std::unique_ptr<Workload> make_trace_load(uint64_t seed, bool chat, Trace trace, std::shared_ptr<const Filler> filler);

// Each line of `text` is a request: the body itself (prompt or messages), or a line of a batch file, which has it in
// "body". `output_tokens` holds where a line has no max_tokens; 0: nothing is added.
Result<std::unique_ptr<Workload>> make_lines(std::string_view text, TokenRange output, uint64_t seed);

// How requests are worded.
struct RequestStyle {
  std::string model;
  bool chat = false, stream = true;
  bool fixed_lengths = true;  // ignore_eos and min_tokens: every server does the same work
  double temperature = 0;
  std::string extra = {};  // a JSON object laid over every body
};
struct LoadRequest {
  bool chat = false;
  std::string body;
  uint32_t output_tokens = 0, prompt_tokens_asked = 0;
};
// The request of a turn, after the answers to the turns before it.
LoadRequest request_of(const RequestStyle& style, const LoadJob& job, size_t turn,
                       const std::vector<std::string>& answers);

}  // namespace kvarto
