// Two facts joined, among documents about others: who works where, and the code of where they work. The answer says
// both in the documents' words, so that a small model can go the way in two steps. Tasks of a group share their
// documents; those of a long group stand among notes, as many as the context allows. No floor has notes.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr size_t kPeople = 4;  // at least, and as many departments, one each
constexpr std::string_view kHead =
    "The documents tell where people work and which code each department has. The answer goes from "
    "the person to the department and from there to the code.\n"
    "Document: The Forest department is in Southend. The Forest department's code is 1593.\n"
    "Document: Ruth Amsel is a cook. Ruth Amsel works in the Copper department.\n"
    "Document: The Copper department is in Hilltown. The Copper department's code is 2716.\n"
    "Document: Hugo Stern is a pilot. Hugo Stern works in the Forest department.\n"
    "Question: What is the code of the department of Ruth Amsel?\n"
    "Answer: Ruth Amsel works in the Copper, and the Copper department's code is 2716\n"
    "Question: What is the code of the department of Hugo Stern?\n"
    "Answer: Hugo Stern works in the Forest, and the Forest department's code is 1593\n";

// What a document says of its subject, and the fact in it that a question may be about. The floor has no facts at all,
// so that tasks that share their documents share it, too.
struct Document {
  std::string opening, fact;
};

struct People {
  std::vector<std::string> names, departments, codes;
};

People draw_people(size_t count, SplitMix& random) {
  People people;
  const std::vector<size_t> first = pick(count, first_names().size(), random);
  const std::vector<size_t> last = pick(count, last_names().size(), random);
  const std::vector<size_t> where = pick(count, departments().size(), random);
  for (size_t i = 0; i < count; ++i) {
    people.names.push_back(std::string(first_names()[first[i]]) + " " + std::string(last_names()[last[i]]));
    people.departments.push_back(std::string(departments()[where[i]]));
  }
  people.codes = code_numbers(count, random);
  return people;
}

std::vector<Document> draw_documents(const People& people, SplitMix& random) {
  std::vector<Document> documents;
  for (size_t i = 0; i < people.names.size(); ++i) {
    const std::string& name = people.names[i];
    const std::string department = "The " + people.departments[i] + " department";
    documents.push_back({name + " is a " + std::string(any(professions(), random)) + ".",
                         " " + name + " works in the " + people.departments[i] + " department."});
    documents.push_back({department + " is in " + std::string(any(places(), random)) + ".",
                         " " + department + "'s code is " + people.codes[i] + "."});
  }
  random.shuffle(documents);
  return documents;
}

Task facts_task(const People& people, std::span<const Document> documents, std::span<const std::string> notes,
                size_t asked) {
  const std::string question = "Question: What is the code of the department of " + people.names[asked] +
                               "?\nAnswer: " + people.names[asked] + " works in the";
  Task task;
  task.family = "facts";
  task.skill = Skill::multi_hop;
  task.floor_prompt = kHead;
  std::vector<std::string> lines;
  for (const Document& document : documents) {
    lines.push_back("Document: " + document.opening + document.fact + "\n");
    task.floor_prompt += "Document: " + document.opening + "\n";
  }
  task.prompt = std::string(kHead) + among_filler(lines, notes, "Note:") + question;
  task.floor_prompt += question;
  const std::string& department = people.departments[asked];
  task.answer = " " + department + ", and the " + department + " department's code is " + people.codes[asked] + "\n";
  task.judge = Judge::first_line;
  task.max_tokens = 32;
  task.stop = {"\n"};
  return task;
}

}  // namespace

std::vector<Task> make_facts(const TaskPlan& plan) {
  std::vector<Task> tasks;
  for (const TaskGroup& group : short_groups_with_long_ones(plan, kGroupTasks)) {
    SplitMix random = draws_for(plan, "facts", group.index);
    const People people = draw_people(std::max<size_t>(kPeople, group.tasks), random);
    const std::vector<Document> documents = draw_documents(people, random);
    const std::vector<size_t> asked = pick(group.tasks, people.names.size(), random);
    const std::vector<std::string> notes = filler_sentences(draws_for(plan, "notes among facts", group.index),
                                                            group.length_tokens / kFewestTokensPerPiece);
    append(tasks, fitted(plan, plan.context_tokens, notes.size(), [&](size_t count) {
             std::vector<Task> made;
             for (size_t i = 0; i < asked.size(); ++i) {
               Task task = facts_task(people, documents, std::span(notes).first(count), asked[i]);
               put_in_group(task, group, i);
               made.push_back(std::move(task));
             }
             return made;
           }));
  }
  return tasks;
}

}  // namespace kvarto
