#include "eval/family.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvarto {
namespace {

// A token is a byte: lengths are known to the byte.
TaskPlan plan_of_bytes() {
  TaskPlan plan;
  plan.count_tokens = [](std::string_view text) { return static_cast<uint32_t>(text.size()); };
  return plan;
}

Task task_of(size_t prompt_bytes) {
  Task task;
  task.prompt = std::string(prompt_bytes, 'x');
  task.answer = " yes\n";
  task.max_tokens = 3;
  return task;
}

TEST(Deck, DealsAllBeforeItDealsOneAgain) {
  Deck deck(5, SplitMix(3));
  std::set<std::vector<size_t>> orders;
  for (int round = 0; round < 40; ++round) {
    std::vector<size_t> order(5);
    for (size_t& each : order) each = deck.deal();
    orders.insert(order);
    std::ranges::sort(order);
    EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3, 4}));
  }
  EXPECT_GT(orders.size(), 20u);  // of 120; the same order again and again would be 1
}

TEST(Draws, DependOnSeedNameAndIndex) {
  TaskPlan plan;
  const uint64_t first = draws_for(plan, "table", 0).next();
  EXPECT_EQ(draws_for(plan, "table", 0).next(), first);
  EXPECT_NE(draws_for(plan, "table", 1).next(), first);
  EXPECT_NE(draws_for(plan, "tables", 0).next(), first);
  plan.seed = 2;
  EXPECT_NE(draws_for(plan, "table", 0).next(), first);
}

TEST(Draws, PickedOnesAndNumbersDiffer) {
  SplitMix random(5);
  const std::vector<size_t> picked = pick(10, 12, random);
  EXPECT_EQ(std::set<size_t>(picked.begin(), picked.end()).size(), 10u);
  EXPECT_LT(*std::ranges::max_element(picked), 12u);
  EXPECT_EQ(pick(9, 4, random).size(), 4u);
  const std::vector<std::string> numbers = code_numbers(2000, random);
  EXPECT_EQ(std::set<std::string>(numbers.begin(), numbers.end()).size(), 2000u);
  for (const std::string& number : numbers) {
    EXPECT_EQ(number.size(), 4u);
    EXPECT_GE(number.front(), '3');
  }
}

TEST(Groups, HoldAllTasksOnce) {
  TaskPlan plan;
  plan.samples = 23;
  plan.context_tokens = 8192;
  uint32_t next = 0, long_tasks = 0, index = 0;
  for (const TaskGroup& group : groups_with_long_ones(plan)) {
    EXPECT_EQ(group.index, index++);
    EXPECT_EQ(group.first, next);
    EXPECT_GE(group.tasks, 1u);
    EXPECT_LE(group.tasks, group.length_tokens == 8192 ? 8u : 4u);
    next += group.tasks;
    if (group.length_tokens == 8192) long_tasks += group.tasks;
  }
  EXPECT_EQ(next, 23u);
  EXPECT_EQ(long_tasks, 5u);
  EXPECT_TRUE(groups_of(0, 100).empty());
}

TEST(Groups, ASixthOfShortTasksIsLongWhereTheContextIs) {
  TaskPlan plan;
  plan.context_tokens = 4096;
  plan.samples = 48;
  const std::vector<TaskGroup> groups = short_groups_with_long_ones(plan, 4);
  ASSERT_EQ(groups.size(), 11u);  // ten of four, one of eight
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(groups[i].index, i);
    EXPECT_EQ(groups[i].first, 4 * i);
    EXPECT_EQ(groups[i].tasks, 4u);
    EXPECT_EQ(groups[i].length_tokens, 0u);
  }
  EXPECT_EQ(groups[10].index, 10u);
  EXPECT_EQ(groups[10].first, 40u);
  EXPECT_EQ(groups[10].tasks, 8u);
  EXPECT_EQ(groups[10].length_tokens, 4096u);
  plan.context_tokens = 1024;
  EXPECT_EQ(short_groups_with_long_ones(plan, 1).size(), 48u);
}

TEST(Groups, NameTheirTasks) {
  Task task;
  task.family = "facts";
  put_in_group(task, {.index = 10, .first = 40, .tasks = 8, .length_tokens = 4096}, 3);
  EXPECT_EQ(task.id, "facts-4096-43");
  EXPECT_EQ(task.group, "facts-10");
  EXPECT_EQ(task.length_tokens, 4096u);
  Task alone;
  alone.family = "variables";
  put_in_group(alone, {.index = 7, .first = 7, .tasks = 1, .length_tokens = 0}, 0);
  EXPECT_EQ(alone.id, "variables-7");
  EXPECT_EQ(alone.group, "");
}

TEST(Fitted, TakesAsManyPiecesAsFitWithAnswerAndSpareTokens) {
  TaskPlan plan = plan_of_bytes();
  int calls = 0;
  plan.count_tokens = [&](std::string_view text) { return ++calls, static_cast<uint32_t>(text.size()); };
  const auto make = [](size_t pieces) { return std::vector<Task>{task_of(10 + 7 * pieces)}; };
  // 10 + 7 n + 5 (the answer) + 4 <= 100
  const std::vector<Task> tasks = fitted(plan, 100, 1000, make);
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].prompt.size(), 10u + 7 * 11);
  EXPECT_EQ(tasks[0].max_tokens, 5u);
  EXPECT_EQ(tasks[0].length_tokens, 10u + 7 * 11);
  EXPECT_LE(calls, 2 * 11);  // prompt and answer, halving 1000
  EXPECT_EQ(fitted(plan, 100, 3, make)[0].prompt.size(), 10u + 7 * 3);
  EXPECT_EQ(fitted(plan, 19, 1000, make)[0].prompt.size(), 10u);
  EXPECT_TRUE(fitted(plan, 18, 1000, make).empty());
}

TEST(Fitted, TheLongestTaskOfAGroupDecides) {
  const auto make = [](size_t pieces) { return std::vector<Task>{task_of(7 * pieces), task_of(7 * pieces + 20)}; };
  const std::vector<Task> tasks = fitted(plan_of_bytes(), 100, 1000, make);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[1].prompt.size(), 7u * 10 + 20);  // 7 n + 20 + 5 + 4 <= 100
}

TEST(Fitted, NoTasksWhereNoneAreMade) {
  const auto make = [](size_t pieces) { return std::vector<Task>(pieces < 4 ? 0 : 1, task_of(40 * pieces)); };
  EXPECT_TRUE(fitted(plan_of_bytes(), 100, 1000, make).empty());
}

}  // namespace
}  // namespace kvarto
