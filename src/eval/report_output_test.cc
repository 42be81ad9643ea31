#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "eval/report.h"
#include "eval/report_scene.h"
#include "eval/report_words.h"
#include "eval/verdict.h"

namespace kvarto {
namespace {

using namespace report_scene;
using Json = nlohmann::ordered_json;

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
           " ratio of perplexities 1.0101 [1.0080, 1.0121] to the baseline's\n",
           " divergence (KL), mean 0.0123 [0.011, 0.0135] nats from the baseline\n",
           " of it beyond the noise floor 0.0113 [0.0101, 0.0124] nats\n",
           " divergence, 99th percentile 0.25 nats\n",
           " divergence, highest - nats\n",
           " same likeliest token 98.71 % [98.00 %, 99.00 %] of positions\n",
           " 1-255 255 20.287 0.004 0.003 0.09 99.50 %\n",
           " 256-511 256 11.246 0.02 0.019 - 98.00 %\n",
           " family skill right baseline lost gained p nll/token retention over tasks judged\n",
           " needle retrieval 43/48 45/48 3 1 0.625 0.062 0.9870 [0.9710, 1.0020] 45 yes\n",
           " hops multi-hop 9/48 10/48 - - - - - [-, -] 45 no, likelihood only\n",
           " retrieval 43/48 45/48 3 1 0.625 4.17 % [-2.00 %, 10.00 %] 0.9870 [0.9710, 1.0020] 45 unsafe\n",
           " multi-hop - - - - - - - 0 not judged\n",
           "answers that changed\n lost needle-<512>-0\n gained hops-1 (not judged)\n",
           " without context: the same where the prompt lacks what answers it.\n",
           " likelihood only: the baseline solves less than 60 % of the family, so that it judges nothing.\n",
           " tokens 0 % 100 %\n 512 3/3 2/3\n 2048 1/3\n",
           " k=<i>\"& watch unsafe not judged - - - 6144 50.00 %\n",
       }) {
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  }
}

TEST(ReportTable, VerdictsComeFirstAndTheConclusionLast) {
  const std::string table = squeezed(report_table(scene()));
  EXPECT_TRUE(
      table.starts_with("verdicts\n setting texts retrieval multi-hop reasoning structure own KV bytes/token "
                        "of baseline's\n k=<i>\"& watch unsafe not judged - - - 6144 50.00 %\n -: not "
                        "measured."))
      << table;
  EXPECT_NE(table.find("\n\nwhat was run\n model "), std::string::npos) << table;
  EXPECT_TRUE(table.ends_with("\nrule of the verdicts\n" + squeezed(verdict_rule()) +
                              "\nk=<i>\"&: unsafe for retrieval; watch for texts; multi-hop not judged. 3 lost, 1 "
                              "gained in 48 judged tasks; lengths up to 2048 tokens.\n"))
      << table;
}

TEST(ReportTable, NamesTenAnswersThatChanged) {
  EvalReport report = scene();
  AnswerChange change = report.settings[1].changes[0];
  report.settings[1].changes.clear();
  for (int i = 0; i < 12; ++i) {
    change.id = "t" + std::to_string(i);
    report.settings[1].changes.push_back(change);
  }
  const std::string wanted = " lost t0, t1, t2, t3, t4, t5, t6, t7, t8, t9\n and 2 more: see the JSON\n";
  EXPECT_NE(squeezed(report_table(report)).find(wanted), std::string::npos);
}

