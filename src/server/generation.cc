// From a request's body to prompts, from prompts to an answer.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "format/printable.h"
#include "server/api_messages.h"
#include "server/reply_json.h"
#include "server/server_impl.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// Bodies that may take longer to read and to cut into tokens than others should wait.
constexpr size_t kLongBody = 256 << 10;

bool is_json(const std::string* type) {
  if (type == nullptr) return false;
  const std::string_view essence = std::string_view(*type).substr(0, type->find(';'));
  return essence.find("json") != std::string_view::npos;
}

uint64_t samples_of(const Job& job) { return job.ids.size() * job.request.sampling.n; }

}  // namespace

std::string random_id() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (uint64_t bits = random_bits(); id.size() < 16; bits >>= 4) id += kDigits[bits & 15];
  return id;
}

std::string client_id(const ServerRequest& request) {
  const std::string* given = request.header("X-Request-Id");
  return given == nullptr ? "" : printable(*given, 128);
}

// Before anything is read or rendered. `more`: requests that would be added.
std::optional<ApiError> Server::Impl::overload(uint32_t more) const {
  if (options.max_num_queued_reqs == 0 && options.max_num_queued_tokens == 0) return std::nullopt;
  const EngineStats stats = engine().stats_snapshot();
  if (options.max_num_queued_reqs > 0 && stats.waiting + preparing + more > options.max_num_queued_reqs) {
    metrics->rejected(Rejection::queued_requests);
    return overloaded("The engine is busy: the queue is full; retry later or elsewhere", 1);
  }
  if (options.max_num_queued_tokens > 0 && stats.queued_tokens > options.max_num_queued_tokens) {
    metrics->rejected(Rejection::queued_tokens);
    return overloaded("The prefill backlog is full; retry later or elsewhere", 1);
  }
  return std::nullopt;
}

void Server::Impl::generate(ApiRoute route, const Exchange& exchange) {
  const uint64_t arrival_us = steady_us();
  if (const auto refused = refused_unread(route, exchange->request())) return answer(exchange, error_reply(*refused));
  const bool generates = route == ApiRoute::chat || route == ApiRoute::completions;
  if (generates) ++preparing;
  std::function<void()> work = [this, route, exchange, arrival_us,
                                ticket = generates ? take_ticket() : nullptr]() mutable {
    prepare(route, exchange, arrival_us, std::move(ticket));
  };
  const auto no_room = [this, exchange, generates] {
    if (generates) {  // else there was nothing to admit
      --preparing;
      metrics->rejected(Rejection::text_queue);
    }
    answer(exchange, error_reply(overloaded("Too many requests wait to be read; retry later or elsewhere", 1)));
  };
  const size_t bytes = exchange->request().body.size();
  if (bytes > kLongBody) {
    // By way of the first thread, so that the turns which ended before are remembered.
    work = [this, later = std::move(work), no_room, bytes] {
      if (!long_texts->post(later, bytes)) no_room();
    };
  }
  if (!texts->post(std::move(work), bytes)) no_room();
}

// Why a request is refused before its body is looked at.
std::optional<ApiError> Server::Impl::refused_unread(ApiRoute route, const ServerRequest& request) const {
  const std::string* type = request.header("Content-Type");
  if (!is_json(type)) return unsupported_media_type(type == nullptr ? "" : *type);
  const bool generates = route == ApiRoute::chat || route == ApiRoute::completions;
  return generates ? overload(1) : std::nullopt;
}

// The number of tickets is the number of requests that are not answered.
std::shared_ptr<void> Server::Impl::take_ticket() {
  ++jobs;
  return {nullptr, [this](void*) {
            {
              const std::scoped_lock lock(idle_mutex);
              --jobs;
            }
            idle.notify_all();
          }};
}

void Server::Impl::prepare(ApiRoute route, const Exchange& exchange, uint64_t arrival_us,
                           std::shared_ptr<void> ticket) {
  const bool generates = route == ApiRoute::chat || route == ApiRoute::completions;
  ApiStatus begun;
  try {
    if (ending) {
      begun = tl::unexpected(ended_error());
    } else if (!exchange->closed()) {
      begun = generates ? begin(route, exchange, arrival_us, std::move(ticket)) : tokenize(exchange, route);
    } else if (generates) {
      metrics->aborted(AbortState::queued);
    }
  } catch (const std::exception& bug) {
    log(LogLevel::error, std::string("a request could not be prepared: ") + bug.what());
    begun = tl::unexpected(status_error(500, "Internal server error"));
  }
  if (generates) --preparing;
  if (begun) return;
  answer(exchange, error_reply(begun.error()));
}

