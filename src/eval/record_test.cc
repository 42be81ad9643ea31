#include "eval/record.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "base/file.h"

namespace kvarto {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

RunFacts facts() {
  RunFacts facts;
  facts.model = "m.gguf";
  facts.fingerprint = "ab";
  facts.threads = 2;
  facts.seed = 7;
  facts.settings = {"kv=f16", "kv=bf16"};
  facts.families = {"needle"};
  facts.texts = {{.name = "a", .sha256 = "11", .tokens = 4}, {.name = "b", .sha256 = "22", .tokens = 3}};
  return facts;
}

TaskRecord task_record(std::string id) {
  TaskRecord record;
  record.id = std::move(id);
  record.family = "needle";
  record.skill = Skill::multi_hop;
  record.length_tokens = 2048;
  record.depth = 0.1;
  record.nll = 1.0 / 3;
  record.answer_tokens = 3;
  record.floor_nll = 1e-300;
  record.right = true;
  record.text = "two\nlines \"and\" \xE2\x82\xAC\x01";
  return record;
}

void expect_equal(const TaskRecord& a, const TaskRecord& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.skill, b.skill);
  EXPECT_EQ(a.length_tokens, b.length_tokens);
  EXPECT_EQ(a.depth, b.depth);
  EXPECT_EQ(a.nll, b.nll);
  EXPECT_EQ(a.answer_tokens, b.answer_tokens);
  EXPECT_EQ(a.floor_nll, b.floor_nll);
  EXPECT_EQ(a.right, b.right);
  EXPECT_EQ(a.text, b.text);
}

class RecordFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "record_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/records.jsonl"; }
  RecordFile open(const RunFacts& run = facts()) const {
    Result<RecordFile> file = RecordFile::open(path(), run);
    EXPECT_TRUE(file) << file.error().message;
    return *std::move(file);
  }
  std::string refusal(const RunFacts& run = facts()) const {
    const Result<RecordFile> file = RecordFile::open(path(), run);
    return file ? "" : file.error().message;
  }
  std::string content() const { return read_file(path()).value(); }

  std::string folder_;
};

TEST_F(RecordFileTest, WhatIsAddedIsReadBack) {
  const TextRecord baseline{.text = 1, .nll = {0.1f, 2.0f, kInf}, .divergence = {}, .same_top = {}};
  const TextRecord candidate{
      .text = 1, .nll = {0.3f, 1e-42f, -0.0f}, .divergence = {0.1, 0, 5e-324}, .same_top = {1, 0, 1}};
  TaskRecord bare = task_record("bare");
  bare.depth = bare.nll = bare.floor_nll = std::nullopt;
  bare.right = false;
  {
    RecordFile file = open();
    ASSERT_TRUE(file.add(0, baseline));
    ASSERT_TRUE(file.add(1, candidate));
    ASSERT_TRUE(file.add(1, task_record("one")));
    ASSERT_TRUE(file.add(1, bare));
    ASSERT_TRUE(file.add_cost(1, 12288, 1000, 4));
    ASSERT_TRUE(file.add_cost(1, 0, 500, 1));
    EXPECT_TRUE(file.has_text(0, 1));  // at once, too
  }
  const RecordFile again = open();
  EXPECT_TRUE(again.has_text(0, 1) && again.has_text(1, 1));
  EXPECT_FALSE(again.has_text(0, 0));
  const SettingRecords& first = again.settings()[0];
  const SettingRecords& second = again.settings()[1];
  EXPECT_EQ(first.setting, "kv=f16");
  EXPECT_EQ(second.setting, "kv=bf16");
  EXPECT_EQ(first.texts.at(0).nll, baseline.nll);
  EXPECT_TRUE(first.texts[0].divergence.empty() && first.texts[0].same_top.empty());
  EXPECT_EQ(second.texts.at(0).nll, candidate.nll);
  EXPECT_TRUE(std::signbit(second.texts[0].nll[2]));
  EXPECT_EQ(second.texts[0].divergence, candidate.divergence);
  EXPECT_EQ(second.texts[0].same_top, candidate.same_top);
  ASSERT_NE(again.task(1, "one"), nullptr);
  expect_equal(*again.task(1, "one"), task_record("one"));
  expect_equal(*again.task(1, "bare"), bare);
  EXPECT_EQ(again.task(0, "one"), nullptr);
  EXPECT_EQ(again.task(1, "two"), nullptr);
  EXPECT_EQ(second.kv_bytes_per_token, 12288u);
  EXPECT_EQ(second.seconds, 5);
  EXPECT_EQ(second.prompt_tokens_per_s, 300);
  EXPECT_EQ(first.seconds, 0);
}

TEST_F(RecordFileTest, FloatsKeepTheirBits) {
  std::mt19937 random(1);
  TextRecord record;
  while (record.nll.size() < 4096) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(value)) record.nll.push_back(value);
  }
  ASSERT_TRUE(open().add(0, record));
  const std::vector<float> read = open().settings()[0].texts.at(0).nll;
  ASSERT_EQ(read.size(), record.nll.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(record.nll[i])) << record.nll[i];
  }
}

