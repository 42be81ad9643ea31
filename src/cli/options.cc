#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/file.h"
#include "cli/model_path.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "engine/validate.h"
#include "format/printable.h"

namespace kvarto {

namespace {

template <typename T>
struct WholeOf {
  using Type = T;
};
template <typename T>
struct WholeOf<std::optional<T>> {
  using Type = T;
};
template <typename T>
struct WholeOf<std::vector<T>> {
  using Type = T;
};

// Plain decimal digits: the parser itself would take 010 for 8 and wrap -1 around.
template <typename Whole>
std::string complaint(const std::string& text) {
  Whole value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const size_t first_digit = text.starts_with('-') ? 1 : 0;
  const bool padded = text.size() > first_digit + 1 && text[first_digit] == '0';
  if (error == std::errc() && rest == end && !padded) return "";
  using Limits = std::numeric_limits<Whole>;
  return "'" + printable(text) + "' is not a whole number from " + std::to_string(Limits::min()) + " to " +
         std::to_string(Limits::max()) + " in decimal digits";
}

}  // namespace

template <typename T>
CLI::Option* add_count(CLI::App& app, const std::string& name, T& value, const std::string& text) {
  return app.add_option(name, value, text)->check(complaint<typename WholeOf<T>::Type>, "");
}
template CLI::Option* add_count(CLI::App&, const std::string&, int32_t&, const std::string&);
template CLI::Option* add_count(CLI::App&, const std::string&, uint32_t&, const std::string&);
template CLI::Option* add_count(CLI::App&, const std::string&, uint64_t&, const std::string&);

void add_model_flag(CLI::App& app, ModelFlags& flags, bool required) {
  CLI::Option* model = app.add_option("MODEL", flags.model,
                                      "A GGUF file, an alias (smollm2), a folder or GGUF in models/, or "
                                      "org/name[:quant] in the local Hugging Face cache");
  if (required) model->required();
  app.add_flag("--quiet,-q", flags.quiet, "No notes and no figures on stderr");
}

void add_plan_flags(CLI::App& app, ModelFlags& flags) {
  EngineOptions& engine = flags.engine;
  const std::string group = "Engine";
  app.add_option("--kv-cache-dtype", flags.kv_cache_dtype,
                 "How K and V are stored: auto (float16 for GGUF), float32, float16 (f16), bfloat16 (bf16)")
      ->group(group);
  add_count(app, "--block-size", engine.block_size, "Tokens per KV block: 16, 32, 64, 128 or 256")->group(group);
  app.add_option("--kv-cache-memory-bytes", flags.kv_cache_memory_bytes,
                 "Memory of the KV cache, such as 512M or 2G; 0: what the plan finds sensible")
      ->group(group);
  add_count(app, "--max-model-len", engine.max_model_len,
            "Longest prompt and output together; 0: the model's context, or what fits")
      ->group(group);
  add_count(app, "--max-num-seqs", flags.max_num_seqs, "Sequences that run at once")->group(group);
  add_count(app, "--max-num-batched-tokens", engine.max_num_batched_tokens, "Most tokens computed in one step")
      ->group(group);
  app.add_flag("--reference", engine.reference,
               "Compute in float32 from dequantised weights: slow and large, the yardstick (numerics f32-1)")
      ->group(group);
}

void add_engine_flags(CLI::App& app, ModelFlags& flags, bool threads) {
  const std::string group = "Engine";
  if (threads) {
    add_count(app, "--threads", flags.engine.threads, "Compute threads; 0: one per usable physical core")->group(group);
  }
  add_plan_flags(app, flags);
  app.add_option("--max-step-ms", flags.engine.max_step_ms,
                 "Longest step while anything decodes; 0: 2.8x a slow one of those that only decode")
      ->group(group);
  app.add_flag("!--no-enable-prefix-caching,--enable-prefix-caching", flags.engine.enable_prefix_caching,
               "Reuse cached blocks of prompts that begin alike (on by default)")
      ->group(group);
}

Result<EngineOptions> engine_options(const ModelFlags& flags, uint32_t seqs) {
  EngineOptions options = flags.engine;
  options.max_num_seqs = flags.max_num_seqs.value_or(seqs);
  ASSIGN_OR_RETURN(const std::optional<KvDtype> dtype, parse_kv_dtype(flags.kv_cache_dtype));
  options.k_dtype = options.v_dtype = dtype;
  ASSIGN_OR_RETURN(options.kv_cache_memory_bytes, parse_bytes(flags.kv_cache_memory_bytes));
  RETURN_IF_ERROR(validate(options));
  return options;
}

Result<std::string> find_model(const ModelFlags& flags) {
  ASSIGN_OR_RETURN(ResolvedModel found, resolve_model(flags.model));
  if (!flags.quiet) note("model: " + found.path + " (" + found.how + ")");
  return std::move(found.path);
}

Result<std::unique_ptr<Engine>> load_engine(const ModelFlags& flags, const EngineOptions& options) {
  ASSIGN_OR_RETURN(const std::string path, find_model(flags));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, [&] {
    Progress progress("loading");
    EngineOptions with_progress = options;
    with_progress.progress = [&](size_t done, size_t total) { progress.show(done, total); };
    return Engine::load(path, with_progress);
  }());
  const EngineInfo& info = engine->info();
  if (!flags.quiet && !info.max_model_len_reason.empty()) {
    note("longest request " + std::to_string(info.max_model_len) + " tokens: " + info.max_model_len_reason);
  }
  return engine;
}

