// `kvarto serve`: the server behind its command line.
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/file.h"
#include "cli/list.h"
#include "cli/model_path.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/serve_environment.h"
#include "cli/serve_flags.h"
#include "cli/serve_plan.h"
#include "cli/serve_report.h"
#include "cli/serve_signals.h"
#include "format/gguf.h"
#include "format/printable.h"
#include "server/api_request.h"
#include "server/scripted_engine.h"
#include "server/server.h"
#include "server/stats_line.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kWrongUsage = 2;
constexpr std::string_view kScripted = "scripted:";
constexpr uint32_t kTypicalTokens = 2048;  // of a request that people send
constexpr milliseconds kLastWords{2000};   // for clients to read that the engine has stopped
constexpr milliseconds kLastLines{1000};   // to be written when the server ends

// Lines of the log stand before what is said next, and none is missing. Where nobody reads them their thread holds
// stderr, for which exit() and whatever is said would wait for ever: then this is the end.
void flush_or_end(int code) {
  if (!flush_log(kLastLines)) ::_exit(code);
}

void say(const std::string& text) { log(LogLevel::info, printable(text, 4096)); }

int wrong_usage(const Error& error) {
  const bool told = error.message.find("`kvarto serve --help") != std::string::npos;
  note("kvarto: error: " + error.message + (told ? "" : "; see `kvarto serve --help`"));
  return kWrongUsage;
}

Result<int> put_reports(const ServeLine& line) {
  constexpr std::string_view kFates[] = {"works", "only", "warned", "refused"};
  bool refused = false;
  std::string out;
  for (const FlagReport& report : line.reports) {
    refused |= report.fate == FlagFate::refused;
    out += std::string(kFates[static_cast<size_t>(report.fate)]) + "\t" + report.flag + "\t" +
           printable(report.value, 200) + "\t" + printable(report.message, 1000) + "\n";
  }
  RETURN_IF_ERROR(put(out));
  return refused ? kWrongUsage : 0;
}

// --- what the flags name

// The defaults of sampling: of the model's folder, then those of the command line.
Result<std::string> read_generation_config(const ServeFlags& flags, const std::string& model_path) {
  Json config = Json::object();
  if (flags.generation_config != "vllm" && !model_path.empty()) {
    const bool automatic = flags.generation_config == "auto";
    const std::filesystem::path folder =
        automatic ? std::filesystem::path(model_path).parent_path() : std::filesystem::path(flags.generation_config);
    const std::string path = (folder / "generation_config.json").string();
    std::error_code ignored;
    if (!automatic || std::filesystem::exists(path, ignored)) {
      ASSIGN_OR_RETURN(const std::string text, read_file(path, 1 << 20));
      Result<Json> parsed = parse_json(text);
      if (!parsed || !parsed->is_object()) {
        return fail(ErrorCode::invalid_argument,
                    kvarto::quoted(path) + " is not a JSON object; --generation-config vllm passes it over");
      }
      config = *std::move(parsed);
      say("default sampling values are those of " + path + "; --generation-config vllm passes it over");
    }
  }
  if (!flags.override_generation_config.empty()) config.update(Json::parse(flags.override_generation_config));
  if (flags.max_new_tokens) config["max_new_tokens"] = *flags.max_new_tokens;
  const std::string text = config.empty() ? "" : config.dump();
  RETURN_IF_ERROR(parse_sampling_defaults(text).map([](const auto&) {}));
  return text;
}

// The CPUs that threads made from now on may run on.
Status bind_cpus(ServeFlags& flags) {
  if (!flags.cpu_list.empty()) {
    ASSIGN_OR_RETURN(const std::vector<int> cpus, parse_cpu_list(flags.cpu_list));
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
    if (::sched_setaffinity(0, sizeof set, &set) != 0) {
      return fail(ErrorCode::invalid_argument,
                  "VLLM_CPU_OMP_THREADS_BIND " + flags.cpu_list + ": none of these CPUs may be used; unset it");
    }
  }
  if (flags.engine.threads == 0 && flags.reserved_cores > 0) {
    const auto cores = static_cast<int>(usable_cores().size());
    flags.engine.threads = std::max(1, cores - static_cast<int>(flags.reserved_cores));
  }
  return {};
}

// --- the start, step by step

struct Prepared {
  std::string path;    // of the GGUF file; empty for a script
  std::string script;  // its text
  EngineOptions options;
  std::optional<ServePlan> plan;
};

Result<Prepared> prepare(const ServeFlags& flags) {
  Prepared prepared{.options = flags.engine};
  if (flags.model.starts_with(kScripted)) {
    ASSIGN_OR_RETURN(prepared.script, read_file(flags.model.substr(kScripted.size())));
    prepared.options.kv_cache_memory_bytes = flags.memory.kv_bytes.value_or(0);
    return prepared;
  }
  ASSIGN_OR_RETURN(const ResolvedModel found, resolve_model(flags.model));
  say("model: " + found.path + " (" + found.how + ")");
  prepared.path = found.path;
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(found.path));
  ASSIGN_OR_RETURN(prepared.plan, plan_serve(*file, flags));
  prepared.options = prepared.plan->options;
  return prepared;
}

