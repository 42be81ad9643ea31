// A table of sixteen words with a number each; one is asked for. Four tasks share their table.
#include <string>
#include <utility>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr size_t kRows = 16;
constexpr std::string_view kHead =
    "Each table gives a number to every word. The answer is the number of the word that is asked for.\n"
    "Table:\n"
    "river: 1204\n"
    "summer: 2716\n"
    "bridge: 1593\n"
    "winter: 2048\n"
    "Question: Which number has the word bridge?\n"
    "Answer: 1593\n"
    "Question: Which number has the word river?\n"
    "Answer: 1204\n"
    "Table:\n";

Task table_task(SplitMix random, size_t asked) {
  const std::vector<size_t> words = pick(kRows, objects().size(), random);
  const std::vector<std::string> numbers = code_numbers(kRows, random);
  const std::string question =
      "Question: Which number has the word " + std::string(objects()[words[asked]]) + "?\nAnswer:";
  Task task;
  task.family = "table";
  task.skill = Skill::retrieval;
  task.prompt = task.floor_prompt = kHead;
  for (size_t i = 0; i < kRows; ++i) {
    const std::string row = std::string(objects()[words[i]]) + ": " + numbers[i] + "\n";
    task.prompt += row;
    if (i != asked) task.floor_prompt += row;
  }
  task.prompt += question;
  task.floor_prompt += question;
  task.answer = " " + numbers[asked] + "\n";
  task.judge = Judge::first_line;
  task.max_tokens = 12;
  task.stop = {"\n"};
  return task;
}

}  // namespace

std::vector<Task> make_table(const TaskPlan& plan) {
  std::vector<Task> tasks;
  Deck deck(kRows, draws_for(plan, "table rows", 0));
  for (const TaskGroup& group : groups_of(plan.samples, 0)) {
    std::vector<Task> made;
    for (size_t i = 0; i < group.tasks; ++i) {
      Task task = table_task(draws_for(plan, "table", group.index), deck.deal());
      put_in_group(task, group, i);
      made.push_back(std::move(task));
    }
    append(tasks, fitted(plan, plan.context_tokens, 0, [&](size_t) { return made; }));
  }
  return tasks;
}

}  // namespace kvarto
