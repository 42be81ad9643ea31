// `kvarto bench serve`: its flags, and a run from the first question to the last table.
#include "cli/bench_serve.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/interrupt.h"
#include "cli/load_client.h"
#include "cli/load_output.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

struct Flags {
  LoadServerOptions server{.url = "http://127.0.0.1:8000"};
  std::string endpoint = "auto";
  // --- what is sent
  std::string prompt_tokens = "512", output_tokens = "128", suffix_tokens, think_time = "0s";
  uint32_t prefix_tokens = 0, families = 1, turns = 1, system_tokens = 0, trace_block = 0;
  double prefix_share = 1, trace_scale = 1, trace_speed = 1;
  std::string jsonl, trace;
  bool allow_eos = false, no_stream = false;
  double temperature = 0;
  std::string extra_body;
  uint64_t seed = 1;
  // --- how
  uint32_t concurrency = 0;  // 0: one, or what an open loop may need
  std::optional<double> rate;
  bool trace_times = false;
  uint64_t requests = 0;  // 0: not given
  std::string duration, slo;
  double abort = 0;
  std::string abort_within = "1s";
  // --- what comes out
  bool json = false, quiet = false;
  std::string html;
};

constexpr uint32_t kMostThreads = 2000, kOpenLoopThreads = 512;
constexpr uint64_t kDefaultRequests = 100;

tl::unexpected<Error> wrong(std::string message) { return fail(ErrorCode::invalid_argument, std::move(message)); }

std::string shown_number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

Status check_numbers(const Flags& flags) {
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  const auto factor = [](double value) { return value > 0 && value <= 1e6; };
  if (!share(flags.prefix_share)) return wrong("--prefix-share takes a share from 0 to 1, such as 0.5");
  if (!share(flags.abort)) return wrong("--abort takes a share from 0 to 1, such as 0.5");
  if (!factor(flags.trace_scale)) return wrong("--trace-scale takes a number above 0, such as 0.1");
  if (!factor(flags.trace_speed)) return wrong("--trace-speed takes a number above 0, such as 10");
  if (flags.rate && !factor(*flags.rate)) return wrong("--rate takes requests per second, above 0");
  if (!(flags.temperature >= 0 && flags.temperature <= 100)) return wrong("--temperature takes a number from 0 on");
  if (!factor(flags.server.timeout_s)) return wrong("--timeout takes seconds above 0");
  if (flags.families == 0 || flags.turns == 0) return wrong("--families and --turns take 1 or more");
  if (flags.concurrency > kMostThreads) {
    return wrong("--concurrency " + std::to_string(flags.concurrency) + " is above " + std::to_string(kMostThreads));
  }
  return {};
}

Status check_together(const Flags& flags) {
  const int kinds = (flags.jsonl.empty() ? 0 : 1) + (flags.trace.empty() ? 0 : 1) +
                    (flags.turns > 1 || flags.system_tokens > 0 ? 1 : 0) +
                    (flags.prefix_tokens > 0 || !flags.suffix_tokens.empty() ? 1 : 0);
  if (kinds > 1) {
    return wrong(
        "--jsonl, --trace, chats (--turns, --system-tokens) and shared prefixes (--prefix-tokens, "
        "--suffix-tokens) are different workloads; give one");
  }
  if (flags.trace_times && flags.trace.empty()) return wrong("--trace-times needs --trace");
  if (flags.trace_times && flags.rate) return wrong("--trace-times and --rate are two kinds of arrivals; give one");
  if (!flags.suffix_tokens.empty() && flags.prefix_tokens == 0) return wrong("--suffix-tokens needs --prefix-tokens");
  if (flags.endpoint == "completions" && (flags.turns > 1 || flags.system_tokens > 0)) {
    return wrong("chats need --endpoint chat");
  }
  if (!flags.extra_body.empty()) {
    const auto parsed = parse_json(flags.extra_body);
    if (!parsed || !parsed->is_object()) {
      return wrong("--extra-body " + kvarto::quoted(flags.extra_body) +
                   " is no JSON object; write it as '{\"top_k\": 5}'");
    }
  }
  return {};
}

bool is_chat(const Flags& flags) {
  return flags.endpoint == "chat" || (flags.endpoint == "auto" && (flags.turns > 1 || flags.system_tokens > 0));
}

struct Load {
  std::unique_ptr<Workload> work;
  std::string what;
  bool exact = true;
};

Result<Load> make_lines_load(const Flags& flags) {
  ASSIGN_OR_RETURN(const TokenRange output, parse_token_range("--output-tokens", flags.output_tokens));
  ASSIGN_OR_RETURN(const std::string text, read_input(flags.jsonl));
  ASSIGN_OR_RETURN(std::unique_ptr<Workload> work, make_lines(text, output, flags.seed));
  return Load{std::move(work), "requests of a file", true};
}

