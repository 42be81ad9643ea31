// Variables that stand for variables, in chains of two steps to a number, all chains mixed. The answer is the way, so
// that a small model can go it step by step.
#include <string>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr size_t kChains = 3, kLinks = 3;  // lines of a chain, the number's first
constexpr std::string_view kHead =
    "Each program sets variables. The answer follows the variable that is asked for back to its number.\n"
    "Program:\n"
    "VAR river = 1204\n"
    "VAR north = 2716\n"
    "VAR winter = river\n"
    "VAR paper = 1593\n"
    "VAR sugar = north\n"
    "VAR honey = sugar\n"
    "VAR summer = paper\n"
    "VAR cloud = winter\n"
    "VAR island = summer\n"
    "Question: What is honey?\n"
    "Answer: honey = sugar, sugar = north, north = 2716\n"
    "Question: What is island?\n"
    "Answer: island = summer, summer = paper, paper = 1593\n"
    "Question: What is cloud?\n"
    "Answer: cloud = winter, winter = river, river = 1204\n"
    "Program:\n";

Task variables_task(SplitMix random, size_t asked) {
  const std::vector<size_t> words = pick(kChains * kLinks, objects().size(), random);
  const std::vector<std::string> numbers = code_numbers(kChains, random);
  const auto name = [&](size_t chain, size_t link) { return std::string(objects()[words[chain * kLinks + link]]); };

  std::vector<size_t> order;  // whose next line comes
  for (size_t i = 0; i < kChains * kLinks; ++i) order.push_back(i % kChains);
  random.shuffle(order);
  Task task;
  task.prompt = task.floor_prompt = kHead;
  size_t written[kChains] = {};
  for (const size_t chain : order) {
    const size_t link = written[chain]++;
    const std::string line =
        "VAR " + name(chain, link) + " = " + (link == 0 ? numbers[chain] : name(chain, link - 1)) + "\n";
    task.prompt += line;
    if (chain != asked) task.floor_prompt += line;
  }
  const std::string question = "Question: What is " + name(asked, 2) + "?\nAnswer: " + name(asked, 2) + " =";
  task.prompt += question;
  task.floor_prompt += question;
  task.family = "variables";
  task.skill = Skill::multi_hop;
  task.answer = " " + name(asked, 1) + ", " + name(asked, 1) + " = " + name(asked, 0) + ", " + name(asked, 0) + " = " +
                numbers[asked] + "\n";
  task.judge = Judge::first_line;
  task.max_tokens = 32;
  task.stop = {"\n"};
  return task;
}

}  // namespace

std::vector<Task> make_variables(const TaskPlan& plan) {
  std::vector<Task> tasks;
  Deck deck(kChains, draws_for(plan, "variables asked for", 0));
  for (uint32_t i = 0; i < plan.samples; ++i) {
    Task task = variables_task(draws_for(plan, "variables", i), deck.deal());
    task.id = "variables-" + std::to_string(i);
    append(tasks, fitted(plan, plan.context_tokens, 0, [&](size_t) { return std::vector<Task>{task}; }));
  }
  return tasks;
}

}  // namespace kvarto
