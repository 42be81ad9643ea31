// The flags of `kvarto serve`: one table, a row a flag, and vLLM's rules of reading a command line and a config file
// over it. A flag of vLLM 0.11 to 0.33 or of llama-server that concerns a server is a row: it works, or it is warned
// about or refused by name with what to do instead. docs/flags.md is made from the table (tools/make_flags). Main
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kvarto/options.h"
#include "server/serve_options.h"

namespace kvarto {

// Memory of the KV cache as asked for: the first of them that is set counts; none: the default rule.
struct MemoryFlags {
  std::optional<size_t> kv_bytes;
  std::optional<uint64_t> blocks;
  std::optional<double> utilization;  // share of the memory that this process may use, for all it needs
};

// What a command line, a config file and the environment came to.
struct ServeFlags {
  std::string model;
  EngineOptions engine;  // max_model_len as asked for
  ServeOptions serve;
  MemoryFlags memory;
  bool fit_max_model_len = false;  // --max-model-len auto
  bool block_size_given = false;
  bool key_variable = false;               // the API key is that of VLLM_API_KEY
  std::optional<uint32_t> token_cap;       // further limit of max_num_batched_tokens
  std::string generation_config = "auto";  // auto, vllm, or a folder
  std::string override_generation_config;  // JSON object; empty: none
  std::optional<uint32_t> max_new_tokens;  // llama-server's -n
  LogLevel log_level = LogLevel::info;
  LogLevel http_log_level = LogLevel::info;  // of the access log, whose lines are `info`
  std::string cpu_list;                      // of VLLM_CPU_OMP_THREADS_BIND; empty: all
  uint32_t reserved_cores = 0;               // left for the front end
  std::vector<std::string> warnings;
  // Names and values as given, keys and tokens left out: for the log.
  std::vector<std::pair<std::string, std::string>> given;
};

// What was given for one flag.
struct FlagValue {
  std::vector<std::string> words;  // one, but for lists; of a JSON flag its text
  bool on = true;                  // false: --no-x
  const std::string& text() const { return words.front(); }
};

enum class FlagKind : uint8_t {
  toggle,  // --x and --no-x
  value,   // --x V
  list,    // --x V V ...
  json,    // --x JSON, or --x.key V
  maybe,   // --x, or --x on|off|auto
};
enum class FlagFate : uint8_t {
  works,    // `set` may find the value wrong, or one that has no effect here
  only,     // one of `value`, split at '|' (of a toggle: on, off), works, everything else is refused
  warned,   // accepted, has no effect; the text says why
  refused,  // the text says what to do instead
};

struct FlagRow {
  std::string_view names;  // "--max-model-len", with aliases behind spaces
  FlagKind kind;
  FlagFate fate;
  std::string_view value;  // what help shows: "N", "auto|half"
  std::string_view text;   // help in one sentence; of warned and refused flags the remedy
  Status (*set)(ServeFlags& flags, const FlagValue& value) = nullptr;  // null: always so, or never
  bool secret = false;                                                 // its value is shown nowhere
  bool repeats = false;                                                // of a list: several are joined
};
struct FlagGroup {
  std::string_view name, title;
  std::span<const FlagRow> rows;
};
std::span<const FlagGroup> flag_groups();
// The groups, each in its file: serve_flags_engine.cc, serve_flags_server.cc, serve_flags_peers.cc.
std::span<const FlagRow> model_flags();
std::span<const FlagRow> cache_flags();
std::span<const FlagRow> scheduler_flags();
std::span<const FlagRow> parallel_flags();
std::span<const FlagRow> events_flags();
std::span<const FlagRow> observability_flags();
std::span<const FlagRow> frontend_flags();
std::span<const FlagRow> kvarto_flags();
std::span<const FlagRow> llama_flags();
std::span<const FlagRow> weight_flags();
std::span<const FlagRow> feature_flags();
std::span<const FlagRow> removed_flags();

// One flag's outcome, for --check-flags.
struct FlagReport {
  std::string flag, value;
  FlagFate fate = FlagFate::works;  // works, warned or refused
  std::string message;              // empty for works
};

// Text of an environment variable, or null.
using Environment = const char* (*)(const char* name);

struct ServeLine {
  ServeFlags flags;
  std::vector<FlagReport> reports;  // in the order given
  std::optional<std::string> help;  // the text that --help asked for
  bool check = false;               // --check-flags
};
// Reads the words behind `kvarto serve`, the config file that they name, and the environment. Errors: what cannot be
// read at all (an unknown flag, a value missing). A value that makes no sense, or a flag that is refused, is a report;
// see first_refusal().
Result<ServeLine> read_serve_line(const std::vector<std::string>& words, Environment environment,
                                  std::string_view examples = {});
Status first_refusal(const ServeLine& line);

// "25.6k" = 25600, "1G" = 1073741824: small letters count in 1,000s, capitals in 1,024s and take no decimals.
Result<uint64_t> parse_human(std::string_view text);

// The row of "--x" or "--no-x"; null: there is none.
const FlagRow* flag_row(const std::string& name);

// --- serve_help.cc
// `topic`: empty, "all", "json" (the table for tools), a group, or a part of a flag's name.
Result<std::string> serve_help(std::string_view topic, std::string_view examples);
// The name of the table nearest to `word`.
std::string nearest_flag(std::string_view word);

// --- serve_config.cc
// A config file's entries as words of a command line.
Result<std::vector<std::string>> read_config_file(const std::string& path);

}  // namespace kvarto
