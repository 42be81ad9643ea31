#include "server/api_request.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "format/printable.h"
#include "server/api_body.h"
#include "server/api_check.h"
#include "server/api_messages.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostNames = 32;
constexpr float kGreedyBelow = 1e-5f, kLowestTemperature = 0.01f;

tl::unexpected<ApiError> refuse(std::string field, std::string message) {
  return tl::unexpected(bad_field(std::move(field), std::move(message)));
}

// A request half read: values whose meaning depends on others.
struct Draft {
  ApiRequest out;
  Json kwargs = nullptr, tool_choice = nullptr;
  std::vector<std::string> tool_names;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<int64_t> best_of, top_logprobs, prompt_logprobs, completion_tokens;
  std::optional<bool> add_generation_prompt, tokens_as_ids;
  std::string reasoning_effort;
  bool beam = false, chat_logprobs = false, stream_options = false;
};

template <typename T>
T number(const Json& value) {
  return static_cast<T>(*whole_number(value));
}

std::vector<TokenId> ids(const Json& value) {
  std::vector<TokenId> out;
  out.reserve(value.size());
  for (const Json& id : value) out.push_back(number<TokenId>(id));
  return out;
}

std::vector<std::string> strings(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

std::vector<std::pair<TokenId, float>> biases(const Json& value) {
  std::vector<std::pair<TokenId, float>> out;
  out.reserve(value.size());
  for (const auto& [key, bias] : value.items()) {
    out.emplace_back(std::stoi(key), static_cast<float>(std::clamp(bias.get<double>(), -100.0, 100.0)));
  }
  return out;
}

bool is_true(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found != object.end() && *found == true;
}

void set_stream_options(Draft& d, Json& value) {
  d.stream_options = true;
  d.out.include_usage = is_true(value, "include_usage");
  d.out.continuous_usage_stats = is_true(value, "continuous_usage_stats");
}

void set_logprobs(Draft& d, Json& value) {
  if (d.out.route == ApiRoute::chat) {
    d.chat_logprobs = value.get<bool>();
  } else {
    d.out.sampling.logprobs = number<uint32_t>(value);
  }
}

using Setter = void (*)(Draft&, Json&);

// What a checked value does. Messages, tools and prompts, which can still be wrong, are not here.
const std::map<std::string_view, Setter>& setters() {
  static const auto* const kSetters = new std::map<std::string_view, Setter>{
      {"model", [](Draft& d, Json& v) { d.out.model = v.get<std::string>(); }},
      {"tool_choice", [](Draft& d, Json& v) { d.tool_choice = std::move(v); }},
      {"parallel_tool_calls", [](Draft& d, Json& v) { d.out.parallel_tool_calls = v.get<bool>(); }},
      {"documents", [](Draft& d, Json& v) { d.out.documents = v.dump(); }},
      {"chat_template", [](Draft& d, Json& v) { d.out.chat_template = v.get<std::string>(); }},
      {"chat_template_kwargs", [](Draft& d, Json& v) { d.kwargs = std::move(v); }},
      {"reasoning_effort", [](Draft& d, Json& v) { d.reasoning_effort = v.get<std::string>(); }},
      {"add_generation_prompt", [](Draft& d, Json& v) { d.add_generation_prompt = v.get<bool>(); }},
      {"continue_final_message", [](Draft& d, Json& v) { d.out.continue_final_message = v.get<bool>(); }},
      {"add_special_tokens", [](Draft& d, Json& v) { d.out.add_special_tokens = v.get<bool>(); }},
      {"truncate_prompt_tokens", [](Draft& d, Json& v) { d.out.truncate_prompt_tokens = number<int32_t>(v); }},
      {"truncation_side", [](Draft& d, Json& v) { d.out.truncate_left = v == "left"; }},
      {"n", [](Draft& d, Json& v) { d.out.sampling.n = number<uint32_t>(v); }},
      {"best_of", [](Draft& d, Json& v) { d.best_of = number<int64_t>(v); }},
      {"max_tokens", [](Draft& d, Json& v) { d.out.max_tokens = number<uint32_t>(v); }},
      {"max_completion_tokens", [](Draft& d, Json& v) { d.completion_tokens = number<int64_t>(v); }},
      {"min_tokens", [](Draft& d, Json& v) { d.out.sampling.min_tokens = number<uint32_t>(v); }},
      {"temperature", [](Draft& d, Json& v) { d.temperature = v.get<float>(); }},
      {"top_p", [](Draft& d, Json& v) { d.top_p = v.get<float>(); }},
      {"top_k", [](Draft& d, Json& v) { d.top_k = number<int32_t>(v); }},
      {"min_p", [](Draft& d, Json& v) { d.min_p = v.get<float>(); }},
      {"presence_penalty", [](Draft& d, Json& v) { d.out.sampling.presence_penalty = v.get<float>(); }},
      {"frequency_penalty", [](Draft& d, Json& v) { d.out.sampling.frequency_penalty = v.get<float>(); }},
      {"repetition_penalty", [](Draft& d, Json& v) { d.repetition_penalty = v.get<float>(); }},
      {"seed",
       [](Draft& d, Json& v) {
         if (const auto seed = number<int64_t>(v); seed != -1) d.out.sampling.seed = static_cast<uint64_t>(seed);
       }},
      {"stop", [](Draft& d, Json& v) { d.out.sampling.stop = strings(v); }},
      {"stop_token_ids", [](Draft& d, Json& v) { d.out.sampling.stop_token_ids = ids(v); }},
      {"include_stop_str_in_output",
       [](Draft& d, Json& v) { d.out.sampling.include_stop_str_in_output = v.get<bool>(); }},
      {"ignore_eos", [](Draft& d, Json& v) { d.out.sampling.ignore_eos = v.get<bool>(); }},
      {"logit_bias", [](Draft& d, Json& v) { d.out.sampling.logit_bias = biases(v); }},
      {"allowed_token_ids", [](Draft& d, Json& v) { d.out.sampling.allowed_token_ids = ids(v); }},
      {"bad_words", [](Draft& d, Json& v) { d.out.bad_words = strings(v); }},
      {"use_beam_search", [](Draft& d, Json& v) { d.beam = v.get<bool>(); }},
      {"length_penalty", [](Draft& d, Json& v) { d.out.sampling.length_penalty = v.get<float>(); }},
      {"priority", [](Draft& d, Json& v) { d.out.priority = number<int32_t>(v); }},
      {"cache_salt", [](Draft& d, Json& v) { d.out.cache_salt = v.get<std::string>(); }},
      {"stream", [](Draft& d, Json& v) { d.out.stream = v.get<bool>(); }},
      {"stream_options", set_stream_options},
      {"stream_interval", [](Draft& d, Json& v) { d.out.stream_interval = number<uint32_t>(v); }},
      {"echo", [](Draft& d, Json& v) { d.out.echo = v.get<bool>(); }},
      {"logprobs", set_logprobs},
      {"top_logprobs", [](Draft& d, Json& v) { d.top_logprobs = number<int64_t>(v); }},
      {"prompt_logprobs", [](Draft& d, Json& v) { d.prompt_logprobs = number<int64_t>(v); }},
      {"skip_special_tokens", [](Draft& d, Json& v) { d.out.sampling.skip_special_tokens = v.get<bool>(); }},
      {"return_tokens_as_token_ids", [](Draft& d, Json& v) { d.tokens_as_ids = v.get<bool>(); }},
      {"return_token_ids", [](Draft& d, Json& v) { d.out.return_token_ids = v.get<bool>(); }},
      {"return_prompt_text", [](Draft& d, Json& v) { d.out.return_prompt_text = v.get<bool>(); }},
      {"include_reasoning", [](Draft& d, Json& v) { d.out.include_reasoning = v.get<bool>(); }},
      {"return_token_strs", [](Draft& d, Json& v) { d.out.return_token_strs = v.get<bool>(); }},
      {"request_id", [](Draft& d, Json& v) { d.out.request_id = v.get<std::string>(); }},
  };
  return *kSetters;
}

ApiStatus read_prompt(Json& value, Draft& d) {
  if (value.is_string()) {
    d.out.prompts.assign(1, {.text = std::move(value.get_ref<std::string&>()), .ids = {}});
  } else if (d.out.prompts.empty()) {
    return tl::unexpected(bad_body("prompt", "prompt is empty; give at least 1 prompt"));
  }
  for (size_t i = 0; i < d.out.prompts.size(); ++i) {
    const ApiPrompt& prompt = d.out.prompts[i];
    if (prompt.text || !prompt.ids.empty()) continue;
    const std::string path = "prompt[" + std::to_string(i) + "]";
    return refuse(path, path + " is empty; the decoder prompt cannot be empty");
  }
  return {};
}

ApiStatus ignore(std::string_view name, const ApiLimits& limits, ApiRequest& out) {
  const std::string shown = printable(name, 64);
  if (limits.strict_fields) {
    return refuse(shown, "field " + kvarto::quoted(name, 64) + " is unknown here; leave it out (--strict-fields)");
  }
  ++out.ignored_count;
  if (out.ignored.size() < kMostNames) out.ignored.push_back(shown);
  return {};
}

ApiStatus ignore_inner(std::string_view name, const Json& object, const ApiLimits& limits, ApiRequest& out) {
  for (const auto& [key, value] : object.items()) {
    if (key == "include_usage" || key == "continuous_usage_stats" || key == "include_obfuscation") continue;
    RETURN_IF_API_ERROR(ignore(std::string(name) + '.' + key, limits, out));
  }
  return {};
}

ApiStatus read_field(const std::string& name, Json& value, const ApiLimits& limits, Draft& d) {
  const ApiField* field = find_api_field(d.out.route, name);
  if (field == nullptr) return ignore(name, limits, d.out);
  if (value.is_null()) return {};
  RETURN_IF_API_ERROR(check_value(*field, value, limits));
  switch (field->kind) {
    case FieldKind::messages:
      return read_messages(value, limits, d.out);
    case FieldKind::tools:
      RETURN_IF_API_ERROR(read_tools(value, limits, d.out));
      for (const Json& tool : value) d.tool_names.push_back(tool["function"]["name"].get<std::string>());
      return {};
    case FieldKind::prompt:
    case FieldKind::text_prompt:
      return read_prompt(value, d);
    case FieldKind::stream_options:
      RETURN_IF_API_ERROR(ignore_inner(name, value, limits, d.out));
      break;
    default:
      break;
  }
  const auto setter = setters().find(name);
  if (setter != setters().end() && field->use == FieldUse::used) setter->second(d, value);
  return {};
}

// --- what depends on several fields

ApiStatus check_presence(const Draft& d, bool tokens_given) {
  const bool chat = !d.out.messages.empty(), prompt = !d.out.prompts.empty();
  const auto missing = [](const char* name, const char* remedy) {
    return tl::unexpected(bad_body(name, std::string(name) + " is missing; " + remedy));
  };
  switch (d.out.route) {
    case ApiRoute::completions:
      if (!prompt) return missing("prompt", "give a string, strings or token ids");
      break;
    case ApiRoute::chat:
      if (!chat) return missing("messages", "give an array with at least 1 message");
      break;
    case ApiRoute::tokenize:
      if (!prompt && !chat) return missing("prompt", "give a prompt or messages");
      if (prompt && chat) return refuse("messages", "prompt and messages exclude each other; give one");
      break;
    case ApiRoute::detokenize:
      if (!tokens_given) return missing("tokens", "give an array of token ids");
      break;
  }
  return {};
}

ApiStatus settle_template(Draft& d, const ApiLimits& limits) {
  if (d.out.continue_final_message && d.add_generation_prompt.value_or(false)) {
    return refuse("continue_final_message",
                  "Cannot set both `continue_final_message` and `add_generation_prompt` to True; set one of them");
  }
  d.out.add_generation_prompt = d.add_generation_prompt.value_or(!d.out.continue_final_message);
  Json kwargs = Json::object();
  if (!limits.chat_template_kwargs.empty()) kwargs = Json::parse(limits.chat_template_kwargs, nullptr, false);
  if (d.kwargs.is_object()) {
    for (const char* name : {"messages", "tools", "documents", "chat_template", "add_generation_prompt",
                             "continue_final_message", "tokenize"}) {
      if (!d.kwargs.contains(name)) continue;
      const std::string path = std::string("chat_template_kwargs.") + name;
      return refuse(path, path + " is not for the template's variables; give it as a field of the request");
    }
    for (const auto& [key, value] : d.kwargs.items()) kwargs[key] = value;
  }
  if (!d.reasoning_effort.empty() && !kwargs.contains("reasoning_effort")) {
    kwargs["reasoning_effort"] = d.reasoning_effort;
  }
  if (!kwargs.empty()) d.out.chat_template_kwargs = kwargs.dump();
  return {};
}

ApiStatus refuse_named_tool(const Draft& d) {
  const Json& choice = d.tool_choice;
  if (choice.is_object()) {
    const auto function = choice.find("function");
    const bool shaped = function != choice.end() && function->is_object() && function->contains("name") &&
                        (*function)["name"].is_string();
    if (!shaped) return tl::unexpected(wrong_value("tool_choice", "none or auto", choice));
    const auto name = (*function)["name"].get<std::string>();
    if (std::find(d.tool_names.begin(), d.tool_names.end(), name) == d.tool_names.end()) {
      return refuse("tool_choice",
                    "The tool " + kvarto::quoted(name) + " specified in `tool_choice` is none of `tools`");
    }
  }
  return refuse("tool_choice", std::string("tool_choice ") + (choice.is_object() ? "of a named tool" : "required") +
                                   " is not built here: output is not constrained yet; use auto");
}

ApiStatus settle_tools(Draft& d, const ApiLimits& limits) {
  const bool tools = !d.out.tools.empty();
  if (d.out.route != ApiRoute::chat) return {};
  if (d.tool_choice == "none") {
    if (limits.exclude_tools_when_none) d.out.tools.clear();
    return {};
  }
  if (!tools) {
    if (d.tool_choice.is_null()) return {};
    return refuse("tool_choice", "When using `tool_choice`, `tools` must be set");
  }
  if (!d.tool_choice.is_null() && d.tool_choice != "auto") return refuse_named_tool(d);
  if (!limits.tool_calls) {
    return refuse("tool_choice",
                  "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be " +
                      std::string("set; with tool_choice none the tools are only shown to the model"));
  }
  d.out.parse_tool_calls = true;
  return {};
}

ApiStatus settle_length(Draft& d, const ApiLimits& limits) {
  ApiRequest& out = d.out;
  if (d.completion_tokens) out.max_tokens = static_cast<uint32_t>(*d.completion_tokens);
  if (out.route == ApiRoute::completions) {
    if (!out.max_tokens) out.max_tokens = SamplingParams().max_tokens;
    if (*out.max_tokens == 0 && !out.echo) {
      return refuse("max_tokens", "max_tokens must be at least 1 (0 with echo), got 0 (parameter=max_tokens, value=0)");
    }
  }
  const std::optional<uint32_t> cap = limits.defaults.max_new_tokens;
  if (cap) out.max_tokens = std::min(out.max_tokens.value_or(*cap), *cap);
  const uint32_t least = out.sampling.min_tokens;
  if (out.max_tokens && least > *out.max_tokens) {
    return refuse("min_tokens", "min_tokens must be less than or equal to max_tokens=" +
                                    std::to_string(*out.max_tokens) + ", got " + std::to_string(least));
  }
  return {};
}

// What was given, else the model's default, else what stands there.
template <typename T>
void choose(T& value, const std::optional<T>& given, const std::optional<T>& fallback) {
  value = given.value_or(fallback.value_or(value));
}

ApiStatus settle_sampling(Draft& d, const ApiLimits& limits) {
  SamplingParams& p = d.out.sampling;
  // Beams are ranked by the model's own probabilities; a model's defaults for sampling do not concern them.
  const SamplingDefaults defaults = d.beam ? SamplingDefaults() : limits.defaults;
  choose(p.temperature, d.temperature, defaults.temperature);
  choose(p.top_p, d.top_p, defaults.top_p);
  choose(p.min_p, d.min_p, defaults.min_p);
  choose(p.top_k, d.top_k, defaults.top_k);
  choose(p.repetition_penalty, d.repetition_penalty, defaults.repetition_penalty);
  if (p.temperature > 0 && p.temperature < kLowestTemperature) {
    d.out.warnings.push_back("temperature " + Json(p.temperature).dump() + " is raised to 0.01");
    p.temperature = kLowestTemperature;
  }
  if (d.best_of && *d.best_of != int64_t{p.n}) {
    return refuse("best_of", "best_of " + std::to_string(*d.best_of) + " is not built here: it must equal n " +
                                 std::to_string(p.n) + "; ask for more choices with n");
  }
  if (d.beam) {
    if (d.out.stream)
      return refuse("use_beam_search", "use_beam_search does not go with stream; leave one of them out");
    p.beam_width = p.n;
  } else if (p.n > 1 && p.temperature < kGreedyBelow) {
    return refuse("n", "n must be 1 when using greedy sampling, got " + std::to_string(p.n));
  }
  if (d.out.priority != 0 && !limits.priority_scheduling) {
    return refuse("priority", "priority " + std::to_string(d.out.priority) +
                                  " needs a server that runs with --scheduling-policy priority; leave it out");
  }
  return {};
}

ApiStatus settle_logprobs(Draft& d, const ApiLimits& limits) {
  ApiRequest& out = d.out;
  const auto count = [&](int64_t value) { return value < 0 ? limits.vocabulary : static_cast<uint32_t>(value); };
  if (d.chat_logprobs) {
    out.sampling.logprobs = count(d.top_logprobs.value_or(0));
  } else if (d.top_logprobs.value_or(0) != 0) {
    return refuse("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true");
  }
  if (d.prompt_logprobs) {
    if (out.stream && *d.prompt_logprobs != 0) {
      return refuse("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`; leave one of them out");
    }
    out.show_prompt_logprobs = true;
    out.prompt_logprobs = count(*d.prompt_logprobs);
  } else if (out.route == ApiRoute::completions && out.echo && out.sampling.logprobs) {
    out.prompt_logprobs = out.sampling.logprobs;
  } else if (out.max_tokens == 0u) {
    out.prompt_logprobs = 0;
  }
  out.return_tokens_as_token_ids = d.tokens_as_ids.value_or(limits.return_tokens_as_token_ids);
  return {};
}

ApiStatus settle(Draft& d, const ApiLimits& limits) {
  RETURN_IF_API_ERROR(settle_template(d, limits));
  RETURN_IF_API_ERROR(settle_tools(d, limits));
  if (d.out.route == ApiRoute::tokenize || d.out.route == ApiRoute::detokenize) return {};
  if (d.stream_options && !d.out.stream) {
    return tl::unexpected(bad_body("stream_options", "Stream options can only be defined when `stream=True`"));
  }
  RETURN_IF_API_ERROR(settle_length(d, limits));
  RETURN_IF_API_ERROR(settle_sampling(d, limits));
  return settle_logprobs(d, limits);
}

IdsField ids_field(ApiRoute route) {
  if (route == ApiRoute::completions) return {.name = "prompt", .prompts = true};
  if (route == ApiRoute::detokenize) return {.name = "tokens", .prompts = false};
  return {};
}

}  // namespace

