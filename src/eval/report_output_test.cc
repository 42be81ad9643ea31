#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string_view>

#include "eval/report.h"
#include "eval/report_words.h"
#include "eval/verdict.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
const double kNone = std::nan("");

PositionBucket bucket(uint32_t from, uint32_t to, double nll, double kl_mean, double kl_p99, double same_top) {
  PositionBucket out;
  out.from = from;
  out.to = to;
  out.tokens = to - from;
  out.nll = nll;
  out.kl_mean = kl_mean;
  out.kl_excess = kl_mean - 0.001;
  out.kl_p99 = kl_p99;
  out.same_top = same_top;
  return out;
}

HeatCell cell(uint32_t length_tokens, double depth, uint32_t right) {
  HeatCell out;
  out.length_tokens = length_tokens;
  out.depth = depth;
  out.tasks = 3;
  out.right = right;
  return out;
}

FamilyFigures family(const char* name, Skill skill, uint32_t baseline_right, uint32_t right, bool judged) {
  FamilyFigures out;
  out.family = name;
  out.skill = skill;
  out.tasks = 48;
  out.baseline_right = baseline_right;
  out.right = right;
  out.judged = judged;
  return out;
}

SettingReport baseline_setting() {
  SettingReport out;
  out.name = "kv=f16";
  out.baseline = true;
  out.kv_bytes_per_token = 12288;
  out.prompt_tokens_per_s = 310.4;
  out.seconds = 530;
  TextFigures text;
  text.tokens = 511;
  text.nll = {2.5, 2.45, 2.55};
  text.buckets = {bucket(1, 256, 3, 0, 0, 1), bucket(256, 512, 2.4, 0, 0, 1)};
  out.text = text;
  FamilyFigures needle = family("needle", Skill::retrieval, 45, 45, true);
  needle.nll = 0.05;
  needle.nll_floor = 6.125;
  out.families = {needle, family("hops", Skill::multi_hop, 10, 10, false)};
  out.heat = {cell(512, 0, 3), cell(512, 1, 3), cell(2048, 0, 3)};
  return out;
}

// Named as an attacker would, with figures that no text may show as they are.
SettingReport candidate() {
  SettingReport out;
  out.name = "k=<i>\"&";
  out.kv_bytes_per_token = 6144;
  TextFigures text;
  text.tokens = 511;
  text.nll = {2.51, 2.46, 2.56};
  text.nll_difference = {0.01, 0.008, 0.012};
  text.kl_mean = {0.0123, 0.011, 0.0135};
  text.kl_excess = {0.0113, 0.0101, 0.0124};
  text.kl_p99 = 0.25;
  text.kl_max = kInfinite;
  text.same_top = {0.9871, 0.98, 0.99};
  text.buckets = {bucket(1, 256, 3.01, 0.004, 0.09, 0.995), bucket(256, 512, 2.42, 0.02, kNone, 0.98)};
  text.verdict = Verdict::watch;
  out.text = text;
  FamilyFigures needle = family("needle", Skill::retrieval, 45, 43, true);
  needle.nll = 0.062;
  needle.nll_floor = 6.125;
  needle.retention = Interval{0.987, 0.971, 1.002};
  needle.lost = 3;
  needle.gained = 1;
  needle.p = 0.625;
  needle.drop = {2.0 / 48, -0.02, 0.1};
  FamilyFigures hops = family("hops", Skill::multi_hop, 10, 9, false);
  hops.nll = kInfinite;
  hops.retention = Interval{kNone, -kInfinite, kInfinite};
  hops.lost = 2;
  hops.p = kNone;
  out.families = {needle, hops};
  SkillFigures retrieval;
  static_cast<AnswerFigures&>(retrieval) = needle;
  retrieval.skill = Skill::retrieval;
  retrieval.verdict = Verdict::unsafe;
  SkillFigures multi_hop;
  multi_hop.skill = Skill::multi_hop;
  out.skills = {retrieval, multi_hop};
  out.heat = {cell(512, 0, 3), cell(512, 1, 2), cell(2048, 0, 1)};
  out.heat[1].nll = 0.5;
  return out;
}