void add_sampling_flags(CLI::App& app, SamplingFlags& flags) {
  SamplingParams& p = flags.params;
  p.max_tokens = 256;
  const std::string group = "Sampling";
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->group(group);
  };
  const auto count = [&](const char* name, auto& value, const char* text) {
    add_count(app, name, value, text)->group(group);
  };
  count("--max-tokens", p.max_tokens, "Most tokens to generate");
  count("--min-tokens", p.min_tokens, "No end before so many tokens");
  add("--temperature", flags.temperature, "0: always the likeliest token (the default; 0.7 in a chat); up to 2");
  add("--top-p", p.top_p, "Smallest set of tokens whose probabilities reach this sum; 1: all");
  count("--top-k", p.top_k, "Only so many likeliest tokens; 0: all");
  add("--min-p", p.min_p, "Drop tokens less likely than this share of the likeliest");
  add("--repetition-penalty", p.repetition_penalty, "Above 1 discourages tokens of prompt and output");
  add("--frequency-penalty", p.frequency_penalty, "Per occurrence in the output, -2 to 2");
  add("--presence-penalty", p.presence_penalty, "Once per token of the output, -2 to 2");
  count("--seed", flags.seed, "Same seed, same text, whatever else runs [0]");
  app.add_option("--stop", p.stop, "Ends the text before this string; may be repeated")
      ->group(group)
      ->allow_extra_args(false);
  add_count(app, "--stop-token-ids", p.stop_token_ids, "Ends after this token; may be repeated")
      ->group(group)
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", p.ignore_eos, "Go on after the model's own end")->group(group);
  count("--n", p.n, "Samples of one prompt; they share its blocks");
  count("--sample-index", flags.sample_index, "Draw as sample so-and-so of an n would");
  count("--beam-width", p.beam_width, "Beam search with so many beams instead of sampling; 0: off");
  count("--logprobs", flags.logprobs, "With --json: log-probabilities of each token and of so many alternatives");
  add("--cache-salt", flags.cache_salt, "Share cached blocks only with prompts of the same salt");
  app.add_flag("--logits-hash", flags.logits_hash,
               "Add logits_sha256: SHA-256 of all raw logits of the generated tokens, little-endian float32")
      ->group(group);
}

SamplingParams sampling_params(const SamplingFlags& flags, float temperature) {
  SamplingParams params = flags.params;
  params.temperature = flags.temperature.value_or(temperature);
  params.seed = flags.seed;
  params.logprobs = flags.logprobs;
  return params;
}

