#include "eval/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/file.h"
#include "engine/testing.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;

// What a subject knows and what it was asked.
struct Script {
  std::map<std::string, Likelihood> likely;  // by task; none: it cannot tell
  std::map<std::string, std::string> writes;
  std::map<std::string, Error> unlikely, unwritten;   // what there is instead
  std::vector<std::string> asked, floors, generated;  // tasks
  std::vector<std::string> answers;                   // of those that were asked
  std::vector<size_t> together;                       // tasks of each call
};

class ScriptedSubject : public Subject {
 public:
  explicit ScriptedSubject(Script& script) : script_(script) {}
  Result<std::optional<Likelihood>> likelihood(const Task& task, bool floor) override {
    (floor ? script_.floors : script_.asked).push_back(task.id);
    if (floor) return Likelihood{.nll = 9, .tokens = 2, .greedy = false};
    script_.answers.push_back(task.answer);
    if (const auto error = script_.unlikely.find(task.id); error != script_.unlikely.end()) {
      return tl::unexpected<Error>(error->second);
    }
    const auto found = script_.likely.find(task.id);
    if (found == script_.likely.end()) return std::nullopt;
    return found->second;
  }
  // Backwards, as they may end in any order.
  Status generate(std::span<const Task* const> tasks,
                  const std::function<Status(size_t index, Result<std::string> text)>& done) override {
    script_.together.push_back(tasks.size());
    for (size_t i = tasks.size(); i-- > 0;) {
      script_.generated.push_back(tasks[i]->id);
      Result<std::string> text = script_.writes[tasks[i]->id];
      const auto error = script_.unwritten.find(tasks[i]->id);
      if (error != script_.unwritten.end()) text = tl::unexpected<Error>(error->second);
      RETURN_IF_ERROR(done(i, std::move(text)));
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
    Result<RecordFile> file = open_records();
    EXPECT_TRUE(file) << file.error().message;
    return run_eval(work_, *file, [&](const EvalProgress& progress) {
      progress_.push_back(progress.done / progress.total);
      pieces_.emplace(progress.setting, std::string(progress.what), progress.pieces_done, progress.pieces);
      EXPECT_LT(progress.seconds_left, 0) << "within the first ten seconds nothing can be said";
      return yeses < 0 || (yeses > 0 && yeses-- > 0);  // who has said no keeps to it
    });
  }
  Result<RecordFile> open_records() {
    std::set<std::string> families;
    for (const Task& task : work_.tasks) families.insert(task.family);
    work_.facts.families.assign(families.begin(), families.end());
    return RecordFile::open(work_.folder + "/records.jsonl", work_.facts);
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
  std::set<std::tuple<size_t, std::string, size_t, size_t>> pieces_;  // setting, what, done, all
};

TEST_F(RunTest, OnlyWhatIsNotSureIsGenerated) {
  work_.tasks = {make_task("f-sure"), make_task("f-unsure"), make_task("f-mute"),
                 make_task("g-sum", Judge::last_number)};
  work_.tasks[1].group = "f-text";
  for (Script& script : scripts_) {
    script.likely = {{"f-sure", {.nll = 0.5, .tokens = 2, .greedy = true}},
                     {"f-unsure", {.nll = 3, .tokens = 2, .greedy = false}},
                     {"g-sum", {.nll = 1, .tokens = 7, .greedy = true}}};
    script.writes = {{"f-unsure", " 42"}, {"f-mute", " 17"}, {"g-sum", " it is 42"}};
  }
  const auto records = run().value();
  ASSERT_EQ(records.size(), 2u);
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    const Script& script = scripts_[setting];
    EXPECT_EQ(script.asked, (std::vector<std::string>{"f-sure", "f-unsure", "f-mute", "g-sum"}));
    EXPECT_EQ(script.generated, (std::vector<std::string>{"f-mute", "f-unsure", "g-sum"}));
    EXPECT_EQ(script.together, (std::vector<size_t>{2, 1}));  // family by family
    const std::vector<TaskRecord>& tasks = records[setting].tasks;
    ASSERT_EQ(tasks.size(), 4u);
    for (size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(tasks[i].id, work_.tasks[i].id);
    EXPECT_EQ(tasks[0].text, " 42");  // the answer, up to where generating would have ended
    EXPECT_TRUE(tasks[0].right && tasks[1].right && !tasks[2].right && tasks[3].right);
    EXPECT_EQ(tasks[0].group + "/" + tasks[1].group, "/f-text");
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

// What the baseline wrote is as likely as it is, under itself and under each candidate.
TEST_F(RunTest, WithoutAnAnswerTheBaselinesTextIsMeasured) {
  work_.tasks = {make_task("own-yes", Judge::agreement), make_task("own-none", Judge::agreement),
                 make_task("own-mute", Judge::agreement)};
  for (Script& script : scripts_) {
    script.likely = {{"own-yes", {.nll = 2, .tokens = 3, .greedy = true}},
                     {"own-none", {.nll = 1, .tokens = 1, .greedy = true}}};
    script.writes = {{"own-yes", " yes,\n so"}, {"own-none", ""}, {"own-mute", "a"}};
  }
  scripts_[1].likely["own-yes"].nll = 5;
  scripts_[1].writes["own-mute"] = "b";
  const auto records = run().value();
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    const Script& script = scripts_[setting];
    EXPECT_EQ(script.generated.size(), 3u);  // likely as it may be, it might go on
    EXPECT_EQ(script.asked, (std::vector<std::string>{"own-yes", "own-mute"}));
    EXPECT_EQ(script.answers, (std::vector<std::string>{" yes,\n so", "a"}));  // as it was written
    const std::vector<TaskRecord>& tasks = records[setting].tasks;
    ASSERT_EQ(tasks.size(), 3u);
    for (const TaskRecord& task : tasks) EXPECT_TRUE(task.agreement);
    EXPECT_EQ(tasks[0].nll, setting == 0 ? 2 : 5);
    EXPECT_EQ(tasks[0].answer_tokens, 3u);
    EXPECT_FALSE(tasks[1].nll || tasks[2].nll);
    EXPECT_TRUE(tasks[0].right && tasks[1].right);
    EXPECT_EQ(tasks[2].right, setting == 0);
    EXPECT_EQ(tasks[2].text, setting == 0 ? "a" : "b");
    EXPECT_TRUE(script.floors.empty());
  }
}

// An answer that must be somewhere in it decides right and wrong alone.
TEST_F(RunTest, WithAnAnswerThatMustBeInItTheBaselinesTextIsMeasuredToo) {
  work_.tasks = {make_task("own-0", Judge::contains), make_task("own-1", Judge::contains)};
  for (Script& script : scripts_) {
    for (const Task& task : work_.tasks) script.likely[task.id] = {.nll = 2, .tokens = 3, .greedy = true};
    script.writes = {{"own-0", " it is 42."}, {"own-1", " who knows?"}};
  }
  scripts_[1].writes["own-0"] = " hm";
  scripts_[1].likely["own-1"].nll = 4;
  const auto records = run().value();
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(scripts_[setting].answers, (std::vector<std::string>{" it is 42.", " who knows?"}));
    EXPECT_EQ(scripts_[setting].generated.size(), 2u);
    EXPECT_TRUE(scripts_[setting].floors.empty());
    const std::vector<TaskRecord>& tasks = records[setting].tasks;
    ASSERT_EQ(tasks.size(), 2u);
    EXPECT_EQ(tasks[0].right, setting == 0);
    EXPECT_FALSE(tasks[1].right || tasks[0].agreement || tasks[1].agreement);
    EXPECT_EQ(tasks[0].text, setting == 0 ? " it is 42." : " hm");
    EXPECT_EQ(tasks[1].nll, setting == 0 ? 2 : 4);
    EXPECT_EQ(tasks[1].answer_tokens, 3u);
  }
}

// White space that a tokenizer drops: there is nothing to be likely.
TEST_F(RunTest, AnAnswerOfNoTokensHasNoLikelihood) {
  work_.tasks = {make_task("f-0")};
  for (Script& script : scripts_) script.likely["f-0"] = {.nll = 0, .tokens = 0, .greedy = true};
  const auto records = run().value();
  for (const SettingRecords& setting : records) {
    EXPECT_FALSE(setting.tasks.at(0).nll);
    EXPECT_FALSE(setting.tasks[0].right);  // nothing was written
  }
}

TEST_F(RunTest, ProgressCountsTextsAndTasksOfASetting) {
  add_texts();
  work_.tasks = {make_task("f-0"), make_task("f-1"), make_task("g-0")};
  for (Script& script : scripts_) {
    for (const Task& task : work_.tasks) script.likely[task.id] = {.nll = 1, .tokens = 2, .greedy = true};
  }
  run().value();
  using Piece = std::tuple<size_t, std::string, size_t, size_t>;
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    for (const Piece& piece : {Piece{setting, "texts", 0, 2}, Piece{setting, "texts", 1, 2}, Piece{setting, "f", 0, 3},
                               Piece{setting, "f", 1, 3}, Piece{setting, "g", 2, 3}}) {
      EXPECT_TRUE(pieces_.contains(piece)) << std::get<1>(piece) << std::get<2>(piece);
    }
  }
}

Error refused(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

TEST_F(RunTest, ATaskThatIsRefusedFailsAloneAndIsNotAskedAgain) {
  for (int i = 0; i < 9; ++i) work_.tasks.push_back(make_task("f-" + std::to_string(i)));
  work_.tasks.push_back(make_task("own-1", Judge::agreement));
  for (Script& script : scripts_) {
    for (const Task& task : work_.tasks) script.likely[task.id] = {.nll = 1, .tokens = 2, .greedy = false};
    script.writes["f-4"] = " 42";
  }
  // Also before any other is answered.
  for (const char* id : {"f-0", "f-1", "f-2"}) scripts_[1].unlikely.emplace(id, refused("too long"));
  scripts_[1].unwritten.emplace("f-5", refused("no words"));
  scripts_[0].unwritten.emplace("own-1", refused("not now"));
  const auto records = run().value();
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(records[0].tasks.at(i).failed, "");
    const TaskRecord& task = records[1].tasks.at(i);
    EXPECT_EQ(task.id, "f-" + std::to_string(i));
    EXPECT_EQ(task.failed, i < 3 ? "too long" : i == 5 ? "no words" : "") << i;
    EXPECT_EQ(task.nll.has_value(), task.failed.empty()) << i;
    EXPECT_EQ(task.right, i == 4);
  }
  EXPECT_EQ(std::ranges::count(scripts_[1].generated, "f-0"), 0);
  EXPECT_EQ(records[0].tasks.at(9).failed, "not now");
  run().value();
  EXPECT_EQ(loads_.size(), 2u);
}

TEST_F(RunTest, WhoRefusesEachTaskEndsTheRunAndLeavesNothingBehind) {
  for (int i = 0; i < 20; ++i) work_.tasks.push_back(make_task("f-" + std::to_string(i)));
  const auto refuse_all = [&](size_t tasks) {
    for (size_t i = 0; i < tasks; ++i) scripts_[1].unlikely.emplace(work_.tasks[i].id, refused("no such thing"));
  };
  refuse_all(20);
  const Result<std::vector<SettingRecords>> ended = run();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().message, "b refuses each of its tasks, 5 in a row: no such thing");
  EXPECT_EQ(scripts_[1].asked.size(), kMostRefused);
  scripts_[1].unlikely.clear();  // it thought better of it
  const auto again = run().value();
  for (const TaskRecord& task : again[1].tasks) EXPECT_EQ(task.failed, "");