void say_plan(const ServePlan& planned) {
  const MemoryPlan& plan = planned.plan;
  for (const std::string& one : planned.warnings) log(LogLevel::warning, printable(one, 1000));
  for (const std::string& one : planned.notes) say(one);
  say("Using max model len " + std::to_string(plan.max_model_len) + " (" + plan.max_model_len_reason + ")");
  say("Chunked prefill is enabled with max_num_batched_tokens=" +
      std::to_string(planned.options.max_num_batched_tokens) + ".");
  const std::string table = plan_table(plan);
  for (size_t at = 0; at < table.size();) {
    const size_t end = std::min(table.find('\n', at), table.size());
    say(table.substr(at, end - at));
    at = end + 1;
  }
  say("Available KV cache memory: " + gib(static_cast<double>(plan.kv_bytes)) + " GiB");
  say(std::string(planned.pool.asked ? "Explicitly" : "Auto") + " set (" + gib(static_cast<double>(plan.kv_bytes)) +
      "/" + gib(static_cast<double>(plan.available_bytes)) + ") GiB for KV cache on node 0: " + planned.pool.reason);
}

Result<std::unique_ptr<Engine>> load(const Prepared& prepared, Server& server) {
  EngineOptions options = prepared.options;
  options.on_kv_life = server.kv_life_sink();
  if (prepared.path.empty()) return scripted_engine(prepared.script, options);
  say("loading " + prepared.path);
  Progress progress("loading");
  options.progress = [&](size_t done, size_t total) { progress.show(done, total); };
  return Engine::load(prepared.path, options);
}

void say_capacity(Engine& engine, const EngineOptions& options) {
  const EngineInfo& info = engine.info();
  const KvLayout& layout = engine.cache().layout();
  const uint32_t chunk = options.max_num_batched_tokens;
  say(kv_cache_size_line(kv_capacity(layout, info.kv_arena_bytes, info.max_model_len, chunk)));
  if (info.max_model_len > kTypicalTokens) say(kv_typical_line(layout, info.kv_arena_bytes, kTypicalTokens, chunk));
}

// Until a signal comes, or the engine stops for good: then whoever watches the process shall start another one.
Result<int> wait_and_drain(Server& server, StopSignals& signals, double limit_s) {
  if (signals.wait() == 0) {
    log(LogLevel::error, "Shutting down: the engine has stopped");
    server.drain(kLastWords);
  } else {
    say("Shutting down: no new requests; running ones have " + std::to_string(static_cast<int64_t>(limit_s)) +
        " s (--shutdown-timeout); a second signal ends them at once");
    if (!server.drain(milliseconds(static_cast<int64_t>(limit_s * 1000)))) {
      log(LogLevel::warning, "requests that were still running are ended");
    }
  }
  const Status alive = server.health();
  if (!alive) return fail(ErrorCode::internal, printable(alive.error().message, 1000) + "; start the server again");
  return 0;
}

Result<int> run_server(ServeFlags& flags) {
  StopSignals signals;
  RETURN_IF_ERROR(bind_cpus(flags));
  say(std::string("Kvarto server version " KVARTO_VERSION ", serving model ") + flags.model);
  if (const std::string line = given_line(flags); !line.empty()) say(line);
  for (const std::string& warning : flags.warnings) log(LogLevel::warning, printable(warning, 1000));
  ASSIGN_OR_RETURN(const Prepared prepared, prepare(flags));
  if (prepared.plan) say_plan(*prepared.plan);
  flags.serve.model_path = prepared.path.empty() ? flags.model : prepared.path;
  ASSIGN_OR_RETURN(flags.serve.generation_config, read_generation_config(flags, prepared.path));
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::listen(flags.serve));
  say("listening at " + server->address() + "; 503 until the model is loaded");

  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, load(prepared, *server));
  say_capacity(*engine, prepared.options);
  const ReachOptions reach{.address = server->address(),
                           .model = flags.serve.served_model_names.front(),
                           .keys = !flags.serve.api_keys.empty(),
                           .key_variable = flags.key_variable,
                           .chat = engine->has_chat_template() || !flags.serve.chat_template.empty(),
                           .container = in_container()};
  server->on_failure([&signals] { signals.give_up(); });
  RETURN_IF_ERROR(
      server->serve(std::move(engine), prepared.options, prepared.plan ? prepared.plan->plan : MemoryPlan{}));
  signals.serving();
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f", std::chrono::duration<double>(Clock::now() - start).count());
  say(std::string("init engine (load model, create kv cache) took ") + seconds + " s");
  say("Starting Kvarto server on " + server->address());
  say("Available routes are:");
  for (const std::string& line : route_lines(flags.serve.dev_mode)) say(line);
  for (const std::string& line : reach_lines(reach)) say(line);
  say("Application startup complete.");

  return wait_and_drain(*server, signals, flags.serve.shutdown_timeout_s);
}

Result<int> serve(CLI::App& app) {
  Result<ServeLine> line = read_serve_line(
      app.remaining(), [](const char* name) -> const char* { return std::getenv(name); }, app.get_footer());
  if (!line) return wrong_usage(line.error());
  if (line->help) return put(*line->help).map([] { return 0; });
  if (line->check) return put_reports(*line);
  if (const Status refused = first_refusal(*line); !refused) return wrong_usage(refused.error());
  set_log_level(line->flags.log_level);
  queue_log_lines();
  Result<int> code = run_server(line->flags);
  const bool bad_value =
      !code && (code.error().code == ErrorCode::invalid_argument ||
                (code.error().code == ErrorCode::out_of_memory && line->flags.engine.max_model_len > 0));
  if (code) say("Application shutdown complete.");
  flush_or_end(code ? *code : bad_value ? kWrongUsage : 1);
  return bad_value ? wrong_usage(code.error()) : code;
}

}  // namespace

// All words go to serve's own reader: vLLM's rules are not those of the parser of the other verbs.
VerbAction declare_serve(CLI::App& app) {
  app.set_help_flag("");
  app.prefix_command();
  return [&app] { return serve(app); };
}

}  // namespace kvarto