ApiStatus Server::Impl::begin(ApiRoute route, const Exchange& exchange, uint64_t arrival_us,
                              std::shared_ptr<void> ticket) {
  const ServerRequest& http_request = exchange->request();
  auto job = std::make_shared<Job>();
  job->arrival_us = arrival_us;
  auto parsed = parse_api_request(route, exchange->take_body(), limits);  // freed at once: the reply may take long
  if (!parsed) return tl::unexpected(parsed.error());
  job->request = std::move(*parsed);
  ApiRequest& request = job->request;
  if (auto known = check_model(request); !known) return known;
  std::string id = client_id(http_request);
  if (id.empty()) id = request.request_id;
  if (id.empty()) id = exchange->label();
  if (id.empty()) id = random_id();
  job->id = std::string(route == ApiRoute::chat ? kChatId : kCompletionId) + id;
  exchange->set_label(job->id);
  note_odd_fields(request);
  if (const std::string* key = http_request.header("Authorization")) {
    // Salts are published with KV events: nobody who reads them can tell a key, or whether a guessed one is right.
    const Sha256Digest name = hmac_sha256(key_secret, std::string_view(*key).substr(key->find(' ') + 1));
    job->key_hash = to_hex(name).substr(0, 32);
  }
  job->salt = salt_of(*job);
  if (auto made = make_prompts(*job); !made) return made;
  if (auto told = check_logprobs(*job); !told) return told;
  if (auto made = make_bad_words(*job); !made) return made;
  if (const auto refused = overload(static_cast<uint32_t>(samples_of(*job)) - 1)) return tl::unexpected(*refused);

  if (options.log_requests) {
    size_t tokens = 0;
    for (const std::vector<TokenId>& prompt : job->ids) tokens += prompt.size();
    log(LogLevel::info, "received " + job->id + ": " + std::to_string(job->ids.size()) + " prompts of " +
                            std::to_string(tokens) + " tokens, " + std::to_string(request.sampling.n) +
                            " samples each");
  }
  std::vector<ReplyPrompt> prompts;
  for (size_t p = 0; p < job->ids.size(); ++p) {
    ReplyPrompt& prompt = prompts.emplace_back();
    // The job's own, which lives as long as these pointers to its parts.
    const std::shared_ptr<const std::string> text(job, &job->texts[p]);
    prompt.ids = {job, &job->ids[p]};
    prompt.truncated_tokens = job->truncated[p];
    if (route == ApiRoute::chat) prompt.rendered = text;
    if (request.echo && route == ApiRoute::completions) {
      prompt.text = text->empty() ? std::make_shared<std::string>(engine().decode(job->ids[p], true)) : text;
    } else if (request.echo && request.last_role == "assistant") {
      prompt.text = {job, &request.last_content};
    }
  }
  volatile_saved_tokens += job->volatile_saved;
  const auto requests = std::make_shared<JobRequests>(job->ids.size(), [this](RequestId id) { thread->cancel(id); });
  auto reply = std::make_shared<Reply>(
      answer_options(*job, http_request), std::move(prompts), exchange, engine(),
      [this, job](uint32_t prompt, const RequestResult& result) { finished(*job, prompt, result); },
      [this, job] { metrics->first_byte(job->arrival_us, steady_us()); }, [requests] { requests->cancel(); });
  reply->make_long_ones([this](std::function<void()> work) { return long_texts->post(std::move(work)); });
  reply->hold(std::move(ticket));  // not the job's: others look into it when the answer is gone
  submit(job, reply, requests, exchange);
  return {};
}

// Typed, so that no salt of a client can be mistaken for a key's. Who has no key shares with nobody.
std::string Server::Impl::salt_of(const Job& job) const {
  const std::string& given = job.request.cache_salt;
  if (!options.salt_from_api_key) return given;
  return (job.key_hash.empty() ? "nobody " + random_id() : "key " + job.key_hash) + " " + given;
}

ApiStatus Server::Impl::check_model(const ApiRequest& request) const {
  if (request.model.empty() || options.any_model_name) return {};
  if (std::ranges::find(options.served_model_names, request.model) != options.served_model_names.end()) return {};
  return tl::unexpected(unknown_model(request.model, options.served_model_names));
}

void Server::Impl::note_odd_fields(const ApiRequest& request) {
  constexpr size_t kMostWarnings = 1000;
  ignored_fields += request.ignored_count;
  const std::scoped_lock lock(warned_mutex);
  for (const std::string& name : request.ignored) {
    if (warned_fields.size() >= kMostWarnings || !warned_fields.insert(name).second) continue;
    log(LogLevel::warning, "requests have a field " + kvarto::quoted(name) +
                               ", which is unknown here and ignored; --strict-fields refuses such requests");
  }
  for (const std::string& warning : request.warnings) {
    const std::string field = warning.substr(0, warning.find(' '));
    if (warned_fields.size() >= kMostWarnings || !warned_fields.insert("changed " + field).second) continue;
    log(LogLevel::warning, "a request's " + warning + " (said once for each field)");
  }
}

