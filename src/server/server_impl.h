// Server::Impl: the server's parts and who may touch them. server.cc wires them and answers what is not generation,
// generation.cc turns a request into prompts and an answer. Front thread unless said otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/random.h"
#include "http/server.h"
#include "server/api_request.h"
#include "server/breakers.h"
#include "server/dashboard.h"
#include "server/engine_thread.h"
#include "server/event_queue.h"
#include "server/health.h"
#include "server/job_requests.h"
#include "server/kv_event_publisher.h"
#include "server/metrics.h"
#include "server/near_miss_budget.h"
#include "server/recent_requests.h"
#include "server/reply.h"
#include "server/routes.h"
#include "server/scrape_ring.h"
#include "server/scrape_waiters.h"
#include "server/server.h"
#include "server/text_thread.h"
#include "server/trace_recorder.h"
#include "server/turn_memory.h"
#include "server/volatile_text.h"

namespace kvarto {

inline int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// One request on its way: what the log, the metrics and the turn memory need when it is finished. Made by the text
// thread; read by the front thread afterwards.
struct Job {
  std::string id;        // of the reply
  std::string key_hash;  // of the API key that it came with; empty: none
  std::string salt;      // as the cache sees it
  ApiRequest request;
  std::vector<std::string> texts;         // [prompts] rendered; empty where ids were given
  std::vector<std::vector<TokenId>> ids;  // [prompts]
  std::vector<uint64_t> truncated;        // [prompts] tokens left out
  std::vector<std::vector<TokenId>> bad_words;
  std::vector<std::shared_ptr<LiveRequest>> live;  // [prompts] for the dashboard; null: not shown
  std::vector<uint32_t> max_tokens;                // [prompts]
  std::string volatile_note;                       // what --volatile-text did; empty: nothing
  uint64_t volatile_saved = 0;                     // tokens; see make_stable()
  uint64_t arrival_us = 0;
};

std::string random_id();  // 16 hex digits; any thread
// A request's X-Request-Id, fit for a header and a line; empty: none.
std::string client_id(const ServerRequest& request);
inline constexpr const char* kVolatileHeader = "X-Kvarto-Volatile-Text";
// Fields of a request that nobody here knows, for its reply; prompts.cc.
std::vector<HttpHeader> ignored_headers(const ApiRequest& request);
// Chats with and without BOS in front are made of different ids: what turns of a job are remembered under.
std::string scope_of(const Job& job);
// In front of it in the ids of replies.
inline constexpr std::string_view kChatId = "chatcmpl-", kCompletionId = "cmpl-";

struct Server::Impl {
  using Exchange = std::shared_ptr<HttpExchange>;
  explicit Impl(ServeOptions serve_options);
  ~Impl();

  // --- server.cc
  Status start();
  HttpServerOptions http_options();
  void handle(const Exchange& exchange);
  std::optional<ServerReply> refuse_by_head(const ServerRequest& request) const;
  void run(RouteId route, const Exchange& exchange);
  void preflight(const Exchange& exchange) const;
  static std::string id_of(const HttpExchange& exchange);
  std::vector<HttpHeader> common_headers(const ServerRequest& request, std::string id) const;
  void answer(const Exchange& exchange, ServerReply reply) const;
  bool has_key(const ServerRequest& request) const;
  std::vector<HttpHeader> cors_headers(const ServerRequest& request) const;
  void look_after();  // once a second
  void end_answers();
  static ApiError ended_error();
  void watch(uint64_t now_us);
  void models(const Exchange& exchange);
  void health_reply(const Exchange& exchange);
  void ping(const Exchange& exchange);
  void version(const Exchange& exchange);
  void load(const Exchange& exchange);
  void openapi(const Exchange& exchange);
  void reset_prefix_cache(const Exchange& exchange);
  // --- dashboard_routes.cc
  // Hands over the numbers of one moment, on the front thread, soon.
  void with_snapshot(ScrapeWaiters::Use use);
  void tell_scrapes(MetricsSnapshot& snapshot);
  void metrics_text(const Exchange& exchange);
  void dashboard_state_reply(const Exchange& exchange);
  void asset(const Exchange& exchange, std::string_view path) const;
  HostRules host_rules() const;
  void look_for_breakers(const std::shared_ptr<Job>& job);
  void log_stats(uint64_t now_us);
  void after_step(Engine& e, const StepReport& report);  // the engine's thread
  void publish_events(Engine& e, bool cache_rebuilt);    // likewise

