// The server under load: any that speaks OpenAI's API (Kvarto, vLLM, llama-server). Counts tokens with its tokenizer,
// sends requests. A LoadServer is const and may be used by any thread; each sender belongs to one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cli/load_run.h"
#include "cli/load_words.h"
#include "eval/openai_server.h"
#include "kvarto/result.h"

namespace kvarto {

using LoadServerOptions = OpenAiOptions;

class LoadServer {
 public:
  static Result<LoadServer> find(const LoadServerOptions& options);

  const std::string& model() const { return server_.model(); }
  std::string shown_url() const { return server_.shown_url(); }
  // By /tokenize (vLLM's and llama-server's forms), else by what a request of one token is billed for. `chat`: the text
  // is a message; the template's tokens count.
  CountTokens counter(bool chat) const;
  std::unique_ptr<LoadSender> sender(const LoadTime& time, bool stream) const;

 private:
  explicit LoadServer(OpenAiServer server) : server_(std::move(server)) {}
  Result<uint32_t> tokenize(const std::string& text) const;
  Result<uint32_t> count_by_usage(const std::string& text, bool chat) const;

  OpenAiServer server_;
};

}  // namespace kvarto
