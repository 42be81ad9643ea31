// Task: one question whose right answer is known. Families make tasks from a seed: own words, own sentences, nothing of
// a tokenizer but the length of a prompt. The same plan gives the same tasks, byte for byte. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvarto {

// What a verdict is about.
enum class Skill : uint8_t { retrieval, multi_hop, reasoning, structure, own };
inline constexpr Skill kSkills[] = {Skill::retrieval, Skill::multi_hop, Skill::reasoning, Skill::structure, Skill::own};
std::string_view skill_name(Skill skill);  // "multi-hop"

// How generated text is told right from wrong; see judge.h.
enum class Judge : uint8_t {
  first_line,   // the first line is the answer, white space around both left out
  contains,     // the answer is in the text, in any case
  last_number,  // the last whole number of the text is the answer's last one (thousands' commas left out)
  json,         // the text's first line, parsed, equals the answer, parsed; keys in any order
  code,         // the text up to its end of function equals the answer: same tokens, whatever the white space
  agreement,    // there is no answer: what the baseline wrote is measured, and right is who writes the same
};

struct Task {
  std::string family;
  std::string id;     // unique in a run: "needle-2048-50-0"
  std::string group;  // tasks of one group share their text: they are drawn together. Empty: a group of its own
  Skill skill = Skill::retrieval;
  std::string prompt;        // text that a model continues as it stands; empty when there are messages
  std::string messages;      // JSON array of {"role", "content"}, for the chat template; of own tasks only
  std::string answer;        // what should follow, with the white space in front and the line end behind it
  std::string floor_prompt;  // the same question without what answers it: how likely is the answer to who knows
                             // nothing? Empty: no floor
  Judge judge = Judge::first_line;
  uint32_t max_tokens = 32;       // of generated text
  std::vector<std::string> stop;  // generated text ends before one of these
  uint32_t length_tokens = 0;     // the length it was made for; with `depth` its place on the heat map
  std::optional<double> depth;    // [0, 1]: where what is asked for stands
};

struct TaskPlan {
  uint64_t seed = 1;
  uint32_t samples = 40;           // tasks of a family (of one with a heat map: per length and depth, fewer)
  uint32_t context_tokens = 4096;  // no prompt with its answer is longer
  std::function<uint32_t(std::string_view text)> count_tokens;
};

struct Family {
  std::string_view name;
  Skill skill;
  std::string_view summary;  // one line, for help and report
  std::vector<Task> (*make)(const TaskPlan& plan);
};
// All families, in the order of running. One family: a file, its declaration in family.h and a row here.
std::span<const Family> families();

}  // namespace kvarto