  fs::remove_all(work_.folder);
  fs::create_directories(work_.folder);
  work_.tasks.resize(3);
  refuse_all(3);
  EXPECT_NE(run().error().message.find("3 in a row"), std::string::npos);
}

TEST_F(RunTest, OtherErrorsOfATaskEndTheRun) {
  work_.tasks = {make_task("f-0"), make_task("f-1")};
  scripts_[0].unlikely.emplace("f-1", Error{ErrorCode::network, "gone"});
  EXPECT_EQ(run().error().message, "gone");
  scripts_[0].unlikely.clear();
  scripts_[0].unwritten.emplace("f-0", Error{ErrorCode::internal, "broken"});
  EXPECT_EQ(run().error().message, "broken");
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
  Result<RecordFile> file = open_records();
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

// A candidate that overflows is as bad as can be; a baseline that does is no baseline.
TEST_F(RunTest, WhatIsNoNumberIsInfinite) {
  add_texts();
  const auto load = work_.contestant;
  size_t broken = 1;
  work_.contestant = [&](size_t setting) {
    Result<Contestant> contestant = load(setting);
    if (setting == broken) fakes_[setting]->model->poison_token = 5;
    return contestant;
  };
  const auto records = run().value();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const uint32_t text : {0u, 1u}) {
    const TextRecord& record = records[1].texts.at(text);
    ASSERT_EQ(record.nll.size(), work_.texts[text].ids.size() - 1);
    // Once in each part whose logits were asked for.
    EXPECT_GE(std::ranges::count(record.nll, kInf), 1);
    EXPECT_EQ(std::ranges::count(record.nll, kInf),
              std::ranges::count(record.divergence, std::numeric_limits<double>::infinity()));
    EXPECT_EQ(std::ranges::count(records[0].texts.at(text).nll, kInf), 0);
  }
  fs::remove_all(work_.folder);
  fs::create_directories(work_.folder);
  broken = 0;
  const auto refusal = run();
  ASSERT_FALSE(refusal);
  EXPECT_NE(refusal.error().message.find("the baseline's logits of position "), std::string::npos);
}

