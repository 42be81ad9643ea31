#include "server/server.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "format/printable.h"
#include "server/dashboard.h"
#include "server/openapi.h"
#include "server/reply_json.h"
#include "server/server_impl.h"
#include "server/stats_line.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

struct Route {
  std::string_view methods;  // "GET" or "GET, POST"
  std::string_view path;
  bool open;     // needs no key
  bool dev;      // only in dev mode
  bool loading;  // answers before the model is there
  void (*handle)(Server::Impl&, const Server::Impl::Exchange&);
};

template <auto kMember>
void call(Server::Impl& server, const Server::Impl::Exchange& exchange) {
  (server.*kMember)(exchange);
}
template <ApiRoute kRoute>
void call_api(Server::Impl& server, const Server::Impl::Exchange& exchange) {
  server.generate(kRoute, exchange);
}

using Impl = Server::Impl;
constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", false, false, false, call_api<ApiRoute::chat>},
    {"POST", "/v1/completions", false, false, false, call_api<ApiRoute::completions>},
    {"POST", "/tokenize", false, false, false, call_api<ApiRoute::tokenize>},
    {"POST", "/detokenize", false, false, false, call_api<ApiRoute::detokenize>},
    {"GET", "/v1/models", false, false, false, call<&Impl::models>},
    {"GET", "/health", true, false, true, call<&Impl::health_reply>},
    {"GET, POST", "/ping", true, false, true, call<&Impl::ping>},
    {"GET", "/metrics", false, false, false, call<&Impl::metrics_text>},
    {"GET", "/dashboard/state", false, false, false, call<&Impl::dashboard_state_reply>},
    {"GET", "/version", false, false, true, call<&Impl::version>},
    {"GET", "/load", false, false, true, call<&Impl::load>},
    {"GET", "/openapi.json", false, false, true, call<&Impl::openapi>},
    {"POST", "/reset_prefix_cache", false, true, false, call<&Impl::reset_prefix_cache>},
};

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

