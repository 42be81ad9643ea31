// What every family owes its users: tasks that are the same again, fit, can be judged, need their context, and are not
// guessed from a place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "eval/judge.h"
#include "eval/task.h"

namespace kvarto {
namespace {

// Words times 1.3, as if words had that many tokens on average.
uint32_t fake_tokens(std::string_view text) {
  size_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return static_cast<uint32_t>((words * 13 + 9) / 10);
}

TaskPlan plan_of(uint32_t context_tokens = 4096, uint32_t samples = 48, uint64_t seed = 1) {
  return {seed, samples, context_tokens, fake_tokens};
}

std::string trimmed(const std::string& text) {
  const size_t from = text.find_first_not_of(" \n"), to = text.find_last_not_of(" \n");
  return text.substr(from, to + 1 - from);
}

// What in the prompt answers the task; each must be in the prompt, the first of them just once, and none in the floor.
std::vector<std::string> key_facts(const Task& task) {
  const std::string answer = trimmed(task.answer), number = answer.substr(answer.size() - 4);
  if (task.family == "needle" || task.family == "needles") return {" is " + number + "."};
  if (task.family == "table") return {": " + number + "\n"};
  if (task.family == "facts") {
    const std::string department = answer.substr(0, answer.find(','));
    return {"code is " + number + ".", "works in the " + department + " department."};
  }
  if (task.family == "variables") {
    // "honey = sugar, sugar = north, north = 2716", without its first two words
    const std::string first = answer.substr(0, answer.find(',')), rest = answer.substr(answer.rfind(", ") + 2);
    const std::string second = rest.substr(0, rest.find(' '));
    return {"VAR " + rest + "\n", "VAR " + first + " = " + second + "\n", " = " + first + "\n"};
  }
  if (task.family == "sums") {
    const size_t from = task.prompt.rfind("Question: ") + 10;
    return {task.prompt.substr(from, task.prompt.rfind("How many") - from)};
  }
  if (task.family == "tool-call") {
    const size_t from = answer.find("\"customer_id\": ") + 15;
    return {"\"id\": " + answer.substr(from, 4) + ","};
  }
  return {task.answer};  // code
}

size_t times(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Where what is asked begins, behind all that could answer it.
size_t question_of(const Task& task) {
  if (task.family == "sums") return task.prompt.rfind("How many");
  size_t at = 0;
  for (const char* word : {"\nQuestion: ", "\nRequest: ", "\n# The twin of "}) {
    const size_t found = task.prompt.rfind(word);
    if (found != std::string::npos) at = std::max(at, found);
  }
  return at;
}

bool same(const Task& a, const Task& b) {
  return a.id == b.id && a.group == b.group && a.prompt == b.prompt && a.answer == b.answer &&
         a.floor_prompt == b.floor_prompt && a.max_tokens == b.max_tokens && a.length_tokens == b.length_tokens &&
         a.depth == b.depth && a.stop == b.stop;
}

class Families : public testing::TestWithParam<Family> {
 protected:
  std::vector<Task> make(const TaskPlan& plan) const { return GetParam().make(plan); }
};

TEST_P(Families, SamePlanSameBytes) {
  const std::vector<Task> once = make(plan_of()), again = make(plan_of());
  ASSERT_EQ(once.size(), again.size());
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(same(once[i], again[i])) << once[i].id;
}

TEST_P(Families, OtherSeedsGiveOtherTasks) {
  const std::vector<Task> once = make(plan_of(2048, 48, 1)), other = make(plan_of(2048, 48, 2));
  ASSERT_EQ(once.size(), other.size());
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NE(once[i].prompt, other[i].prompt) << once[i].id;
}

TEST_P(Families, TasksAreUniqueAndSayWhatTheyAre) {
  std::set<std::string> ids, prompts;
  for (const Task& task : make(plan_of())) {
    EXPECT_EQ(task.family, GetParam().name);
    EXPECT_EQ(task.skill, GetParam().skill);
    EXPECT_TRUE(task.id.starts_with(task.family + "-")) << task.id;
    EXPECT_TRUE(ids.insert(task.id).second) << task.id;
    EXPECT_TRUE(prompts.insert(task.prompt).second) << task.id;
    EXPECT_TRUE(task.messages.empty());
    EXPECT_FALSE(task.stop.empty());
    EXPECT_GT(task.length_tokens, 0u);
  }
}

TEST_P(Families, NothingIsLongerThanTheContext) {
  for (const uint32_t context : {16u, 200u, 256u, 512u, 1024u, 12288u}) {
    for (const Task& task : make(plan_of(context, 20))) {
      EXPECT_LE(fake_tokens(task.prompt + task.answer), context) << task.id;
      EXPECT_LE(fake_tokens(task.prompt) + task.max_tokens, context) << task.id;
      EXPECT_LE(task.length_tokens, context) << task.id;
      EXPECT_LE(task.floor_prompt.size(), task.prompt.size()) << task.id;
    }
  }
}

TEST_P(Families, SamplesAreHonoured) {
  for (const uint32_t samples : {0u, 1u, 5u, 13u, 20u, 48u, 90u}) {
    const size_t tasks = make(plan_of(4096, samples)).size();
    EXPECT_LE(tasks, samples);
    // Of a map, whole rounds of its cells.
    EXPECT_GE(tasks, GetParam().name == "needle" ? std::min(20u, samples) : samples);
  }
}

TEST_P(Families, TheAnswerIsRightAndAnAlteredOneIsWrong) {
  for (const Task& task : make(plan_of(2048))) {
    EXPECT_TRUE(is_right(task, task.answer)) << task.id;
    EXPECT_TRUE(is_right(task, cut_at_stop(task, task.answer + "\n\nQuestion: And now?\nAnswer: 1"))) << task.id;
    EXPECT_FALSE(is_right(task, "")) << task.id;
    std::string altered = task.answer;
    char& digit = altered[altered.find_last_of("0123456789")];
    digit = digit == '9' ? '8' : static_cast<char>(digit + 1);
    EXPECT_FALSE(is_right(task, altered)) << task.id;
  }
}

TEST_P(Families, OnlyThePromptHoldsWhatAnswersIt) {
  for (const Task& task : make(plan_of(2048))) {
    ASSERT_NE(task.prompt, task.floor_prompt) << task.id;
    const std::vector<std::string> facts = key_facts(task);
    EXPECT_EQ(times(task.prompt, facts.front()), 1u) << task.id << ": " << facts.front();
    for (const std::string& fact : facts) {
      EXPECT_GE(times(task.prompt, fact), 1u) << task.id << ": " << fact;
      EXPECT_EQ(times(task.floor_prompt, fact), 0u) << task.id << ": " << fact;
    }
    EXPECT_TRUE(task.floor_prompt.ends_with(task.prompt.substr(question_of(task)))) << task.id;
    // No answer stands in front of the question's end.
    EXPECT_FALSE(task.prompt.ends_with(task.answer)) << task.id;
  }
}

// Who knows nothing knows no more behind a long text.
TEST_P(Families, FloorsAreShortAtAnyLength) {
  for (const Task& task : make(plan_of(12288))) EXPECT_LE(fake_tokens(task.floor_prompt), 500u) << task.id;
}

// Those whose answers stand in a text, somewhere. A sum's story is one place, and its own.
class FamiliesWithTexts : public Families {};

// A group for each text with several tasks, none for the others.
TEST_P(FamiliesWithTexts, GroupsAreOfTasksWithOneText) {
  std::map<std::string, std::set<std::string>> keys_of_text, texts_of_key;
  std::map<std::string, int> tasks_of_group;
  for (const Task& task : make(plan_of())) {
    const std::string key = task.group.empty() ? "alone " + task.id : task.group;
    const std::string text = task.prompt.substr(0, question_of(task));
    keys_of_text[text].insert(key);
    texts_of_key[key].insert(text);
    if (!task.group.empty()) ++tasks_of_group[task.group];
  }
  for (const auto& [text, keys] : keys_of_text) EXPECT_EQ(keys.size(), 1u) << *keys.begin();
  for (const auto& [key, texts] : texts_of_key) EXPECT_EQ(texts.size(), 1u) << key;
  for (const auto& [group, tasks] : tasks_of_group) {
    EXPECT_TRUE(group.starts_with(std::string(GetParam().name) + "-")) << group;
    EXPECT_GE(tasks, 2) << group;
  }
}

// Each third of what differs between prompts holds a fair share of the answers.
TEST_P(FamiliesWithTexts, AnswersAreSpreadOverThePrompt) {
  const std::vector<Task> tasks = make(plan_of(2048));
  const std::string& first = tasks.front().prompt;
  size_t shared = first.size();
  for (const Task& task : tasks) {
    const auto differs = std::ranges::mismatch(first, task.prompt);
    shared = std::min(shared, static_cast<size_t>(differs.in1 - first.begin()));
  }
  size_t thirds[3] = {};
  for (const Task& task : tasks) {
    const std::vector<std::string> facts = key_facts(task);
    const size_t at = std::max(shared, task.prompt.find(facts[facts.size() / 2]));
    const size_t end = question_of(task);
    ASSERT_LT(at, end) << task.id;
    ++thirds[(at - shared) * 3 / (end - shared)];
  }
  for (const size_t third : thirds) EXPECT_GE(third, tasks.size() / 9);
}

std::vector<Family> families_with_texts() {
  std::vector<Family> chosen(families().begin(), families().end());
  std::erase_if(chosen, [](const Family& each) { return each.name == "sums"; });
  return chosen;
}

std::string name_of(const testing::TestParamInfo<Family>& info) {
  std::string name(info.param.name);
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(families().begin(), families().end()), name_of);
INSTANTIATE_TEST_SUITE_P(All, FamiliesWithTexts, testing::ValuesIn(families_with_texts()), name_of);

const Family& family(std::string_view name) {
  return *std::ranges::find(families(), name, [](const Family& each) { return each.name; });
}

TEST(Tasks, FamiliesAndSkillsHaveNamesOfTheirOwn) {
  std::set<std::string_view> names, skills;
  for (const Family& each : families()) {
    EXPECT_TRUE(names.insert(each.name).second);
    EXPECT_FALSE(each.summary.empty());
    EXPECT_NE(each.skill, Skill::own);
  }
  for (const Skill skill : kSkills) EXPECT_TRUE(skills.insert(skill_name(skill)).second);
  EXPECT_EQ(skill_name(Skill::multi_hop), "multi-hop");
}

TEST(Tasks, NeedlesStandWhereTheHeatMapSays) {
  std::map<std::pair<uint32_t, double>, int> cells;
  double tokens = 0;
  for (const Task& task : family("needle").make(plan_of())) {
    ASSERT_TRUE(task.depth.has_value());
    ++cells[{task.length_tokens, *task.depth}];
    const size_t begin = task.prompt.rfind("\nText:") + 6, end = task.prompt.rfind("\nQuestion:");
    const std::string fact = " The access code of the ";
    const size_t at = task.prompt.find(fact, begin), fact_end = task.prompt.find('.', at) + 1;
    ASSERT_LT(fact_end, end + 1);
    const double rest = static_cast<double>(end - begin - (fact_end - at));
    EXPECT_NEAR(static_cast<double>(at - begin) / rest, *task.depth, 0.05) << task.id;
    const uint32_t used = fake_tokens(task.prompt);
    EXPECT_GE(used, task.length_tokens * 85 / 100) << task.id;
    tokens += used;
  }
  EXPECT_EQ(cells.size(), 20u);
  for (const auto& [cell, count] : cells) EXPECT_EQ(count, cell.first == 512 ? 2 : 1);
  EXPECT_LE(tokens, 10.5 * 4096);
}

TEST(Tasks, ShortContextsHaveFewerLengths) {
  std::set<uint32_t> lengths;
  for (const Task& task : family("needle").make(plan_of(1024))) lengths.insert(task.length_tokens);
  EXPECT_EQ(lengths, (std::set<uint32_t>{256, 512, 1024}));
}

// Cells of `samples` tasks as "4096 50", in the order of the tasks.
std::vector<std::string> needle_cells(uint32_t samples) {
  std::vector<std::string> cells;
  for (const Task& task : family("needle").make(plan_of(4096, samples))) {
    cells.push_back(std::to_string(task.length_tokens) + " " + std::to_string(std::lround(*task.depth * 100)));
  }
  return cells;
}

TEST(Tasks, FewNeedlesKeepTheLongestLengthAndBothEnds) {
  using Cells = std::vector<std::string>;
  EXPECT_EQ(needle_cells(2), (Cells{"4096 0", "4096 100"}));
  EXPECT_EQ(needle_cells(3), (Cells{"4096 0", "4096 50", "4096 100"}));
  EXPECT_EQ(needle_cells(7), (Cells{"1024 0", "2048 0", "2048 50", "2048 100", "4096 0", "4096 50", "4096 100"}));
  EXPECT_EQ(needle_cells(12), (Cells{"512 0", "512 50", "512 100", "1024 0", "1024 50", "1024 100", "2048 0", "2048 50",
                                     "2048 100", "4096 0", "4096 50", "4096 100"}));
  EXPECT_EQ(needle_cells(14).size(), 14u);
  EXPECT_EQ(needle_cells(24).size(), 20u);
}

TEST(Tasks, NeedlesOfALengthShareTheirFiller) {
  const std::string opening = " The access code of the ";
  std::map<uint32_t, std::set<std::string>> fillers;
  for (const Task& task : family("needle").make(plan_of())) {
    std::string text = task.prompt.substr(0, task.prompt.rfind("\nQuestion:"));
    const size_t fact = text.rfind(opening);
    text.erase(fact, text.find('.', fact) + 1 - fact);
    fillers[task.length_tokens].insert(text);
  }
  for (const auto& [length, texts] : fillers) EXPECT_EQ(texts.size(), 1u) << length;
}

TEST(Tasks, TheTokenizerDecidesAboutLengthsAlone) {
  TaskPlan twice = plan_of();
  twice.count_tokens = [](std::string_view text) { return 2 * fake_tokens(text); };
  for (const char* name : {"table", "facts", "variables", "sums"}) {
    const std::vector<Task> once = family(name).make(plan_of()), other = family(name).make(twice);
    ASSERT_EQ(once.size(), other.size());
    for (size_t i = 0; i < once.size(); ++i) {
      if (once[i].length_tokens == 4096) continue;
      EXPECT_EQ(once[i].prompt, other[i].prompt);
    }
  }
  for (const char* name : {"needle", "facts", "variables"}) {
    const std::vector<Task> once = family(name).make(plan_of()), other = family(name).make(twice);
    ASSERT_EQ(once.size(), other.size());
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_EQ(once[i].answer, other[i].answer);
      if (once[i].length_tokens == 4096 || once[i].family == "needle") {
        EXPECT_LT(other[i].prompt.size(), once[i].prompt.size());
      }
    }
  }
}

TEST(Tasks, AQuarterOfTheStructuresIsAsLongAsTheContextAllows) {
  for (const char* name : {"tool-call", "code"}) {
    int long_tasks = 0;
    for (const Task& task : family(name).make(plan_of(12288))) {
      const uint32_t used = fake_tokens(task.prompt);
      if (task.length_tokens == 12288) {
        ++long_tasks;
        EXPECT_GE(used, 8192u) << task.id;
      } else {
        EXPECT_LE(used, 1000u) << task.id;
        EXPECT_GE(used, 700u) << task.id;
      }
    }
    EXPECT_EQ(long_tasks, 12) << name;
  }
}

TEST(Tasks, ASixthOfTheHopsIsAsLongAsTheContextAllows) {
  for (const char* name : {"facts", "variables"}) {
    std::vector<std::string> ids;
    for (const Task& task : family(name).make(plan_of())) {
      const uint32_t used = fake_tokens(task.prompt);
      if (task.length_tokens == 4096) {
        ids.push_back(task.id);
        EXPECT_GE(used, 3900u) << task.id;
        EXPECT_FALSE(task.group.empty()) << task.id;
      } else {
        EXPECT_EQ(task.length_tokens, used) << task.id;
        EXPECT_LE(used, 500u) << task.id;
      }
    }
    ASSERT_EQ(ids.size(), 8u) << name;
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], std::string(name) + "-4096-" + std::to_string(40 + i));
    for (const Task& task : family(name).make(plan_of(1024))) EXPECT_LE(task.length_tokens, 500u) << task.id;
  }
}

