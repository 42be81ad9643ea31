// One line of a file of prompts, and the line that answers it. Two dialects: plain ones
//   {"prompt" | "messages" | "ids": ..., "max_tokens": 20, ...}
// and OpenAI batch lines {"custom_id", "method", "url", "body"}. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "kvarto/engine.h"

namespace kvarto {

enum class BatchDialect : uint8_t { plain, openai_chat, openai_completion };

struct BatchLine {
  BatchDialect dialect = BatchDialect::plain;
  std::string custom_id;
  // One of three.
  std::optional<std::string> prompt;
  std::string messages;  // JSON array
  std::vector<TokenId> ids;
  Request request;  // everything but the prompt
};

// Fields that a line leaves out are those of `defaults`. Errors name the field; one that is not known is an error,
// since it might have changed the output.
Result<BatchLine> parse_batch_line(std::string_view text, const Request& defaults);

// The answer, one line of JSON without newline. `created` in Unix seconds (OpenAI's dialect only).
std::string answer_line(const BatchLine& line, const RequestResult& result, const Engine& engine, int64_t created);
// The answer to a line that failed; `text` is the line, of which the custom_id is kept where there is one.
std::string error_line(std::string_view text, const Error& error);

}  // namespace kvarto