Result<Load> make_trace(const Flags& flags, std::shared_ptr<const Filler> filler) {
  ASSIGN_OR_RETURN(const std::string text, read_input(flags.trace));
  ASSIGN_OR_RETURN(Trace trace, parse_trace(text, flags.trace_block));
  trace = scaled(std::move(trace), flags.trace_scale, flags.trace_speed);
  const bool exact = filler->exact();
  std::string what = "a trace of " + std::to_string(trace.requests.size()) + " requests";
  if (trace.block_tokens > 0) what += ", blocks of " + std::to_string(trace.block_tokens) + " tokens";
  return Load{make_trace_load(flags.seed, is_chat(flags), std::move(trace), std::move(filler)), std::move(what), exact};
}

Result<Load> make_chat_load(const Flags& flags, TokenRange output, std::shared_ptr<const Filler> filler) {
  ChatOptions options{.seed = flags.seed, .turns = flags.turns, .system_tokens = flags.system_tokens};
  ASSIGN_OR_RETURN(options.user, parse_token_range("--prompt-tokens", flags.prompt_tokens));
  ASSIGN_OR_RETURN(options.think, parse_time_range("--think-time", flags.think_time));
  options.output = output;
  const bool exact = filler->exact();
  std::string what = "chats of " + std::to_string(flags.turns) + " turns, system prompt " +
                     std::to_string(flags.system_tokens) + ", messages " + flags.prompt_tokens + ", answers " +
                     flags.output_tokens + " tokens";
  return Load{make_chats(options, std::move(filler)), std::move(what), exact};
}

Result<Load> make_prompt_load(const Flags& flags, TokenRange output, std::shared_ptr<const Filler> filler) {
  PromptOptions options{.seed = flags.seed, .chat = is_chat(flags)};
  options.prefix_tokens = flags.prefix_tokens;
  options.families = flags.families;
  options.prefix_share = flags.prefix_share;
  options.output = output;
  ASSIGN_OR_RETURN(options.prompt, parse_token_range("--prompt-tokens", flags.prompt_tokens));
  std::string what = "prompts of ";
  if (flags.suffix_tokens.empty()) {
    what += flags.prompt_tokens;
  } else {
    ASSIGN_OR_RETURN(options.suffix, parse_token_range("--suffix-tokens", flags.suffix_tokens));
    what += std::to_string(flags.prefix_tokens) + " + " + flags.suffix_tokens;
  }
  what += " tokens";
  if (flags.prefix_tokens > 0) {
    what += ", " + shown_number(100 * flags.prefix_share) + " % in " + std::to_string(flags.families) +
            (flags.families == 1 ? " family" : " families") + " of " + std::to_string(flags.prefix_tokens) + " shared";
  }
  what += ", answers " + flags.output_tokens;
  const bool exact = filler->exact();
  return Load{make_prompts(std::move(options), std::move(filler)), std::move(what), exact};
}

Result<Load> make_load(const Flags& flags, const LoadServer& server) {
  if (!flags.jsonl.empty()) return make_lines_load(flags);
  ASSIGN_OR_RETURN(const TokenRange output, parse_token_range("--output-tokens", flags.output_tokens));
  ASSIGN_OR_RETURN(Filler filler, Filler::calibrate(server.counter(is_chat(flags))));
  auto shared = std::make_shared<const Filler>(std::move(filler));
  if (!flags.trace.empty()) return make_trace(flags, std::move(shared));
  if (flags.turns > 1 || flags.system_tokens > 0) return make_chat_load(flags, output, std::move(shared));
  return make_prompt_load(flags, output, std::move(shared));
}

Result<LoadPlan> make_plan(const Flags& flags, const Workload& work) {
  LoadPlan plan{.seed = flags.seed};
  plan.arrivals = flags.trace_times ? Arrivals::trace : flags.rate ? Arrivals::poisson : Arrivals::closed_loop;
  plan.concurrency = flags.concurrency > 0                    ? flags.concurrency
                     : plan.arrivals == Arrivals::closed_loop ? 1
                                                              : kOpenLoopThreads;
  plan.rate = flags.rate.value_or(0);
  if (flags.requests > 0) plan.jobs = flags.requests;
  if (!flags.duration.empty()) {
    ASSIGN_OR_RETURN(plan.duration_s, parse_seconds("--duration", flags.duration));
  }
  if (!plan.jobs && !plan.duration_s && !work.size()) plan.jobs = kDefaultRequests;
  plan.abort_share = flags.abort;
  ASSIGN_OR_RETURN(plan.abort_within_s, parse_seconds("--abort-within", flags.abort_within));
  return plan;
}