ApiResult<ApiRequest> parse_api_request(ApiRoute route, std::string_view body, const ApiLimits& limits) {
  Draft d;
  d.out.route = route;
  ApiResult<Json> json = parse_api_body(body, limits, ids_field(route), d.out.prompts);
  if (!json) return tl::unexpected(std::move(json.error()));
  const auto messages = json->find("messages");
  const bool chat =
      route == ApiRoute::chat || (route == ApiRoute::tokenize && messages != json->end() && !messages->is_null());
  d.out.add_special_tokens = !chat;
  for (auto& [name, value] : json->items()) RETURN_IF_API_ERROR(read_field(name, value, limits, d));
  const auto tokens = json->find("tokens");
  const bool tokens_given = route == ApiRoute::detokenize && tokens != json->end() && !tokens->is_null();
  if (tokens_given && d.out.prompts.empty()) d.out.prompts.emplace_back();
  RETURN_IF_API_ERROR(check_presence(d, tokens_given));
  RETURN_IF_API_ERROR(settle(d, limits));
  return std::move(d.out);
}

Result<SamplingDefaults> parse_sampling_defaults(std::string_view text) {
  SamplingDefaults out;
  if (text.empty()) return out;
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  if (!json.is_object()) return fail(ErrorCode::invalid_argument, "the generation config is not a JSON object");
  const ApiLimits limits{.max_model_len = INT32_MAX};
  for (const auto& [key, value] : json.items()) {
    const bool length = key == "max_new_tokens";
    const bool known = length || key == "temperature" || key == "top_p" || key == "min_p" || key == "top_k" ||
                       key == "repetition_penalty";
    if (!known || value.is_null()) continue;
    const ApiField* field = find_api_field(ApiRoute::chat, length ? "max_tokens" : key);
    if (const ApiStatus status = check_value(*field, value, limits); !status) {
      return fail(ErrorCode::invalid_argument, "generation config, " + key + ": " + status.error().message);
    }
    if (key == "temperature") out.temperature = value.get<float>();
    if (key == "top_p") out.top_p = value.get<float>();
    if (key == "min_p") out.min_p = value.get<float>();
    if (key == "top_k") out.top_k = number<int32_t>(value);
    if (key == "repetition_penalty") out.repetition_penalty = value.get<float>();
    if (length) out.max_new_tokens = number<uint32_t>(value);
  }
  return out;
}

}  // namespace kvarto