TEST_F(RecordFileTest, ATornLastLineIsCutOff) {
  {
    RecordFile file = open();
    ASSERT_TRUE(file.add(0, task_record("a")));
    ASSERT_TRUE(file.add(0, task_record("b")));
  }
  const std::string whole = content();
  for (const size_t torn : {size_t{1}, size_t{30}}) {
    std::filesystem::resize_file(path(), whole.size() - torn);
    {
      RecordFile file = open();
      EXPECT_NE(file.task(0, "a"), nullptr);
      EXPECT_EQ(file.task(0, "b"), nullptr);
      ASSERT_TRUE(file.add(0, task_record("b")));
    }
    EXPECT_EQ(content(), whole);
  }
  // Not even the first line is whole.
  std::filesystem::resize_file(path(), 20);
  EXPECT_TRUE(open().settings()[0].tasks.empty());
  EXPECT_EQ(content(), whole.substr(0, whole.find('\n') + 1));
}

TEST_F(RecordFileTest, OtherDamageNamesItsLine) {
  {
    RecordFile file = open();
    ASSERT_TRUE(file.add(0, task_record("a")));
  }
  const std::string whole = content(), line = whole.substr(whole.find('\n') + 1);
  const std::vector<std::string> damage = {
      "{\"setting\":0,\n",
      "[]\n",
      "{\"setting\":2}\n",
      "{\"setting\":0,\"task\":\"x\"}\n",
      "{\"setting\":0,\"text\":9,\"nll\":[],\"divergence\":[],\"same_top\":\"\"}\n",
      "{\"setting\":1,\"text\":0,\"nll\":[1],\"divergence\":[],\"same_top\":\"\"}\n",
      line,  // twice
  };
  for (const std::string& bad : damage) {
    ASSERT_TRUE(write_file_atomically(path(), whole + bad + line));
    const std::string message = refusal();
    EXPECT_NE(message.find("records.jsonl: line 3: "), std::string::npos) << bad << message;
    EXPECT_NE(message.find("--fresh"), std::string::npos) << message;
    EXPECT_EQ(content(), whole + bad + line);  // nothing was touched
  }
}

TEST_F(RecordFileTest, AnotherRunIsRefusedWithTheDifference) {
  open();
  const auto differs = [&](const auto& change, const std::string& words) {
    RunFacts other = facts();
    change(other);
    const std::string message = refusal(other);
    EXPECT_NE(message.find("another run: " + words), std::string::npos) << message;
    EXPECT_NE(message.find("--fresh"), std::string::npos) << message;
  };
  differs([](RunFacts& f) { f.model = "n.gguf"; }, "model is \"m.gguf\" there and \"n.gguf\" here");
  differs([](RunFacts& f) { f.seed = 8; }, "seed is 7 there and 8 here");
  differs([](RunFacts& f) { f.threads = 1; }, "threads is 2 there and 1 here");
  differs([](RunFacts& f) { f.settings[1] = "noise=10"; }, "settings[1] is \"kv=bf16\" there and \"noise=10\" here");
  differs([](RunFacts& f) { f.settings.push_back("k=f32"); }, "settings is [\"kv=f16\",\"kv=bf16\"] there and [");
  differs([](RunFacts& f) { f.texts[1].sha256 = "23"; }, "texts[1].sha256 is \"22\" there and \"23\" here");
  differs([](RunFacts& f) { f.program = "9"; }, "program is \"\" there and \"9\" here");
  EXPECT_EQ(refusal(), "");
}

TEST_F(RecordFileTest, FilesOfOthersAreLeftAlone) {
  for (const char* text : {"no records\n", "no line end", "{\"a\":1}\n"}) {
    ASSERT_TRUE(write_file_atomically(path(), text));
    EXPECT_NE(refusal().find("no file of records"), std::string::npos) << refusal();
    EXPECT_EQ(content(), text);
  }
}

TEST_F(RecordFileTest, OneProcessWritesAndTheHandleMoves) {
  RecordFile file = open();
  EXPECT_NE(refusal().find("another run writes it"), std::string::npos);
  RecordFile moved = std::move(file);
  ASSERT_TRUE(moved.add(0, task_record("a")));
  EXPECT_NE(refusal(), "");
  moved = RecordFile::open(folder_ + "/other.jsonl", facts()).value();
  EXPECT_EQ(refusal(), "");  // the first file was closed
}

TEST_F(RecordFileTest, NamesThatAreNoUtf8AreOneRunAllTheSame) {
  RunFacts odd = facts();
  odd.model = "caf\xe9.gguf";
  {
    RecordFile file = open(odd);
    TaskRecord record = task_record("a");
    record.text = "\xff";
    ASSERT_TRUE(file.add(0, record));
    EXPECT_EQ(file.task(0, "a")->text, "\xEF\xBF\xBD");  // as a later run sees it
  }
  EXPECT_EQ(refusal(odd), "");
}

}  // namespace
}  // namespace kvarto