std::string loop_text(const LoadPlan& plan) {
  switch (plan.arrivals) {
    case Arrivals::closed_loop:
      return "; " + std::to_string(plan.concurrency) + " at a time";
    case Arrivals::poisson:
      return "; Poisson arrivals, " + shown_number(plan.rate) + " per second";
    case Arrivals::trace:
      return "; arrivals of the trace";
  }
  return "";
}

void show(Progress& bar, const LoadPlan& plan, const LoadProgress& progress, std::optional<uint64_t> jobs) {
  char text[160];
  const double rate = progress.now_s > 0 ? static_cast<double>(progress.output_tokens) / progress.now_s : 0;
  std::snprintf(text, sizeof text, "%llu done, %llu running, %llu failed, %.0f tokens/s",
                static_cast<unsigned long long>(progress.ended), static_cast<unsigned long long>(progress.running),
                static_cast<unsigned long long>(progress.failed), rate);
  if (jobs) {
    bar.show(progress.ended, *jobs, text);
  } else {
    bar.show(static_cast<size_t>(progress.now_s * 1000), static_cast<size_t>(*plan.duration_s * 1000), text);
  }
}

std::vector<LoadRecord> run_load(const Flags& flags, const LoadServer& server, const Load& load, const LoadPlan& plan) {
  RequestStyle style{.model = server.model(), .chat = is_chat(flags), .stream = !flags.no_stream};
  style.fixed_lengths = !flags.allow_eos;
  style.temperature = flags.temperature;
  style.extra = flags.extra_body;
  const std::unique_ptr<LoadTime> time = real_time();
  const LoadRun run(*load.work, std::move(style), plan, *time, [&] { return server.sender(*time, !flags.no_stream); });
  std::optional<uint64_t> jobs = load.work->size();
  if (plan.jobs) jobs = std::min(*plan.jobs, jobs.value_or(*plan.jobs));
  Progress bar("load");
  return run.run([&](const LoadProgress& progress) {
    show(bar, plan, progress, jobs);
    return interrupted();
  });
}

Result<int> bench_serve(const Flags& flags) {
  RETURN_IF_ERROR(check_numbers(flags));
  RETURN_IF_ERROR(check_together(flags));
  const Result<Slo> slo = flags.slo.empty() ? Slo() : parse_slo(flags.slo);
  if (!slo) return tl::unexpected<Error>(slo.error());
  ASSIGN_OR_RETURN(const LoadServer server, LoadServer::find(flags.server));
  ASSIGN_OR_RETURN(const Load load, make_load(flags, server));
  ASSIGN_OR_RETURN(const LoadPlan plan, make_plan(flags, *load.work));
  LoadReport report{.url = server.shown_url(), .model = server.model(), .what = load.what + loop_text(plan)};
  if (!flags.quiet) note("load on " + report.url + ", model " + report.model + ": " + report.what);
  std::vector<LoadRecord> records;
  {
    const InterruptScope scope;
    records = run_load(flags, server, load, plan);
    report.interrupted = interrupted();
  }
  report.seed = flags.seed;
  report.stream = !flags.no_stream;
  report.exact_lengths = load.exact;
  report.slo = *slo;
  report.summary = summarise(records, report.slo);
  report.records = &records;
  if (!flags.html.empty()) {
    RETURN_IF_ERROR(write_file_atomically(flags.html, load_html(report)));
    if (!flags.quiet) note("charts: " + flags.html);
  }
  RETURN_IF_ERROR(put(flags.json ? load_json(report) : load_table(report)));
  if (report.interrupted) return kExitInterrupted;
  return report.summary.done + report.summary.aborted > 0 ? 0 : 1;
}