EvalReport scene() {
  EvalReport report;
  RunFacts& facts = report.facts;
  facts.model = "<b>m</b>&\"x\"\x1b[31m.gguf";
  facts.fingerprint = "00ff";
  facts.architecture = "qwen2";
  facts.numerics = "int8-1";
  facts.simd_target = "avx2";
  facts.weight_types = "Q4_1, Q8_0";
  facts.threads = 2;
  facts.block_size = 16;
  facts.seed = 7;
  facts.context_tokens = 4096;
  facts.samples = 48;
  facts.settings = {"kv=f16", "k=<i>\"&"};
  facts.families = {"needle", "hops"};
  facts.texts = {{"<script>alert(1)</script>.txt", "abcd", 512}};
  facts.program = "9.8.7";
  report.settings = {baseline_setting(), candidate()};
  return report;
}

// Runs of spaces become one, so that a test says what stands beside what, not how wide columns are.
std::string squeezed(const std::string& text) { return std::regex_replace(text, std::regex(" +"), " "); }

std::string without_style(const std::string& page) {
  const size_t from = page.find("<style>"), to = page.find("</style>", from);
  return page.substr(0, from) + page.substr(to + std::string_view("</style>").size());
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// The first tag that does not fit; empty: every element is closed, in order.
std::string unbalanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    if (end == std::string::npos) return "no end: " + page.substr(at, 40);
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "a tag in a tag: " + tag;
    if (tag.starts_with("!") || tag.starts_with("meta") || tag.starts_with("br") || tag.ends_with("/")) continue;
    if (!tag.starts_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return "closes nothing: " + tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "left open: " + open.back();
}

// --- the table

TEST(ReportTable, HasTheFigures) {
  const std::string table = squeezed(report_table(scene()));
  for (const char* wanted : {
           "baseline kv=f16: 12288 bytes of KV cache per token, 310 prompt tokens/s, 530 s\n",
           " perplexity 12.182 [11.588, 12.807] over 511 tokens\n",  // exp of 2.5, 2.45, 2.55
           " 256-511 256 11.023\n",
           " family skill right nll/token without context judged\n",
           " needle retrieval 45/48 0.05 6.12 yes\n",
           " hops multi-hop 10/48 - - no, likelihood only\n",
           "setting k=<i>\"&: 6144 bytes of KV cache per token\n",
           "texts: watch\n",
           " its ratio 1.0101 [1.0080, 1.0121] to the baseline's\n",
           " KL 0.0123 [0.011, 0.0135] nats; p99 0.25, max -\n",
           " beyond the noise floor 0.0113 [0.0101, 0.0124] nats\n",
           " same top-1 98.71 % [98.00 %, 99.00 %]\n",
           " 1-255 255 20.287 0.004 0.003 0.09 99.50 %\n",
           " 256-511 256 11.246 0.02 0.019 - 98.00 %\n",
           " needle retrieval 43/48 45/48 3 1 0.625 0.062 0.9870 [0.9710, 1.0020] yes\n",
           " hops multi-hop 9/48 10/48 - - - - - [-, -] no, likelihood only\n",
           " retrieval 43/48 45/48 3 1 0.625 4.17 % [-2.00 %, 10.00 %] 0.9870 [0.9710, 1.0020] unsafe\n",
           " multi-hop - - - - - - - not judged\n",
           " tokens 0 % 100 %\n 512 3/3 2/3\n 2048 1/3\n",
           " k=<i>\"& watch unsafe not judged - - -\n",
       }) {
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  }
}

TEST(Report, TheNoiseFloorIsSaidOnce) {
  EvalReport report = scene();
  report.facts.settings.push_back("kv=f16:noise=120");
  report.facts.noise_floor = 2;
  const std::string table = squeezed(report_table(report));
  EXPECT_EQ(count_of(table, "kv=f16:noise=120"), 1u) << table;
  EXPECT_NE(table.find(" noise floor kv=f16:noise=120: what any change costs"), std::string::npos) << table;
  EXPECT_EQ(Json::parse(report_json(report))["run"]["noise_floor"], "kv=f16:noise=120");
}

TEST(ReportTable, SaysWhatWasRun) {
  const std::string table = squeezed(report_table(scene()));
  for (const char* wanted :
       {" model <b>m</b>&\"x\"\\x1b[31m.gguf, qwen2\n", " fingerprint 00ff\n", " weights Q4_1, Q8_0\n",
        " numerics int8-1 on avx2, 2 threads\n", " context up to 4096 tokens", " tasks 48 samples a family, seed 7\n",
        " text <script>alert(1)</script>.txt, 512 tokens, sha256 abcd\n", "blocks of 16 tokens", " the 256 tokens",
        "10000 resamples (seed 20231)", " program kvarto 9.8.7\n"}) {
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  }
  EXPECT_EQ(count_of(report_table(scene()), verdict_rule()), 1u);
}

TEST(ReportTable, ColumnsStandUnderEachOther) {
  const std::string table = report_table(scene());
  size_t at = table.find("  positions");
  const size_t length = table.find('\n', at) - at;
  for (int row = 0; row < 2; ++row) {
    at = table.find('\n', at) + 1;
    EXPECT_EQ(table.find('\n', at) - at, length) << table.substr(at, 80);
  }
}

TEST(ReportTable, OfAServerLeavesOutWhatIsUnknown) {
  EvalReport report = scene();
  report.facts.fingerprint = report.facts.architecture = report.facts.numerics = report.facts.simd_target = "";
  report.facts.weight_types = "";
  report.facts.threads = 0;
  report.facts.block_size = 0;
  report.facts.texts.clear();
  for (SettingReport& setting : report.settings) setting.text.reset();
  const std::string table = squeezed(report_table(report));
  EXPECT_NE(table.find("unknown (a server)"), std::string::npos);
  for (const char* unknown : {"weights", "numerics", "threads", "blocks of", "perplexity", "divergence"}) {
    EXPECT_EQ(table.substr(0, table.find("\nrule")).find(unknown), std::string::npos) << unknown << "\n" << table;
  }
  EXPECT_NE(table.find(" k=<i>\"& - unsafe not judged"), std::string::npos) << table;
}

// --- the JSON

void expect_interval(const Json& json, const Interval& wanted) {
  EXPECT_DOUBLE_EQ(json["value"].get<double>(), wanted.value);
  EXPECT_DOUBLE_EQ(json["low"].get<double>(), wanted.low);
  EXPECT_DOUBLE_EQ(json["high"].get<double>(), wanted.high);
}

TEST(ReportJson, HasTheFactsOfTheRun) {
  const Json json = Json::parse(report_json(scene()));
  EXPECT_EQ(json["version"], 1);
  const Json wanted = Json::parse(R"({
    "program": "9.8.7", "model": "<b>m</b>&\"x\"\u001b[31m.gguf", "fingerprint": "00ff", "architecture": "qwen2",
    "weight_types": "Q4_1, Q8_0", "numerics": "int8-1", "simd_target": "avx2", "threads": 2, "block_tokens": 16,
    "seed": 7, "context_tokens": 4096, "samples": 48, "settings": ["kv=f16", "k=<i>\"&"],
    "noise_floor": null, "families": ["needle", "hops"],
    "texts": [{"name": "<script>alert(1)</script>.txt", "sha256": "abcd", "tokens": 512}],
    "own_tasks_sha256": null})");
  EXPECT_EQ(json["run"], wanted);
  EXPECT_EQ(json["method"]["kl_tokens"], 256);
  EXPECT_EQ(json["method"]["resamples"], 10000);
  EXPECT_EQ(json["method"]["resample_seed"], 20231);
  EXPECT_EQ(json["method"]["run_positions"], 64);
  EXPECT_EQ(json["method"]["verdict_rule"].get<std::string>(), verdict_rule());
}

