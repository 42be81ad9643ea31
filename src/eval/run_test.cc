#include "eval/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>

#include "engine/testing.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;

// What a subject knows and what it was asked.
struct Script {
  std::map<std::string, Likelihood> likely;  // by task; none: it cannot tell
  std::map<std::string, std::string> writes;
  std::vector<std::string> asked, floors, generated;  // tasks
  std::vector<size_t> together;                       // tasks of each call
};

class ScriptedSubject : public Subject {
 public:
  explicit ScriptedSubject(Script& script) : script_(script) {}
  Result<uint32_t> count_tokens(std::string_view text) override { return static_cast<uint32_t>(text.size()); }
  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor) override {
    (floor ? script_.floors : script_.asked).push_back(task.id);
    if (floor) return Likelihood{.nll = 9, .tokens = 2, .greedy = false};
    const auto found = script_.likely.find(task.id);
    if (found == script_.likely.end()) return std::nullopt;
    return found->second;
  }
  // Backwards, as they may end in any order.
  Status generate(std::span<const Task* const> tasks,
                  const std::function<Status(size_t index, std::string text)>& done) override {
    script_.together.push_back(tasks.size());
    for (size_t i = tasks.size(); i-- > 0;) {
      script_.generated.push_back(tasks[i]->id);
      RETURN_IF_ERROR(done(i, script_.writes[tasks[i]->id]));
    }
    return {};
  }

 private:
  Script& script_;
};

Task make_task(const std::string& id, Judge judge = Judge::first_line) {
  Task task;
  task.family = id.substr(0, id.find('-'));
  task.id = id;
  task.prompt = std::string(400, 'p');
  task.answer = judge == Judge::agreement ? "" : " 42\n";
  task.floor_prompt = "?";
  task.judge = judge;
  task.stop = {"\n"};
  return task;
}

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    work_.folder = testing::TempDir() + "run_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(work_.folder);
    fs::create_directories(work_.folder);
    work_.facts.settings = {"a", "b"};
    work_.contestant = [this](size_t setting) -> Result<Contestant> {
      loads_.push_back(setting);
      Contestant contestant{.subject = std::make_unique<ScriptedSubject>(scripts_[setting])};
      if (setting < work_.engines) {
        fakes_[setting] = std::make_unique<FakeEngine>();
        contestant.engine = fakes_[setting]->engine.get();
      }
      return contestant;
    };
  }
  void TearDown() override { fs::remove_all(work_.folder); }

  // So many yeses of the one who watches; negative: no end.
  Result<std::vector<SettingRecords>> run(int yeses = -1) {
    Result<RecordFile> file = RecordFile::open(work_.folder + "/records.jsonl", work_.facts);
    EXPECT_TRUE(file) << file.error().message;
    return run_eval(work_, *file, [&](const EvalProgress& progress) {
      progress_.push_back(progress.done / progress.total);
      return yeses < 0 || (yeses > 0 && yeses-- > 0);  // who has said no keeps to it
    });
  }
  void add_texts() {
    work_.engines = 2;
    work_.texts = {{.name = "x", .ids = fake_prompt(70, 1)}, {.name = "y", .ids = fake_prompt(40, 2)}};
    work_.facts.texts = {{.name = "x", .sha256 = "1", .tokens = 70}, {.name = "y", .sha256 = "2", .tokens = 40}};
  }

  EvalWork work_;
  Script scripts_[2];
  std::map<size_t, std::unique_ptr<FakeEngine>> fakes_;
  std::vector<size_t> loads_;
  std::vector<double> progress_;
};