Result<size_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(rest, static_cast<size_t>(text.data() + text.size() - rest));
  if (unit.ends_with("iB")) {
    unit.remove_suffix(2);
  } else if (unit.ends_with("B")) {
    unit.remove_suffix(1);
  }
  constexpr std::string_view kBinary = "KMGT", kDecimal = "kmgt";
  double scale = 1;
  bool known = unit.size() <= 1;
  if (unit.size() == 1) {
    const size_t binary = kBinary.find(unit[0]), decimal = kDecimal.find(unit[0]);
    known = binary != std::string_view::npos || decimal != std::string_view::npos;
    if (known) {
      scale = binary != std::string_view::npos ? std::pow(1024.0, static_cast<double>(binary + 1))
                                               : std::pow(1000.0, static_cast<double>(decimal + 1));
    }
  }
  const double bytes = value * scale;
  if (error != std::errc() || !known || !(bytes >= 0) || bytes > 1e18 || bytes != std::floor(bytes)) {
    return fail(ErrorCode::invalid_argument,
                "'" + printable(text) + "' is not a number of bytes; write 1073741824, 512M or 2G");
  }
  return static_cast<size_t>(bytes);
}

Result<std::vector<uint32_t>> parse_counts(std::string_view flag, std::string_view text, std::string_view example) {
  std::vector<uint32_t> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    uint32_t count = 0;
    const auto [rest, error] = std::from_chars(at, end, count);
    const bool padded = rest - at > 1 && *at == '0';  // octal to some readers
    if (error != std::errc() || padded || (rest != end && *rest != ',')) {
      return fail(ErrorCode::invalid_argument, std::string(flag) + " '" + printable(text) +
                                                   "' is not a list of counts; write one such as " +
                                                   std::string(example));
    }
    counts.push_back(count);
    if (rest == end) return counts;
    at = rest + 1;
  }
}

// In an array one comma stands between two ids; elsewhere any white space and commas do.
Result<std::vector<TokenId>> parse_ids(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const auto skip = [&](std::string_view what) {
    text.remove_prefix(std::min(text.find_first_not_of(what), text.size()));
  };
  skip(kSpace);
  const bool array = text.starts_with('[');
  if (array) text.remove_prefix(1);
  const std::string between = std::string(kSpace) + (array ? "" : ",");
  std::vector<TokenId> ids;
  for (skip(between); !text.empty() && !(text.front() == ']' && ids.empty()); skip(between)) {
    TokenId id = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const size_t used = static_cast<size_t>(rest - text.data());
    if (error != std::errc() ||
        (used < text.size() && (std::string(kSpace) + ",]").find(text[used]) == std::string::npos)) {
      return fail(ErrorCode::invalid_argument,
                  "'" + printable(text.substr(0, std::max<size_t>(1, text.find_first_of(" \n\t,]")))) +
                      "' is not a token id; give a JSON array of ids, or ids between spaces");
    }
    ids.push_back(id);
    text.remove_prefix(used);
    if (!array) {
      if (text.starts_with(']')) break;
      continue;
    }
    skip(kSpace);
    if (text.empty() || text.front() == ']') break;
    if (text.front() != ',') {
      return fail(ErrorCode::invalid_argument, "two ids of the array have no comma between them; give a JSON array");
    }
    text.remove_prefix(1);
    skip(kSpace);
    if (text.empty()) break;
  }
  if (array == text.empty()) {
    return fail(ErrorCode::invalid_argument,
                std::string("the list of ids has ") + (array ? "no closing" : "a stray") + " ']'; give a JSON array");
  }
  if (array) text.remove_prefix(1);
  skip(kSpace);
  if (!text.empty())
    return fail(ErrorCode::invalid_argument, "something follows the array of ids; give one array only");
  if (ids.empty()) return fail(ErrorCode::invalid_argument, "there are no token ids; give at least one");
  return ids;
}

Result<std::string> read_input(const std::string& path, size_t max_bytes) {
  // stdin may be a pipe, of which the size is unknown.
  return read_file(path == "-" ? "/dev/stdin" : path, max_bytes);
}

}  // namespace kvarto
