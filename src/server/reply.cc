#include "server/reply.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "server/api_body.h"
#include "server/reply_json.h"
#include "server/sse.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongReply = 4096;  // log-probabilities
constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";

// As the API has it: the text that stopped it, the id that did, or null.
Json stop_reason(const SampleResult& sample) {
  if (!sample.stop_string.empty()) return sample.stop_string;
  if (sample.stop_token && !sample.stop_was_eos) return *sample.stop_token;
  return nullptr;
}

// In streams only keys with a value.
Json streamed_usage(const Usage& usage) {
  Json shown = usage_json(usage);
  shown.erase("completion_tokens_details");
  return shown;
}

std::vector<HttpHeader> with_type(std::vector<HttpHeader> headers, std::string_view type) {
  headers.push_back({"Content-Type", std::string(type)});
  return headers;
}

Json tool_calls_json(const std::vector<ToolCallDelta>& calls, bool streamed) {
  Json all = Json::array();
  for (const ToolCallDelta& call : calls) {
    Json one = Json::object();
    if (streamed) one["index"] = call.index;
    if (!call.id.empty()) {
      one["id"] = call.id;
      one["type"] = "function";
    }
    Json function = Json::object();
    if (!call.name.empty()) function["name"] = call.name;
    function["arguments"] = call.arguments;
    one["function"] = std::move(function);
    all.push_back(std::move(one));
  }
  return all;
}

// Deltas of the same call, one after the other, as one.
std::vector<ToolCallDelta> joined(const std::vector<ToolCallDelta>& deltas) {
  std::vector<ToolCallDelta> calls;
  for (const ToolCallDelta& delta : deltas) {
    if (delta.index >= calls.size()) calls.resize(delta.index + 1);
    ToolCallDelta& call = calls[delta.index];
    call.index = delta.index;
    if (!delta.id.empty()) call.id = delta.id;
    if (!delta.name.empty()) call.name = delta.name;
    call.arguments += delta.arguments;
  }
  return calls;
}

}  // namespace

Reply::Reply(ReplyOptions options, std::vector<ReplyPrompt> prompts, std::shared_ptr<HttpExchange> exchange,
             const Engine& engine, std::function<void(uint32_t, const RequestResult&)> finished,
             std::function<void()> first_output, std::function<void()> broken_off)
    : options_(std::move(options)),
      prompts_(std::move(prompts)),
      exchange_(std::move(exchange)),
      engine_(engine),
      finished_(std::move(finished)),
      first_output_(std::move(first_output)),
      broken_off_(std::move(broken_off)),
      shown_(prompts_.size()),
      cached_tokens_(prompts_.size()),
      scores_(prompts_.size()),
      unscored_(prompts_.size(), options_.n),
      open_(prompts_.size(), options_.n),
      running_(static_cast<uint32_t>(prompts_.size())) {
  choices_.reserve(prompts_.size() * options_.n);
  for (uint32_t i = 0; i < prompts_.size() * options_.n; ++i)
    choices_.emplace_back(i, options_.choice, *prompts_[i / options_.n].rendered);
  results_.resize(prompts_.size());
  last_write_us_ = options_.arrival_us;
}

void Reply::take(EngineEvent event) {
  if (event.result != nullptr) {
    const uint32_t prompt = event.prompt;
    results_[prompt] = std::move(event.result);
    cached_tokens_[prompt] = results_[prompt]->cached_tokens;
    end_prompt(prompt, *results_[prompt]);
    return;
  }
  if (done_ || !options_.stream) return;
  cached_tokens_[event.prompt] = event.cached_tokens;
  if (scores_prompt() && !event.prompt_logprobs.empty()) scores_[event.prompt] = std::move(event.prompt_logprobs);
  Choice& choice = choice_of(event);
  choice.pending_text += event.text;
  if (event.token) {
    choice.pending_tokens.push_back(*event.token);
    if (event.logprob) {
      choice.pending_logprobs.push_back({*event.token, *event.logprob});
      choice.pending_top.push_back(std::move(event.top));
    }
    ++choice.generated;
    ++choice.pending;
  }
  if (event.finish != FinishReason::none) return end_choice(choice, event);
  if (choice.generated > 1 && choice.pending < options_.stream_interval) return;
  send_pending(choice, nullptr);
}

size_t Reply::scores_kept() const {
  size_t kept = 0;
  for (const std::vector<PromptLogprob>& scores : scores_) kept += scores.capacity();
  return kept;
}

void Reply::start_stream() {
  if (started_) return;
  started_ = true;
  std::vector<HttpHeader> headers = with_type(options_.headers, kEventStream);
  headers.push_back({"Cache-Control", "no-cache"});
  headers.push_back({"X-Accel-Buffering", "no"});  // a proxy that gathers would undo streaming
  exchange_->start({.status = 200, .headers = std::move(headers), .body = ""});
}

void Reply::write(std::string chunk) {
  start_stream();
  last_write_us_ = steady_us();
  exchange_->write(std::move(chunk));
}

void Reply::write_event(std::string_view data) {
  std::string event;
  append_sse_event(event, data);
  write(std::move(event));
}

void Reply::keep_alive() {
  if (!done_ && options_.stream) write(std::string(kSseKeepAlive));
}

Json Reply::chunk_head() const {
  return {{"id", options_.id},
          {"object", options_.chat ? "chat.completion.chunk" : "text_completion"},
          {"created", options_.created},
          {"model", options_.model}};
}

// Of a stream's last message.
void Reply::put_fingerprint(Json& chunk) const {
  if (!options_.fingerprint.empty()) chunk["system_fingerprint"] = options_.fingerprint;
}

Usage Reply::usage_so_far(const Choice* choice) const {
  Usage usage;
  for (size_t p = 0; p < prompts_.size(); ++p) {
    if (choice != nullptr && choice->index / options_.n != p) continue;
    usage.prompt_tokens += prompts_[p].ids->size();
    usage.truncated_tokens += prompts_[p].truncated_tokens;
    usage.cached_tokens += cached_tokens_[p];
  }
  for (const Choice& other : choices_) {
    if (choice == nullptr || &other == choice) usage.completion_tokens += other.generated;
  }
  return usage;
}

void Reply::send_role(Choice& choice) {
  if (choice.role_sent) return;
  choice.role_sent = true;
  const ReplyPrompt& prompt = prompts_[choice.index / options_.n];
  if (options_.chat) {
    Json chunk = chunk_head();
    chunk["choices"] = Json::array({{{"index", choice.index},
                                     {"delta", {{"role", options_.choice.role}, {"content", ""}}},
                                     {"logprobs", nullptr},
                                     {"finish_reason", nullptr}}});
    if (options_.continuous_usage) chunk["usage"] = streamed_usage(usage_so_far(&choice));
    chunk["prompt_token_ids"] = options_.return_token_ids ? Json(*prompt.ids) : Json(nullptr);
    chunk["prompt_text"] = options_.return_prompt_text ? Json(*prompt.rendered) : Json(nullptr);
    write_event(dump(chunk));
  }
  if (options_.echo && !prompt.text->empty()) {
    choice.echo = *prompt.text;
    choice.text_offset = count_characters(*prompt.text);
  }
}

// One chunk with what is pending; `end`: the sample is over, and why.
void Reply::send_pending(Choice& choice, const SampleResult* end) {
  send_role(choice);
  ChoiceDelta delta = choice.add(choice.pending_text, end != nullptr);
  delta.content.insert(0, std::exchange(choice.echo, {}));  // what a client wrote is no output: no parser reads it
  const bool nothing = delta.empty() && !options_.choice.logprobs && !options_.return_token_ids;
  if (nothing && end == nullptr) {
    choice.clear_pending();
    return;  // an unfinished character, or held by a parser
  }
  Json shown = {{"index", choice.index}};
  if (options_.chat) {
    Json fields = Json::object();
    if (!delta.reasoning.empty()) {
      fields["reasoning"] = delta.reasoning;
      fields["reasoning_content"] = delta.reasoning;
    }
    if (!delta.content.empty() || (delta.reasoning.empty() && delta.tool_calls.empty())) {
      fields["content"] = delta.content;
    }
    if (!delta.tool_calls.empty()) fields["tool_calls"] = tool_calls_json(delta.tool_calls, true);
    shown["delta"] = std::move(fields);
  } else {
    shown["text"] = delta.content;
  }
  const size_t prompt = choice.index / options_.n;
  const bool scores = scores_prompt() && !std::exchange(choice.scores_sent, true);
  shown["logprobs"] = options_.choice.logprobs && (scores || !choice.pending_tokens.empty())
                          ? logprobs_json(engine_, options_.choice, choice.pending_tokens, choice.pending_logprobs,
                                          choice.pending_top, choice.text_offset)
                          : Json(nullptr);
  if (scores) {
    // Beams have no events before their result.
    const bool ended = results_[prompt] != nullptr;
    put_prompt_logprobs(engine_, options_.choice, ended ? results_[prompt]->prompt_logprobs : scores_[prompt],
                        shown["logprobs"]);
    if (--unscored_[prompt] == 0) scores_[prompt] = std::vector<PromptLogprob>();
  }
  shown["finish_reason"] = end == nullptr ? Json(nullptr) : Json(choice.finish_name(end->finish));
  // As vLLM has them: completions name these in every chunk, chats the reason only at the end.
  if (!options_.chat || end != nullptr) shown["stop_reason"] = end == nullptr ? Json(nullptr) : stop_reason(*end);
  if (!options_.chat) {
    const bool ids = options_.return_token_ids && !std::exchange(choice.ids_sent, true);
    shown["prompt_token_ids"] = ids ? Json(*prompts_[prompt].ids) : Json(nullptr);
  }
  shown["token_ids"] = options_.return_token_ids ? Json(choice.pending_tokens) : Json(nullptr);
  if (!options_.chat || end != nullptr) shown["weight_versions"] = nullptr;
  Json chunk = chunk_head();
  chunk["choices"] = Json::array({std::move(shown)});
  if (options_.continuous_usage) chunk["usage"] = streamed_usage(usage_so_far(&choice));
  if (end != nullptr && !options_.include_usage) put_fingerprint(chunk);
  chunk["kv_transfer_params"] = nullptr;
  const bool output = choice.generated > 0;
  choice.clear_pending();
  write_event(dump(chunk));
  if (!output || shown_[prompt]) return;
  shown_[prompt] = true;
  first_output_();
}

// A choice's last chunk goes out when it ends, whatever the others still generate. That of the last one waits for the
// result, which follows at once and knows how much was cached; so does that of one which failed, since the error will
// end the stream.
void Reply::end_choice(Choice& choice, const EngineEvent& event) {
  if (--open_[event.prompt] == 0 || event.finish == FinishReason::error) return;
  SampleResult end;
  end.finish = event.finish;
  end.stop_string = event.stop_string;
  end.stop_token = event.stop_token;
  end.stop_was_eos = event.stop_was_eos;
  send_pending(choice, &end);
  choice.ended = true;
}

void Reply::end_prompt(uint32_t prompt, const RequestResult& result) {
  finished_(prompt, result);
  --running_;
  if (result.error && !error_) error_ = api_error(*result.error);
  if (options_.stream && !done_ && !result.error) {
    for (uint32_t s = 0; s < result.samples.size() && s < options_.n; ++s) {
      Choice& choice = choices_[prompt * options_.n + s];
      const SampleResult& sample = result.samples[s];
      if (choice.ended) continue;
      if (choice.generated == 0 && !sample.tokens.empty()) choice.take_whole(sample);  // beams have no token events
      send_pending(choice, &sample);
    }
  }
  if (running_ == 0) end();
}

void Reply::end() {
  if (done_) return;
  done_ = true;
  if (error_) {
    fail_with(*error_);
  } else if (options_.stream) {
    if (options_.include_usage) {
      Json chunk = chunk_head();
      chunk["choices"] = Json::array();
      chunk["usage"] = streamed_usage(usage_so_far(nullptr));
      put_fingerprint(chunk);
      write_event(dump(chunk));
    }
    write(std::string(kSseDone));
    exchange_->finish();
  } else if (make_elsewhere()) {
    return;  // the reply is that thread's now, and the ticket with it
  } else {
    reply_whole();
  }
  ticket_.reset();
}

// Log-probabilities make replies long; each costs about 3 us.
size_t Reply::logprobs_told() const {
  size_t told = 0;
  for (const std::unique_ptr<RequestResult>& result : results_) {
    size_t scores = 0;
    for (const PromptLogprob& at : result->prompt_logprobs) scores += 1 + at.top.size();
    told += scores * (options_.chat ? 1 : options_.n);
    if (!options_.choice.logprobs) continue;
    for (const SampleResult& sample : result->samples) told += sample.tokens.size() * (1 + *options_.choice.logprobs);
  }
  return told;
}

bool Reply::make_elsewhere() {
  if (!elsewhere_ || logprobs_told() < kLongReply) return false;
  return elsewhere_([self = shared_from_this()] {
    try {
      self->reply_whole();
    } catch (const std::exception& bug) {
      log(LogLevel::error, self->options_.id + " ends with an error: " + bug.what());
      self->fail_with(status_error(500, "Internal server error"));
    }
    self->ticket_.reset();
  });
}

void Reply::reply_whole() {
  exchange_->reply({.status = 200, .headers = with_type(options_.headers, "application/json"), .body = whole_body()});
}

