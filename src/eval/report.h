// EvalReport: what an evaluation found. Made from records (record.h) alone, so that a run that was resumed reports what
// one that was not does. Plain data; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/record.h"
#include "eval/stats.h"
#include "eval/task.h"

namespace kvarto {

enum class Verdict : uint8_t { safe, watch, unsafe, not_judged };
std::string_view verdict_name(Verdict verdict);  // "not judged"

// Positions [from, to) of all texts; edges are 1, 256, 512, 1024 and so on, doubling.
struct PositionBucket {
  uint32_t from = 0, to = 0;
  uint64_t tokens = 0;
  double nll = 0;  // mean, nats
  double kl_mean = 0, kl_p99 = 0;
  double kl_excess = 0;  // see TextFigures
  double same_top = 1;   // share of positions whose likeliest token is the baseline's
};

struct TextFigures {
  uint64_t tokens = 0;
  Interval nll;             // mean negative log-likelihood per token; perplexity = exp
  Interval nll_difference;  // to the baseline, paired; the ratio of perplexities is its exp
  Interval kl_mean;         // nats
  // Of kl_mean what is beyond the noise floor: beyond what any change costs (RunFacts::noise_floor; paired by position;
  // may fall below 0 by chance). All of it where there is no floor; 0 where nothing diverges at all.
  Interval kl_excess;
  double kl_p99 = 0, kl_max = 0;
  Interval same_top;  // share
  std::vector<PositionBucket> buckets;
  Verdict verdict = Verdict::not_judged;
};

// A family or, pooled, a skill. Retention = (floor - candidate) / (floor - baseline) of mean answer NLL per token: 1 is
// all of what the context is worth, 0 is as good as no context. Without floors, or where the context is worth less than
// 0.3 nats, there is no nll_floor and retention = exp(baseline - candidate). Figures are infinite or NaN where a
// model's numbers are: see report.cc.
struct AnswerFigures {
  uint32_t tasks = 0;
  std::optional<double> nll;          // mean over tasks of the answer's NLL per token
  std::optional<double> nll_floor;    // the same without what answers it; the baseline's
  std::optional<Interval> retention;  // against the baseline; none where likelihoods are missing
  uint32_t right = 0;                 // tasks
  uint32_t baseline_right = 0;
  uint32_t lost = 0, gained = 0;  // right before and wrong now; the other way round
  double p = 1;                   // McNemar's
  Interval drop;                  // (lost - gained) / tasks
};
struct FamilyFigures : AnswerFigures {
  std::string family;
  Skill skill = Skill::retrieval;
  // The baseline solves at least 60 %: used for the verdict. Others are reported by likelihood only.
  bool judged = false;
};
struct SkillFigures : AnswerFigures {  // over its families that are judged
  Skill skill = Skill::retrieval;
  Verdict verdict = Verdict::not_judged;  // not judged: no such family
};
// One cell of the retrieval map.
struct HeatCell {
  uint32_t length_tokens = 0;
  double depth = 0;
  uint32_t tasks = 0, right = 0;
  std::optional<double> nll;  // mean per answer token
};

struct SettingReport {
  std::string name;
  bool baseline = false;
  uint64_t kv_bytes_per_token = 0;  // 0: unknown (a server)
  double prompt_tokens_per_s = 0, seconds = 0;
  std::optional<TextFigures> text;  // none: no texts, or a server
  std::vector<FamilyFigures> families;
  std::vector<SkillFigures> skills;
  std::vector<HeatCell> heat;  // of families whose tasks have a depth
};

struct EvalReport {
  RunFacts facts;                       // model, machine, seed and so on
  std::vector<SettingReport> settings;  // the baseline first; without the floor
};

EvalReport make_report(const RunFacts& facts, const std::vector<SettingRecords>& settings);

// Exit code of a run with --max-drop: the first candidate and skill whose drop of right answers, or whose loss of
// retention, is more than `share`, or whose divergence on texts is infinite, or of which no skill is judged (a check
// that cannot fail is none), as a sentence; empty when there is none.
std::string over_max_drop(const EvalReport& report, double share);

// What people see, what programs read, and a page that stands alone (no script, nothing loaded).
std::string report_table(const EvalReport& report);
std::string report_json(const EvalReport& report);
std::string report_html(const EvalReport& report);

}  // namespace kvarto
