// From a request's body to prompts, from prompts to an answer.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/hash.h"
#include "base/log.h"
#include "format/printable.h"
#include "server/reply_json.h"
#include "server/server_impl.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::string short_hash(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return to_hex(hash.finish()).substr(0, 32);
}

bool is_json(const std::string* type) {
  if (type == nullptr) return false;
  const std::string_view essence = std::string_view(*type).substr(0, type->find(';'));
  return essence.find("json") != std::string_view::npos;
}

uint64_t samples_of(const Job& job) { return job.ids.size() * job.request.sampling.n; }

// Chats with and without BOS in front are made of different ids.
std::string scope_of(const Job& job) { return (job.request.add_special_tokens ? "bos " : "plain ") + job.salt; }

}  // namespace

std::string random_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (uint64_t bits = random(); id.size() < 16; bits >>= 4) id += kDigits[bits & 15];
  return id;
}

// Before anything is read or rendered. `more`: requests that would be added.
std::optional<ApiError> Server::Impl::overload(uint32_t more) const {
  if (draining) return overloaded("The server is shutting down; try another one", 1);
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
  const std::string* type = exchange->request().header("Content-Type");
  if (!is_json(type)) return answer(exchange, error_reply(unsupported_media_type(type == nullptr ? "" : *type)));
  const bool generates = route == ApiRoute::chat || route == ApiRoute::completions;
  if (generates) {
    if (const auto refused = overload(1)) {
      return answer(exchange, error_reply(*refused));
    }
    ++preparing;
  }
  texts->post([this, route, exchange, arrival_us, ticket = generates ? take_ticket() : nullptr]() mutable {
    prepare(route, exchange, arrival_us, std::move(ticket));
  });
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
    if (!exchange->closed()) {
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
  job->ticket = std::move(ticket);
  auto parsed = parse_api_request(route, http_request.body, limits);
  if (!parsed) return tl::unexpected(parsed.error());
  job->request = std::move(*parsed);
  ApiRequest& request = job->request;
  if (!request.model.empty() &&
      std::ranges::find(options.served_model_names, request.model) == options.served_model_names.end()) {
    return tl::unexpected(unknown_model(request.model, options.served_model_names));
  }
  const std::string* given_id = http_request.header("X-Request-Id");
  const std::string id = given_id != nullptr && !given_id->empty() ? printable(*given_id).substr(0, 128)
                         : !request.request_id.empty()             ? request.request_id
                                                                   : random_id();
  job->id = (route == ApiRoute::chat ? "chatcmpl-" : "cmpl-") + id;
  note_ignored(request);
  if (const std::string* key = http_request.header("Authorization")) {
    job->key_hash = short_hash(std::string_view(*key).substr(key->find(' ') + 1));
  }
  job->salt = salt_of(*job);
  if (auto made = make_prompts(*job); !made) return made;
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
    prompts.push_back({.text = "",
                       .rendered = route == ApiRoute::chat ? job->texts[p] : "",
                       .ids = job->ids[p],
                       .truncated_tokens = job->truncated[p]});
    if (request.echo && route == ApiRoute::completions) {
      prompts.back().text = job->texts[p].empty() ? engine().decode(job->ids[p], true) : job->texts[p];
    } else if (request.echo) {
      prompts.back().text = request.last_content;
    }
  }
  auto reply = std::make_shared<Reply>(
      answer_options(*job, http_request), std::move(prompts), exchange, engine(),
      [this, job](uint32_t prompt, const RequestResult& result) { finished(*job, prompt, result); },
      [this, job] { metrics->first_byte(job->arrival_us, steady_us()); });
  return submit(job, reply, exchange);
}

// Typed, so that no salt of a client can be mistaken for a key's. Who has no key shares with nobody.
std::string Server::Impl::salt_of(const Job& job) const {
  const std::string& given = job.request.cache_salt;
  if (!options.salt_from_api_key) return given;
  return (job.key_hash.empty() ? "nobody " + random_id() : "key " + job.key_hash) + " " + given;
}

void Server::Impl::note_ignored(const ApiRequest& request) {
  constexpr size_t kMostWarnings = 1000;
  ignored_fields += request.ignored.size();
  for (const std::string& name : request.ignored) {
    if (warned_fields.size() >= kMostWarnings || !warned_fields.insert(name).second) continue;
    log(LogLevel::warning, "requests have a field " + kvarto::quoted(name) +
                               ", which is unknown here and ignored; --strict-fields refuses such requests");
  }
}