TEST(ReportJson, HasTheFiguresOfTexts) {
  const Json json = Json::parse(report_json(scene()));
  ASSERT_EQ(json["settings"].size(), 2u);
  EXPECT_EQ(json["settings"][0]["baseline"], true);
  EXPECT_EQ(json["settings"][0]["kv_bytes_per_token"], 12288);
  EXPECT_DOUBLE_EQ(json["settings"][0]["prompt_tokens_per_s"].get<double>(), 310.4);
  const Json& setting = json["settings"][1];
  EXPECT_EQ(setting["name"], "k=<i>\"&");
  EXPECT_TRUE(setting["prompt_tokens_per_s"].is_null());
  const Json& text = setting["text"];
  EXPECT_EQ(text["tokens"], 511);
  expect_interval(text["nll_nats"], {2.51, 2.46, 2.56});
  EXPECT_NEAR(text["perplexity"]["value"].get<double>(), 12.3049301, 1e-7);  // e^2.51
  expect_interval(text["nll_difference_nats"], {0.01, 0.008, 0.012});
  EXPECT_NEAR(text["perplexity_ratio"]["high"].get<double>(), 1.01207229, 1e-8);  // e^0.012
  expect_interval(text["kl_mean_nats"], {0.0123, 0.011, 0.0135});
  expect_interval(text["kl_excess_nats"], {0.0113, 0.0101, 0.0124});
  EXPECT_DOUBLE_EQ(text["kl_p99_nats"].get<double>(), 0.25);
  EXPECT_TRUE(text["kl_max_nats"].is_null());
  expect_interval(text["same_top_share"], {0.9871, 0.98, 0.99});
  EXPECT_EQ(text["verdict"], "watch");
  ASSERT_EQ(text["positions"].size(), 2u);
  const Json& last = text["positions"][1];
  EXPECT_EQ(last["from"], 256);
  EXPECT_EQ(last["to"], 512);
  EXPECT_EQ(last["tokens"], 256);
  EXPECT_DOUBLE_EQ(last["nll_nats"].get<double>(), 2.42);
  EXPECT_DOUBLE_EQ(last["kl_mean_nats"].get<double>(), 0.02);
  EXPECT_DOUBLE_EQ(last["kl_excess_nats"].get<double>(), 0.019);
  EXPECT_TRUE(last["kl_p99_nats"].is_null());
  EXPECT_DOUBLE_EQ(last["same_top_share"].get<double>(), 0.98);
}

