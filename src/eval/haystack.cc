#include "eval/haystack.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "eval/words.h"

namespace kvarto {
namespace {

constexpr std::string_view kHead =
    "Each text names access codes. The answer is the code that the question asks for.\n"
    "Text: The bread was sold before the sun stood over the roofs. The access code of the marble bridge is 2716. A cat "
    "slept in the window until the rain had stopped. The access code of the steep tower is 1508. Nobody noticed.\n"
    "Question: What is the access code of the marble bridge?\n"
    "Answer: 2716\n"
    "Text:";

constexpr size_t kFloorPieces = 4;  // who knows nothing knows no more behind a long text

std::string text_of(std::span<const std::string> pieces, std::span<const HiddenCode> hidden) {
  std::string text;
  size_t next = 0;
  for (size_t piece = 0; piece <= pieces.size(); ++piece) {
    for (; next < hidden.size() && hidden[next].at <= piece; ++next) {
      text += " The access code of the " + hidden[next].thing + " is " + hidden[next].number + ".";
    }
    if (piece < pieces.size()) text += pieces[piece];
  }
  return text;
}

}  // namespace

HiddenCode draw_hidden_code(SplitMix& random) {
  HiddenCode code;
  code.thing = std::string(any(adjectives(), random)) + " " + std::string(any(objects(), random));
  code.number = std::to_string(random.between(3000, 9999));
  return code;
}

size_t edge_at(std::span<const std::string> pieces, double share) {
  size_t total = 0;
  for (const std::string& piece : pieces) total += piece.size();
  const double wanted = share * static_cast<double>(total);
  size_t best = 0, bytes = 0;
  double distance = wanted;
  for (size_t i = 0; i < pieces.size(); ++i) {
    bytes += pieces[i].size();
    const double here = std::abs(static_cast<double>(bytes) - wanted);
    if (here < distance) {
      best = i + 1;
      distance = here;
    }
  }
  return best;
}

Task haystack_task(std::span<const std::string> pieces, std::span<const HiddenCode> hidden, size_t asked) {
  const std::string question = "\nQuestion: What is the access code of the " + hidden[asked].thing + "?\nAnswer:";
  Task task;
  task.skill = Skill::retrieval;
  task.prompt = std::string(kHead) + text_of(pieces, hidden) + question;
  task.floor_prompt = std::string(kHead) + text_of(pieces.first(std::min(kFloorPieces, pieces.size())), {}) + question;
  task.answer = " " + hidden[asked].number + "\n";
  task.judge = Judge::first_line;
  task.max_tokens = 12;
  task.stop = {"\n"};
  return task;
}

}  // namespace kvarto
