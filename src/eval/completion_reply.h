// Reads what a server answers to /v1/completions and /v1/chat/completions. A reply is a stranger's text: wrong types
// are errors that name the field (corrupt); an error in place of choices is the server's refusal (invalid_argument).
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "eval/subject.h"
#include "kvarto/result.h"

namespace kvarto {

// What the first choice wrote, of a completion or a chat.
Result<std::string> read_written(std::string_view reply);

struct EchoReply {
  bool echoed = false;  // false: the prompt, or the log-probabilities of its tokens, did not come back
  // Of the end of the prompt. None where its tokens do not spell it, so that they cannot be told from those in front.
  std::optional<Likelihood> likelihood = {};
};
// To a completion of `sent` with echo, logprobs 1 and `max_tokens` 0 or 1: how likely was `answer`, with which `sent`
// ends? A token that spans its start belongs to it.
Result<EchoReply> read_echo(std::string_view reply, std::string_view sent, std::string_view answer,
                            uint32_t max_tokens);

}  // namespace kvarto