void declare_flags(CLI::App& app, Flags& flags) {
  app.add_option("--url", flags.server.url, "The server, with or without /v1");
  app.add_option("--model", flags.server.model, "Its name there; without it the first of /v1/models");
  app.add_option("--api-key", flags.server.api_key, "Sent as Authorization: Bearer KEY");
  app.add_option("--endpoint", flags.endpoint,
                 "completions or chat; auto: chat when there are turns or a system prompt")
      ->check(CLI::IsMember({"auto", "completions", "chat"}));
  app.add_option("--prompt-tokens", flags.prompt_tokens,
                 "Tokens of a prompt, or of what the user says in a chat: 512, 100-900, log:10-4000");
  app.add_option("--output-tokens", flags.output_tokens, "Tokens of an answer, in the same forms");
  add_count(app, "--prefix-tokens", flags.prefix_tokens, "Prompts begin with so many tokens of their family");
  add_count(app, "--families", flags.families, "Families of prompts, each with a prefix of its own");
  app.add_option("--prefix-share", flags.prefix_share, "Share of the prompts that belong to a family");
  app.add_option("--suffix-tokens", flags.suffix_tokens, "Prompts are the prefix and so many tokens behind it");
  add_count(app, "--turns", flags.turns, "Turns of a chat; each has all before it");
  add_count(app, "--system-tokens", flags.system_tokens, "A system prompt that all chats share");
  app.add_option("--think-time", flags.think_time, "Between an answer and the next turn: 2s, 1s-5s");
  app.add_option("--jsonl", flags.jsonl, "A file of request bodies, or of a batch, one a line; - is stdin");
  app.add_option("--trace", flags.trace, "A trace: hash_ids in JSONL (Mooncake's form) or Azure's CSV; - is stdin");
  app.add_flag("--trace-times", flags.trace_times, "Requests arrive when the trace has them");
  add_count(app, "--trace-block", flags.trace_block, "Tokens of a block of the trace; 0: found out");
  app.add_option("--trace-scale", flags.trace_scale, "Multiplies all lengths of the trace");
  app.add_option("--trace-speed", flags.trace_speed, "Divides all times of the trace");
  app.add_flag("--allow-eos", flags.allow_eos, "Answers may end early: sends no ignore_eos and no min_tokens");
  app.add_flag("--no-stream", flags.no_stream, "Asks for whole replies: no times of tokens then");
  app.add_option("--temperature", flags.temperature, "Of the sampling");
  app.add_option("--extra-body", flags.extra_body, "A JSON object laid over every request");
  add_count(app, "--seed", flags.seed, "Of lengths, texts, arrivals and aborts");
  add_count(app, "-c,--concurrency", flags.concurrency,
            "Closed loop: jobs at any time (0: 1). Open loop: the most at once (0: 512)");
  app.add_option("--rate", flags.rate, "Open loop: jobs per second, arriving at random (Poisson)");
  add_count(app, "-n,--requests", flags.requests,
            "Jobs: prompts, chats, lines. 0: as many as --duration allows, all of a file, or 100");
  app.add_option("--duration", flags.duration, "Nothing starts later, such as 3m; what runs may end");
  app.add_option("--slo", flags.slo, "Counts requests that keep limits: ttft=1s,tpot=50ms,e2e=10s");
  app.add_option("--abort", flags.abort, "Share of the requests that are hung up on at a random moment");
  app.add_option("--abort-within", flags.abort_within, "Latest of these moments after a request's start");
  app.add_option("--timeout", flags.server.timeout_s, "Seconds to wait for each piece of a reply");
  app.add_flag("--json", flags.json, "One object with all figures");
  app.add_option("--html", flags.html, "Also writes a page with charts");
  app.add_flag("-q,--quiet", flags.quiet, "Nothing on stderr but errors");
}

constexpr char kExplanation[] =
    "Examples:\n"
    "  kvarto bench serve --url http://127.0.0.1:8000 -c 8 -n 200\n"
    "  kvarto bench serve --turns 4 --system-tokens 800 --prompt-tokens 40 --output-tokens 48 -c 8 -n 8\n"
    "  kvarto bench serve --prefix-tokens 2000 --suffix-tokens 50 --families 4 -c 16\n"
    "  kvarto bench serve --rate 4 --duration 3m --prompt-tokens log:10-4000 --slo ttft=1s,tpot=50ms --html load.html\n"
    "  zcat trace.jsonl.gz | kvarto bench serve --trace - --trace-times --trace-scale 0.1 --trace-speed 5\n"
    "What is measured, of requests that are done:\n"
    "  TTFT   from when a request was due (open loop: its arrival) to its first token\n"
    "  TPOT   from the first token to the last, by the tokens between\n"
    "  gap    between two events of a stream that bring tokens; a server may put several tokens into one\n"
    "  whole  from due to the end of the reply\n"
    "Percentiles are interpolated between the two nearest values, as numpy does. Prompts hit their length in the\n"
    "server's own tokens: it is asked for them by /tokenize, or by the usage of requests for one token. In a chat the\n"
    "lengths are those of the messages; the template's tokens come on top.\n"
    "Exit codes: 0; 1 when no request was done; 130 after Ctrl-C, which shows what was measured.";

}  // namespace

BenchServeVerb declare_bench_serve(CLI::App& bench) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* app = bench.add_subcommand("serve", "Load on a server of OpenAI's API (Kvarto, vLLM, llama-server)");
  declare_flags(*app, *flags);
  app->footer(kExplanation);
  return {[app] { return app->parsed(); }, [flags] { return bench_serve(*flags); }};
}

}  // namespace kvarto
