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
  // may fall below 0 by chance). All of it where there is no such setting; 0 where nothing diverges at all.
  Interval kl_excess;
  double kl_p99 = 0, kl_max = 0;
  Interval same_top;  // share
  std::vector<PositionBucket> buckets;
  Verdict verdict = Verdict::not_judged;
};

// A family or, pooled, a skill: of the tasks that both have and neither refused. Retention = (floor - candidate) /
// (floor - baseline) of mean answer NLL per token, over the tasks that have a floor: 1 is all of what the context is
// worth, 0 is as good as no context. Where none has one, or the context is worth less than 0.3 nats, there is no
// nll_floor, and retention = exp(baseline - candidate) over all whose likelihood both have. Figures are infinite or NaN
// where a model's numbers are: see report.cc.
struct AnswerFigures {
  uint32_t tasks = 0;                 // that have a right answer
  uint32_t compared = 0;              // tasks that nll, nll_floor and retention are of,
  uint32_t groups = 0;                // and groups of them: tasks that share a text are one
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
  // Used for the verdict: the baseline solves at least 60 %. Others are reported by likelihood only.
  bool judged = false;
  // Its tasks have no right answer: `right` of all `tasks` wrote what the baseline wrote, which is as noisy as
  // arithmetic, so that nothing counts as lost or gained. Judged by likelihood, where there is one.
  bool agreement = false;
  uint32_t failed = 0;  // tasks that the baseline or the candidate refused; in no other figure
};
struct SkillFigures : AnswerFigures {  // over its families that are judged
  Skill skill = Skill::retrieval;
  Verdict verdict = Verdict::not_judged;
};
// One cell of the retrieval map.
struct HeatCell {
  uint32_t length_tokens = 0;
  double depth = 0;
  uint32_t tasks = 0, right = 0;
  std::optional<double> nll;  // mean per answer token
};

// A task with a right answer whose answer is right under one setting and wrong under the other.
struct AnswerChange {
  std::string id, family;
  uint32_t length_tokens = 0;  // 0: unknown
  std::optional<double> depth;
  bool lost = false;                // otherwise gained
  bool judged = false;              // its family is
  std::string baseline_text, text;  // what the baseline wrote, and what the candidate wrote
};

struct SettingReport {
  std::string name;
  bool baseline = false;
  uint32_t longest_tokens = 0;      // of the texts and tasks that are compared; 0: unknown
  uint64_t kv_bytes_per_token = 0;  // 0: unknown (a server)
  double prompt_tokens_per_s = 0, seconds = 0;
  std::optional<TextFigures> text;  // none: no texts, or a server
  std::vector<FamilyFigures> families;
  std::vector<SkillFigures> skills;
  std::vector<AnswerChange> changes;  // those that are judged first, lost before gained, by family and id
  std::vector<HeatCell> heat;         // of families whose tasks have a depth
};

struct EvalReport {
  RunFacts facts;                       // model, machine, seed and so on
  std::vector<SettingReport> settings;  // the baseline first; without the noise floor
};

EvalReport make_report(const RunFacts& facts, const std::vector<SettingRecords>& settings);

// Exit code of a run with --max-drop: the first candidate of which texts or a skill are unsafe, or a skill loses more
// than `share` of its right answers or of its retention, or of which nothing is judged that was asked for (a check that
// cannot fail is none), as a sentence; empty when there is none.
std::string over_max_drop(const EvalReport& report, double share);
// What a candidate comes to, in a few sentences of one line; empty for the baseline.
std::string conclusion_of(const SettingReport& setting);

// What people see, what programs read, and a page that stands alone (no script, nothing loaded).
std::string report_table(const EvalReport& report);
std::string report_json(const EvalReport& report);
std::string report_html(const EvalReport& report);

}  // namespace kvarto