// Hands every prompt to the engine; when one is refused the others end, too.
ApiStatus Server::Impl::submit(const std::shared_ptr<Job>& job, const std::shared_ptr<Reply>& reply,
                               const Exchange& exchange) {
  auto ids = std::make_shared<std::vector<RequestId>>();
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
                             .logprob = event.logprob,
                             .top = {event.top.begin(), event.top.end()},
                             .result = nullptr});
      };
    }
    request.on_finish = [this, reply, p](const RequestResult& result) {
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
      for (const RequestId other : *ids) thread->cancel(other);
      for (uint32_t rest = p; rest < job->live.size(); ++rest) recent.refused(job->live[rest]);
      http->post([reply, error = api_error(id.error())] { reply->refuse(error); });
      return {};
    }
    if (live != nullptr) live->submitted(*id);
    ids->push_back(*id);
  }
  exchange->on_close([this, ids] {
    for (const RequestId id : *ids) thread->cancel(id);
  });
  if (job->request.stream && options.sse_keep_alive_s > 0) {
    http->post([this, reply] { answers.insert(reply); });
  }
  return {};
}

// --- prompts

std::string_view Server::Impl::chat_template_for(const ApiRequest& request) const {
  return request.chat_template.empty() ? options.chat_template : request.chat_template;
}

ApiResult<std::vector<TokenId>> Server::Impl::encode(const Job& job, const std::string& text, bool bos) {
  // No tokenizer makes fewer tokens than this; whoever sends a book is told before it is cut into tokens.
  const uint64_t least = text.size() / longest_token_bytes;
  if (least > limits.max_model_len && !job.request.truncate_prompt_tokens) {
    return tl::unexpected(context_length_of_text(limits.max_model_len, text.size(), least));
  }
  auto ids = engine().encode(text, false, bos);
  if (!ids) return tl::unexpected(api_error(ids.error()));
  return *std::move(ids);
}

// Cuts what the request wants cut; refuses what does not fit.
ApiStatus Server::Impl::fit(Job& job, std::vector<TokenId>& ids, uint64_t& truncated) {
  const ApiRequest& request = job.request;
  if (request.truncate_prompt_tokens) {
    const int32_t wanted = *request.truncate_prompt_tokens;
    const size_t keep = wanted < 0 ? limits.max_model_len - 1 : static_cast<size_t>(wanted);
    if (ids.size() > keep) {
      truncated = ids.size() - keep;
      if (request.truncate_left) {
        ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(truncated));
      } else {
        ids.resize(keep);
      }
    }
  }
  if (ids.empty()) return tl::unexpected(empty_prompt());
  if (ids.size() > limits.max_model_len) {
    return tl::unexpected(context_length_error(limits.max_model_len, ids.size()));
  }
  const bool scores_only = request.max_tokens == 0u;
  if (ids.size() == limits.max_model_len && !scores_only) {
    return tl::unexpected(no_room_for_output(limits.max_model_len));
  }
  return {};
}

ApiStatus Server::Impl::make_prompts(Job& job) {
  ApiRequest& request = job.request;
  if (request.route == ApiRoute::chat || !request.messages.empty()) {
    if (volatile_text) make_stable(job);
    auto text = engine().render_chat({.messages = request.messages,
                                      .tools = request.tools,
                                      .documents = request.documents,
                                      .kwargs = request.chat_template_kwargs,
                                      .add_generation_prompt = request.add_generation_prompt,
                                      .continue_final_message = request.continue_final_message,
                                      .chat_template = chat_template_for(request)});
    if (!text) return tl::unexpected(api_error(text.error()));
    job.texts.push_back(*std::move(text));
    const std::string& rendered = job.texts.back();
    auto spliced = turns->splice(scope_of(job), rendered, [&](std::string_view rest) -> Result<std::vector<TokenId>> {
      return engine().encode(rest, false, false);
    });
    if (spliced) {
      job.ids.push_back(*std::move(spliced));
    } else {
      auto ids = encode(job, rendered, request.add_special_tokens);
      if (!ids) return tl::unexpected(ids.error());
      job.ids.push_back(*std::move(ids));
    }
  } else {
    for (ApiPrompt& prompt : request.prompts) {
      if (!prompt.text) {
        job.texts.emplace_back();
        job.ids.push_back(std::move(prompt.ids));
        continue;
      }
      auto ids = encode(job, *prompt.text, request.add_special_tokens);
      if (!ids) return tl::unexpected(ids.error());
      job.ids.push_back(*std::move(ids));
      job.texts.push_back(*std::move(prompt.text));
    }
  }
  job.truncated.assign(job.ids.size(), 0);
  for (size_t p = 0; p < job.ids.size(); ++p) {
    if (auto fits = fit(job, job.ids[p], job.truncated[p]); !fits) return fits;
  }
  return {};
}

