// The server under load: any that speaks OpenAI's API (Kvarto, vLLM, llama-server). Finds its model, counts tokens with
// its tokenizer, sends requests. A LoadServer is const and may be used by any thread; each sender belongs to one.
#pragma once

#include <memory>
#include <string>

#include "cli/load_run.h"
#include "cli/load_words.h"
#include "http/client.h"
#include "kvarto/result.h"

namespace kvarto {

struct LoadServerOptions {
  std::string url;           // with or without /v1
  std::string model = {};    // empty: the first one it has
  std::string api_key = {};  // empty: none
  double timeout_s = 600;
};

class LoadServer {
 public:
  static Result<LoadServer> find(const LoadServerOptions& options);

  const std::string& model() const { return model_; }
  std::string shown_url() const { return shown(base_); }
  // By /tokenize (vLLM's and llama-server's forms), else by what a request of one token is billed for. `chat`: the text
  // is a message; the template's tokens count.
  CountTokens counter(bool chat) const;
  std::unique_ptr<LoadSender> sender(const LoadTime& time, bool stream) const;

 private:
  LoadServer(Url base, const LoadServerOptions& options);
  HttpRequest request(const std::string& path, std::optional<std::string> body) const;
  Result<std::string> ask(const std::string& path, std::optional<std::string> body) const;
  Status choose_model(const std::string& wanted);
  Result<uint32_t> tokenize(const std::string& text) const;
  Result<uint32_t> count_by_usage(const std::string& text, bool chat) const;

  friend class HttpSender;
  Url base_;  // its target is the path in front of /v1: "/" or "/prefix/"
  std::string model_, authorization_;
  bool key_given_ = false;
  HttpClientOptions http_;
};

}  // namespace kvarto