TEST(ReportJson, HasTheFiguresOfTasks) {
  const Json json = Json::parse(report_json(scene()));
  const Json& setting = json["settings"][1];
  for (const Json& needle : {setting["families"][0], setting["skills"][0]}) {
    EXPECT_EQ(needle["skill"], "retrieval");
    EXPECT_EQ(needle["tasks"], 48);
    EXPECT_EQ(needle["right"], 43);
    EXPECT_EQ(needle["baseline_right"], 45);
    EXPECT_EQ(needle["lost"], 3);
    EXPECT_EQ(needle["gained"], 1);
    EXPECT_DOUBLE_EQ(needle["mcnemar_p"].get<double>(), 0.625);
    expect_interval(needle["drop_share"], {2.0 / 48, -0.02, 0.1});
    EXPECT_DOUBLE_EQ(needle["nll_per_token_nats"].get<double>(), 0.062);
    EXPECT_DOUBLE_EQ(needle["floor_nll_per_token_nats"].get<double>(), 6.125);
    expect_interval(needle["retention"], {0.987, 0.971, 1.002});
  }
  EXPECT_EQ(setting["families"][0]["family"], "needle");
  EXPECT_EQ(setting["families"][0]["judged"], true);
  EXPECT_EQ(setting["families"][1]["judged"], false);
  EXPECT_TRUE(setting["families"][1]["mcnemar_p"].is_null());
  EXPECT_TRUE(setting["families"][1]["nll_per_token_nats"].is_null());
  EXPECT_TRUE(setting["families"][1]["retention"]["value"].is_null());
  EXPECT_EQ(setting["skills"][0]["verdict"], "unsafe");
  EXPECT_EQ(setting["skills"][1]["verdict"], "not judged");
  EXPECT_TRUE(setting["skills"][1]["retention"].is_null());
  const Json wanted =
      Json::parse(R"({"length_tokens": 512, "depth_share": 1.0, "tasks": 3, "right": 2, "nll_per_token_nats": 0.5})");
  ASSERT_EQ(setting["retrieval_map"].size(), 3u);
  EXPECT_EQ(setting["retrieval_map"][1], wanted);
  EXPECT_TRUE(setting["retrieval_map"][0]["nll_per_token_nats"].is_null());
}