TEST_F(RunTest, TheSpeedIsThatOfTexts) {
  work_.tasks = {make_task("f-0")};
  EXPECT_EQ(run().value()[0].prompt_tokens_per_s, 0);
  fs::remove_all(work_.folder);
  fs::create_directories(work_.folder);
  add_texts();
  const SettingRecords baseline = run().value()[0];
  EXPECT_GT(baseline.prompt_tokens_per_s, 108 / baseline.seconds - 1e-6);  // 69 and 39 positions, and some other work
}

TEST_F(RunTest, RowsOfAnotherTextAreMadeAnew) {
  add_texts();
  work_.keep_rows = true;
  run().value();
  const std::string path = rows_path(work_.folder, 0, 1);
  const std::string good = read_file(path).value();
  std::vector<TokenRow> rows = read_rows(path).value();
  rows[3].token ^= 1;
  ASSERT_TRUE(write_rows(path, rows));
  run().value();
  EXPECT_EQ(read_file(path).value(), good);
  // Even where a record names them.
  {
    Result<RecordFile> file = open_records();
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->add_rows(0, 1, write_rows(path, rows).value()));
  }
  run().value();
  EXPECT_EQ(read_file(path).value(), good);
}

TEST_F(RunTest, RowsThatAreNotThoseThatWereWrittenAreMadeAnew) {
  add_texts();
  work_.keep_rows = true;
  const std::string records = shown(run().value());
  for (const size_t setting : {size_t{0}, size_t{1}}) {
    const std::string path = rows_path(work_.folder, setting, 0), good = read_file(path).value();
    std::string damaged = good, cut = good.substr(0, good.size() / 2);
    char& byte = damaged[damaged.size() - 9];  // of a log-probability
    byte = static_cast<char>(byte ^ 1);
    // Of another text and as long.
    std::vector<TokenRow> others = read_rows(path).value();
    std::ranges::reverse(others);
    const std::string foreign_path = work_.folder + "/foreign.npy";
    ASSERT_TRUE(write_rows(foreign_path, others));
    for (const std::string& bad : {damaged, cut, read_file(foreign_path).value(), std::string()}) {
      ASSERT_TRUE(write_file_atomically(path, bad));
      EXPECT_EQ(shown(run().value()), records);
      EXPECT_EQ(read_file(path).value(), good);
    }
  }
  const size_t loads = loads_.size();
  run().value();
  EXPECT_EQ(loads_.size(), loads) << "nothing is missing";
}