// What stands between the lines of a long program is a comment: it stays a program.
TEST(Tasks, LongProgramsHaveCommentsBetweenTheirLines) {
  const Task task = family("variables").make(plan_of()).back();
  ASSERT_EQ(task.length_tokens, 4096u);
  size_t lines = 0, comments = 0;
  const size_t end = question_of(task);
  for (size_t at = task.prompt.rfind("\nProgram:\n") + 9; at < end; at = task.prompt.find('\n', at + 1)) {
    const std::string_view line = std::string_view(task.prompt).substr(at + 1);
    lines += line.starts_with("VAR ") ? 1 : 0;
    comments += line.starts_with("# ") ? 1 : 0;
    EXPECT_TRUE(line.starts_with("VAR ") || line.starts_with("# ")) << line.substr(0, 80);
  }
  EXPECT_EQ(lines, 24u);  // eight chains
  EXPECT_EQ(comments, 24u);
}

TEST(Tasks, FourTasksShareTheirText) {
  for (const char* name : {"needles", "table", "facts", "tool-call", "code"}) {
    const std::vector<Task> tasks = family(name).make(plan_of());
    for (size_t i = 0; i + 4 <= tasks.size(); i += 4) {
      std::set<std::string> answers;
      for (size_t j = i; j < i + 4; ++j) {
        answers.insert(tasks[j].answer);
        const auto differs = std::ranges::mismatch(tasks[i].prompt, tasks[j].prompt);
        const auto shared = static_cast<size_t>(differs.in1 - tasks[i].prompt.begin());
        EXPECT_GE(shared, tasks[i].prompt.size() * 8 / 10) << tasks[j].id;
      }
      EXPECT_EQ(answers.size(), 4u) << tasks[i].id;
    }
  }
}

}  // namespace
}  // namespace kvarto
