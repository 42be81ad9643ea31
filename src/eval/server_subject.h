// A server that speaks OpenAI's API (Kvarto, vLLM, llama-server) as a subject of evaluation. Blocking, one thread;
// generating keeps `concurrency` requests on their way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "eval/subject.h"

namespace kvarto {

struct ServerOptions {
  std::string url;           // with or without /v1
  std::string model = {};    // empty: the first one it has
  std::string api_key = {};  // empty: none
  double timeout_s = 600;    // of one answer, from the first try to its last byte, all waits included
  uint32_t concurrency = 4;
  double pause_s = 1;                    // before the second try of a request; twice as long before each further one
  std::function<bool()> cancelled = {};  // ends waits; asked by the thread that calls
};

struct FoundServer {
  std::string url;      // as it is shown: the same for all ways of writing one address
  std::string model;    // its name for it
  bool echoes = false;  // it tells how likely a prompt is; its subject's likelihoods are nothing when it does not
  // For the lengths of tasks; on its own, also when the subject is gone. One thread.
  std::function<Result<uint32_t>(std::string_view text)> count_tokens;
  std::unique_ptr<Subject> subject;
};
// Asks for its models, and by a short prompt whether it echoes. Likelihoods come from the log-probabilities of an
// echoed prompt (`echo`, `logprobs`, `max_tokens` 0 or 1); a server that has none (llama-server) is judged by what it
// writes, as tasks of messages are. A status of 4xx, but for keys (401, 403), unknown names (404) and being busy (429),
// or an error instead of choices, refuses one task; see Subject.
Result<FoundServer> find_server(const ServerOptions& options);

}  // namespace kvarto
