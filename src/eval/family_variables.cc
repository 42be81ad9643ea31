// Variables that stand for variables, in chains of two steps to a number, all chains mixed. The answer is the way, so
// that a small model can go it step by step. Tasks of a long group share their program, whose lines stand among
// comments, as many as the context allows. No floor has comments.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr size_t kChains = 3;  // at least
constexpr size_t kLinks = 3;   // lines of a chain, the number's first
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

struct Program {
  std::vector<std::string> names;    // [chain * kLinks + link]
  std::vector<std::string> numbers;  // [chain]
  std::vector<size_t> order;         // the chains whose next lines come

  const std::string& name(size_t chain, size_t link) const { return names[chain * kLinks + link]; }
};

Program draw_program(size_t chains, SplitMix& random) {
  Program program;
  for (const size_t word : pick(chains * kLinks, objects().size(), random)) {
    program.names.push_back(std::string(objects()[word]));
  }
  program.numbers = code_numbers(chains, random);
  for (size_t i = 0; i < chains * kLinks; ++i) program.order.push_back(i % chains);
  random.shuffle(program.order);
  return program;
}

Task variables_task(const Program& program, std::span<const std::string> comments, size_t asked) {
  Task task;
  task.floor_prompt = kHead;
  std::vector<std::string> lines;
  std::vector<size_t> written(program.numbers.size());
  for (const size_t chain : program.order) {
    const size_t link = written[chain]++;
    lines.push_back("VAR " + program.name(chain, link) + " = " +
                    (link == 0 ? program.numbers[chain] : program.name(chain, link - 1)) + "\n");
    if (chain != asked) task.floor_prompt += lines.back();
  }
  const std::string& start = program.name(asked, 2);
  const std::string& middle = program.name(asked, 1);
  const std::string& end = program.name(asked, 0);
  const std::string question = "Question: What is " + start + "?\nAnswer: " + start + " =";
  task.prompt = std::string(kHead) + among_filler(lines, comments, "#") + question;
  task.floor_prompt += question;
  task.family = "variables";
  task.skill = Skill::multi_hop;
  task.answer = " " + middle + ", " + middle + " = " + end + ", " + end + " = " + program.numbers[asked] + "\n";
  task.judge = Judge::first_line;
  task.max_tokens = 32;
  task.stop = {"\n"};
  return task;
}

}  // namespace

std::vector<Task> make_variables(const TaskPlan& plan) {
  std::vector<Task> tasks;
  for (const TaskGroup& group : short_groups_with_long_ones(plan, 1)) {
    SplitMix random = draws_for(plan, "variables", group.index);
    const Program program = draw_program(std::max<size_t>(kChains, group.tasks), random);
    const std::vector<size_t> asked = pick(group.tasks, program.numbers.size(), random);
    const std::vector<std::string> comments = filler_sentences(draws_for(plan, "comments among variables", group.index),
                                                               group.length_tokens / kFewestTokensPerPiece);
    append(tasks, fitted(plan, plan.context_tokens, comments.size(), [&](size_t count) {
             std::vector<Task> made;
             for (size_t i = 0; i < asked.size(); ++i) {
               Task task = variables_task(program, std::span(comments).first(count), asked[i]);
               put_in_group(task, group, i);
               made.push_back(std::move(task));
             }
             return made;
           }));
  }
  return tasks;
}

}  // namespace kvarto
