// What programs read. Names carry their unit; what is not finite becomes null, as nlohmann writes it.
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "eval/report.h"
#include "eval/text_score.h"
#include "eval/verdict.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;  // of the fields: rises when one changes its meaning or goes

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }
Json known(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
template <typename Number>
Json known_number(Number value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

Json interval_json(const Interval& interval) {
  return {{"value", interval.value}, {"low", interval.low}, {"high", interval.high}};
}

Json exp_json(const Interval& nll) {
  return interval_json({.value = std::exp(nll.value), .low = std::exp(nll.low), .high = std::exp(nll.high)});
}

Json facts_json(const RunFacts& facts) {
  Json texts = Json::array();
  for (const RunFacts::Text& text : facts.texts) {
    texts.push_back({{"name", text.name}, {"sha256", text.sha256}, {"tokens", text.tokens}});
  }
  Json servers = Json::array();
  for (const RunFacts::Server& server : facts.servers) {
    servers.push_back({{"url", server.url}, {"model", server.model}, {"echoes", server.echoes}});
  }
  return {{"program", known(facts.program)},
          {"model", facts.model},
          {"fingerprint", known(facts.fingerprint)},
          {"architecture", known(facts.architecture)},
          {"weight_types", known(facts.weight_types)},
          {"numerics", known(facts.numerics)},
          {"simd_target", known(facts.simd_target)},
          {"threads", known_number(facts.threads)},
          {"block_tokens", known_number(facts.block_size)},
          {"seed", facts.seed},
          {"context_tokens", facts.context_tokens},
          {"samples", facts.samples},
          {"settings", facts.settings},
          {"servers", std::move(servers)},
          {"noise_floor", facts.noise_floor ? Json(facts.settings.at(*facts.noise_floor)) : Json(nullptr)},
          {"families", facts.families},
          {"texts", std::move(texts)},
          {"tasks_sha256", known(facts.tasks_sha256)},
          {"own_tasks_sha256", known(facts.own_tasks_sha256)}};
}

Json bucket_json(const PositionBucket& bucket) {
  return {{"from", bucket.from},
          {"to", bucket.to},
          {"tokens", bucket.tokens},
          {"nll_nats", bucket.nll},
          {"perplexity", std::exp(bucket.nll)},
          {"kl_mean_nats", bucket.kl_mean},
          {"kl_excess_nats", bucket.kl_excess},
          {"kl_p99_nats", bucket.kl_p99},
          {"same_top_share", bucket.same_top}};
}

Json text_json(const std::optional<TextFigures>& text) {
  if (!text) return nullptr;
  Json buckets = Json::array();
  for (const PositionBucket& bucket : text->buckets) buckets.push_back(bucket_json(bucket));
  return {{"tokens", text->tokens},
          {"nll_nats", interval_json(text->nll)},
          {"perplexity", exp_json(text->nll)},
          {"nll_difference_nats", interval_json(text->nll_difference)},
          {"perplexity_ratio", exp_json(text->nll_difference)},
          {"kl_mean_nats", interval_json(text->kl_mean)},
          {"kl_excess_nats", interval_json(text->kl_excess)},
          {"kl_p99_nats", text->kl_p99},
          {"kl_max_nats", text->kl_max},
          {"same_top_share", interval_json(text->same_top)},
          {"positions", std::move(buckets)},
          {"verdict", verdict_name(text->verdict)}};
}

// Behind the fields that say whose answers they are. `changes`: there are right answers, to be lost and gained.
void add_answers(Json& json, const AnswerFigures& figures, bool changes) {
  const auto if_changes = [changes](Json value) { return changes ? std::move(value) : Json(nullptr); };
  json["tasks"] = figures.tasks;
  json["right"] = figures.right;
  json["baseline_right"] = figures.baseline_right;
  json["lost"] = if_changes(figures.lost);
  json["gained"] = if_changes(figures.gained);
  json["mcnemar_p"] = if_changes(figures.p);
  json["drop_share"] = if_changes(interval_json(figures.drop));
  json["compared"] = figures.compared;
  json["groups"] = figures.groups;
  json["nll_per_token_nats"] = or_null(figures.nll);
  json["floor_nll_per_token_nats"] = or_null(figures.nll_floor);
  json["retention"] = figures.retention ? interval_json(*figures.retention) : Json(nullptr);
  json["retention_of"] = Json(nullptr);
  if (figures.retention) json["retention_of"] = figures.nll_floor ? "floor" : "likelihood";
}

Json family_json(const FamilyFigures& family) {
  Json json{{"family", family.family},
            {"skill", skill_name(family.skill)},
            {"judged", family.judged},
            {"agreement", family.agreement},
            {"failed", family.failed}};
  add_answers(json, family, /*changes=*/!family.agreement);
  return json;
}

Json skill_json(const SkillFigures& skill) {
  Json json{{"skill", skill_name(skill.skill)}, {"verdict", verdict_name(skill.verdict)}};
  add_answers(json, skill, /*changes=*/skill.tasks > 0);
  return json;
}

Json change_json(const AnswerChange& change) {
  return {{"task", change.id},
          {"family", change.family},
          {"length_tokens", known_number(change.length_tokens)},
          {"depth_share", or_null(change.depth)},
          {"change", change.lost ? "lost" : "gained"},
          {"judged", change.judged},
          {"baseline_text", change.baseline_text},
          {"text", change.text}};
}

Json cell_json(const HeatCell& cell) {
  return {{"length_tokens", cell.length_tokens},
          {"depth_share", cell.depth},
          {"tasks", cell.tasks},
          {"right", cell.right},
          {"nll_per_token_nats", or_null(cell.nll)}};
}

template <typename Items, typename Make>
Json array_of(const Items& items, const Make& make) {
  Json array = Json::array();
  for (const auto& item : items) array.push_back(make(item));
  return array;
}

Json setting_json(const SettingReport& setting) {
  return {{"name", setting.name},
          {"baseline", setting.baseline},
          {"kv_bytes_per_token", known_number(setting.kv_bytes_per_token)},
          {"prompt_tokens_per_s", known_number(setting.prompt_tokens_per_s)},
          {"seconds", setting.seconds},
          {"longest_tokens", known_number(setting.longest_tokens)},
          {"text", text_json(setting.text)},
          {"families", array_of(setting.families, family_json)},
          {"skills", array_of(setting.skills, skill_json)},
          {"changes", array_of(setting.changes, change_json)},
          {"retrieval_map", array_of(setting.heat, cell_json)}};
}

}  // namespace

std::string report_json(const EvalReport& report) {
  const Json json{{"version", kVersion},
                  {"run", facts_json(report.facts)},
                  {"method",
                   {{"kl_tokens", kTopTokens},
                    {"resamples", kResamples},
                    {"resample_seed", kResampleSeed},
                    {"stretch_positions", kStretchPositions},
                    {"verdict_rule", verdict_rule()}}},
                  {"settings", array_of(report.settings, setting_json)}};
  // Names come from files and servers: bytes that are no UTF-8 are replaced, not thrown at.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvarto
