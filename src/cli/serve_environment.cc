#include "cli/serve_environment.h"

#include <charconv>

#include "cli/serve_values.h"
#include "format/printable.h"

namespace kvarto {
namespace {

constexpr size_t kMostCpus = 1024;

// A variable that is not honoured, for the reason `why`.
Status set_nothing(ServeFlags& flags, const FlagValue& value, const char* why) {
  bool on = false;
  RETURN_IF_ERROR(set_switch(on, value));
  if (on) flags.warnings.push_back(std::string("is not honoured: ") + why);
  return {};
}

struct Variable {
  VariableRow row;
  Status (*set)(ServeFlags& flags, const FlagValue& value);
};

Status set_level(ServeFlags& flags, const FlagValue& value) {
  ASSIGN_OR_RETURN(const size_t at, choice(value, {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}));
  constexpr LogLevel kLevels[] = {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error, LogLevel::error};
  flags.log_level = kLevels[at];
  return {};
}

Status set_binding(ServeFlags& flags, const FlagValue& value) {
  if (value.text() == "auto" || value.text() == "nobind") return {};
  if (value.text().find('|') != std::string::npos)
    return bad_value(value, "for one process; give one list, such as 0-31");
  RETURN_IF_ERROR(parse_cpu_list(value.text()).map([](auto) {}));
  flags.cpu_list = value.text();
  return {};
}

constexpr Variable kVariables[] = {
    {{"VLLM_CPU_KVCACHE_SPACE", "GiB of the KV cache, as --kv-cache-memory-bytes, which wins"},
     KVARTO_SET(size_t gib = 0; RETURN_IF_ERROR(set_count<size_t>(gib, v, 0, 65536));
                if (gib > 0) f.memory.kv_bytes = gib << 30; return {};)},
    {{"VLLM_CPU_OMP_THREADS_BIND", "CPUs to run on: 0-31; auto and nobind: as the system says"}, set_binding},
    {{"VLLM_CPU_NUM_OF_RESERVED_CPU", "Cores that compute nothing; --threads wins"},
     KVARTO_SET(return set_count(f.reserved_cores, v, 0u, 1024u);)},
    {{"VLLM_LOG_STATS_INTERVAL", "Seconds between two lines of figures (10)"},
     KVARTO_SET(return set_number(f.serve.log_stats_interval_s, v, 0, 1e6, true);)},
    {{"VLLM_LOGGING_LEVEL", "DEBUG, INFO, WARNING, ERROR; --log-level wins"}, set_level},
    {{"VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "Seconds that an idle connection stays open (5)"},
     KVARTO_SET(double seconds = 0; RETURN_IF_ERROR(set_number(seconds, v, 0, 1e6));
                f.serve.http.keep_alive_limit = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
                return {};)},
    {{"VLLM_SERVER_DEV_MODE", "1: routes that only development needs, such as /reset_prefix_cache"},
     KVARTO_SET(return set_switch(f.serve.dev_mode, v);)},
    {{"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0: hashes of 32 bytes in KV events, not integers"},
     KVARTO_SET(bool whole = true; RETURN_IF_ERROR(set_switch(whole, v)); f.serve.kv_events.full_hashes = !whole;
                return {};)},
    {{"VLLM_SKIP_MODEL_NAME_VALIDATION", "1: requests may name any model; the served one answers"},
     KVARTO_SET(return set_switch(f.serve.any_model_name, v);)},
    {{"VLLM_ALLOW_LONG_MAX_MODEL_LEN",
      "1: --max-model-len may be more than the model was made for; positions beyond may give wrong text"},
     KVARTO_SET(return set_switch(f.engine.beyond_context, v);)},
    {{"VLLM_MAX_N_SEQUENCES", "Most choices, n, that a request may ask for (16384; never more than --max-num-seqs)"},
     KVARTO_SET(return set_count(f.serve.max_n, v, 1u);)},
    {{"VLLM_MAX_COMPLETION_PROMPTS", "Most prompts of one completions request (1024)"},
     KVARTO_SET(return set_count(f.serve.max_prompts, v, 1u, 65536u);)},
    {{"VLLM_MAX_STOP_STRINGS", "Most stop strings of a request (4)"},
     KVARTO_SET(return set_count(f.serve.max_stop_strings, v, 1u, 64u);)},
    {{"VLLM_USE_SIMPLE_KV_OFFLOAD", "Not honoured: a second tier of KV memory is not built yet"},
     KVARTO_SET(return set_nothing(f, v, "a second tier of KV memory is not built yet");)},
    {{"VLLM_COMPUTE_NANS_IN_LOGITS", "Not honoured: logits are not looked through for NaNs"},
     KVARTO_SET(return set_nothing(f, v, "logits are not looked through for NaNs");)},
    {{"VLLM_ALLOW_RUNTIME_LORA_UPDATING", "Not honoured: there are no adapters yet"},
     KVARTO_SET(return set_nothing(f, v, "there are no adapters yet");)},
};

}  // namespace

std::span<const VariableRow> variable_rows() {
  static const std::vector<VariableRow> kRows = [] {
    std::vector<VariableRow> rows;
    for (const Variable& variable : kVariables) rows.push_back(variable.row);
    rows.push_back({"VLLM_API_KEY", "API key when no flag gives one"});
    return rows;
  }();
  return kRows;
}

void read_environment(Environment environment, ServeFlags& flags, std::vector<FlagReport>& reports) {
  for (const Variable& variable : kVariables) {
    const char* text = environment(std::string(variable.row.name).c_str());
    if (text == nullptr || *text == '\0') continue;
    FlagReport report{std::string(variable.row.name), printable(text), FlagFate::works, ""};
    const size_t before = flags.warnings.size();
    if (const Status status = variable.set(flags, {.words = {text}}); !status) {
      report.fate = FlagFate::refused;
      report.message = status.error().message;
    } else if (flags.warnings.size() > before) {
      report.fate = FlagFate::warned;
      report.message = flags.warnings.back();
      flags.warnings.resize(before);
    }
    reports.push_back(std::move(report));
  }
}

void read_key_variable(Environment environment, ServeFlags& flags, std::vector<FlagReport>& reports) {
  const char* key = environment("VLLM_API_KEY");
  if (key == nullptr) return;
  if (*key == '\0') {
    reports.push_back({"VLLM_API_KEY", "", FlagFate::warned, "is empty, so no key is needed: give one, or unset it"});
    return;
  }
  if (const Status status = check_api_key(key); !status) {
    reports.push_back({"VLLM_API_KEY", "", FlagFate::refused, status.error().message});
    return;
  }
  flags.serve.api_keys = {key};
  flags.key_variable = true;
}

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  const auto wrong = [&] {
    return fail(ErrorCode::invalid_argument, "'" + printable(text) + "' is not a list of CPUs, such as 0-31 or 0,2,4");
  };
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    unsigned first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) return wrong();
    unsigned last = first;
    if (read.ptr != end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || last < first || last >= kMostCpus) return wrong();
    for (unsigned cpu = first; cpu <= last; ++cpu) cpus.push_back(static_cast<int>(cpu));
    if (read.ptr == end) return cpus;
    if (*read.ptr != ',' || cpus.size() > kMostCpus) return wrong();
    at = read.ptr + 1;
  }
}

}  // namespace kvarto
