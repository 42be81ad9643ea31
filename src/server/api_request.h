// ApiRequest: the body of a request, checked and in our own terms. What the body alone can show to be wrong is refused
// here, naming the field; what needs the tokenizer, the template or the engine's state is not looked at. Plain data and
// a pure function; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/options.h"
#include "kvarto/types.h"
#include "server/api_error.h"
#include "server/api_fields.h"

namespace kvarto {

// Defaults of sampling values, from a model's generation_config.json.
struct SamplingDefaults {
  std::optional<float> temperature = {}, top_p = {}, min_p = {}, repetition_penalty = {};
  std::optional<int32_t> top_k = {};
  std::optional<uint32_t> max_new_tokens = {};  // caps every output
};
// `json`: an object; other keys are ignored. Empty: none. Errors name the key.
Result<SamplingDefaults> parse_sampling_defaults(std::string_view json);

// What a server allows; the defaults suit tests.
struct ApiLimits {
  uint32_t max_model_len = 4096;
  uint32_t vocabulary = UINT32_MAX;  // ids from it on are refused
  uint32_t max_n = 64;
  uint32_t max_logprobs = 20;  // UINT32_MAX: no cap
  uint32_t max_stop_strings = 4;
  uint32_t max_prompts = 1024;
  uint32_t max_messages = 16'384, max_tools = 1024;
  // A body may have so much of everything, whatever it is for.
  size_t max_string_bytes = 8 << 20;   // of one string
  size_t max_prompt_ids = 4 << 20;     // token ids of all prompts
  size_t max_values = 256 << 10;       // of everything else
  size_t max_keys = 1024;              // of one object, logit_bias aside
  size_t max_logprobs_told = 200'000;  // of one reply: tokens times log-probabilities each, in every choice
  bool strict_fields = false;          // unknown fields are refused
  bool trust_chat_template = false;
  bool sort_tool_keys = false;  // of the schemas of tools
  bool priority_scheduling = false;
  bool tool_calls = false;                  // tool calls are parsed from the output
  bool exclude_tools_when_none = false;     // with tool_choice none `tools` are left out
  bool return_tokens_as_token_ids = false;  // unless the request says otherwise
  std::string chat_template_kwargs = {};    // JSON object under the request's; empty: none
  SamplingDefaults defaults = {};
};

// Text or ids.
struct ApiPrompt {
  std::optional<std::string> text = {};
  std::vector<TokenId> ids = {};
};

struct ApiRequest {
  ApiRoute route = ApiRoute::completions;
  std::string model;  // empty: the served one

  // --- prompt
  std::vector<ApiPrompt> prompts;  // completions; of /tokenize one text, of /detokenize one list of ids
  // JSON texts for the chat template, key order kept (see sort_tool_keys); empty: not given. Content of messages is
  // text (null is empty) or an array of {"type": "text", "text": ...}; arguments of tool calls are objects.
  std::string messages, tools, documents, chat_template_kwargs;
  std::string last_role, last_content;  // of the last message; parts are joined
  std::string chat_template;            // instead of the model's
  bool add_generation_prompt = true, continue_final_message = false;
  bool add_special_tokens = true;
  std::optional<int32_t> truncate_prompt_tokens;  // -1: to what the model can take
  bool truncate_left = true;

  // --- generation. Of `sampling`, max_tokens and bad_words are not set: see the next two.
  SamplingParams sampling;
  std::vector<std::string> bad_words;
  std::optional<uint32_t> max_tokens;  // nullopt: the rest of the context. 0: only the prompt is scored and echoed
  int32_t priority = 0;
  std::string cache_salt;  // empty: none

  // --- reply
  bool stream = false, include_usage = false, continuous_usage_stats = false;
  uint32_t stream_interval = 0;  // 0: the server's
  bool echo = false;
  std::optional<uint32_t> prompt_logprobs;  // for Request; also of an echo with logprobs or without output
  bool show_prompt_logprobs = false;        // asked for by name: the reply's prompt_logprobs
  bool return_token_ids = false, return_tokens_as_token_ids = false;
  bool return_prompt_text = false, return_token_strs = false;
  bool include_reasoning = true;
  bool parse_tool_calls = false;  // tools were given and the model may call them
  bool parallel_tool_calls = true;
  std::string request_id;  // empty: none

  // --- for the log and the reply's headers
  std::vector<std::string> ignored;   // unknown fields, printable; at most 32
  uint64_t ignored_count = 0;         // all of them
  std::vector<std::string> warnings;  // values that were changed, for the log: each begins with the field's name
};

// Errors: ApiError with status 400 and the field in `param` wherever there is one.
ApiResult<ApiRequest> parse_api_request(ApiRoute route, std::string_view body, const ApiLimits& limits);

}  // namespace kvarto
