// What shows the server from outside: /metrics, the dashboard's state, and the search for what breaks prefixes.
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "server/dashboard_state.h"
#include "server/process_numbers.h"
#include "server/server_impl.h"

namespace kvarto {
namespace {

constexpr std::chrono::milliseconds kPatience{2000};
constexpr size_t kShownRequests = 64, kShownBreakers = 16;
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

// The engine's thread fills in what only it may read, once for all that wait. When it is busy for long, the last
// numbers that it gave will do.
void Server::Impl::with_snapshot(ScrapeWaiters::Use use) {
  const auto [first, ask] = scrape_waiters.add(std::move(use));
  if (first) {
    http->after(kPatience, [this, round = scrape_waiters.round()] {
      if (scrape_waiters.empty() || scrape_waiters.round() != round) return;
      MetricsSnapshot snapshot;
      snapshot.engine = engine().stats_snapshot();
      snapshot.blocks = last_blocks;
      snapshot.blocks_age_us = steady_us() - last_blocks_us;
      tell_scrapes(snapshot);
    });
  }
  if (!ask) return;
  thread->between_steps([this](Engine& e) {
    MetricsSnapshot snapshot;
    try {
      snapshot.engine = e.stats();
      if (e.health()) e.cache().block_map(snapshot.blocks);  // else there may be no cache any more
    } catch (...) {
      http->post([this] { scrape_waiters.answered(); });
      throw;
    }
    http->post([this, snapshot = std::move(snapshot), then_us = steady_us()]() mutable {
      scrape_waiters.answered();
      last_blocks = snapshot.blocks;
      last_blocks_us = then_us;
      if (!scrape_waiters.empty()) tell_scrapes(snapshot);
    });
  });
}

void Server::Impl::tell_scrapes(MetricsSnapshot& snapshot) {
  snapshot.memory = engine().memory();
  snapshot.process = read_process_numbers();
  snapshot.http = http->counts();
  snapshot.turns = turns->counts();
  if (recorder != nullptr) snapshot.trace = recorder->counts();
  snapshot.watchdog_pushes = health.pushes();
  if (publisher != nullptr) snapshot.kv_events = publisher->counts();
  snapshot.ignored_fields = ignored_fields;
  snapshot.volatile_saved_tokens = volatile_saved_tokens;
  snapshot.prefix_breakers = breakers->seen();
  scrape_waiters.tell(snapshot);
}

void Server::Impl::metrics_text(const Exchange& exchange) {
  if (const auto id = scrape_id(exchange->request().query)) {
    const std::shared_ptr<const std::string> text = scrapes.find(*id);
    if (text == nullptr) {
      return answer(exchange, error_reply(status_error(404, "This scrape is not kept any more; only the last 8 are")));
    }
    return answer(exchange, {.status = 200, .headers = {{"Content-Type", kMetricsType}}, .body = *text});
  }
  with_snapshot([this, exchange](const MetricsSnapshot& snapshot) {
    answer(exchange, {.status = 200, .headers = {{"Content-Type", kMetricsType}}, .body = metrics->text(snapshot)});
  });
}

HostRules Server::Impl::host_rules() const {
  return {.bound_host = options.http.unix_socket.empty() ? options.http.host : "",
          .allowed_hosts = options.allowed_hosts};
}

void Server::Impl::asset(const Exchange& exchange, std::string_view path) const {
  if (auto refused = refuse_foreign(exchange->request(), host_rules())) return answer(exchange, std::move(*refused));
  answer(exchange, dashboard_asset(path));
}

void Server::Impl::dashboard_state_reply(const Exchange& exchange) {
  if (auto refused = refuse_foreign(exchange->request(), host_rules())) return answer(exchange, std::move(*refused));
  with_snapshot([this, exchange](const MetricsSnapshot& snapshot) {
    const std::string text = metrics->text(snapshot);
    DashboardState state;
    state.scrape = scrapes.add(text);
    state.metrics_text = text;
    state.now_us = steady_us();
    state.model = options.served_model_names.front();
    state.version = KVARTO_VERSION;
    state.block_tokens = layout.block_tokens();
    state.max_model_len = limits.max_model_len;
    state.chat = engine().has_chat_template() || !options.chat_template.empty();
    state.groups = layout.groups();
    state.blocks = snapshot.blocks;
    state.plan = plan;
    state.requests = recent.rows(kShownRequests);
    state.ttft_ms = recent.ttft_ms();
    state.tpot_ms = recent.tpot_ms();
    state.breakers = breakers->top(kShownBreakers);
    state.near_misses = breakers->near_misses();
    state.show_text = options.dashboard_text && !options.api_keys.empty();
    answer(exchange,
           {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = dashboard_state(state)});
  });
}

// Before the request itself is in the cache: where does it part from what is? Reading the messages takes time that the
// engine's thread does not have, and hashing prompts there is rationed.
void Server::Impl::look_for_breakers(const std::shared_ptr<Job>& job) {
  const std::vector<size_t> parts = near_misses.take(job->ids);
  if (parts.empty()) return;
  thread->between_steps([this, job, parts](Engine& e) {
    near_misses.give_back(std::accumulate(parts.begin(), parts.end(), size_t{0}));
    if (!e.health()) return;
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto near = e.cache().nearest(std::span(job->ids[p]).first(parts[p]), {.cache_salt = job->salt});
      if (!near) continue;
      // By way of the front thread, which outlives neither of the others' work.
      http->post([this, job, p, near = *near] {
        long_texts->post([this, job, p, near] {
          breakers->add(
              {.ids = job->ids[p], .near = near, .messages = job->request.messages, .tools = job->request.tools});
        });
      });
    }
  });
}

}  // namespace kvarto