TEST(ReportJson, BytesThatAreNoTextDoNoHarm) {
  EvalReport report = scene();
  report.facts.model = "m\xff";
  EXPECT_TRUE(Json::accept(report_json(report)));
  EXPECT_NE(report_html(report).find("m\\xff"), std::string::npos);
}

// --- the page

TEST(ReportHtml, IsWellFormed) { EXPECT_EQ(unbalanced(without_style(report_html(scene()))), ""); }

TEST(ReportHtml, LoadsNothingAndEscapesNames) {
  const std::string page = report_html(scene());
  for (const char* bad : {"http", "<script", "src=", "href", "@import", "url(", "<b>m", "<i>", "\x1b"}) {
    EXPECT_EQ(page.find(bad), std::string::npos) << bad;
  }
  EXPECT_NE(page.find("<h1>kvarto eval: &lt;b&gt;m&lt;/b&gt;&amp;&quot;x&quot;\\x1b[31m.gguf</h1>"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt;.txt, 512 tokens"), std::string::npos);
  EXPECT_NE(page.find("aria-label=\"Skills, k=&lt;i&gt;&quot;&amp;\""), std::string::npos);
}

TEST(ReportHtml, HasItsParts) {
  const std::string page = report_html(scene());
  EXPECT_TRUE(page.starts_with("<!doctype html>\n<html lang=\"en\">"));
  EXPECT_EQ(count_of(page, "<h1>"), 1u);
  EXPECT_EQ(count_of(page, "<svg"), 3u);  // divergence, agreement, retention of the one candidate
  EXPECT_EQ(count_of(page, "role=\"img\" aria-label=\""), 3u);
  EXPECT_EQ(count_of(page, "<th>"), 0u);  // each says what it heads
  EXPECT_EQ(count_of(page, "class=\"tables\" tabindex=\"0\" role=\"region\" aria-label=\""), count_of(page, "<table"));
  EXPECT_NE(page.find("256-511: 0.02\">"), std::string::npos);  // a chart's points for who does not see it
  EXPECT_NE(page.find("retrieval: 0.9870 [0.9710, 1.0020]</text>"), std::string::npos);
  EXPECT_NE(page.find("class=\"badge unsafe\"><span data-at=\"/settings/1/skills/0/verdict\">unsafe</span>"),
            std::string::npos);
  EXPECT_NE(page.find(", was 3/3</td>"), std::string::npos);
  EXPECT_NE(page.find("<td class=\"map2\">"), std::string::npos);  // 2/3
  EXPECT_NE(page.find("<td class=\"map1\">"), std::string::npos);  // 1/3
  EXPECT_EQ(count_of(page, "<p class=\"rule\">"), 1u);
}

TEST(ReportHtml, HeadingsStepDownOneAtATimeAndRegionsHaveTheirOwnNames) {
  const std::string page = report_html(scene());
  int before = 0;
  const std::regex heading("<h([1-6])>");
  for (std::sregex_iterator it(page.begin(), page.end(), heading), end; it != end; ++it) {
    const int level = std::stoi((*it)[1].str());
    EXPECT_LE(level, before + 1) << it->position();
    before = level;
  }
  std::multiset<std::string> names;
  const std::regex region("role=\"region\" aria-label=\"([^\"]*)\"");
  for (std::sregex_iterator it(page.begin(), page.end(), region), end; it != end; ++it) names.insert((*it)[1].str());
  EXPECT_GE(names.size(), 9u);
  for (const std::string& name : names) EXPECT_EQ(names.count(name), 1u) << name;
}

// Half a unit of the last digit that is written.
double rounding_of(const std::string& words) {
  const size_t e = words.find('e'), point = words.find('.');
  const double power = e == std::string::npos ? 0 : std::stod(words.substr(e + 1));
  const size_t digits_end = std::min(e, words.find_first_not_of("-0123456789."));
  const size_t decimals = point == std::string::npos ? 0 : std::min(digits_end, words.size()) - point - 1;
  return 0.5000001 * std::pow(10, power - static_cast<double>(decimals));
}

TEST(ReportHtml, FiguresAreThoseOfTheJson) {
  const EvalReport report = scene();
  const std::string page = report_html(report);
  const Json json = Json::parse(report_json(report));
  const std::regex figure("<span data-at=\"([^\"]*)\">([^<]*)</span>");
  size_t numbers = 0, absent = 0, texts = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), figure), end; it != end; ++it) {
    const std::string pointer = (*it)[1].str(), words = (*it)[2].str();
    const Json::json_pointer place(pointer);
    ASSERT_TRUE(json.contains(place)) << pointer;
    const Json& value = json[place];
    if (value.is_string()) {
      EXPECT_EQ(words, value.get<std::string>()) << pointer;
      ++texts;
    } else if (value.is_null()) {
      EXPECT_EQ(words, "-") << pointer;
      ++absent;
    } else {
      const double scale = words.ends_with(" %") ? 100 : 1;
      EXPECT_NEAR(std::stod(words), scale * value.get<double>(), rounding_of(words)) << pointer;
      ++numbers;
    }
  }
  EXPECT_GE(numbers, 80u);
  EXPECT_EQ(absent, 8u);
  EXPECT_EQ(texts, 10u);  // three verdicts, each twice, and the skills of four families
  EXPECT_EQ(count_of(page, "data-at"), numbers + absent + texts);
}

