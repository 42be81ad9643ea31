#include "eval/family.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace kvarto {
namespace {

// Whether `task` stays within `limit`. Its room to generate grows to what the answer needs.
bool fits(const TaskPlan& plan, uint32_t limit, Task& task) {
  const uint32_t prompt_tokens = plan.count_tokens(task.prompt);
  task.max_tokens = std::max(task.max_tokens, plan.count_tokens(task.answer));
  if (task.length_tokens == 0) task.length_tokens = prompt_tokens;
  return uint64_t{prompt_tokens} + task.max_tokens + kSpareTokens <= limit;
}

uint64_t hash_of(std::string_view text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// `more` behind `groups`, which hold the tasks before `first`.
void append_groups(std::vector<TaskGroup>& groups, uint32_t first, const std::vector<TaskGroup>& more) {
  for (TaskGroup group : more) {
    group.index = static_cast<uint32_t>(groups.size());
    group.first += first;
    groups.push_back(group);
  }
}

}  // namespace

SplitMix draws_for(const TaskPlan& plan, std::string_view what, uint64_t index) {
  return SplitMix(splitmix_at(splitmix_at(plan.seed, hash_of(what)), index + 1));
}

Deck::Deck(size_t size, SplitMix random) : order_(size), dealt_(size), random_(random) {
  for (size_t i = 0; i < size; ++i) order_[i] = i;
}

size_t Deck::deal() {
  if (dealt_ == order_.size()) {
    random_.shuffle(order_);
    dealt_ = 0;
  }
  return order_[dealt_++];
}

std::vector<size_t> pick(size_t count, size_t size, SplitMix& random) {
  std::vector<size_t> all(size);
  for (size_t i = 0; i < size; ++i) all[i] = i;
  random.shuffle(all);
  all.resize(std::min(count, size));
  return all;
}

std::vector<std::string> code_numbers(size_t count, SplitMix& random) {
  std::set<int64_t> seen;
  std::vector<std::string> numbers;
  while (numbers.size() < count) {
    const int64_t number = random.between(3000, 9999);
    if (seen.insert(number).second) numbers.push_back(std::to_string(number));
  }
  return numbers;
}

std::vector<TaskGroup> groups_of(uint32_t tasks, uint32_t length_tokens, uint32_t group_tasks) {
  std::vector<TaskGroup> groups;
  for (uint32_t first = 0; first < tasks; first += group_tasks) {
    groups.push_back({first / group_tasks, first, std::min(group_tasks, tasks - first), length_tokens});
  }
  return groups;
}

std::vector<TaskGroup> groups_with_long_ones(const TaskPlan& plan) {
  const uint32_t long_tasks = plan.samples / 4, usual_tasks = plan.samples - long_tasks;
  const uint32_t long_group = plan.context_tokens > kMuch ? kMostGroupTasks : kGroupTasks;
  std::vector<TaskGroup> groups = groups_of(usual_tasks, std::min(plan.context_tokens, kUsualTokens));
  append_groups(groups, usual_tasks, groups_of(long_tasks, plan.context_tokens, long_group));
  return groups;
}

std::vector<TaskGroup> short_groups_with_long_ones(const TaskPlan& plan, uint32_t group_tasks) {
  const uint32_t long_tasks = plan.context_tokens > kMuch ? plan.samples / 6 : 0;
  const uint32_t short_tasks = plan.samples - long_tasks;
  std::vector<TaskGroup> groups = groups_of(short_tasks, 0, group_tasks);
  append_groups(groups, short_tasks, groups_of(long_tasks, plan.context_tokens, kMostGroupTasks));
  return groups;
}

void put_in_group(Task& task, const TaskGroup& group, size_t i) {
  const std::string length = group.length_tokens > 0 ? std::to_string(group.length_tokens) + "-" : "";
  task.id = task.family + "-" + length + std::to_string(group.first + i);
  if (group.tasks > 1) task.group = task.family + "-" + std::to_string(group.index);
  task.length_tokens = group.length_tokens;
}

std::vector<Task> fitted(const TaskPlan& plan, uint32_t limit, size_t most,
                         const std::function<std::vector<Task>(size_t pieces)>& make) {
  size_t enough = 0, too_many = most + 1;
  while (too_many - enough > 1) {
    const size_t middle = enough + (too_many - enough) / 2;
    std::vector<Task> tasks = make(middle);
    (tasks.empty() || fits(plan, limit, tasks.front()) ? enough : too_many) = middle;
  }
  // The first task's length has been found; others with longer words may need a piece less.
  for (size_t pieces = enough + 1; pieces-- > 0;) {
    std::vector<Task> tasks = make(pieces);
    if (std::ranges::all_of(tasks, [&](Task& task) { return fits(plan, limit, task); })) return tasks;
  }
  return {};
}

void append(std::vector<Task>& tasks, std::vector<Task> more) {
  tasks.insert(tasks.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace kvarto
