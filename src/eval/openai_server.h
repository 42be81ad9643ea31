// A server that speaks OpenAI's API (Kvarto, vLLM, llama-server): where it is, what its model is called, what its
// refusals mean, and how it tells the tokens of a text. How requests travel is up to the caller, but for ask(). Const
// once found; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "http/client.h"
#include "kvarto/result.h"

namespace kvarto {

struct OpenAiOptions {
  std::string url;                       // with or without /v1
  std::string model = {};                // empty: the first one it has
  std::string api_key = {};              // empty: none
  double timeout_s = 600;                // of a whole exchange by ask(); of each wait of http()
  std::function<bool()> cancelled = {};  // ends waits; the thread that waits asks
};

class OpenAiServer {
 public:
  // Asks for its models. A server without a list of them is believed to have the wanted one.
  static Result<OpenAiServer> find(const OpenAiOptions& options);

  const std::string& model() const { return model_; }
  std::string shown_url() const { return shown(base_); }  // ends in '/'; the same however the address was written
  const HttpClientOptions& http() const { return http_; }

  // `path` without '/' in front. No body: GET.
  HttpRequest request(const std::string& path, std::optional<std::string> body) const;
  // On a connection of its own: the body of a reply of status 200; others are refusals.
  Result<std::string> ask(const std::string& path, std::optional<std::string> body) const;
  // What a reply of another status than 200 means, and what to do. Of code invalid_argument where the server refuses
  // this request alone and may take others.
  Error refusal(const std::string& path, const HttpReply& reply) const;

  // Tokens of a text: by a POST to `tokenize` (vLLM's and llama-server's forms), else by what a request of one token to
  // `v1/completions` or, as a message, `v1/chat/completions` is billed for.
  std::string tokenize_body(const std::string& text) const;
  Result<uint32_t> tokens_of(std::string_view tokenize_reply) const;
  std::string one_token_body(const std::string& text, bool chat) const;
  Result<uint32_t> prompt_tokens_of(std::string_view reply) const;

 private:
  OpenAiServer(Url base, const OpenAiOptions& options);
  Status choose_model(const std::string& wanted);

  Url base_;  // its target is the path in front of /v1: "/" or "/prefix/"
  std::string model_, authorization_;
  HttpClientOptions http_;
};

// The message of an error reply in one line: OpenAI's envelope, or the start of whatever it is.
std::string error_line(std::string_view body);
// The number of a Retry-After header, a billion at most, 0 without one; dates are not read.
double retry_after_s(const HttpReply& reply);
// A whole body appended to `text`: errors name `where` when it is longer than `max_bytes`, and when `ended` says so
// between two pieces, since who sends bit by bit is never waited for. `text` outlives it.
BodySink whole_body(std::string where, size_t max_bytes, std::function<bool()> ended, std::string& text);
// With a question behind it, unless the error says itself what to do.
std::string with_question(const Error& error, std::string_view question);

}  // namespace kvarto