// --- all three

TEST(ReportOutput, WhatIsNotFiniteIsNeverWritten) {
  const std::regex bad("(^|[^a-z])(nan|inf|infinity)([^a-z]|$)", std::regex::icase);
  const EvalReport report = scene();
  for (const std::string& text : {report_table(report), report_json(report), without_style(report_html(report))}) {
    std::smatch found;
    EXPECT_FALSE(std::regex_search(text, found, bad)) << found.prefix().str().substr(0, 200) << found.str();
  }
}

TEST(ReportOutput, OfNothing) {
  const EvalReport report;
  EXPECT_NE(report_table(report).find("rule of the verdicts"), std::string::npos);
  EXPECT_EQ(Json::parse(report_json(report))["settings"], Json::array());
  const std::string page = report_html(report);
  EXPECT_EQ(unbalanced(without_style(page)), "");
  EXPECT_NE(page.find("Nothing was compared"), std::string::npos);
}

TEST(ReportWords, FiguresHaveTheDigitsThatCount) {
  EXPECT_EQ(three_digits(1.234e-5), "1.23e-05");
  EXPECT_EQ(three_digits(0), "0");
  EXPECT_EQ(four_places(1), "1.0000");
  EXPECT_EQ(as_percent(0.98714), "98.71 %");
  EXPECT_EQ(perplexity_words(0), "1.000");
  EXPECT_EQ(perplexity_words(14), "1.203e+06");  // e^14 = 1,202,604
  EXPECT_EQ(perplexity_words(1000), "-");
  EXPECT_EQ(ratio_words(-0.1), "0.9048");
  for (FigureWords* words : {&three_digits, &four_places, &as_percent, &perplexity_words, &ratio_words}) {
    EXPECT_EQ(words(kNone), "-");
  }
}

TEST(ReportWords, GridHasEachLengthAndDepthOnce) {
  const std::vector<HeatCell> cells{cell(2048, 0.5, 1), cell(512, 1, 2), cell(512, 0, 3), cell(512, 0.5, 0)};
  const HeatGrid grid = grid_of(cells);
  EXPECT_EQ(grid.lengths_tokens, (std::vector<uint32_t>{512, 2048}));
  EXPECT_EQ(grid.depths, (std::vector<double>{0, 0.5, 1}));
  EXPECT_EQ(cell_at(cells, 512, 1), &cells[1]);
  EXPECT_EQ(cell_at(cells, 2048, 1), nullptr);
}

}  // namespace
}  // namespace kvarto
