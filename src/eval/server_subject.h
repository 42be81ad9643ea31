// A server that speaks OpenAI's API (Kvarto, vLLM, llama-server) as a subject of evaluation. Blocking, one thread;
// generating keeps `concurrency` requests on their way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "eval/subject.h"

namespace kvarto {

struct ServerOptions {
  std::string url;           // with or without /v1
  std::string model = {};    // empty: the first one it has
  std::string api_key = {};  // empty: none
  double timeout_s = 600;    // of one answer, the waits before further tries included
  uint32_t concurrency = 4;
  double pause_s = 1;                    // before the second try of a request; twice as long before each further one
  std::function<bool()> cancelled = {};  // ends waits; asked by the thread that calls
};

struct FoundServer {
  std::string model;  // its name for it
  std::unique_ptr<Subject> subject;
};
// Asks for its models. Likelihoods come from the log-probabilities of an echoed prompt (`echo`, `logprobs`,
// `max_tokens` 0 or 1); a server that has none (llama-server) is judged by what it writes, as tasks of messages are.
Result<FoundServer> find_server(const ServerOptions& options);

}  // namespace kvarto
