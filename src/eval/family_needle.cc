// One needle in a haystack, at five depths of up to four lengths: the heat map. All tasks of a length share their
// filler, word for word, so that the prefix cache serves what stands before the needle.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "eval/family.h"
#include "eval/haystack.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr double kDepths[] = {0, 1, 0.5, 0.25, 0.75};
constexpr size_t kRowDepths = 3;  // the first of kDepths: a row where tasks are few
constexpr uint32_t kFewestTokens = 256;
// Tasks per depth of the longest length, of its half and so on: together some ten contexts of prompt tokens.
constexpr uint32_t kCopies[] = {1, 1, 1, 2};

struct Cell {
  uint32_t length = 0;
  double depth = 0;
  uint32_t copies = 1;
};

// The context, its half, quarter and eighth, none too short to hold a haystack; the longest first.
std::vector<uint32_t> lengths_of(uint32_t context) {
  std::vector<uint32_t> lengths;
  for (const uint32_t part : {1u, 2u, 4u, 8u}) {
    const uint32_t length = std::max(std::min(kFewestTokens, context), context / part);
    if (lengths.empty() || length < lengths.back()) lengths.push_back(length);
  }
  return lengths;
}

// At most `samples` tasks: all cells with their copies where that is enough, else one task per cell. Where not even
// that, rows of both ends and the middle, the longest first, then what stands between. By length, then by depth.
std::vector<Cell> cells_of(const TaskPlan& plan) {
  const std::vector<uint32_t> lengths = lengths_of(plan.context_tokens);
  std::vector<Cell> cells;
  uint32_t tasks = 0;
  const auto add_depths = [&](size_t from, size_t to) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (size_t depth = from; depth < to; ++depth) {
        cells.push_back({lengths[i], kDepths[depth], kCopies[i]});
        tasks += kCopies[i];
      }
    }
  };
  add_depths(0, kRowDepths);
  add_depths(kRowDepths, std::size(kDepths));
  const uint32_t rounds = plan.samples / tasks;
  cells.resize(std::min<size_t>(plan.samples, cells.size()));
  for (Cell& cell : cells) cell.copies = rounds > 0 ? cell.copies * rounds : 1;
  std::ranges::sort(cells, {}, [](const Cell& cell) { return std::pair(cell.length, cell.depth); });
  return cells;
}

struct Needle {
  HiddenCode code;
  double depth = 0;
  uint32_t copy = 0;
};

Task needle_task(std::span<const std::string> pieces, uint32_t length, const Needle& needle) {
  HiddenCode code = needle.code;
  code.at = edge_at(pieces, needle.depth);
  Task task = haystack_task(pieces, {&code, 1}, 0);
  task.family = "needle";
  task.id = "needle-" + std::to_string(length) + "-" + std::to_string(std::lround(needle.depth * 100)) + "-" +
            std::to_string(needle.copy);
  task.length_tokens = length;
  task.depth = needle.depth;
  return task;
}

std::vector<Task> tasks_of_length(const TaskPlan& plan, uint32_t length, const std::vector<Needle>& needles) {
  const std::vector<std::string> pieces =
      filler_pieces(draws_for(plan, "haystack", length), length / kFewestTokensPerPiece);
  return fitted(plan, length, pieces.size(), [&](size_t count) {
    std::vector<Task> tasks;
    for (const Needle& needle : needles) {
      tasks.push_back(needle_task(std::span(pieces).first(count), length, needle));
    }
    return tasks;
  });
}

}  // namespace

std::vector<Task> make_needle(const TaskPlan& plan) {
  SplitMix random = draws_for(plan, "needle", 0);
  const std::vector<Cell> cells = cells_of(plan);
  std::vector<Task> tasks;
  for (size_t i = 0; i < cells.size();) {
    const uint32_t length = cells[i].length;
    std::vector<Needle> needles;
    for (; i < cells.size() && cells[i].length == length; ++i) {
      for (uint32_t copy = 0; copy < cells[i].copies; ++copy) {
        needles.push_back({draw_hidden_code(random), cells[i].depth, copy});
      }
    }
    append(tasks, tasks_of_length(plan, length, needles));
  }
  return tasks;
}

}  // namespace kvarto