// Hands every prompt to the engine; when one is refused, or a bug of ours comes in between, the others end, too. From
// the first one on the reply belongs to the front thread, so an error is told through it.
void Server::Impl::submit(const std::shared_ptr<Job>& job, const std::shared_ptr<Reply>& reply,
                          const std::shared_ptr<JobRequests>& requests, const Exchange& exchange) {
  std::optional<ApiError> error;
  try {
    error = submit_prompts(job, reply, *requests);
    if (!error) exchange->on_close([requests] { requests->cancel(); });
  } catch (const std::exception& bug) {
    log(LogLevel::error, job->id + " could not be submitted: " + bug.what());
    error = status_error(500, "Internal server error");
  }
  if (error) {
    requests->cancel();
    for (size_t rest = requests->count(); rest < job->live.size(); ++rest) recent.refused(job->live[rest]);
    http->post([reply, error = *std::move(error)] { reply->refuse(error); });
  } else {
    http->post([this, reply] {
      answers.push_back(reply);
      if (ending && !reply->done()) reply->break_off(ended_error());
    });
  }
}

// `taken`: those that the engine took.
std::optional<ApiError> Server::Impl::submit_prompts(const std::shared_ptr<Job>& job,
                                                     const std::shared_ptr<Reply>& reply, JobRequests& taken) {
  std::vector<Request> requests;
  for (const std::vector<TokenId>& prompt : job->ids) {
    requests.push_back(engine_request(*job, prompt));
    job->max_tokens.push_back(requests.back().sampling.max_tokens);
    job->live.push_back(recent.begin(job->id, prompt.size(), requests.back().sampling.n, job->arrival_us));
  }
  look_for_breakers(job);
  // From the first one that is submitted on, the front thread reads the job and owns the reply.
  for (uint32_t p = 0; p < job->ids.size(); ++p) {
    Request& request = requests[p];
    const std::shared_ptr<LiveRequest> live = job->live[p];
    if (job->request.stream) {
      request.on_token = [this, reply, p, live,
                          gaps = TokenGaps(*metrics, request.sampling.n)](const TokenEvent& event) mutable {
        gaps(event);
        if (live != nullptr) live->token(event);
        events->push(reply, {.prompt = p,
                             .sample = event.sample,
                             .token = event.token,
                             .text = std::string(event.text),
                             .finish = event.finish,
                             .stop_string = std::string(event.stop_string),
                             .stop_token = event.stop_token,
                             .stop_was_eos = event.stop_was_eos,
                             .logprob = event.logprob,
                             .top = {event.top.begin(), event.top.end()},
                             .cached_tokens = event.cached_tokens,
                             .prompt_logprobs = {event.prompt_logprobs.begin(), event.prompt_logprobs.end()},
                             .result = nullptr});
      };
    }
    request.on_finish = [this, reply, p, trace = traced(*job, p)](const RequestResult& result) {
      if (trace != nullptr) recorder->record(std::move(*trace), result);
      EngineEvent event;
      event.prompt = p;
      event.result = std::make_unique<RequestResult>(result);
      events->push(reply, std::move(event));
    };
    if (!job->request.stream) {
      request.on_token = [live, gaps = TokenGaps(*metrics, request.sampling.n)](const TokenEvent& event) mutable {
        gaps(event);
        if (live != nullptr) live->token(event);
      };
    }
    Result<RequestId> id = thread->submit(std::move(request));
    if (!id) {
      const ApiError error = api_error(id.error());
      if (error.retry_after_s > 0) metrics->rejected(Rejection::queued_requests);  // the engine's own queue is full
      return error;
    }
    taken.add(*id);
    recent.submitted(live, *id);
  }
  return std::nullopt;
}

Request Server::Impl::engine_request(const Job& job, const std::vector<TokenId>& ids) {
  Request request;
  request.prompt = ids;
  request.sampling = job.request.sampling;
  const auto room = static_cast<uint32_t>(limits.max_model_len - ids.size());
  uint32_t most = std::min(job.request.max_tokens.value_or(room), room);
  if (const auto cap = limits.defaults.max_new_tokens) most = std::min(most, *cap);
  request.sampling.max_tokens = most;
  request.sampling.min_tokens = std::min(request.sampling.min_tokens, most);
  // Requests without a seed differ from each other, whatever the server's seed is.
  if (!request.sampling.seed) request.sampling.seed = seed_of_server * 0x9E3779B97F4A7C15u + ++next_seed;
  request.prompt_logprobs = job.request.prompt_logprobs;
  request.sampling.bad_words = job.bad_words;
  // The parsers look for the spellings of tokens that are not text.
  if (job.request.route == ApiRoute::chat && markers_are_control) request.sampling.skip_special_tokens = false;
  request.priority = job.request.priority;
  request.cache_salt = job.salt;
  return request;
}

