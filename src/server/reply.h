// Reply: the reply to one generation request in the making: every choice of every prompt, gathered or streamed as
// server-sent events. Front thread, but for what is fixed when it is made, and for a long answer in one piece, which is
// made on another thread once everything is there. The engine's callbacks reach it through an EventQueue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/server.h"
#include "kvarto/engine.h"
#include "server/api_error.h"
#include "server/choice.h"
#include "server/engine_thread.h"
#include "server/reply_json.h"

namespace kvarto {

// What a reply shows, fixed when the request has been read.
struct ReplyOptions {
  bool chat = false, stream = false;
  bool include_usage = false, continuous_usage = false;
  bool return_token_ids = false, return_prompt_text = false;
  bool metrics = false;  // the `metrics` object
  bool echo = false;     // the prompt's text in front
  bool show_prompt_logprobs = false;
  uint32_t stream_interval = 1;
  std::string id, model;
  std::string fingerprint;          // empty: none
  int64_t created = 0;              // Unix seconds
  uint32_t n = 1;                   // choices of each prompt
  uint64_t arrival_us = 0;          // steady
  std::vector<HttpHeader> headers;  // of the reply, beside its Content-Type
  ChoiceOptions choice;
};

// One prompt of the request, as the reply may show it; shared with whoever else needs it, and never null.
struct ReplyPrompt {
  std::shared_ptr<const std::string> text = std::make_shared<std::string>();      // when echoed
  std::shared_ptr<const std::string> rendered = std::make_shared<std::string>();  // of a chat
  std::shared_ptr<const std::vector<TokenId>> ids = std::make_shared<std::vector<TokenId>>();
  uint64_t truncated_tokens = 0;
};

// One thing that the engine said, copied off its thread.
struct EngineEvent {
  uint32_t prompt = 0, sample = 0;
  std::optional<TokenId> token;
  std::string text;
  FinishReason finish = FinishReason::none;
  std::string stop_string;  // these three with the last event of a sample: see SampleResult
  std::optional<TokenId> stop_token;
  bool stop_was_eos = false;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;
  uint64_t cached_tokens = 0;
  std::vector<PromptLogprob> prompt_logprobs = {};  // see TokenEvent
  std::unique_ptr<RequestResult> result;            // the last event of a prompt: its result instead of a token
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  // `finished` is called for each prompt, once, with its result; `first_output` once for each prompt of a stream, when
  // output of it was written for the first time. `broken_off`: its answer has come to an end and the engine's work for
  // it has not.
  Reply(ReplyOptions options, std::vector<ReplyPrompt> prompts, std::shared_ptr<HttpExchange> exchange,
        const Engine& engine, std::function<void(uint32_t prompt, const RequestResult&)> finished,
        std::function<void()> first_output, std::function<void()> broken_off);

  // Kept until the answer is handed over, and no longer, whoever still keeps the reply.
  void hold(std::shared_ptr<void> ticket) { ticket_ = std::move(ticket); }
  // Where a long answer in one piece is made, so that the front thread does not stand still; false: there, after all.
  void make_long_ones(std::function<bool(std::function<void()>)> elsewhere) { elsewhere_ = std::move(elsewhere); }
  void take(EngineEvent event);
  // Before anything came: the whole reply is this error.
  void refuse(const ApiError& error);
  // Whatever was written: this error is the end. For an answer that cannot go on, by a bug or because events were lost.
  void break_off(const ApiError& error);
  // A comment line, when nothing was written for a while.
  void keep_alive();
  bool done() const { return done_; }
  const ReplyOptions& options() const { return options_; }
  uint64_t last_write_us() const { return last_write_us_; }
  // Tests: room taken by log-probabilities of prompts which wait for choices that have not shown them.
  size_t scores_kept() const;

 private:
  Choice& choice_of(const EngineEvent& event) { return choices_[event.prompt * options_.n + event.sample]; }
  // Streams of an echo with logprobs begin with the prompt's.
  bool scores_prompt() const { return options_.stream && options_.echo && options_.choice.logprobs && !options_.chat; }
  void start_stream();
  void write(std::string bytes);
  void write_event(std::string_view data);
  nlohmann::ordered_json chunk_head() const;
  void put_fingerprint(nlohmann::ordered_json& chunk) const;
  Usage usage_so_far(const Choice* choice) const;  // null: of all choices
  void send_role(Choice& choice);
  void send_pending(Choice& choice, const SampleResult* end);
  void end_choice(Choice& choice, const EngineEvent& event);
  void end_prompt(uint32_t prompt, const RequestResult& result);
  void end();
  size_t logprobs_told() const;
  bool make_elsewhere();
  void reply_whole();
  void fail_with(const ApiError& error);
  nlohmann::ordered_json choice_json(Choice& choice, const RequestResult& result, const SampleResult& sample);
  std::string whole_body();

  const ReplyOptions options_;
  std::vector<ReplyPrompt> prompts_;
  const std::shared_ptr<HttpExchange> exchange_;
  const Engine& engine_;
  const std::function<void(uint32_t, const RequestResult&)> finished_;
  const std::function<void()> first_output_, broken_off_;
  std::shared_ptr<void> ticket_;
  std::function<bool(std::function<void()>)> elsewhere_;  // null: there is no such place
  std::vector<bool> shown_;                               // [prompts] some output of it was written
  std::vector<uint64_t> cached_tokens_;                   // [prompts] as far as is known
  std::vector<std::vector<PromptLogprob>> scores_;        // [prompts] where scores_prompt(), until all have shown them
  std::vector<uint32_t> unscored_;                        // [prompts] choices that have not
  std::vector<uint32_t> open_;                            // [prompts] choices that are not at their end
  std::vector<Choice> choices_;                           // [prompts * n]
  std::vector<std::unique_ptr<RequestResult>> results_;   // [prompts], null while running
  uint32_t running_ = 0;                                  // prompts without a result
  std::optional<ApiError> error_;                         // of the first prompt that failed
  bool started_ = false, done_ = false;
  uint64_t last_write_us_ = 0;
};

}  // namespace kvarto
