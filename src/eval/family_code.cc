// A file of many functions: one of them is to be written again under another name. As many functions as the length
// allows; tasks of a group share them. Their floor is a file of a few, none that the group asks for.
#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr uint32_t kFewestTokensPerFunction = 30;
constexpr size_t kMiddleSteps = 2;  // of a function
constexpr size_t kFloorFunctions = 4;
constexpr std::string_view kHead =
    "\"\"\"Functions on numbers. A twin takes the same steps as its original, under another name.\"\"\"\n"
    "def sort_bridge(value):\n"
    "    total = value * 31 + 14\n"
    "    if total > 75:\n"
    "        total = total - 26\n"
    "    for step in range(8):\n"
    "        total = total + step * 9\n"
    "    return total % 97\n"
    "# The twin of sort_bridge: the same steps.\n"
    "def sort_bridge_twin(value):\n"
    "    total = value * 31 + 14\n"
    "    if total > 75:\n"
    "        total = total - 26\n"
    "    for step in range(8):\n"
    "        total = total + step * 9\n"
    "    return total % 97\n";
constexpr std::string_view kVerbs[] = {"fold", "pack", "weigh", "polish", "count", "lift", "mend",  "carry",
                                       "hide", "sell", "paint", "turn",   "clean", "hang", "shift", "store"};
// {x} is a number of its own each time.
constexpr std::string_view kSteps[] = {
    "    if total > {x}:\n        total = total - {x}\n",
    "    for step in range({x}):\n        total = total + step * {x}\n",
    "    while total > {x}:\n        total = total // {x}\n",
    "    rest = total % {x}\n    total = total + rest * {x}\n",
    "    total = abs(total - {x})\n",
    "    if value % {x} == 0:\n        total = total * {x}\n",
    "    limit = min(total, {x})\n    total = limit + {x}\n",
    "    total = max(total, {x}) - {x}\n",
};

struct Function {
  std::string name, body;
  std::string text() const { return "def " + name + "(value):\n" + body; }
};

std::string draw_body(SplitMix& random) {
  std::string pattern = "    total = value * {x} + {x}\n";
  for (const size_t step : pick(kMiddleSteps, std::size(kSteps), random)) pattern += kSteps[step];
  pattern += "    return total % {x}\n";
  return filled(pattern, [&](char) { return std::to_string(random.between(2, 99)); });
}

std::vector<Function> draw_functions(SplitMix random, size_t most) {
  const Words things = objects();
  const std::vector<size_t> names = pick(most, std::size(kVerbs) * things.size(), random);
  std::vector<Function> functions;
  for (const size_t name : names) {
    const std::string verb{kVerbs[name / things.size()]}, thing{things[name % things.size()]};
    functions.push_back({verb + "_" + thing, draw_body(random)});
  }
  return functions;
}

Task code_task(std::span<const Function> functions, std::span<const size_t> all_asked, size_t asked) {
  const Function& original = functions[asked];
  const std::string twin =
      "# The twin of " + original.name + ": the same steps.\ndef " + original.name + "_twin(value):\n";
  Task task;
  task.family = "code";
  task.skill = Skill::structure;
  task.prompt = task.floor_prompt = kHead;
  size_t in_floor = 0;
  for (size_t i = 0; i < functions.size(); ++i) {
    const std::string text = functions[i].text();
    task.prompt += text;
    if (in_floor == kFloorFunctions || std::ranges::find(all_asked, i) != all_asked.end()) continue;
    task.floor_prompt += text;
    ++in_floor;
  }
  task.prompt += twin;
  task.floor_prompt += twin;
  task.answer = original.body;
  task.judge = Judge::code;
  task.max_tokens = 96;
  task.stop = {"\n\n", "\ndef", "\n#"};
  return task;
}

}  // namespace

std::vector<Task> make_code(const TaskPlan& plan) {
  std::vector<Task> tasks;
  for (const TaskGroup& group : groups_with_long_ones(plan)) {
    const std::vector<Function> functions =
        draw_functions(draws_for(plan, "functions", group.index), group.length_tokens / kFewestTokensPerFunction + 1);
    SplitMix random = draws_for(plan, "code", group.index);
    const size_t parts = std::max(group.tasks, kGroupTasks);
    const std::vector<size_t> part = pick(parts, parts, random);
    std::vector<double> shares;  // where in its part of the file each task's function stands
    for (size_t i = 0; i < parts; ++i) shares.push_back(static_cast<double>(random.below(1000)) / 1000);
    append(tasks, fitted(plan, group.length_tokens, functions.size(), [&](size_t count) {
             std::vector<Task> made;
             if (count < parts) return made;  // too short to hide a function among others
             std::vector<size_t> asked;
             for (size_t i = 0; i < group.tasks; ++i) {
               const size_t from = part[i] * count / parts, to = (part[i] + 1) * count / parts;
               asked.push_back(from + static_cast<size_t>(shares[i] * static_cast<double>(to - from)));
             }
             for (size_t i = 0; i < group.tasks; ++i) {
               Task task = code_task(std::span(functions).first(count), asked, asked[i]);
               put_in_group(task, group, i);
               made.push_back(std::move(task));
             }
             return made;
           }));
  }
  return tasks;
}

}  // namespace kvarto
