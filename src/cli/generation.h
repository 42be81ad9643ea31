// One request from prompt to result, as the command line runs it: Ctrl-C ends it cleanly, text goes out as it comes.
// Main thread, which owns the engine.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "kvarto/engine.h"

namespace kvarto {

struct Generation {
  RequestResult result;
  uint64_t blocks_used = 0;  // KV blocks in use, at most
  double waste = 0;          // share of used KV bytes that held no token, mean over the steps so far
};
// `on_text` gets the text of sample 0 as it may be shown; what it fails with ends the request and is returned. A
// refused request is an error. After Ctrl-C (inside an InterruptScope) the result has finish reason `cancelled`.
Result<Generation> generate(Engine& engine, Request request, const std::function<Status(std::string_view)>& on_text);

// [{"role": "system", ...}, {"role": "user", ...}] as text; system may be empty. Text that is not
// UTF-8 is an error naming the byte.
Result<std::string> messages_json(std::string_view system, std::string_view user);
// Token ids of a chat, through the model's template.
Result<std::vector<TokenId>> encode_chat(const Engine& engine, std::string_view messages);
// Token ids of one prompt: through the chat template when the model has one and `raw` is false.
Result<std::vector<TokenId>> encode_prompt(const Engine& engine, std::string_view system, std::string_view prompt,
                                           bool raw);

Request make_request(const SamplingFlags& flags, float temperature, std::vector<TokenId> prompt);

}  // namespace kvarto