TEST_F(RunTest, OnlyWhatIsNotSureIsGenerated) {
  work_.tasks = {make_task("f-sure"), make_task("f-unsure"), make_task("f-mute"),
                 make_task("g-sum", Judge::last_number), make_task("own-1", Judge::agreement)};
  for (Script& script : scripts_) {
    script.likely = {{"f-sure", {.nll = 0.5, .tokens = 2, .greedy = true}},
                     {"f-unsure", {.nll = 3, .tokens = 2, .greedy = false}},
                     {"g-sum", {.nll = 1, .tokens = 7, .greedy = true}}};
    script.writes = {{"f-unsure", " 42"}, {"f-mute", " 17"}, {"g-sum", " it is 42"}, {"own-1", "yes"}};
  }
  scripts_[1].writes["own-1"] = "no";
  const auto records = run().value();
  ASSERT_EQ(records.size(), 2u);
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    const Script& script = scripts_[setting];
    EXPECT_EQ(script.asked, (std::vector<std::string>{"f-sure", "f-unsure", "f-mute", "g-sum"}));
    EXPECT_EQ(script.generated, (std::vector<std::string>{"f-mute", "f-unsure", "g-sum", "own-1"}));
    EXPECT_EQ(script.together, (std::vector<size_t>{2, 1, 1}));  // family by family
    const std::vector<TaskRecord>& tasks = records[setting].tasks;
    ASSERT_EQ(tasks.size(), 5u);
    for (size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(tasks[i].id, work_.tasks[i].id);
    EXPECT_EQ(tasks[0].text, " 42");  // the answer, up to where generating would have ended
    EXPECT_TRUE(tasks[0].right && tasks[1].right && !tasks[2].right && tasks[3].right);
    EXPECT_EQ(tasks[4].right, setting == 0);
    EXPECT_EQ(tasks[1].nll, 3);
    EXPECT_EQ(tasks[3].answer_tokens, 7u);
    EXPECT_FALSE(tasks[2].nll);
    EXPECT_EQ(tasks[0].floor_nll.has_value(), setting == 0);
    EXPECT_FALSE(tasks[2].floor_nll);  // who cannot tell the one cannot tell the other
  }
  EXPECT_EQ(scripts_[0].floors, (std::vector<std::string>{"f-sure", "f-unsure", "g-sum"}));
  EXPECT_TRUE(scripts_[1].floors.empty());
  EXPECT_EQ(loads_, (std::vector<size_t>{0, 1}));
  EXPECT_TRUE(std::ranges::is_sorted(progress_));
  EXPECT_NEAR(progress_.back(), 1, 1e-9);
  run().value();  // nothing is left to do
  EXPECT_EQ(loads_.size(), 2u);
}

TEST_F(RunTest, ManyAreGeneratedInParts) {
  for (int i = 0; i < 19; ++i) work_.tasks.push_back(make_task("f-" + std::to_string(i)));
  run().value();
  EXPECT_EQ(scripts_[0].together, (std::vector<size_t>{kTasksTogether, kTasksTogether, 19 - 2 * kTasksTogether}));
}

std::string shown(const std::vector<SettingRecords>& all) {
  std::string text;
  for (const SettingRecords& setting : all) {
    text += setting.setting + "\n";
    for (const TextRecord& record : setting.texts) {
      text += std::to_string(record.text) + ":";
      for (const float nll : record.nll) text += " " + std::to_string(std::bit_cast<uint32_t>(nll));
      text += "\n";
    }
    for (const TaskRecord& task : setting.tasks) {
      text += task.id + " " + task.text + " " + std::to_string(task.nll.value_or(-1)) + " " +
              std::to_string(task.floor_nll.value_or(-1)) + (task.right ? " right\n" : " wrong\n");
    }
  }
  return text;
}

TEST_F(RunTest, ARunThatIsStoppedAnywhereEndsAlike) {
  add_texts();
  for (int i = 0; i < 10; ++i) {
    const std::string id = (i < 6 ? "f-" : "g-") + std::to_string(i);
    work_.tasks.push_back(make_task(id));
    for (Script& script : scripts_) {
      script.likely[id] = {.nll = i + 0.25, .tokens = 2, .greedy = i % 3 == 0};
      script.writes[id] = i % 2 == 0 ? " 42" : " 17";
    }
  }
  const std::string whole = shown(run().value());
  const int questions = static_cast<int>(progress_.size());
  fs::remove_all(work_.folder);
  fs::create_directories(work_.folder);
  for (Script& script : scripts_) script.generated.clear();
  // Each time a little further; every piece fits between two stops.
  int stops = 0;
  Result<std::vector<SettingRecords>> last = run(0);
  for (; !last; last = run(90)) {
    EXPECT_EQ(last.error().code, ErrorCode::cancelled);
    ASSERT_LT(++stops, questions);
  }
  EXPECT_GT(stops, 2);
  EXPECT_EQ(shown(*last), whole);
  EXPECT_FALSE(fs::exists(work_.folder + "/logprobs"));
  EXPECT_EQ((*last)[1].kv_bytes_per_token, fakes_[1]->engine->info().kv_bytes_per_token);
}