void Reply::refuse(const ApiError& error) {
  if (done_) return;
  done_ = true;
  fail_with(error);
  ticket_.reset();
}

void Reply::break_off(const ApiError& error) {
  done_ = true;
  broken_off_();  // first: writing the error may fail as well
  fail_with(error);
  ticket_.reset();
}

void Reply::fail_with(const ApiError& error) {
  if (!started_) {
    ServerReply reply = error_reply(error);
    reply.headers.insert(reply.headers.end(), options_.headers.begin(), options_.headers.end());
    exchange_->reply(std::move(reply));
    return;
  }
  write_event(error_body(error));
  write(std::string(kSseDone));
  exchange_->finish();
}

// --- the reply in one piece

Json Reply::choice_json(Choice& choice, const RequestResult& result, const SampleResult& sample) {
  const ReplyPrompt& prompt = prompts_[choice.index / options_.n];
  choice.take_whole(sample);
  ChoiceDelta all = choice.add(choice.pending_text, true);
  if (options_.echo) all.content.insert(0, *prompt.text);  // no parser reads what a client wrote
  Json logprobs = nullptr;
  if (options_.choice.logprobs) {
    uint64_t offset = options_.echo ? count_characters(*prompt.text) : 0;
    logprobs =
        logprobs_json(engine_, options_.choice, sample.tokens, sample.token_logprobs, sample.top_logprobs, offset);
    if (options_.echo && !options_.chat) {
      put_prompt_logprobs(engine_, options_.choice, result.prompt_logprobs, logprobs);
    }
  }
  Json shown = {{"index", choice.index}};
  if (options_.chat) {
    const std::vector<ToolCallDelta> calls = joined(all.tool_calls);
    Json message = {{"role", options_.choice.role},
                    {"content", all.content.empty() && !calls.empty() ? Json(nullptr) : Json(all.content)},
                    {"refusal", nullptr},
                    {"annotations", nullptr},
                    {"audio", nullptr},
                    {"function_call", nullptr}};
    if (!calls.empty()) message["tool_calls"] = tool_calls_json(calls, false);
    message["reasoning"] = all.reasoning.empty() ? Json(nullptr) : Json(all.reasoning);
    message["reasoning_content"] = message["reasoning"];
    shown["message"] = std::move(message);
  } else {
    shown["text"] = all.content;
  }
  shown["logprobs"] = std::move(logprobs);
  shown["finish_reason"] = choice.finish_name(sample.finish);
  shown["stop_reason"] = stop_reason(sample);
  shown["token_ids"] = options_.return_token_ids ? Json(sample.tokens) : Json(nullptr);
  if (!options_.chat) {
    shown["prompt_logprobs"] = options_.show_prompt_logprobs ? prompt_logprobs_json(engine_, result) : Json(nullptr);
    shown["prompt_token_ids"] = options_.return_token_ids ? Json(*prompt.ids) : Json(nullptr);
  }
  shown["routed_experts"] = nullptr;
  shown["weight_versions"] = nullptr;
  return shown;
}

std::string Reply::whole_body() {
  Json reply = {{"id", options_.id},
                {"object", options_.chat ? "chat.completion" : "text_completion"},
                {"created", options_.created},
                {"model", options_.model}};
  Json choices = Json::array();
  for (Choice& choice : choices_) {
    const RequestResult& result = *results_[choice.index / options_.n];
    const size_t sample = choice.index % options_.n;
    if (sample >= result.samples.size()) continue;  // a beam search that found fewer
    choices.push_back(choice_json(choice, result, result.samples[sample]));
  }
  reply["choices"] = std::move(choices);
  reply["service_tier"] = nullptr;
  reply["system_fingerprint"] = options_.fingerprint.empty() ? Json(nullptr) : Json(options_.fingerprint);
  reply["usage"] = usage_json(usage_so_far(nullptr));
  const RequestResult& first = *results_.front();
  if (options_.chat) {
    reply["prompt_logprobs"] = options_.show_prompt_logprobs ? prompt_logprobs_json(engine_, first) : Json(nullptr);
    reply["prompt_token_ids"] = options_.return_token_ids ? Json(*prompts_.front().ids) : Json(nullptr);
    reply["prompt_text"] = options_.return_prompt_text ? Json(*prompts_.front().rendered) : Json(nullptr);
  }
  reply["kv_transfer_params"] = nullptr;
  reply["ec_transfer_params"] = nullptr;
  reply["metrics"] = options_.metrics ? request_metrics_json(first) : Json(nullptr);
  return dump(reply);
}

}  // namespace kvarto