  // --- generation.cc
  void generate(ApiRoute route, const Exchange& exchange);
  std::optional<ApiError> overload(uint32_t more) const;  // any thread
  std::optional<ApiError> refused_unread(ApiRoute route, const ServerRequest& request) const;
  // Text threads.
  void prepare(ApiRoute route, const Exchange& exchange, uint64_t arrival_us, std::shared_ptr<void> ticket);
  ApiStatus begin(ApiRoute route, const Exchange& exchange, uint64_t arrival_us, std::shared_ptr<void> ticket);
  void submit(const std::shared_ptr<Job>& job, const std::shared_ptr<Reply>& reply,
              const std::shared_ptr<JobRequests>& requests, const Exchange& exchange);
  std::optional<ApiError> submit_prompts(const std::shared_ptr<Job>& job, const std::shared_ptr<Reply>& reply,
                                         JobRequests& taken);
  ApiStatus make_prompts(Job& job);
  ApiStatus make_bad_words(Job& job);
  ApiStatus check_logprobs(const Job& job) const;
  std::string make_stable(ApiRequest& request, uint64_t& saved_tokens) const;
  ApiStatus check_length(const Job& job, std::string_view text) const;
  ApiStatus check_spelling(std::span<const TokenId> ids) const;
  ApiResult<std::vector<TokenId>> encode(const Job& job, const std::string& text, bool bos);
  ApiStatus fit(Job& job, std::vector<TokenId>& ids, uint64_t& truncated);
  ReplyOptions answer_options(const Job& job, const ServerRequest& request) const;
  Request engine_request(const Job& job, const std::vector<TokenId>& ids);
  std::string_view chat_template_for(const ApiRequest& request) const;
  std::shared_ptr<void> take_ticket();
  std::string salt_of(const Job& job) const;
  ApiStatus check_model(const ApiRequest& request) const;
  void note_odd_fields(const ApiRequest& request);
  ApiStatus tokenize(const Exchange& exchange, ApiRoute route);
  // Front thread.
  void finished(const Job& job, uint32_t prompt, const RequestResult& result);
  void remember(const Job& job, uint32_t prompt, const RequestResult& result);
  // Null when nothing is recorded.
  std::shared_ptr<TracedRequest> traced(const Job& job, uint32_t prompt) const;

  const Engine& engine() const { return thread->engine(); }

  const ServeOptions options;
  ApiLimits limits;  // fixed once the engine is there; nobody else reads them before `ready`
  size_t longest_token_bytes = 1;
  std::string fingerprint;
  const ToolFormat* tools = nullptr;
  const ReasoningFormat* reasoning = nullptr;
  bool markers_are_control = false;  // the formats' markers are control tokens, which text usually leaves out
  std::optional<VolatileText> volatile_text;
  uint64_t seed_of_server = 0;
  const std::string key_secret = random_secret();  // under which API keys have names
  int64_t started = 0;                             // Unix seconds
  std::atomic<bool> ready = false, draining = false;
  std::atomic<bool> ending = false;     // draining took too long: what is not answered yet gets an error
  std::atomic<uint64_t> preparing = 0;  // requests between the front thread and the engine
  std::atomic<uint64_t> jobs = 0;       // generation requests that are not answered yet
  std::atomic<uint64_t> next_seed = 0;
  std::atomic<uint64_t> ignored_fields = 0;
  std::atomic<uint64_t> volatile_saved_tokens = 0;
  std::mutex warned_mutex;
  std::unordered_set<std::string> warned_fields;  // under its mutex
  bool warned_of_bos = false;                     // likewise
  RecentRequests recent;
  ScrapeRing scrapes;
  ScrapeWaiters scrape_waiters;
  std::unique_ptr<PrefixBreakers> breakers;
  NearMissBudget near_misses;
  MemoryPlan plan;
  KvLayout layout;
  std::unique_ptr<TurnMemory> turns;  // as soon as the engine is there

  Health health{options.health};
  std::vector<BlockCell> last_blocks;  // the latest that the engine's thread told, and when
  uint64_t last_blocks_us = 0;
  StatsNumbers last_stats;
  uint64_t last_stats_us = 0;
  bool was_quiet = false;
  std::function<void()> on_failure;           // empty once it was called
  std::vector<std::weak_ptr<Reply>> answers;  // front thread's: those under way, and some that were
  std::mutex idle_mutex;
  std::condition_variable idle;

  // In this order: whatever uses another part goes first.
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<Metrics> metrics;             // from serve() on, as are the next ones
  std::unique_ptr<KvEventPublisher> publisher;  // null: no KV events
  std::unique_ptr<TraceRecorder> recorder;      // from start() on; null: nothing is recorded
  std::unique_ptr<EventQueue> events;
  std::unique_ptr<EngineThread> thread;
  // In order of arrival; what is long goes on from there to a thread of its own, so that a book delays no first token.
  std::unique_ptr<TextThread> long_texts;
  std::unique_ptr<TextThread> texts;
};

}  // namespace kvarto
