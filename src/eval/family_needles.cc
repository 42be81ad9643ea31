// Four needles of one kind in a haystack of some seven hundred tokens; one is asked for. The four tasks of a haystack
// ask for each of its needles once, in an order of their own.
#include <algorithm>
#include <utility>

#include "eval/family.h"
#include "eval/haystack.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr uint32_t kLongest = 768;

// Different things with different numbers, one in each quarter of the text.
struct Haystack {
  std::vector<std::string> pieces;
  std::vector<HiddenCode> hidden;
  std::vector<double> shares;  // where they stand
};

Haystack draw_haystack(const TaskPlan& plan, const TaskGroup& group) {
  Haystack haystack;
  haystack.pieces =
      filler_pieces(draws_for(plan, "haystack of needles", group.index), group.length_tokens / kFewestTokensPerPiece);
  SplitMix random = draws_for(plan, "needles", group.index);
  const std::vector<size_t> things = pick(kGroupTasks, objects().size(), random);
  const std::vector<size_t> kinds = pick(kGroupTasks, adjectives().size(), random);
  const std::vector<std::string> numbers = code_numbers(kGroupTasks, random);
  for (size_t i = 0; i < kGroupTasks; ++i) {
    const std::string thing = std::string(adjectives()[kinds[i]]) + " " + std::string(objects()[things[i]]);
    haystack.hidden.push_back({thing, numbers[i], 0});
    const double within = 0.1 + 0.8 * static_cast<double>(random.below(1000)) / 1000;
    haystack.shares.push_back((static_cast<double>(i) + within) / kGroupTasks);
  }
  return haystack;
}

}  // namespace

std::vector<Task> make_needles(const TaskPlan& plan) {
  std::vector<Task> tasks;
  Deck deck(kGroupTasks, draws_for(plan, "needles asked for", 0));
  for (const TaskGroup& group : groups_of(plan.samples, std::min(plan.context_tokens, kLongest))) {
    Haystack haystack = draw_haystack(plan, group);
    std::vector<size_t> asked(group.tasks);
    for (size_t& each : asked) each = deck.deal();
    append(tasks, fitted(plan, group.length_tokens, haystack.pieces.size(), [&](size_t count) {
             const std::span<const std::string> pieces = std::span(haystack.pieces).first(count);
             for (size_t i = 0; i < kGroupTasks; ++i) haystack.hidden[i].at = edge_at(pieces, haystack.shares[i]);
             std::vector<Task> made;
             for (size_t i = 0; i < asked.size(); ++i) {
               Task task = haystack_task(pieces, haystack.hidden, asked[i]);
               task.family = "needles";
               put_in_group(task, group, i);
               made.push_back(std::move(task));
             }
             return made;
           }));
  }
  return tasks;
}

}  // namespace kvarto
