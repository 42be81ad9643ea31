#include "server/dashboard_state.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

// "name{engine="0",model_name="m",state="free"}" without the two labels that say nothing here.
std::string short_name(std::string_view series) {
  const size_t open = series.find('{');
  if (open == std::string_view::npos || !series.ends_with('}')) return std::string(series);
  std::string labels;
  std::string_view rest = series.substr(open + 1, series.size() - open - 2);
  while (!rest.empty()) {
    size_t end = rest.find('"');  // values may hold commas, and escaped quotes
    if (end == std::string_view::npos) break;
    for (++end; end < rest.size() && rest[end] != '"'; ++end) {
      if (rest[end] == '\\') ++end;
    }
    const std::string_view label = rest.substr(0, std::min(end + 1, rest.size()));
    if (!label.starts_with("engine=") && !label.starts_with("model_name=")) {
      labels += (labels.empty() ? "" : ",") + std::string(label);
    }
    rest.remove_prefix(std::min(label.size() + 1, rest.size()));
  }
  const std::string name(series.substr(0, open));
  return labels.empty() ? name : name + "{" + labels + "}";
}

Json series_of(std::string_view text) {
  Json::object_t out;  // names are unique in a scrape: none is looked up
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t space = line.rfind(' ');
    if (line.starts_with('#') || space == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, space), number = line.substr(space + 1);
    if (name.find("_bucket{") != std::string_view::npos) continue;
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc() && end == number.data() + number.size() && std::isfinite(value)) {
      out.emplace_back(short_name(name), value);
    }
  }
  return out;
}

char state_letter(const BlockCell& cell) {
  constexpr char kSeen[] = ".oac", kNamed[] = ".OAC";
  return (cell.named ? kNamed : kSeen)[static_cast<size_t>(cell.state)];
}

char group_letter(const BlockCell& cell) {
  if (cell.state == BlockCell::State::free) return '.';
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  return cell.group < kDigits.size() ? kDigits[cell.group] : '+';
}

// Of cells that share a square the one that shows.
int business(const BlockCell& cell) {
  switch (cell.state) {
    case BlockCell::State::open:
      return 3;
    case BlockCell::State::active:
      return 2;
    case BlockCell::State::cached:
      return 1;
    case BlockCell::State::free:
      return 0;
  }
  return 0;
}

Json map_of(std::span<const BlockCell> blocks) {
  const size_t stride = std::max<size_t>(1, (blocks.size() + kMostMapCells - 1) / kMostMapCells);
  std::string states, groups, sharing, heat;
  for (size_t i = 0; i < blocks.size(); i += stride) {
    const auto shared = blocks.subspan(i, std::min(stride, blocks.size() - i));
    const BlockCell& cell = *std::ranges::max_element(shared, {}, business);
    states += state_letter(cell);
    groups += group_letter(cell);
    sharing += static_cast<char>('0' + std::min<uint32_t>(cell.references, 9));
    heat += block_heat(cell);
  }
  return {{"total", blocks.size()}, {"stride", stride},   {"states", states},
          {"groups", groups},       {"sharing", sharing}, {"heat", heat}};
}

Json groups_of(std::span<const KvGroup> groups) {
  Json out = Json::array();
  for (const KvGroup& group : groups) {
    out.push_back({{"kind", group_kind_name(group.kind)},
                   {"window", group.window},
                   {"layers", group.layers.size()},
                   {"block_bytes", group.block_bytes}});
  }
  return out;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json requests_of(const DashboardState& state) {
  Json out = Json::array();
  for (const RequestRow& row : state.requests) {
    const uint64_t until = row.end_us > 0 ? row.end_us : state.now_us;
    out.push_back({{"id", row.id},
                   {"state", row_state_name(row.state)},
                   {"ended", row.end_us > 0},
                   {"seconds", static_cast<double>(until - std::min(until, row.arrival_us)) / 1e6},
                   {"prompt", row.prompt_tokens},
                   {"cached", or_null(row.cached_tokens)},
                   {"output", row.output_tokens},
                   {"ttft_ms", or_null(row.ttft_ms)},
                   {"tpot_ms", or_null(row.tpot_ms)},
                   {"miss_reason", row.miss_reason ? Json(miss_reason_name(*row.miss_reason)) : Json(nullptr)}});
  }
  return out;
}

Json percentiles_of(const Percentiles& values) {
  Json out{{"count", values.count}};
  const auto add = [&](const char* name, double value) { out[name] = values.count > 0 ? Json(value) : Json(nullptr); };
  add("p50", values.p50);
  add("p95", values.p95);
  add("p99", values.p99);
  return out;
}

Json plan_of(const MemoryPlan& plan) {
  Json lines = Json::array();
  for (const PlanLine& line : plan.lines) {
    lines.push_back({{"name", line.name}, {"bytes", line.bytes}, {"reason", line.reason}});
  }
  return {{"lines", lines},
          {"total_bytes", plan.total_bytes},
          {"available_bytes", plan.available_bytes},
          {"kv_tokens", plan.kv_tokens},
          {"full_requests", plan.full_requests}};
}

Json breakers_of(const DashboardState& state) {
  Json out = Json::array();
  for (const PrefixBreaker& one : state.breakers) {
    Json row{{"place", prompt_place_name(one.place)},
             {"role", one.role.empty() ? Json(nullptr) : Json(one.role)},
             {"index", one.index},
             {"count", one.count},
             {"lost_tokens", one.lost_tokens},
             {"position", one.position},
             {"part_begin", one.part_begin},
             {"line_bytes", one.line_bytes},
             {"hash", one.hash}};
    if (state.show_text) {
      row["text"] = {{"line", one.line},
                     {"earlier", one.earlier_line},
                     {"known", one.known_piece},
                     {"rule", one.rule.empty() ? Json(nullptr) : Json(one.rule)}};
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

char block_heat(const BlockCell& cell) {
  if (cell.state == BlockCell::State::free) return '.';
  if (cell.state != BlockCell::State::cached) return '9';
  const int doublings = std::bit_width(cell.idle_us / 1'000'000);
  return static_cast<char>('9' - std::min(doublings, 9));
}

std::string dashboard_state(const DashboardState& state) {
  Json out{{"scrape", state.scrape},
           {"time_us", state.now_us},
           {"model", state.model},
           {"version", state.version},
           {"max_model_len", state.max_model_len},
           {"chat", state.chat},
           {"block_tokens", state.block_tokens},
           {"text", state.show_text}};
  out["series"] = series_of(state.metrics_text);
  out["groups"] = groups_of(state.groups);
  out["blocks"] = map_of(state.blocks);
  out["requests"] = requests_of(state);
  out["latency"] = {{"ttft_ms", percentiles_of(state.ttft_ms)}, {"tpot_ms", percentiles_of(state.tpot_ms)}};
  out["plan"] = plan_of(state.plan);
  out["near_misses"] = state.near_misses;
  out["breakers"] = breakers_of(state);
  return dump(out);
}

}  // namespace kvarto
