#include "eval/task.h"

#include "eval/family.h"

namespace kvarto {
namespace {

constexpr Family kFamilies[] = {
    {"needle", Skill::retrieval, "one code in a long text, at five depths of up to four lengths", make_needle},
    {"needles", Skill::retrieval, "one of four codes of the same kind in a text", make_needles},
    {"table", Skill::retrieval, "one of sixteen words and its number", make_table},
    {"facts", Skill::multi_hop, "who works where and the code of that place, from two documents", make_facts},
    {"variables", Skill::multi_hop, "a variable followed over two others to its number", make_variables},
    {"sums", Skill::reasoning, "a story with one or two steps of arithmetic, worked out", make_sums},
    {"tool-call", Skill::structure, "a tool call as JSON, from a record far up", make_tool_call},
    {"code", Skill::structure, "a function of a long file, written again under another name", make_code},
};

}  // namespace

std::string_view skill_name(Skill skill) {
  switch (skill) {
    case Skill::retrieval:
      return "retrieval";
    case Skill::multi_hop:
      return "multi-hop";
    case Skill::reasoning:
      return "reasoning";
    case Skill::structure:
      return "structure";
    case Skill::own:
      return "own";
  }
  return "unknown";
}

std::span<const Family> families() { return kFamilies; }

}  // namespace kvarto