// Moves what changes with every request out of the beginning of system prompts.
void Server::Impl::make_stable(Job& job) {
  Json messages = Json::parse(job.request.messages, nullptr, false);
  VolatileResult all;
  for (Json& message : messages) {
    if (message["role"] != "system" && message["role"] != "developer") break;
    if (!message["content"].is_string()) continue;
    VolatileResult one = volatile_text->apply(message["content"].get<std::string>());
    message["content"] = std::move(one.text);
    all.lines_moved += one.lines_moved;
    all.lines_dropped += one.lines_dropped;
    all.stable_bytes += one.stable_bytes;
  }
  if (all.lines_moved + all.lines_dropped == 0) return;
  job.request.messages = dump(messages);
  job.volatile_note = "moved=" + std::to_string(all.lines_moved) + ", dropped=" + std::to_string(all.lines_dropped) +
                      ", stable-bytes=" + std::to_string(all.stable_bytes);
}

// A word is banned as it stands at the beginning of a text and as it follows a space.
ApiStatus Server::Impl::make_bad_words(Job& job) {
  for (const std::string& word : job.request.bad_words) {
    for (const std::string& written : {word, " " + word}) {
      auto ids = engine().encode(written, true, false);
      if (!ids) return tl::unexpected(bad_field("bad_words", ids.error().message));
      if (!ids->empty() && std::ranges::find(job.bad_words, *ids) == job.bad_words.end()) {
        job.bad_words.push_back(*std::move(ids));
      }
    }
  }
  return {};
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
  made.continuous_usage = request.continuous_usage_stats || options.force_include_usage;
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
  if (!request.ignored.empty()) {
    std::string names;
    for (const std::string& name : request.ignored) names += (names.empty() ? "" : ", ") + name;
    made.headers.push_back({"X-Kvarto-Ignored", names});
  }
  made.choice.chat = made.chat;
  made.choice.logprobs = request.sampling.logprobs;
  made.choice.tokens_as_ids = request.return_tokens_as_token_ids;
  made.choice.role = options.response_role;
  if (request.parse_tool_calls) made.choice.tools = tools;
  made.choice.parallel_calls = request.parallel_tool_calls;
  if (!job.volatile_note.empty()) made.headers.push_back({"X-Kvarto-Volatile-Text", job.volatile_note});
  if (made.chat) made.choice.reasoning = reasoning;
  made.choice.show_reasoning = request.include_reasoning;
  return made;
}

void Server::Impl::finished(const Job& job, uint32_t prompt, const RequestResult& result) {
  metrics->finished({.result = result,
                     .arrival_us = job.arrival_us,
                     .end_us = steady_us(),
                     .stream = job.request.stream,
                     .n = job.request.sampling.n,
                     .max_tokens = job.max_tokens[prompt]});
  recent.finished(job.live[prompt], result, steady_us());
  if (job.request.route == ApiRoute::chat && !result.error && job.truncated[prompt] == 0) {
    for (const SampleResult& sample : result.samples) {
      if (sample.finish != FinishReason::stop && sample.finish != FinishReason::length) continue;
      turns->remember({.scope = scope_of(job),
                       .prompt_text = job.texts[prompt],
                       .prompt_ids = job.ids[prompt],
                       .output_text = sample.text,
                       .output_ids = sample.tokens});
    }
  }
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

// --- text only

ApiStatus Server::Impl::tokenize(const Exchange& exchange, ApiRoute route) {
  auto parsed = parse_api_request(route, exchange->request().body, limits);
  if (!parsed) return tl::unexpected(parsed.error());
  Json reply;
  if (route == ApiRoute::detokenize) {
    reply["prompt"] = engine().decode(parsed->prompts.front().ids, true);
  } else {
    std::string text;
    if (!parsed->messages.empty()) {
      auto rendered = engine().render_chat({.messages = parsed->messages,
                                            .tools = parsed->tools,
                                            .documents = parsed->documents,
                                            .kwargs = parsed->chat_template_kwargs,
                                            .add_generation_prompt = parsed->add_generation_prompt,
                                            .continue_final_message = parsed->continue_final_message,
                                            .chat_template = chat_template_for(*parsed)});
      if (!rendered) return tl::unexpected(api_error(rendered.error()));
      text = *std::move(rendered);
    } else {
      text = parsed->prompts.front().text.value_or("");
    }
    auto ids = engine().encode(text, false, parsed->add_special_tokens);
    if (!ids) return tl::unexpected(api_error(ids.error()));
    reply["count"] = ids->size();
    reply["max_model_len"] = limits.max_model_len;
    reply["tokens"] = *ids;
    reply["token_strs"] = nullptr;
    if (parsed->return_token_strs) {
      reply["token_strs"] = Json::array();
      for (const TokenId id : *ids) reply["token_strs"].push_back(engine().piece(id, true));
    }
  }
  answer(exchange, {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = dump(reply)});
  return {};
}

}  // namespace kvarto
