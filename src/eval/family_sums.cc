// Short stories with one or two steps of arithmetic on small numbers. The answer works the steps out, as the examples
// in front do, one for each kind of story, and is judged by its last number.
#include <array>
#include <iterator>
#include <optional>
#include <string>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr std::string_view kHead =
    "Each answer works out the steps. It ends with the number that is asked for.\n"
    "Question: Ruth has 13 apples. Ruth buys 4 apples. How many apples does Ruth have now?\n"
    "Answer: 13 + 4 = 17\n"
    "Question: Hugo has 18 pears. Hugo sells 5 pears. How many pears are left?\n"
    "Answer: 18 - 5 = 13\n"
    "Question: There are 3 boxes. Ruth puts 4 plums in each box. How many plums are there in all?\n"
    "Answer: 3 * 4 = 12\n"
    "Question: Hugo has 12 nuts. Hugo buys 6 nuts and sells 3 nuts. How many nuts does Hugo have now?\n"
    "Answer: 12 + 6 = 18, 18 - 3 = 15\n"
    "Question: Ruth has 15 lemons. Ruth buys 4 lemons and 2 lemons. How many lemons does Ruth have now?\n"
    "Answer: 15 + 4 = 19, 19 + 2 = 21\n"
    "Question: Hugo has 19 figs. Hugo sells 6 figs and 5 figs. How many figs are left?\n"
    "Answer: 19 - 6 = 13, 13 - 5 = 8\n";

// Slots: {n} who, {t} things, {1} to {3} numbers. `steps`: what is done with number 2 and 3.
struct Story {
  std::string_view told, asked, steps;
};
constexpr Story kStories[] = {
    {"{n} has {1} {t}. {n} buys {2} {t}.", "How many {t} does {n} have now?", "+"},
    {"{n} has {1} {t}. {n} sells {2} {t}.", "How many {t} are left?", "-"},
    {"There are {1} boxes. {n} puts {2} {t} in each box.", "How many {t} are there in all?", "*"},
    {"{n} has {1} {t}. {n} buys {2} {t} and sells {3} {t}.", "How many {t} does {n} have now?", "+-"},
    {"{n} has {1} {t}. {n} buys {2} {t} and {3} {t}.", "How many {t} does {n} have now?", "++"},
    {"{n} has {1} {t}. {n} sells {2} {t} and {3} {t}.", "How many {t} are left?", "--"},
};
constexpr std::string_view kThings[] = {"stamps", "marbles", "shells",  "buttons",   "cards",   "coins",   "stickers",
                                        "beads",  "candles", "pencils", "eggs",      "rolls",   "tickets", "flowers",
                                        "books",  "stones",  "ribbons", "postcards", "carrots", "cookies"};

using Numbers = std::array<int64_t, 3>;

Numbers draw_numbers(std::string_view steps, SplitMix& random) {
  const bool product = steps.front() == '*';
  const int64_t first = product ? random.between(2, 4) : random.between(11, 20);
  return {first, random.between(2, product ? 6 : 8), random.between(2, 5)};
}

// "12 + 7 = 19, 19 - 5 = 14"; nothing where a step leaves [2, 30].
std::optional<std::string> worked_out(std::string_view steps, const Numbers& numbers) {
  std::string text;
  int64_t value = numbers[0];
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t by = numbers[i + 1];
    const int64_t result = steps[i] == '+' ? value + by : steps[i] == '-' ? value - by : value * by;
    if (result < 2 || result > 30) return std::nullopt;
    text += (i > 0 ? ", " : "") + std::to_string(value) + " " + steps[i] + " " + std::to_string(by) + " = " +
            std::to_string(result);
    value = result;
  }
  return text;
}

Task sums_task(SplitMix random, const Story& story) {
  const std::string who{any(first_names(), random)};
  const std::string things{any(kThings, random)};
  Numbers numbers = draw_numbers(story.steps, random);
  std::optional<std::string> answer = worked_out(story.steps, numbers);
  while (!answer) {
    numbers = draw_numbers(story.steps, random);
    answer = worked_out(story.steps, numbers);
  }
  const auto word = [&](char slot) -> std::string {
    if (slot == 't') return things;
    if (slot == 'n') return who;
    return std::to_string(numbers[static_cast<size_t>(slot - '1')]);
  };
  const std::string asked = filled(story.asked, word) + "\nAnswer:";
  Task task;
  task.family = "sums";
  task.skill = Skill::reasoning;
  task.prompt = task.floor_prompt = kHead;
  task.prompt += "Question: " + filled(story.told, word) + " " + asked;
  task.floor_prompt += "Question: " + asked;
  task.answer = " " + *answer + "\n";
  task.judge = Judge::last_number;
  task.max_tokens = 40;
  task.stop = {"\n"};
  return task;
}

}  // namespace

std::vector<Task> make_sums(const TaskPlan& plan) {
  std::vector<Task> tasks;
  Deck deck(std::size(kStories), draws_for(plan, "stories", 0));
  for (uint32_t i = 0; i < plan.samples; ++i) {
    Task task = sums_task(draws_for(plan, "sums", i), kStories[deck.deal()]);
    task.id = "sums-" + std::to_string(i);
    append(tasks, fitted(plan, plan.context_tokens, 0, [&](size_t) { return std::vector<Task>{task}; }));
  }
  return tasks;
}

}  // namespace kvarto
