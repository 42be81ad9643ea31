// What families of tasks share: draws that do not disturb each other, decks, numbers, groups of tasks with one text,
// fitting to a length; and the families' makers, one file each. Pure functions, any thread; a Deck belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/random.h"
#include "eval/task.h"

namespace kvarto {

std::vector<Task> make_needle(const TaskPlan& plan);
std::vector<Task> make_needles(const TaskPlan& plan);
std::vector<Task> make_table(const TaskPlan& plan);
std::vector<Task> make_facts(const TaskPlan& plan);
std::vector<Task> make_variables(const TaskPlan& plan);
std::vector<Task> make_sums(const TaskPlan& plan);
std::vector<Task> make_tool_call(const TaskPlan& plan);
std::vector<Task> make_code(const TaskPlan& plan);

// Tokens of a prompt that stay free: a BOS, and what joins differently where prompt and answer meet.
inline constexpr uint32_t kSpareTokens = 4;
// No sentence of filler has fewer: it bounds how many a length can take.
inline constexpr uint32_t kFewestTokensPerPiece = 6;

// The draws of one thing (a text, a task) of a family: those of another thing are others.
SplitMix draws_for(const TaskPlan& plan, std::string_view what, uint64_t index);

// Deals [0, size) in an order of its own, then again in another.
class Deck {
 public:
  Deck(size_t size, SplitMix random);
  size_t deal();

 private:
  std::vector<size_t> order_;
  size_t dealt_ = 0;
  SplitMix random_;
};

// `count` different ones of [0, size), in drawn order.
std::vector<size_t> pick(size_t count, size_t size, SplitMix& random);
// Different numbers of four digits, 3000 or more: worked examples use those below.
std::vector<std::string> code_numbers(size_t count, SplitMix& random);

// Tasks [first, first + tasks) of a family. They share their text: the prefix cache holds most of their prompts.
struct TaskGroup {
  uint32_t index = 0, first = 0, tasks = 0;
  uint32_t length_tokens = 0;  // to be filled to; 0: as short as the text is
};
inline constexpr uint32_t kGroupTasks = 4;
std::vector<TaskGroup> groups_of(uint32_t tasks, uint32_t length_tokens, uint32_t group_tasks = kGroupTasks);
// Three quarters of the tasks about kUsualTokens long, a quarter as long as the context allows. Where that is more than
// kMuch, more tasks share a text, since it costs most.
inline constexpr uint32_t kUsualTokens = 850, kMuch = 2 * kUsualTokens, kMostGroupTasks = 8;
std::vector<TaskGroup> groups_with_long_ones(const TaskPlan& plan);
// Tasks as short as their texts are, but for a sixth as long as the context allows, where that is more than kMuch.
std::vector<TaskGroup> short_groups_with_long_ones(const TaskPlan& plan, uint32_t group_tasks);
// Task `i` of its group: its id, the group's name where it has several tasks, the length it was made for. `task` has
// its family.
void put_in_group(Task& task, const TaskGroup& group, size_t i);

// The tasks that `make` makes with as many pieces, of at most `most`, as let each of them stay within `limit` tokens
// with its answer and with what may be generated; none when even no piece fits, or when `make` makes none of so few.
// Draws are done before: the tokenizer decides about lengths alone.
std::vector<Task> fitted(const TaskPlan& plan, uint32_t limit, size_t most,
                         const std::function<std::vector<Task>(size_t pieces)>& make);

void append(std::vector<Task>& tasks, std::vector<Task> more);

}  // namespace kvarto