TEST_F(RunTest, WhatCameAfterTheStopIsNotKept) {
  work_.tasks = {make_task("f-0"), make_task("f-1")};
  // Yeses: before loading, after each of two likelihoods, before generating.
  Result<std::vector<SettingRecords>> stopped = run(4);
  ASSERT_FALSE(stopped);
  Result<RecordFile> file = RecordFile::open(work_.folder + "/records.jsonl", work_.facts);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->settings()[0].tasks.empty());
  EXPECT_EQ(scripts_[0].generated, (std::vector<std::string>{"f-1"}));  // its text was thrown away
}

TEST_F(RunTest, EqualEnginesDoNotDiffer) {
  add_texts();
  const auto records = run().value();
  for (const uint32_t text : {0u, 1u}) {
    const std::vector<TokenId>& ids = work_.texts[text].ids;
    const TextRecord& baseline = records[0].texts.at(text);
    const TextRecord& candidate = records[1].texts.at(text);
    ASSERT_EQ(baseline.nll.size(), ids.size() - 1);
    EXPECT_EQ(candidate.nll, baseline.nll);
    EXPECT_EQ(candidate.divergence, std::vector<double>(ids.size() - 1, 0.0));
    EXPECT_EQ(candidate.same_top, std::vector<uint8_t>(ids.size() - 1, 1));
    EXPECT_TRUE(baseline.divergence.empty() && baseline.same_top.empty());
    // By another formula, from logits that no engine made.
    for (const size_t position : {size_t{1}, ids.size() - 1}) {
      const std::vector<float> logits = FakeModel::reference(std::span(ids).first(position));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      const double expected = std::log(sum) - double{logits[static_cast<size_t>(ids[position])]};
      EXPECT_NEAR(baseline.nll[position - 1], expected, 1e-5);
    }
  }
}

TEST_F(RunTest, RowsStayWhereTheyAreWanted) {
  add_texts();
  run().value();
  EXPECT_FALSE(fs::exists(work_.folder + "/logprobs"));
  work_.keep_rows = true;  // the same run: rows are made again, records are not
  run().value();
  EXPECT_EQ(loads_, (std::vector<size_t>{0, 1, 0, 1}));
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    for (const uint32_t text : {0u, 1u}) {
      const auto rows = read_rows(rows_path(work_.folder, setting, text));
      ASSERT_TRUE(rows) << rows.error().message;
      EXPECT_EQ(rows->size() + 1, work_.texts[text].ids.size());
    }
  }
  work_.keep_rows = false;
  run().value();
  EXPECT_EQ(loads_.size(), 4u);
  EXPECT_TRUE(fs::exists(rows_path(work_.folder, 0, 1)));  // nobody deletes a dump
}

TEST_F(RunTest, ServersGetNoTexts) {
  add_texts();
  work_.engines = 1;
  work_.tasks = {make_task("f-0")};
  const auto records = run().value();
  EXPECT_EQ(records[0].texts.size(), 2u);
  EXPECT_TRUE(records[1].texts.empty());
  EXPECT_EQ(records[1].tasks.size(), 1u);
  EXPECT_EQ(records[1].kv_bytes_per_token, 0u);
}

TEST_F(RunTest, TheNoiseFloorGetsNoTasks) {
  add_texts();
  work_.facts.noise_floor = 1;
  work_.tasks = {make_task("f-0")};
  const auto records = run().value();
  EXPECT_EQ(records[0].tasks.size(), 1u);
  EXPECT_TRUE(records[1].tasks.empty());
  EXPECT_EQ(records[1].texts.size(), 2u);
  EXPECT_TRUE(scripts_[1].asked.empty());
  EXPECT_DOUBLE_EQ(*std::ranges::max_element(progress_), 1.0);
  run().value();
  EXPECT_EQ(loads_, (std::vector<size_t>{0, 1})) << "nothing is missing";
}

TEST_F(RunTest, ErrorsOfASettingEndTheRun) {
  work_.tasks = {make_task("f-0")};
  work_.contestant = [](size_t) -> Result<Contestant> { return fail(ErrorCode::out_of_memory, "too large"); };
  EXPECT_EQ(run().error().message, "too large");
}

}  // namespace
}  // namespace kvarto
