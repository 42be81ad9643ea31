// `kvarto run`: one prompt, and the choice between it, a chat and many prompts.
#include "cli/run.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/figures.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/list.h"
#include "cli/machine_rates.h"
#include "cli/output.h"
#include "cli/result_json.h"

namespace kvarto {
namespace {

struct Flags : RunFlags {
  std::optional<std::string> prompt;
  std::string file;
  bool json = false;
};

// Nothing: a chat.
Result<std::optional<std::string>> read_prompt(const Flags& flags) {
  if (flags.prompt) return flags.prompt;
  if (flags.file.empty() && stdin_is_terminal()) return std::optional<std::string>();
  return read_input(flags.file.empty() ? "-" : flags.file);
}

Status put_results(const RequestResult& result) {
  if (result.samples.size() == 1) return {};  // shown as it came
  for (size_t i = 0; i < result.samples.size(); ++i) {
    RETURN_IF_ERROR(put("--- sample " + std::to_string(i) + "\n" + result.samples[i].text + "\n"));
  }
  return {};
}

Result<int> run_prompt(Engine& engine, const Flags& flags, const std::string& prompt) {
  ASSIGN_OR_RETURN(std::vector<TokenId> ids, encode_prompt(engine, flags.system, prompt, flags.raw));
  Request request = make_request(flags.sampling, 0.0f, std::move(ids));
  // Beams are known when they are finished, several samples are shown one after the other.
  const bool streamed = !flags.json && request.sampling.n == 1 && request.sampling.beam_width == 0;
  InterruptScope scope;
  ASSIGN_OR_RETURN(const Generation generation, generate(engine, std::move(request), [&](std::string_view text) {
                     return streamed ? put(text) : Status();
                   }));
  const RequestResult& result = generation.result;
  if (flags.json) {
    RETURN_IF_ERROR(put(run_json(generation, engine) + "\n"));
  } else {
    if (!streamed && result.samples.size() == 1) RETURN_IF_ERROR(put(result.samples.front().text));
    if (result.samples.size() == 1) RETURN_IF_ERROR(put("\n"));
    RETURN_IF_ERROR(put_results(result));
  }
  const bool stopped = interrupted();
  if (!flags.model.quiet) {
    note_lines("\n" + describe(make_figures(engine, generation), stopped ? 0.0 : measure_reads(engine.info().threads)));
  }
  return stopped ? kExitInterrupted : 0;
}

Result<int> run(const Flags& flags) {
  if (!flags.prompts.empty()) {
    if (flags.prompt || !flags.file.empty() || flags.json) {
      return fail(ErrorCode::invalid_argument,
                  "--prompts does not go with --prompt, --file and --json; use one of them");
    }
    return run_batch(flags);
  }
  if (!flags.output.empty()) return fail(ErrorCode::invalid_argument, "-o goes with --prompts FILE; leave it out");
  ASSIGN_OR_RETURN(const std::optional<std::string> prompt, read_prompt(flags));
  const SamplingParams& params = flags.sampling.params;
  ASSIGN_OR_RETURN(const EngineOptions options,
                   engine_options(flags.model, std::max({1u, params.n, params.beam_width})));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load_engine(flags.model, options));
  if (!prompt) return run_chat(*engine, flags);
  if (!flags.raw && !engine->has_chat_template() && !flags.model.quiet) {
    note("the model has no chat template: the prompt is continued as plain text");
  }
  return run_prompt(*engine, flags, *prompt);
}

}  // namespace

VerbAction declare_run(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  add_model_flag(app, flags->model);
  app.add_option("--prompt,-p", flags->prompt, "The prompt; without one: stdin, or a chat on a terminal");
  app.add_option("--file,-f", flags->file, "Read the prompt from this file; - is stdin");
  app.add_option("--system", flags->system, "System message");
  app.add_flag("--raw", flags->raw, "No chat template: the model continues the text");
  app.add_flag(
      "--json", flags->json,
      "One JSON object: text, tokens, finish_reason, usage, ttft_ms, tpot_ms, kv; samples when --n is above 1");
  app.add_option(
      "--prompts", flags->prompts,
      "Many prompts, one JSON object a line: OpenAI batch lines, or {\"prompt\" | \"messages\" | \"ids\"} with "
      "max_tokens, seed, sample_index, n, temperature, cache_salt and the other sampling fields. A prompt goes "
      "through the chat template as with --prompt");
  app.add_option("--output,-o", flags->output,
                 "Results of --prompts, in input order (default: stdout); a file: run again to resume after Ctrl-C");
  add_sampling_flags(app, flags->sampling);
  add_engine_flags(app, flags->model);
  return [flags] { return run(*flags); };
}

}  // namespace kvarto