ReplyOptions Server::Impl::answer_options(const Job& job, const ServerRequest& http_request) const {
  const ApiRequest& request = job.request;
  ReplyOptions made;
  made.chat = request.route == ApiRoute::chat;
  made.stream = request.stream;
  made.include_usage = request.include_usage || options.force_include_usage;
  made.continuous_usage = made.include_usage && (request.continuous_usage_stats || options.force_include_usage);
  made.return_token_ids = request.return_token_ids;
  made.return_prompt_text = request.return_prompt_text;
  made.metrics = options.per_request_metrics;
  made.echo = request.echo;
  made.show_prompt_logprobs = request.show_prompt_logprobs;
  made.stream_interval = request.stream_interval > 0 ? request.stream_interval : options.stream_interval;
  made.id = job.id;
  made.model = options.served_model_names.front();
  made.fingerprint = fingerprint;
  made.created = unix_seconds();
  made.n = request.sampling.n;
  made.arrival_us = job.arrival_us;
  made.headers = cors_headers(http_request);
  if (options.request_id_headers) made.headers.push_back({"X-Request-Id", job.id.substr(job.id.find('-') + 1)});
  for (HttpHeader& header : ignored_headers(request)) made.headers.push_back(std::move(header));
  made.choice.chat = made.chat;
  made.choice.logprobs = request.sampling.logprobs;
  made.choice.tokens_as_ids = request.return_tokens_as_token_ids;
  made.choice.role = options.response_role;
  if (request.parse_tool_calls) made.choice.tools = tools;
  made.choice.parallel_calls = request.parallel_tool_calls;
  if (!job.volatile_note.empty()) made.headers.push_back({kVolatileHeader, job.volatile_note});
  if (made.chat) made.choice.reasoning = reasoning;
  made.choice.show_reasoning = request.include_reasoning;
  return made;
}

std::shared_ptr<TracedRequest> Server::Impl::traced(const Job& job, uint32_t prompt) const {
  if (recorder == nullptr) return nullptr;
  return std::make_shared<TracedRequest>(TracedRequest{.arrival_us = job.arrival_us,
                                                       .block_tokens = layout.block_tokens(),
                                                       .cache_salt = job.salt,
                                                       .prompt = job.ids[prompt]});
}

void Server::Impl::finished(const Job& job, uint32_t prompt, const RequestResult& result) {
  metrics->finished({.result = result,
                     .arrival_us = job.arrival_us,
                     .end_us = steady_us(),
                     .stream = job.request.stream,
                     .n = job.request.sampling.n,
                     .max_tokens = job.max_tokens[prompt]});
  recent.finished(job.live[prompt], result, steady_us());
  if (job.request.route == ApiRoute::chat && !result.error && job.truncated[prompt] == 0) remember(job, prompt, result);
  const auto ms = [](double value) { return std::to_string(std::llround(value)) + " ms"; };
  std::string reason = result.error ? "error" : "";
  for (const SampleResult& sample : result.samples) {
    if (!result.error) reason += (reason.empty() ? "" : ",") + std::string(finish_reason_name(sample.finish));
  }
  log(LogLevel::info, "finished " + job.id + ": prompt " + std::to_string(result.prompt_tokens) + " (cached " +
                          std::to_string(result.cached_tokens) + ", miss " +
                          std::string(miss_reason_name(result.miss_reason)) + "), output " +
                          std::to_string(result.completion_tokens) + ", queue " + ms(result.queue_ms) + ", TTFT " +
                          ms(result.ttft_ms) + ", TPOT " + ms(result.tpot_ms) + ", preempted " +
                          std::to_string(result.preemptions) + "x, " + reason);
}

// On the text thread, and so before the chat's next turn is read. The job is not kept for it: it counts as running.
void Server::Impl::remember(const Job& job, uint32_t prompt, const RequestResult& result) {
  struct Kept {
    std::string scope, text;
    std::vector<TokenId> ids;
    std::vector<SampleResult> samples;
  };
  auto kept = std::make_shared<Kept>();
  for (const SampleResult& sample : result.samples) {
    if (sample.finish != FinishReason::stop && sample.finish != FinishReason::length) continue;
    kept->samples.emplace_back();
    kept->samples.back().text = sample.text;
    kept->samples.back().tokens = sample.tokens;
  }
  if (kept->samples.empty() || options.max_turns_kept == 0) return;
  kept->scope = scope_of(job);
  kept->text = job.texts[prompt];
  kept->ids = job.ids[prompt];
  texts->post([this, kept] {
    std::vector<TurnOutput> outputs;
    for (const SampleResult& sample : kept->samples) outputs.push_back({sample.text, sample.tokens});
    turns->remember({.scope = kept->scope, .prompt_text = kept->text, .prompt_ids = kept->ids, .outputs = outputs});
  });
}

}  // namespace kvarto
