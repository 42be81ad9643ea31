// What shows the server from outside: /metrics, the dashboard's state, and the search for what breaks prefixes.
#include <nlohmann/json.hpp>
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

// The engine's thread fills in what only it may read. When it is busy for long, its last published numbers have to do.
void Server::Impl::with_snapshot(std::function<void(MetricsSnapshot)> use) {
  const auto answered = std::make_shared<bool>(false);  // front thread's
  const auto tell = [this, use = std::move(use), answered](MetricsSnapshot snapshot) {
    if (std::exchange(*answered, true)) return;
    snapshot.process = read_process_numbers();
    snapshot.http = http->counts();
    snapshot.turns = turns->counts();
    snapshot.watchdog_pushes = health.pushes();
    snapshot.ignored_fields = ignored_fields;
    snapshot.prefix_breakers = breakers->seen();
    use(std::move(snapshot));
  };
  thread->between_steps([this, tell](Engine& e) {
    MetricsSnapshot snapshot;
    snapshot.engine = e.stats();
    if (e.health()) e.cache().block_map(snapshot.blocks);  // else there may be no cache any more
    snapshot.memory = e.memory();
    http->post([tell, snapshot = std::move(snapshot)]() mutable { tell(std::move(snapshot)); });
  });
  http->after(kPatience, [this, tell] {
    MetricsSnapshot snapshot;
    snapshot.engine = engine().stats_snapshot();
    tell(std::move(snapshot));
  });
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

void Server::Impl::dashboard_state_reply(const Exchange& exchange) {
  if (auto refused = refuse_foreign(exchange->request(), host_rules())) return exchange->reply(std::move(*refused));
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
// engine's thread does not have.
void Server::Impl::look_for_breakers(const std::shared_ptr<Job>& job) {
  thread->between_steps([this, job](Engine& e) {
    if (!e.health()) return;
    for (size_t p = 0; p < job->ids.size(); ++p) {
      const auto near = e.cache().nearest(job->ids[p], {.cache_salt = job->salt});
      if (!near) continue;
      // By way of the front thread, which outlives neither of the others' work.
      http->post([this, job, p, near = *near] {
        texts->post([this, job, p, near] {
          breakers->add(
              {.ids = job->ids[p], .near = near, .messages = job->request.messages, .tools = job->request.tools});
        });
      });
    }
  });
}

}  // namespace kvarto
