// Two facts joined, among documents about others: who works where, and the code of where they work. The answer says
// both in the documents' words, so that a small model can go the way in two steps.
#include <string>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr size_t kPeople = 4;  // and as many departments, one each
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

// What a document says of its subject, and the fact in it that a question may be about.
struct Document {
  std::string opening, fact;
  size_t about = 0;  // index of the person, or of the one who works there
};

struct People {
  std::vector<std::string> names, departments, codes;
};

People draw_people(SplitMix& random) {
  People people;
  const std::vector<size_t> first = pick(kPeople, first_names().size(), random);
  const std::vector<size_t> last = pick(kPeople, last_names().size(), random);
  const std::vector<size_t> where = pick(kPeople, departments().size(), random);
  for (size_t i = 0; i < kPeople; ++i) {
    people.names.push_back(std::string(first_names()[first[i]]) + " " + std::string(last_names()[last[i]]));
    people.departments.push_back(std::string(departments()[where[i]]));
  }
  people.codes = code_numbers(kPeople, random);
  return people;
}

std::vector<Document> draw_documents(const People& people, SplitMix& random) {
  std::vector<Document> documents;
  for (size_t i = 0; i < kPeople; ++i) {
    const std::string& name = people.names[i];
    const std::string department = "The " + people.departments[i] + " department";
    documents.push_back({name + " is a " + std::string(any(professions(), random)) + ".",
                         " " + name + " works in the " + people.departments[i] + " department.", i});
    documents.push_back({department + " is in " + std::string(any(places(), random)) + ".",
                         " " + department + "'s code is " + people.codes[i] + ".", i});
  }
  random.shuffle(documents);
  return documents;
}

Task facts_task(SplitMix random, size_t asked) {
  const People people = draw_people(random);
  const std::string question = "Question: What is the code of the department of " + people.names[asked] +
                               "?\nAnswer: " + people.names[asked] + " works in the";
  Task task;
  task.family = "facts";
  task.skill = Skill::multi_hop;
  task.prompt = task.floor_prompt = kHead;
  for (const Document& document : draw_documents(people, random)) {
    task.prompt += "Document: " + document.opening + document.fact + "\n";
    task.floor_prompt += "Document: " + document.opening + (document.about == asked ? "" : document.fact) + "\n";
  }
  task.prompt += question;
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
  Deck deck(kPeople, draws_for(plan, "facts asked for", 0));
  for (uint32_t i = 0; i < plan.samples; ++i) {
    Task task = facts_task(draws_for(plan, "facts", i), deck.deal());
    task.id = "facts-" + std::to_string(i);
    append(tasks, fitted(plan, plan.context_tokens, 0, [&](size_t) { return std::vector<Task>{task}; }));
  }
  return tasks;
}

}  // namespace kvarto
