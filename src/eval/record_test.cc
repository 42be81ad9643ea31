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
  facts.texts = {{.name = "a", .sha256 = "11", .tokens = 4}, {.name = "b", .sha256 = "22", .tokens = 4}};
  facts.servers = {{.url = "http://h:1/", .model = "m", .echoes = true}};
  facts.tasks_sha256 = "33";
  return facts;
}

TaskRecord task_record(std::string id) {
  TaskRecord record;
  record.id = std::move(id);
  record.family = "needle";
  record.group = "needle text 1";
  record.skill = Skill::multi_hop;
  record.length_tokens = 2048;
  record.depth = 0.1;
  record.nll = 1.0 / 3;
  record.answer_tokens = 3;
  record.floor_nll = 1e-300;
  record.agreement = record.right = true;
  record.text = "two\nlines \"and\" \xE2\x82\xAC\x01";
  return record;
}

void expect_equal(const TaskRecord& a, const TaskRecord& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.skill, b.skill);
  EXPECT_EQ(a.length_tokens, b.length_tokens);
  EXPECT_EQ(a.depth, b.depth);
  EXPECT_EQ(a.nll, b.nll);
  EXPECT_EQ(a.answer_tokens, b.answer_tokens);
  EXPECT_EQ(a.floor_nll, b.floor_nll);
  EXPECT_EQ(a.agreement, b.agreement);
  EXPECT_EQ(a.right, b.right);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.failed, b.failed);
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
  bare.agreement = bare.right = false;
  bare.text.clear();
  bare.failed = "answers 400: too long";
  {
    RecordFile file = open();
    ASSERT_TRUE(file.add(0, baseline));
    ASSERT_TRUE(file.add(1, candidate));
    ASSERT_TRUE(file.add(1, task_record("one")));
    ASSERT_TRUE(file.add(1, bare));
    ASSERT_TRUE(file.add_cost(1, {.kv_bytes_per_token = 12288, .text_tokens = 1000, .text_seconds = 2, .seconds = 4}));
    ASSERT_TRUE(file.add_cost(1, {.kv_bytes_per_token = 0, .text_tokens = 500, .text_seconds = 3, .seconds = 4.5}));
    EXPECT_NE(file.text(0, 1), nullptr);  // at once, too
  }
  const RecordFile again = open();
  ASSERT_TRUE(again.text(0, 1) != nullptr && again.text(1, 1) != nullptr);
  EXPECT_EQ(again.text(1, 1)->nll, candidate.nll);
  EXPECT_EQ(again.text(1, 1)->rows_sha256, "");
  EXPECT_EQ(again.text(0, 0), nullptr);
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
  EXPECT_EQ(second.seconds, 8.5);
  EXPECT_EQ(second.prompt_tokens_per_s, 300);
  EXPECT_EQ(first.seconds, 0);
  EXPECT_EQ(first.prompt_tokens_per_s, 0);
}

TEST_F(RecordFileTest, TheLastNameOfRowsCounts) {
  const std::string first(64, 'a'), last = std::string(60, '0') + "12ef";
  {
    RecordFile file = open();
    for (const uint32_t text : {0u, 1u}) {
      ASSERT_TRUE(file.add(0, TextRecord{.text = text, .nll = {1, 2, 3}, .divergence = {}, .same_top = {}}));
    }
    ASSERT_TRUE(file.add_rows(0, 1, first));
    EXPECT_EQ(file.text(0, 1)->rows_sha256, first);
    ASSERT_TRUE(file.add_rows(0, 1, last));
    EXPECT_FALSE(file.add_rows(1, 1, last));  // of no record
    EXPECT_EQ(file.text(0, 1)->rows_sha256, last);
  }
  const RecordFile again = open();
  EXPECT_EQ(again.text(0, 1)->rows_sha256, last);
  EXPECT_EQ(again.text(0, 0)->rows_sha256, "");
}

