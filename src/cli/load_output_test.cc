#include "cli/load_output.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

struct Scene {
  std::vector<LoadRecord> records;
  LoadReport report;

  Scene() {
    LoadRecord record;
    record.outcome = LoadOutcome::done;
    record.status = 200;
    record.usage = record.cached_known = true;
    record.prompt_tokens = record.prompt_tokens_asked = 1000;
    record.cached_tokens = 250;
    record.first_s = 0.5;
    record.last_s = record.end_s = 2.5;
    record.gaps_s = {0.5f, 0.5f, 1.0f};
    record.events = 4;
    record.output_tokens = 5;
    records.push_back(record);
    LoadRecord refused;
    refused.outcome = LoadOutcome::refused;
    refused.status = 400;
    refused.error = "<b>too long</b>";
    refused.end_s = 1;
    records.push_back(refused);
    refused.status = 503;
    records.push_back(refused);
    report = {.url = "http://h:1/", .model = "m<1>", .what = "prompts", .slo = *parse_slo("ttft=1s,tpot=10ms")};
    finish();
  }
  void finish() {
    report.records = &records;
    report.summary = summarise(records, report.slo);
  }
};

TEST(LoadOutput, TableHasTheFigures) {
  const std::string table = load_table(Scene().report);
  for (const char* wanted : {"3 requests in 2.5 s: 1 done, 1 times 503, 1 failed", "250 of them cached (25.0 %)",
                             "5, 2.0 per second (402.0 with prompts)", "0 of 3 requests kept the limits (0.0 %)",
                             "TTFT         500.0     500.0     500.0     500.0     500.0         1",
                             "1 request refused with status 400: <b>too long</b>", "status 503"}) {
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  }
}

TEST(LoadOutput, JsonHasTheFigures) {
  const Json json = Json::parse(load_json(Scene().report));
  EXPECT_EQ(json["done"], 1);
  EXPECT_EQ(json["refused"], Json::parse(R"({"503": 1, "400": 1})"));
  EXPECT_EQ(json["cached_tokens"], 250);
  EXPECT_DOUBLE_EQ(json["ttft"]["p95_ms"].get<double>(), 500);
  EXPECT_DOUBLE_EQ(json["tpot"]["mean_ms"].get<double>(), 500);  // two seconds, four tokens after the first
  EXPECT_DOUBLE_EQ(json["gap"]["max_ms"].get<double>(), 1000);
  EXPECT_DOUBLE_EQ(json["slo"]["good_per_s"].get<double>(), 0);
  EXPECT_EQ(json["timeline"]["running"].size(), 60u);
}

TEST(LoadOutput, WhatIsMissingIsNoZero) {
  Scene scene;
  scene.records[0].cached_known = false;
  scene.records[0].usage = false;
  scene.records[0].events = 0;
  scene.records[0].gaps_s.clear();
  scene.report.slo = {};
  scene.finish();
  const Json json = Json::parse(load_json(scene.report));
  EXPECT_TRUE(json["cached_tokens"].is_null() && json["ttft"].is_null() && json["gap"].is_null() &&
              json["slo"].is_null());
  EXPECT_EQ(load_table(scene.report).find("of them cached"), std::string::npos);
  EXPECT_NE(load_table(scene.report).find("no `usage` with 1 request"), std::string::npos);
}

TEST(LoadOutput, PageIsWholeAndEscapesWhatOthersSaid) {
  const std::string page = load_html(Scene().report);
  EXPECT_EQ(page.find("<b>too long"), std::string::npos);
  EXPECT_NE(page.find("m&lt;1&gt;"), std::string::npos);
  size_t charts = 0;
  for (size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) ++charts;
  EXPECT_EQ(charts, 6u);
  for (const char* bad : {"http://w", "https://", "<script", "src=", "@import", "nan", "inf"}) {
    EXPECT_EQ(page.find(bad), std::string::npos) << bad;
  }
  EXPECT_NE(page.find("class=\"limit\""), std::string::npos);
}

TEST(LoadOutput, PageOfNothing) {
  Scene scene;
  scene.records.clear();
  scene.finish();
  EXPECT_NE(load_html(scene.report).find("Nothing measured"), std::string::npos);
  EXPECT_NE(load_table(scene.report).find("0 requests"), std::string::npos);
  EXPECT_TRUE(Json::accept(load_json(scene.report)));
}

TEST(LoadOutput, RemarksNameTheReasonsOnce) {
  Scene scene;
  LoadRecord broken;
  for (int i = 0; i < 20; ++i) {
    broken.error = "reason " + std::to_string(i % 8);
    scene.records.push_back(broken);
  }
  scene.records[0].prompt_tokens = 999;
  scene.finish();
  const std::vector<std::string> remarks = load_remarks(scene.report);
  const auto has = [&](const std::string& text) { return std::ranges::count(remarks, text) == 1; };
  EXPECT_TRUE(has("3 requests failed: reason 0"));
  EXPECT_TRUE(has("and 3 other reasons"));
  EXPECT_TRUE(has("the server counted other prompt lengths than asked for in 1 request of 1"));
}

}  // namespace
}  // namespace kvarto
