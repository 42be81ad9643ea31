#include "server/server.h"

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/ascii.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "format/printable.h"
#include "http/front_queue.h"
#include "server/access_log.h"
#include "server/dashboard.h"
#include "server/openapi.h"
#include "server/reply_json.h"
#include "server/routes.h"
#include "server/server_impl.h"
#include "server/stats_line.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

using Impl = Server::Impl;

constexpr milliseconds kLastErrors{1000};  // for clients to read that their requests are ended
constexpr std::string_view kLeaving =
    "The server is shutting down: it finishes what it has and takes nothing new; try another one";

// As long as the longer one, so that the time tells nothing about the key.
bool equal(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    difference |=
        static_cast<unsigned char>(i < a.size() ? a[i] : 0) ^ static_cast<unsigned char>(i < b.size() ? b[i] : 0);
  }
  return difference == 0;
}

bool lists(const std::vector<std::string>& allowed, std::string_view value) {
  return std::ranges::any_of(allowed, [&](const std::string& one) { return one == "*" || one == value; });
}

// Without the root path and slashes at the end; empty: the root path alone.
std::string_view path_of(const Impl& s, const ServerRequest& request) {
  std::string_view path = request.path;
  const std::string& root = s.options.root_path;
  if (!root.empty() && path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/')) {
    path.remove_prefix(root.size());
  }
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

// What reads a body.
std::optional<ApiRoute> api_of(RouteId route) {
  switch (route) {
    case RouteId::completions:
      return ApiRoute::completions;
    case RouteId::chat:
      return ApiRoute::chat;
    case RouteId::tokenize:
      return ApiRoute::tokenize;
    case RouteId::detokenize:
      return ApiRoute::detokenize;
    default:
      return std::nullopt;
  }
}

// Without keys whoever reaches the server may use it. A page that let its name point here (DNS rebinding) does so as
// its own origin, which CORS does not see: it is known by the Host that its browser sends. Where pages of its origin
// may call anyway there is nothing to refuse.
std::optional<ServerReply> refuse_rebound(const Impl& s, const ServerRequest& request) {
  if (!s.options.api_keys.empty() || !from_browser(request)) return std::nullopt;
  const std::string* origin = request.header("Origin");
  if (lists(s.options.cors.origins, origin == nullptr ? "" : *origin)) return std::nullopt;
  return refuse_host(request, s.host_rules());
}

// Why a request gets no further than its head.
std::optional<ServerReply> refusal_of(const Impl& s, const ServerRequest& request, const RouteInfo* route) {
  // Whoever has no key does not learn which pages there are.
  const bool open = route != nullptr && !needs_key(*route, s.options.public_metrics);
  if (!open && !s.has_key(request)) return unauthorized_reply();
  if (route == nullptr) return no_route_reply(s.options.docs ? s.options.root_path + "/openapi.json" : "");
  if (!route->takes(request.method)) return wrong_method_reply(std::string(route->methods));
  if (route->guard != RouteGuard::open) {
    if (auto refused = refuse_rebound(s, request)) return refused;
  }
  if (s.draining && !route->leaving) return error_reply(overloaded(std::string(kLeaving), 1));
  if (!s.ready && !route->loading) {
    return error_reply(overloaded("The model is still being loaded; try again in a moment", 1));
  }
  return std::nullopt;
}

// What stands in front of every path behind a proxy: "" or "/a/b", however it was given.
std::string normal_prefix(std::string_view prefix) {
  while (prefix.starts_with('/')) prefix.remove_prefix(1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  return prefix.empty() ? "" : "/" + std::string(prefix);
}

ServeOptions normal(ServeOptions options) {
  options.root_path = normal_prefix(options.root_path);
  return options;
}

std::string join(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

// What is known of them before the engine is there.
ApiLimits limits_of(const ServeOptions& options) {
  ApiLimits limits;
  limits.max_n = options.max_n;
  limits.max_prompts = options.max_prompts;
  limits.max_stop_strings = options.max_stop_strings;
  limits.max_logprobs = options.max_logprobs;
  limits.strict_fields = options.strict_fields;
  limits.trust_chat_template = options.trust_request_chat_template;
  limits.sort_tool_keys = options.sort_tool_keys;
  limits.tool_calls = options.auto_tool_choice;
  limits.exclude_tools_when_none = options.exclude_tools_when_none;
  limits.return_tokens_as_token_ids = options.return_tokens_as_token_ids;
  limits.chat_template_kwargs = options.default_chat_template_kwargs;
  return limits;
}

// system_fingerprint of every reply; empty: none.
std::string fingerprint_of(const ServeOptions& options, const EngineInfo& info) {
  switch (options.fingerprint_mode) {
    case FingerprintMode::full:
    case FingerprintMode::hash:
      return "kvarto-" + std::string(KVARTO_VERSION) + "-" + info.model_fingerprint.substr(0, 8);
    case FingerprintMode::custom:
      return options.custom_fingerprint;
    case FingerprintMode::none:
      break;
  }
  return "";
}

void run_once(std::function<void()>& call) {
  if (const auto once = std::exchange(call, nullptr)) once();
}

std::vector<std::string_view> markers_of(const ToolFormat* tools, const ReasoningFormat* reasoning) {
  std::vector<std::string_view> markers;
  if (tools != nullptr) markers = tools->markers;
  if (reasoning != nullptr) markers.insert(markers.end(), {reasoning->open, reasoning->close});
  return markers;
}

}  // namespace

Server::Server() = default;
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::listen(ServeOptions options) {
  std::unique_ptr<Server> server(new Server());
  server->impl_ = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(server->impl_->start());
  return server;
}

std::function<void(const BlockLife&)> Server::kv_life_sink() {
  return [s = impl_.get()](const BlockLife& life) {
    if (s->metrics != nullptr) s->metrics->block_life(life);
  };
}

std::string Server::address() const { return impl_->http->address(); }
uint16_t Server::port() const { return impl_->http->port(); }
void Server::on_failure(std::function<void()> call) { impl_->on_failure = std::move(call); }
Status Server::health() const { return impl_->engine().health(); }
void Server::stall(uint64_t us) {
  if (impl_->thread != nullptr) impl_->thread->stall(us);
}
void Server::take(std::shared_ptr<HttpExchange> exchange) {
  impl_->http->post([s = impl_.get(), exchange = std::move(exchange)] { s->handle(exchange); });
}

Server::Impl::Impl(ServeOptions serve_options) : options(normal(std::move(serve_options))), started(unix_seconds()) {}

Server::Impl::~Impl() {
  if (http != nullptr) http->stop();  // from here on nothing calls into the others
  texts.reset();                      // it hands work to the next one
  long_texts.reset();
  thread.reset();
  answers.clear();
}

HttpServerOptions Server::Impl::http_options() {
  HttpServerOptions made = options.http;
  made.on_head = [this](const ServerRequest& request) { return refuse_by_head(request); };
  made.on_refused = [this](const ServerRequest& read, ServerReply& reply) {
    for (HttpHeader& header : common_headers(read, "")) reply.headers.push_back(std::move(header));
  };
  if (!options.access_log) return made;
  made.on_served = [this](const ServedRequest& request) {
    if (std::ranges::find(options.access_log_except, request.path) != options.access_log_except.end()) return;
    log(LogLevel::info, access_line(request));
  };
  return made;
}

Status Server::Impl::start() {
  const auto refusal = [](int status, std::string_view message) {
    ApiError error = status_error(status, std::string(message));
    if (status == 503) error.retry_after_s = 1;
    return error_reply(error);
  };
  if (!options.record.empty()) {
    ASSIGN_OR_RETURN(recorder, TraceRecorder::open(options.record));
  }
  ASSIGN_OR_RETURN(http, HttpServer::start(
                             http_options(), [this](Exchange exchange) { handle(exchange); }, refusal));
  events = std::make_unique<EventQueue>([this] { http->post([this] { events->drain(); }); });
  long_texts = std::make_unique<TextThread>(options.long_text_limits);
  texts = std::make_unique<TextThread>(options.text_limits);
  http->post([this] { look_after(); });
  return {};
}

Status Server::serve(std::unique_ptr<Engine> engine, const EngineOptions& engine_options, const MemoryPlan& plan) {
  Impl& s = *impl_;
  const EngineInfo& info = engine->info();
  if (s.recorder != nullptr) RETURN_IF_ERROR(s.recorder->check_block_tokens(engine->cache().layout().block_tokens()));
  s.limits = limits_of(s.options);
  s.limits.max_model_len = info.max_model_len;
  s.limits.vocabulary = info.vocabulary;
  s.limits.max_n = std::min(s.options.max_n, engine_options.max_num_seqs);
  s.limits.priority_scheduling = engine_options.scheduling_policy == SchedulingPolicy::priority;
  ASSIGN_OR_RETURN(s.limits.defaults, parse_sampling_defaults(s.options.generation_config));
  // A model without one completes texts; chats are refused by name then.
  if (engine->has_chat_template() || !s.options.chat_template.empty()) {
    RETURN_IF_ERROR(engine->check_chat_template(s.options.chat_template));
  }
  for (uint32_t id = 0; id < info.vocabulary; ++id) {
    s.longest_token_bytes = std::max(s.longest_token_bytes, engine->piece(static_cast<TokenId>(id), true).size());
  }
  if (!s.options.tool_call_parser.empty()) {
    ASSIGN_OR_RETURN(
        s.tools, find_tool_format(s.options.tool_call_parser,
                                  s.options.chat_template.empty() ? engine->chat_template() : s.options.chat_template));
  }
  if (!s.options.reasoning_parser.empty()) {
    ASSIGN_OR_RETURN(s.reasoning, find_reasoning_format(s.options.reasoning_parser));
  }
  for (const std::string_view marker : markers_of(s.tools, s.reasoning)) {
    const auto ids = engine->encode(marker, false, false);
    s.markers_are_control |= ids && ids->size() == 1 && engine->piece(ids->front(), false).empty();
  }
  if (!s.options.volatile_text.empty()) {
    ASSIGN_OR_RETURN(s.volatile_text, VolatileText::load(s.options.volatile_text));
  }
  if (s.options.kv_events.enabled && s.options.kv_events.publisher != "null") {
    ASSIGN_OR_RETURN(s.publisher, KvEventPublisher::start(s.options.kv_events, 0));
  }
  s.metrics = std::make_unique<Metrics>(MetricsOptions{.model_name = s.options.served_model_names.front(),
                                                       .kv_block_lives = s.options.kv_cache_metrics,
                                                       .hidden_metrics = s.options.hidden_gpu_metrics,
                                                       .histogram_buckets = s.options.histogram_buckets,
                                                       .cache_config = s.options.cache_config},
                                        info, engine_options, engine->cache().layout());
  engine->observe([&s, e = engine.get()](const StepReport& report) { s.after_step(*e, report); });
  s.breakers = std::make_unique<PrefixBreakers>(
      PrefixBreakerOptions{.keep_text = s.options.dashboard_text && !s.options.api_keys.empty(),
                           .secret = random_secret()},
      [e = engine.get()](TokenId id) { return e->piece(id, true); });
  s.plan = plan;
  s.layout = engine->cache().layout();
  s.seed_of_server = engine_options.seed;
  s.turns =
      std::make_unique<TurnMemory>(TurnMemoryOptions{.max_turns = s.options.max_turns_kept},
                                   [e = engine.get()](TokenId id, bool special) { return e->piece(id, special); });
  engine->cache().block_map(s.last_blocks);
  s.last_blocks_us = steady_us();
  s.fingerprint = fingerprint_of(s.options, info);
  s.thread = std::make_unique<EngineThread>(std::move(engine));
  s.ready = true;
  return {};
}

// The engine's thread.
void Server::Impl::after_step(Engine& e, const StepReport& report) {
  metrics->step(report);
  recent.admitted(report.admitted);
  publish_events(e, report.cache_rebuilt);
}

void Server::Impl::publish_events(Engine& e, bool cache_rebuilt) {
  if (publisher == nullptr) return;
  KvEvents events_now;
  if (e.health()) events_now = e.cache().take_events();  // else there may be no cache any more
  // What was there is gone, and the new cache does not know of it.
  if (cache_rebuilt) events_now.list.insert(events_now.list.begin(), KvEvent{.kind = KvEvent::Kind::cleared});
  if (events_now.list.empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  publisher->publish(std::move(events_now.list), std::chrono::duration<double>(now).count());
}

bool Server::drain(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  // On the front thread, so that every request is either counted below or refused.
  const auto begun = std::make_shared<std::promise<void>>();
  impl_->http->post([s = impl_.get(), begun] {
    s->draining = true;
    begun->set_value();
  });
  begun->get_future().wait_until(until);
  bool in_time = false;
  {
    std::unique_lock lock(impl_->idle_mutex);
    in_time = impl_->idle.wait_until(lock, until, [this] { return impl_->jobs == 0; });
  }
  if (!in_time) impl_->http->post([s = impl_.get()] { s->end_answers(); });
  impl_->http->stop_accepting();
  // The last bytes may be on their way still; connections close behind them.
  const auto last = in_time ? until : std::chrono::steady_clock::now() + kLastErrors;
  while (impl_->http->counts().open > 0 && std::chrono::steady_clock::now() < last) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return in_time;
}

ApiError Server::Impl::ended_error() {
  return overloaded("The server has shut down before this request was done; send it again, to another one", 1);
}

// Whoever has not got an answer learns why; those on their way here find the mark.
void Server::Impl::end_answers() {
  ending = true;
  for (const std::weak_ptr<Reply>& weak : answers) {
    const std::shared_ptr<Reply> one = weak.lock();
    if (one != nullptr && !one->done()) run_guarded([&] { one->break_off(ended_error()); });
  }
}

// --- every request

bool Server::Impl::has_key(const ServerRequest& request) const {
  if (options.api_keys.empty()) return true;
  const std::string* header = request.header("Authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (header == nullptr || !equal_ignoring_case(header->substr(0, kScheme.size()), kScheme)) return false;
  const std::string_view key = std::string_view(*header).substr(kScheme.size());
  bool found = false;
  for (const std::string& known : options.api_keys) found |= equal(known, key);
  return found;
}

std::vector<HttpHeader> Server::Impl::cors_headers(const ServerRequest& request) const {
  const std::string* origin = request.header("Origin");
  if (origin == nullptr || !lists(options.cors.origins, *origin)) return {};
  const bool any = lists(options.cors.origins, "*") && !options.cors.allow_credentials;
  std::vector<HttpHeader> headers = {{"Access-Control-Allow-Origin", any ? "*" : *origin}, {"Vary", "Origin"}};
  if (options.cors.allow_credentials) headers.push_back({"Access-Control-Allow-Credentials", "true"});
  return headers;
}

// Of a request's whole life: what its client calls it, else the name under which the log has it. A job's label begins
// with the kind of its reply.
std::string Server::Impl::id_of(const HttpExchange& exchange) {
  std::string id = client_id(exchange.request());
  if (!id.empty()) return id;
  id = exchange.label();
  for (const std::string_view kind : {kChatId, kCompletionId}) {
    if (id.starts_with(kind)) return id.substr(kind.size());
  }
  return id;
}

// `id`: of the request; empty: its client's, or a new one.
std::vector<HttpHeader> Server::Impl::common_headers(const ServerRequest& request, std::string id) const {
  std::vector<HttpHeader> headers = cors_headers(request);
  if (!options.request_id_headers) return headers;
  if (id.empty()) id = client_id(request);
  headers.push_back({"X-Request-Id", id.empty() ? random_id() : std::move(id)});
  return headers;
}

void Server::Impl::answer(const Exchange& exchange, ServerReply reply) const {
  for (HttpHeader& header : common_headers(exchange->request(), id_of(*exchange))) {
    reply.headers.push_back(std::move(header));
  }
  if (draining) reply.headers.push_back({"Connection", "close"});
  exchange->reply(std::move(reply));
}

void Server::Impl::preflight(const Exchange& exchange) const {
  const ServerRequest& request = exchange->request();
  ServerReply reply{.status = 204, .headers = {}, .body = ""};
  if (!cors_headers(request).empty()) {
    const std::string* asked = request.header("Access-Control-Request-Headers");
    const bool any_header = lists(options.cors.headers, "*") && asked != nullptr;
    reply.headers.push_back({"Access-Control-Allow-Methods", lists(options.cors.methods, "*")
                                                                 ? "GET, HEAD, POST, OPTIONS"
                                                                 : join(options.cors.methods)});
    reply.headers.push_back({"Access-Control-Allow-Headers", any_header ? *asked : join(options.cors.headers)});
    reply.headers.push_back({"Access-Control-Max-Age", "600"});
  }
  answer(exchange, std::move(reply));
}

void Server::Impl::handle(const Exchange& exchange) {
  const ServerRequest& request = exchange->request();
  if (std::string id = client_id(request); !id.empty()) {
    exchange->set_label(std::move(id));
  } else if (options.request_id_headers) {
    exchange->set_label(random_id());
  }
  if (request.method == "OPTIONS" && request.header("Access-Control-Request-Method") != nullptr) {
    return preflight(exchange);
  }
  const std::string_view path = path_of(*this, request);
  const bool reads = request.method == "GET" || request.method == "HEAD";
  // The page's links are relative: they need the slash.
  if (path.empty() && reads) {
    return answer(exchange, {.status = 307, .headers = {{"Location", options.root_path + "/"}}, .body = ""});
  }
  const RouteInfo* const route = find_route(path, options.dev_mode);
  // The page and its files hold no data; what it shows comes from /dashboard/state, which needs the key.
  if (route == nullptr && reads && is_dashboard_asset(path)) return asset(exchange, path);
  if (auto refused = refusal_of(*this, request, route)) return answer(exchange, *std::move(refused));
  run(route->id, exchange);
}

void Server::Impl::run(RouteId route, const Exchange& exchange) {
  switch (route) {
    case RouteId::completions:
    case RouteId::chat:
    case RouteId::tokenize:
    case RouteId::detokenize:
      return generate(*api_of(route), exchange);
    case RouteId::models:
      return models(exchange);
    case RouteId::health:
      return health_reply(exchange);
    case RouteId::ping:
      return ping(exchange);
    case RouteId::version:
      return version(exchange);
    case RouteId::load:
      return load(exchange);
    case RouteId::metrics:
      return metrics_text(exchange);
    case RouteId::dashboard_state:
      return dashboard_state_reply(exchange);
    case RouteId::reset_prefix_cache:
      return reset_prefix_cache(exchange);
    case RouteId::openapi:
      return openapi(exchange);
    case RouteId::page:
      return asset(exchange, "/");
  }
}

// Before a long body is read.
std::optional<ServerReply> Server::Impl::refuse_by_head(const ServerRequest& request) const {
  const RouteInfo* const route = find_route(path_of(*this, request), options.dev_mode);
  std::optional<ServerReply> refused = refusal_of(*this, request, route);
  if (!refused) {
    const std::optional<ApiRoute> api = api_of(route->id);
    const std::optional<ApiError> error =
        api ? refused_unread(*api, request) : status_error(413, std::string(route->path) + " takes no body; send none");
    if (error) refused = error_reply(*error);
  }
  if (refused) {
    for (HttpHeader& header : common_headers(request, "")) refused->headers.push_back(std::move(header));
  }
  return refused;
}

// --- what is not generation

// What fails here fails alone, and the next look comes.
void Server::Impl::look_after() {
  http->after(milliseconds(options.sse_keep_alive_s > 0 ? 200 : 1000), [this] { look_after(); });
  std::erase_if(answers, [](const std::weak_ptr<Reply>& one) {
    const std::shared_ptr<Reply> reply = one.lock();
    return reply == nullptr || reply->done();
  });
  if (!ready) return;
  const uint64_t now = steady_us();
  run_guarded([&] { watch(now); });
  run_guarded([&] { log_stats(now); });
  if (options.sse_keep_alive_s <= 0) return;
  for (const std::weak_ptr<Reply>& weak : answers) {
    const std::shared_ptr<Reply> one = weak.lock();
    if (one == nullptr) continue;
    const auto silent_us = static_cast<double>(now - std::min(now, one->last_write_us()));
    if (silent_us >= options.sse_keep_alive_s * 1e6) run_guarded([&] { one->keep_alive(); });
  }
}

void Server::Impl::watch(uint64_t now_us) {
  const EngineStats stats = engine().stats_snapshot();
  const Status alive = engine().health();
  if (health.look(now_us, thread->last_tick_us(), stats, alive, thread->in_step())) {
    log(LogLevel::error, "nothing runs although " + std::to_string(stats.waiting) +
                             " requests wait; cached blocks are dropped so that they can start");
    thread->between_steps([](Engine& e) { e.reset_prefix_cache(); });
  }
  if (!alive) run_once(on_failure);
}

void Server::Impl::log_stats(uint64_t now_us) {
  if (options.log_stats_interval_s <= 0) return;
  if (last_stats_us == 0) last_stats_us = now_us;
  const double seconds = static_cast<double>(now_us - last_stats_us) / 1e6;
  if (seconds < options.log_stats_interval_s) return;
  const StatsNumbers numbers = metrics->stats_numbers(engine().stats_snapshot());
  const StatsLine line = stats_line(last_stats, numbers, seconds);
  log(line.quiet && was_quiet ? LogLevel::debug : LogLevel::info, line.text);
  was_quiet = line.quiet;
  last_stats = numbers;
  last_stats_us = now_us;
}

void Server::Impl::models(const Exchange& exchange) {
  answer(exchange,
         json_reply(200, models_body(options.served_model_names, options.model_path, limits.max_model_len, started)));
}

void Server::Impl::health_reply(const Exchange& exchange) {
  if (draining) return answer(exchange, error_reply(overloaded(std::string(kLeaving), 1)));
  if (!ready) return answer(exchange, error_reply(overloaded("Loading model", 1)));
  if (health.trouble()) return answer(exchange, error_reply(status_error(503, *health.trouble())));
  answer(exchange, {.status = 200, .headers = {}, .body = ""});
}

// Alive, whatever the engine does: for what restarts processes, not for what routes requests.
void Server::Impl::ping(const Exchange& exchange) { answer(exchange, {.status = 200, .headers = {}, .body = ""}); }

void Server::Impl::version(const Exchange& exchange) {
  answer(exchange, json_reply(200, dump({{"version", KVARTO_VERSION}})));
}

void Server::Impl::load(const Exchange& exchange) {
  if (!options.load_tracking) {
    return answer(exchange, error_reply(status_error(
                                400, "Server load is not tracked; start with --enable-server-load-tracking")));
  }
  answer(exchange, json_reply(200, dump({{"server_load", jobs.load()}})));
}

void Server::Impl::openapi(const Exchange& exchange) {
  if (!options.docs) return answer(exchange, no_route_reply());
  const OpenApiOptions about{.version = KVARTO_VERSION,
                             .keys = !options.api_keys.empty(),
                             .public_metrics = options.public_metrics,
                             .dev_mode = options.dev_mode};
  answer(exchange, json_reply(200, openapi_json(ready ? limits : limits_of(options), about)));
}

void Server::Impl::reset_prefix_cache(const Exchange& exchange) {
  thread->between_steps([this, exchange](Engine& e) {
    const bool success = e.reset_prefix_cache();
    metrics->forget_recent();
    publish_events(e, false);
    answer(exchange, json_reply(200, dump({{"success", success}})));
  });
}

}  // namespace kvarto