TEST_F(RecordFileTest, FloatsKeepTheirBits) {
  std::mt19937 random(1);
  TextRecord record;
  while (record.nll.size() < 4096) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(value)) record.nll.push_back(value);
  }
  RunFacts run = facts();
  run.texts[0].tokens = record.nll.size() + 1;
  ASSERT_TRUE(open(run).add(0, record));
  const std::vector<float> read = open(run).settings()[0].texts.at(0).nll;
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
  const auto other = [&](const std::string& from, const std::string& to) {  // another task, with a field that is odd
    std::string changed = line;
    const std::string name = R"("task":"a")";
    changed.replace(changed.find(name), name.size(), R"("task":"x")");
    return changed.replace(changed.find(from), from.size(), to);
  };
  const std::vector<std::string> damage = {
      other(R"("setting":0)", R"("setting":0.5)"),
      other(R"("setting":0)", R"("setting":"0")"),
      other(R"("family":"needle")", R"("family":"nose")"),
      other(R"("skill":"multi-hop")", R"("skill":"jumping")"),
      other(R"("answer_tokens":3)", R"("answer_tokens":0)"),
      other(R"("answer_tokens":3)", R"("answer_tokens":-3)"),
      other(R"("depth":0.1)", R"("depth":1.1)"),
      other(R"("depth":0.1)", R"("depth":"nan")"),
      R"({"setting":0,"text":0.5,"nll":[1,1,1],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"rows_of_text":0,"sha256":")" + std::string(64, 'a') + "\"}\n",  // of no record
      R"({"setting":0,"rows_of_text":9,"sha256":")" + std::string(64, 'a') + "\"}\n",
      "{\"setting\":0,\n",
      "[]\n",
      "{\"setting\":2}\n",
      "{\"setting\":0,\"task\":\"x\"}\n",
      R"({"setting":-1,"kv_bytes_per_token":1,"text_tokens":1,"text_seconds":1,"seconds":1})"
      "\n",
      R"({"setting":0,"kv_bytes_per_token":1,"text_tokens":1,"text_seconds":-1,"seconds":1})"
      "\n",
      R"({"setting":0,"kv_bytes_per_token":1,"text_tokens":1,"text_seconds":1,"seconds":"inf"})"
      "\n",
      R"({"setting":0,"kv_bytes_per_token":1.5,"text_tokens":1,"text_seconds":1,"seconds":1})"
      "\n",
      R"({"setting":0,"text":9,"nll":[1,1,1],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"text":4294967296,"nll":[1,1,1],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"text":0,"nll":[],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"text":0,"nll":[1,1],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"text":0,"nll":[1,1,"much"],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"text":0,"nll":[1,1,1e39],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":0,"text":0,"nll":[1,1,1],"divergence":[0,0,0],"same_top":"111"})"
      "\n",
      R"({"setting":1,"text":0,"nll":[1,1,1],"divergence":[],"same_top":""})"
      "\n",
      R"({"setting":1,"text":0,"nll":[1,1,1],"divergence":[0,0,0],"same_top":"11"})"
      "\n",
      R"({"setting":1,"text":0,"nll":[1,1,1],"divergence":[0,0,0],"same_top":"11x"})"
      "\n",
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
  differs([](RunFacts& f) { f.settings[1] = "noise=10"; }, "settings[1] is \"kv=bf16\" there and \"noise=10\" here");
  differs([](RunFacts& f) { f.settings.push_back("k=f32"); }, "settings is [\"kv=f16\",\"kv=bf16\"] there and [");
  differs([](RunFacts& f) { f.texts[1].sha256 = "23"; }, "texts[1].sha256 is \"22\" there and \"23\" here");
  differs([](RunFacts& f) { f.servers[0].model = "n"; }, "servers[0].model is \"m\" there and \"n\" here");
  differs([](RunFacts& f) { f.servers[0].echoes = false; }, "servers[0].echoes is true there and false here");
  differs([](RunFacts& f) { f.tasks_sha256 = "34"; }, "tasks_sha256 is \"33\" there and \"34\" here");
  differs([](RunFacts& f) { f.program = "9"; }, "program is \"\" there and \"9\" here");
  EXPECT_EQ(refusal(), "");
}

TEST_F(RecordFileTest, ARunGoesOnWithOtherThreadsAndKernels) {
  {
    RecordFile file = open();
    ASSERT_TRUE(file.add(0, task_record("a")));
  }
  RunFacts other = facts();
  other.threads = 7;
  other.simd_target = "scalar";
  EXPECT_NE(open(other).task(0, "a"), nullptr);
  EXPECT_NE(content().find("\"threads\":2"), std::string::npos) << "as it was begun";
}

TEST_F(RecordFileTest, NamesOfRowsAreSha256) {
  ASSERT_TRUE(open().add(0, TextRecord{.text = 0, .nll = {1, 2, 3}, .divergence = {}, .same_top = {}}));
  const std::string whole = content();
  for (const std::string& name : {std::string(), std::string("ab"), std::string(64, 'A'), std::string(65, 'a')}) {
    ASSERT_TRUE(write_file_atomically(path(), whole + R"({"setting":0,"rows_of_text":0,"sha256":")" + name + "\"}\n"));
    EXPECT_NE(refusal().find("line 3: the SHA-256 of rows is "), std::string::npos) << refusal();
  }
}

TEST_F(RecordFileTest, AFreshOneThrowsAwayWhatIsThereUnlessARunWritesIt) {
  RunFacts other = facts();
  other.seed = 8;
  {
    RecordFile file = open();
    ASSERT_TRUE(file.add(0, task_record("a")));
    const std::string before = content();
    EXPECT_FALSE(RecordFile::open(path(), other, /*fresh=*/true));
    EXPECT_EQ(content(), before);
  }
  {
    Result<RecordFile> fresh = RecordFile::open(path(), other, /*fresh=*/true);
    ASSERT_TRUE(fresh) << fresh.error().message;
    EXPECT_EQ(fresh->task(0, "a"), nullptr);
    ASSERT_TRUE(fresh->add(0, task_record("b")));
  }
  EXPECT_NE(open(other).task(0, "b"), nullptr);
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