// What an earlier run left in the folder where this one has no record yet.
TEST_F(RunTest, AStaleDumpIsMadeAnew) {
  add_texts();
  work_.keep_rows = true;
  run().value();
  const std::string path = rows_path(work_.folder, 1, 0), good = read_file(path).value();
  std::vector<TokenRow> stale = read_rows(path).value();
  for (TokenRow& row : stale) row.logprob -= 1;
  fs::remove(work_.folder + "/records.jsonl");
  work_.keep_rows = false;
  run().value();
  ASSERT_TRUE(write_rows(path, stale));
  work_.keep_rows = true;  // its record has no name of rows
  run().value();
  EXPECT_EQ(read_file(path).value(), good);
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

TEST_F(RunTest, OnlyRowsAreRemoved) {
  EXPECT_TRUE(remove_all_rows(work_.folder));  // there are none
  const std::string rows = work_.folder + "/logprobs";
  fs::create_directories(rows);
  const std::set<std::string> others = {"mine.npy", "0-0.npy.bak", "-0.npy", "0-.npy", "0.npy", "a-0.npy"};
  for (const std::string& name : others) ASSERT_TRUE(write_file_atomically(rows + "/" + name, "x"));
  for (const char* name : {"0-0.npy", "12-345.npy"}) ASSERT_TRUE(write_file_atomically(rows + "/" + name, "x"));
  ASSERT_TRUE(remove_all_rows(work_.folder));
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(rows)) left.insert(entry.path().filename().string());
  EXPECT_EQ(left, others);
  fs::remove_all(rows);
  fs::create_directories(rows);
  ASSERT_TRUE(write_file_atomically(rows_path(work_.folder, 0, 0), "x"));
  ASSERT_TRUE(remove_all_rows(work_.folder));
  EXPECT_FALSE(fs::exists(rows));
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
