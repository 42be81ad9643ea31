// Renders the templates and snippets of tests/golden/templates and compares with what Python's jinja2 wrote for them
// (tools/make_template_goldens.py).
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace kvarto::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(KVARTO_SOURCE_DIR) / "tests/golden/templates" / name;
}

std::string read(const std::string& name) {
  std::ifstream in(golden(name), std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

Json read_json(const std::string& name) { return Json::parse(read(name)); }

// The moment that the goldens were made for: 2026-03-07 13:05:09, local time.
std::time_t golden_now() {
  std::tm tm{};
  tm.tm_year = 126;
  tm.tm_mon = 2;
  tm.tm_mday = 7;
  tm.tm_hour = 13;
  tm.tm_min = 5;
  tm.tm_sec = 9;
  tm.tm_isdst = -1;
  return std::mktime(&tm);
}

Json outcome(const std::string& source, const Json& context) {
  Options options;
  options.now = golden_now;
  try {
    return {{"text", render(*parse(source), context, options)}};
  } catch (const JinjaError& e) {
    return {{"error", e.what()}};
  }
}

// A failure of Python's must be one here too; the words must agree where the template chose them.
bool agrees(const Json& want, const Json& have) {
  if (want.contains("text")) return have.contains("text") && have["text"] == want["text"];
  if (want.contains("raises")) return have.contains("error") && have["error"] == want["raises"];
  return have.contains("error");
}

TEST(JinjaGolden, EveryTemplateWithEveryContext) {
  Json contexts = read_json("contexts.json");
  int templates = 0, rendered = 0, raised = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden(""))) {
    if (entry.path().extension() != ".jinja") continue;
    ++templates;
    std::string stem = entry.path().stem();
    std::string source = read(stem + ".jinja");
    Json expected = read_json(stem + ".expected.json");
    ASSERT_EQ(expected.size(), contexts.size()) << stem;
    for (const auto& [name, context] : contexts.items()) {
      Json have = outcome(source, context);
      EXPECT_TRUE(agrees(expected[name], have))
          << stem << " with " << name << "\nhave " << have << "\nwant " << expected[name];
      rendered += expected[name].contains("text");
      raised += expected[name].contains("raises");
    }
  }
  EXPECT_GE(templates, 15);
  EXPECT_GE(rendered, 200);
  EXPECT_GE(raised, 10);
}

TEST(JinjaGolden, Snippets) {
  Json expected = read_json("snippets.expected.json");
  Json context = read_json("snippets.json")["context"];
  EXPECT_GE(expected.size(), 180u);
  for (const auto& [snippet, want] : expected.items()) {
    Json have = outcome(snippet, context);
    EXPECT_TRUE(agrees(want, have)) << snippet << "\nhave " << have << "\nwant " << want;
  }
}

TEST(JinjaGolden, PairsOfTheModelGoldens) {
  Json pairs = read_json("model_pairs.json");
  EXPECT_EQ(pairs.size(), 4u);
  for (const Json& pair : pairs) {
    Json context = {{"messages", pair["messages"]}, {"add_generation_prompt", true}};
    Json have = outcome(read(pair["template"].get<std::string>() + ".jinja"), context);
    EXPECT_EQ(have, Json({{"text", pair["rendered"]}})) << pair["template"] << pair["name"];
  }
}

}  // namespace
}  // namespace kvarto::jinja