TEST(ReportTable, HasOwnQuestionsServersAndRefusedTasks) {
  const std::string table = squeezed(report_table(scene_with_own()));
  for (const char* wanted : {
           " server http://one:8000/v1, model m<1>, likelihoods from echoed prompts\n",
           " server http://two:8000/v1, model m2, no likelihoods: it does not echo prompts\n",
           " tasks up to 48 a family, seed 7, sha256 1234\n",
           " failed: refused by a server, and in no other figure.\n",
           " own tasks sha256 5678\n",
           " own-agreement own 8/8 0.25 - by likelihood\n",
           " over tasks judged failed\n",
           " 45 yes 0\n",
           " 45 no, likelihood only 2\n",
           " own-agreement own 5/8 8/8 - - - 0.25 0.9000 [0.8500, 0.9375] 8 by likelihood 0\n",
           " own - - - - - - 0.9000 [0.8500, 0.9375] 8 unsafe\n",
       }) {
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  }
  EXPECT_EQ(report_table(scene()).find("failed"), std::string::npos);
  EvalReport report = scene_with_own();
  report.settings[1].families[2].judged = false;
  EXPECT_NE(report_table(report).find("no, there is no likelihood"), std::string::npos);
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
        " numerics int8-1 on avx2, 2 threads\n", " context up to 4096 tokens", " tasks up to 48 a family, seed 7\n",
        " text <script>alert(1)</script>.txt, 512 tokens, sha256 abcd\n", "blocks of 16 tokens", " the 256 tokens",
        "10000 resamples (seed 20231)", " program kvarto 9.8.7\n"}) {
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  }
  EXPECT_EQ(count_of(report_table(scene()), verdict_rule()), 1u);
  EvalReport none = scene();
  none.facts.families.clear();
  EXPECT_NE(squeezed(report_table(none)).find(" tasks none made, seed 7\n"), std::string::npos);
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
    "seed": 7, "context_tokens": 4096, "samples": 48, "settings": ["kv=f16", "k=<i>\"&"], "servers": [],
    "noise_floor": null, "families": ["needle", "hops"],
    "texts": [{"name": "<script>alert(1)</script>.txt", "sha256": "abcd", "tokens": 512}],
    "tasks_sha256": null, "own_tasks_sha256": null})");
  EXPECT_EQ(json["run"], wanted);
  EXPECT_EQ(json["method"]["kl_tokens"], 256);
  EXPECT_EQ(json["method"]["resamples"], 10000);
  EXPECT_EQ(json["method"]["resample_seed"], 20231);
  EXPECT_EQ(json["method"]["stretch_positions"], 64);
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
    EXPECT_EQ(needle["compared"], 45);
    EXPECT_EQ(needle["groups"], 12);
    expect_interval(needle["retention"], {0.987, 0.971, 1.002});
    EXPECT_EQ(needle["retention_of"], "floor");
  }
  EXPECT_EQ(setting["families"][0]["family"], "needle");
  EXPECT_EQ(setting["families"][0]["judged"], true);
  EXPECT_EQ(setting["families"][1]["judged"], false);
  EXPECT_TRUE(setting["families"][1]["mcnemar_p"].is_null());
  EXPECT_TRUE(setting["families"][1]["nll_per_token_nats"].is_null());
  EXPECT_TRUE(setting["families"][1]["retention"]["value"].is_null());
  EXPECT_EQ(setting["skills"][0]["verdict"], "unsafe");
  EXPECT_EQ(setting["skills"][1]["verdict"], "not judged");
  EXPECT_EQ(setting["families"][1]["retention_of"], "likelihood");
  for (const char* none : {"lost", "gained", "mcnemar_p", "drop_share", "retention", "retention_of"}) {
    EXPECT_TRUE(setting["skills"][1][none].is_null()) << none;
  }
  const Json wanted =
      Json::parse(R"({"length_tokens": 512, "depth_share": 1.0, "tasks": 3, "right": 2, "nll_per_token_nats": 0.5})");
  ASSERT_EQ(setting["retrieval_map"].size(), 3u);
  EXPECT_EQ(setting["retrieval_map"][1], wanted);
  EXPECT_TRUE(setting["retrieval_map"][0]["nll_per_token_nats"].is_null());
}

TEST(ReportJson, HasAllAnswersThatChanged) {
  EvalReport report = scene();
  const Json wanted = Json::parse(R"([
    {"task": "needle-<512>-0", "family": "needle", "length_tokens": 512, "depth_share": 0.25, "change": "lost",
     "judged": true, "baseline_text": " the <b>blue</b>\n\t gate", "text": ")" +
                                  std::string(200, 'x') + R"("},
    {"task": "hops-1", "family": "hops", "length_tokens": null, "depth_share": null, "change": "gained",
     "judged": false, "baseline_text": "", "text": ""}])");
  EXPECT_EQ(Json::parse(report_json(report))["settings"][1]["changes"], wanted);
  EXPECT_EQ(Json::parse(report_json(report))["settings"][1]["longest_tokens"], 2048);
  report.settings[1].changes.assign(100, report.settings[1].changes[0]);
  EXPECT_EQ(Json::parse(report_json(report))["settings"][1]["changes"].size(), 100u);
}

TEST(ReportJson, HasOwnQuestionsServersAndRefusedTasks) {
  const Json json = Json::parse(report_json(scene_with_own()));
  EXPECT_EQ(json["run"]["servers"], Json::parse(R"([{"url": "http://one:8000/v1", "model": "m<1>", "echoes": true},
                                                    {"url": "http://two:8000/v1", "model": "m2", "echoes": false}])"));
  EXPECT_EQ(json["run"]["tasks_sha256"], "1234");
  EXPECT_EQ(json["run"]["own_tasks_sha256"], "5678");
  const Json& setting = json["settings"][1];
  EXPECT_EQ(setting["families"][0]["agreement"], false);
  EXPECT_EQ(setting["families"][0]["failed"], 0);
  EXPECT_EQ(setting["families"][1]["failed"], 2);
  const Json& own = setting["families"][2];
  EXPECT_EQ(own["agreement"], true);
  EXPECT_EQ(own["right"], 5);
  EXPECT_EQ(own["tasks"], 8);
  EXPECT_EQ(own["retention_of"], "likelihood");
  for (const Json& each : {own, setting["skills"][2]}) {
    EXPECT_EQ(each["compared"], 8);
    for (const char* none : {"lost", "gained", "mcnemar_p", "drop_share"}) EXPECT_TRUE(each[none].is_null()) << none;
  }
}

TEST(ReportJson, BytesThatAreNoTextDoNoHarm) {
  EvalReport report = scene();
  report.facts.model = "m\xff";
  EXPECT_TRUE(Json::accept(report_json(report)));
  EXPECT_NE(report_html(report).find("m\\xff"), std::string::npos);
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

TEST(ReportWords, WhatAModelWroteIsShortened) {
  EXPECT_EQ(shortened(""), "");
  EXPECT_EQ(shortened("\n a \t\r\n b \n"), "a b");
  EXPECT_EQ(shortened(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(shortened(std::string(121, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(shortened("\x1b["), "\\x1b[");
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
