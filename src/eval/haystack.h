// Haystacks: filler with facts of one kind between its sentences, and the question that asks for one of them. Shared by
// the families needle and needles. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "eval/random.h"
#include "eval/task.h"

namespace kvarto {

struct HiddenCode {
  std::string thing;   // "broken lantern"
  std::string number;  // "4821"
  size_t at = 0;       // it stands before this piece of the haystack
};
HiddenCode draw_hidden_code(SplitMix& random);

// The edge between two pieces that is nearest to `share` of their bytes.
size_t edge_at(std::span<const std::string> pieces, double share);

// Prompt, floor (the question behind a few sentences without codes), answer, how it is judged. `hidden` in ascending
// order of `at`; hidden[asked] is asked for.
Task haystack_task(std::span<const std::string> pieces, std::span<const HiddenCode> hidden, size_t asked);

}  // namespace kvarto