std::string join(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

std::string random_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += std::to_string(random());
  return secret;
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

std::string Server::address() const { return impl_->http->address(); }
uint16_t Server::port() const { return impl_->http->port(); }
void Server::stall(uint64_t us) {
  if (impl_->thread != nullptr) impl_->thread->stall(us);
}

Server::Impl::Impl(ServeOptions serve_options) : options(std::move(serve_options)), started(unix_seconds()) {}

Server::Impl::~Impl() {
  if (http != nullptr) http->stop();  // from here on nothing calls into the others
  texts.reset();
  thread.reset();
  answers.clear();
}

Status Server::Impl::start() {
  const auto refusal = [](int status, std::string_view message) {
    return error_reply(status_error(status, std::string(message)));
  };
  ASSIGN_OR_RETURN(http, HttpServer::start(
                             options.http, [this](Exchange exchange) { handle(exchange); }, refusal));
  events = std::make_unique<EventQueue>([this] { http->post([this] { events->drain(); }); });
  texts = std::make_unique<TextThread>();
  http->post([this] { look_after(); });
  return {};
}

Status Server::serve(std::unique_ptr<Engine> engine, const EngineOptions& engine_options, const MemoryPlan& plan) {
  Impl& s = *impl_;
  const EngineInfo& info = engine->info();
  s.limits.max_model_len = info.max_model_len;
  s.limits.vocabulary = info.vocabulary;
  s.limits.max_n = engine_options.max_num_seqs;
  s.limits.max_logprobs = s.options.max_logprobs;
  s.limits.strict_fields = s.options.strict_fields;
  s.limits.trust_chat_template = s.options.trust_request_chat_template;
  s.limits.priority_scheduling = engine_options.scheduling_policy == SchedulingPolicy::priority;
  s.limits.tool_calls = s.options.auto_tool_choice;
  s.limits.return_tokens_as_token_ids = s.options.return_tokens_as_token_ids;
  s.limits.chat_template_kwargs = s.options.default_chat_template_kwargs;
  ASSIGN_OR_RETURN(s.limits.defaults, parse_sampling_defaults(s.options.generation_config));
  RETURN_IF_ERROR(engine->check_chat_template(s.options.chat_template));
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
                                                       .histogram_buckets = s.options.histogram_buckets},
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
  s.fingerprint = "kvarto-" + std::string(KVARTO_VERSION) + "-" + info.model_fingerprint.substr(0, 8);
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
  KvEvents events_now = e.cache().take_events();
  // What was there is gone, and the new cache does not know of it.
  if (cache_rebuilt) events_now.list.insert(events_now.list.begin(), KvEvent{.kind = KvEvent::Kind::cleared});
  if (events_now.list.empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  publisher->publish(std::move(events_now.list), std::chrono::duration<double>(now).count());
}

bool Server::drain(std::chrono::milliseconds limit) {
  impl_->draining = true;
  impl_->http->post([this] { impl_->http->stop_accepting(); });
  const auto until = std::chrono::steady_clock::now() + limit;
  {
    std::unique_lock lock(impl_->idle_mutex);
    if (!impl_->idle.wait_until(lock, until, [this] { return impl_->jobs == 0; })) return false;
  }
  // The last bytes may be on their way still; connections close behind them.
  while (impl_->http->counts().open > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

// --- every request

bool Server::Impl::has_key(const ServerRequest& request) const {
  if (options.api_keys.empty()) return true;
  const std::string* header = request.header("Authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (header == nullptr || header->size() < kScheme.size()) return false;
  std::string scheme = header->substr(0, kScheme.size());
  std::ranges::transform(scheme, scheme.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (scheme != kScheme) return false;
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

ServerReply Server::Impl::with_headers(ServerReply reply, const ServerRequest& request) const {
  for (HttpHeader& header : cors_headers(request)) reply.headers.push_back(std::move(header));
  if (options.request_id_headers) {
    const std::string* given = request.header("X-Request-Id");
    reply.headers.push_back(
        {"X-Request-Id", given != nullptr && !given->empty() ? printable(*given, 128) : random_id()});
  }
  return reply;
}

void Server::Impl::answer(const Exchange& exchange, ServerReply reply) const {
  exchange->reply(with_headers(std::move(reply), exchange->request()));
}

void Server::Impl::handle(const Exchange& exchange) {
  const ServerRequest& request = exchange->request();
  if (request.method == "OPTIONS" && request.header("Access-Control-Request-Method") != nullptr) {
    ServerReply reply = with_headers({.status = 204, .headers = {}, .body = ""}, request);
    if (!reply.headers.empty()) {
      const std::string* asked = request.header("Access-Control-Request-Headers");
      const bool any_header = lists(options.cors.headers, "*") && asked != nullptr;
      reply.headers.push_back({"Access-Control-Allow-Methods", lists(options.cors.methods, "*")
                                                                   ? "GET, HEAD, POST, OPTIONS"
                                                                   : join(options.cors.methods)});
      reply.headers.push_back({"Access-Control-Allow-Headers", any_header ? *asked : join(options.cors.headers)});
      reply.headers.push_back({"Access-Control-Max-Age", "600"});
    }
    exchange->reply(std::move(reply));
    return;
  }
  std::string_view path = request.path;
  if (!options.root_path.empty() && path.starts_with(options.root_path)) path.remove_prefix(options.root_path.size());
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  // The page and its files hold no data; what it shows comes from /dashboard/state, which needs the key.
  if ((request.method == "GET" || request.method == "HEAD") && is_dashboard_asset(path)) {
    if (auto refused = refuse_foreign(request, host_rules())) return exchange->reply(std::move(*refused));
    return exchange->reply(dashboard_asset(path));
  }
  const auto route =
      std::ranges::find_if(kRoutes, [&](const Route& r) { return r.path == path && (!r.dev || options.dev_mode); });
  // Whoever has no key does not learn which pages there are.
  const bool open = route != std::end(kRoutes) && (route->open || (options.public_metrics && path == "/metrics"));
  if (!open && !has_key(request)) return answer(exchange, unauthorized_reply());
  if (route == std::end(kRoutes)) return answer(exchange, no_route_reply());
  const bool head = request.method == "HEAD" && route->methods.starts_with("GET");
  if (!head && (", " + std::string(route->methods) + ",").find(", " + request.method + ",") == std::string::npos) {
    return answer(exchange, wrong_method_reply(std::string(route->methods)));
  }
  if (!ready && !route->loading) {
    return answer(exchange, error_reply(overloaded("The model is still being loaded; try again in a moment", 1)));
  }
  route->handle(*this, exchange);
}

// --- what is not generation

void Server::Impl::look_after() {
  if (thread != nullptr && ready) {
    const uint64_t now = steady_us();
    const EngineStats stats = engine().stats_snapshot();
    if (health.look(now, thread->last_tick_us(), stats, engine().health())) {
      log(LogLevel::error, "nothing runs although " + std::to_string(stats.waiting) +
                               " requests wait; cached blocks are dropped so that they can start");
      thread->between_steps([](Engine& e) { e.reset_prefix_cache(); });
    }
    log_stats(now);
    if (options.sse_keep_alive_s > 0) {
      for (const std::shared_ptr<Reply>& one : answers) {
        const auto silent_us = static_cast<double>(now - std::min(now, one->last_write_us()));
        if (silent_us >= options.sse_keep_alive_s * 1e6) one->keep_alive();
      }
    }
  }
  std::erase_if(answers, [](const std::shared_ptr<Reply>& one) { return one->done(); });
  http->after(milliseconds(options.sse_keep_alive_s > 0 ? 200 : 1000), [this] { look_after(); });
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
  answer(exchange, json_reply(200, openapi_json(limits, about)));
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
