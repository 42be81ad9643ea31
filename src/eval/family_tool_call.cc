// A tool call as one line of JSON: the request names a person, whose record holds what the call needs. Filler stands
// between the records, as much as the length allows. Tasks of a group share their records, and what is before the
// question of their floors: no filler, and none of the records that they ask for.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "eval/family.h"
#include "eval/words.h"

namespace kvarto {
namespace {

constexpr size_t kRecords = 8, kTools = 4;
static_assert(kRecords >= kMostGroupTasks);
constexpr std::string_view kHead =
    "Tools:\n"
    "send_parcel(customer_id, city, weight_kg)\n"
    "plan_visit(customer_id, city, day)\n"
    "open_ticket(customer_id, desk, subject)\n"
    "create_order(customer_id, desk, item, quantity)\n"
    "Every request is answered by one tool call. What it does not say is in the records.\n"
    "Records:\n"
    "{\"name\": \"Ruth Amsel\", \"id\": 2716, \"city\": \"Hilltown\", \"desk\": \"A15\"}\n"
    "{\"name\": \"Hugo Stern\", \"id\": 1593, \"city\": \"Southend\", \"desk\": \"B28\"}\n"
    "Request: Create an order of 3 round tables for Ruth Amsel.\n"
    "Call: {\"tool\": \"create_order\", \"arguments\": {\"customer_id\": 2716, \"desk\": \"A15\", \"item\": \"round "
    "tables\", \"quantity\": 3}}\n"
    "Request: Open a ticket for Hugo Stern about a window.\n"
    "Call: {\"tool\": \"open_ticket\", \"arguments\": {\"customer_id\": 1593, \"desk\": \"B28\", \"subject\": "
    "\"window\"}}\n"
    "Request: Plan a visit to Hugo Stern on Friday.\n"
    "Call: {\"tool\": \"plan_visit\", \"arguments\": {\"customer_id\": 1593, \"city\": \"Southend\", \"day\": "
    "\"Friday\"}}\n"
    "Request: Send a parcel of 4 kg to Ruth Amsel.\n"
    "Call: {\"tool\": \"send_parcel\", \"arguments\": {\"customer_id\": 2716, \"city\": \"Hilltown\", \"weight_kg\": "
    "4}}\n"
    "Records:\n";
constexpr std::string_view kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday"};

struct Record {
  std::string name, id, city, desk;
};

std::string in_quotes(const std::string& text) { return "\"" + text + "\""; }

std::string line_of(const Record& record) {
  return "{\"name\": " + in_quotes(record.name) + ", \"id\": " + record.id + ", \"city\": " + in_quotes(record.city) +
         ", \"desk\": " + in_quotes(record.desk) + "}\n";
}

// A request and the arguments of its call that are not the customer's id.
struct ToolRequest {
  size_t record = 0;
  std::string text, tool, arguments;
};

ToolRequest draw_request(size_t tool, size_t record, const Record& who, SplitMix& random) {
  const std::string number = std::to_string(random.between(2, 9));
  const std::string object{any(objects(), random)}, colour{any(colours(), random)}, day{any(kDays, random)};
  const std::string things = colour + " " + object + "s";
  const std::string city = "\"city\": " + in_quotes(who.city), desk = "\"desk\": " + in_quotes(who.desk);
  switch (tool) {
    case 0:
      return {record, "Send a parcel of " + number + " kg to " + who.name + ".", "send_parcel",
              city + ", \"weight_kg\": " + number};
    case 1:
      return {record, "Plan a visit to " + who.name + " on " + day + ".", "plan_visit",
              city + ", \"day\": " + in_quotes(day)};
    case 2:
      return {record, "Open a ticket for " + who.name + " about a " + object + ".", "open_ticket",
              desk + ", \"subject\": " + in_quotes(object)};
    default:
      return {record, "Create an order of " + number + " " + things + " for " + who.name + ".", "create_order",
              desk + ", \"item\": " + in_quotes(things) + ", \"quantity\": " + number};
  }
}

std::vector<Record> draw_records(SplitMix& random) {
  const std::vector<size_t> first = pick(kRecords, first_names().size(), random);
  const std::vector<size_t> last = pick(kRecords, last_names().size(), random);
  const std::vector<size_t> cities = pick(kRecords, places().size(), random);
  const std::vector<size_t> desks = pick(kRecords, 80, random);
  const std::vector<std::string> ids = code_numbers(kRecords, random);
  std::vector<Record> records;
  for (size_t i = 0; i < kRecords; ++i) {
    // 80 desks: C30 to J39, none of the example's.
    const std::string desk = static_cast<char>('C' + desks[i] / 10) + std::to_string(30 + desks[i] % 10);
    records.push_back({std::string(first_names()[first[i]]) + " " + std::string(last_names()[last[i]]), ids[i],
                       std::string(places()[cities[i]]), desk});
  }
  return records;
}

Task tool_call_task(const std::vector<Record>& records, std::span<const std::string> notes,
                    std::span<const ToolRequest> requests, const ToolRequest& request) {
  const Record& who = records[request.record];
  const std::string asked = "Request: " + request.text + "\nCall:";
  Task task;
  task.family = "tool-call";
  task.skill = Skill::structure;
  task.floor_prompt = kHead;
  std::vector<std::string> lines;
  for (size_t i = 0; i < records.size(); ++i) {
    lines.push_back(line_of(records[i]));
    const bool left_out = std::ranges::find(requests, i, &ToolRequest::record) != requests.end();
    if (!left_out) task.floor_prompt += lines.back();
  }
  task.prompt = std::string(kHead) + among_filler(lines, notes, "Note:") + asked;
  task.floor_prompt += asked;
  task.answer = " {\"tool\": " + in_quotes(request.tool) + ", \"arguments\": {\"customer_id\": " + who.id + ", " +
                request.arguments + "}}\n";
  task.judge = Judge::json;
  task.max_tokens = 64;
  task.stop = {"\n"};
  return task;
}

}  // namespace

std::vector<Task> make_tool_call(const TaskPlan& plan) {
  std::vector<Task> tasks;
  Deck tools(kTools, draws_for(plan, "tools", 0));
  for (const TaskGroup& group : groups_with_long_ones(plan)) {
    SplitMix random = draws_for(plan, "tool-call", group.index);
    const std::vector<Record> records = draw_records(random);
    const std::vector<std::string> notes =
        filler_sentences(draws_for(plan, "notes", group.index), group.length_tokens / kFewestTokensPerPiece);
    std::vector<ToolRequest> requests;
    for (const size_t record : pick(group.tasks, kRecords, random)) {
      requests.push_back(draw_request(tools.deal(), record, records[record], random));
    }
    append(tasks, fitted(plan, group.length_tokens, notes.size(), [&](size_t count) {
             std::vector<Task> made;
             for (size_t i = 0; i < requests.size(); ++i) {
               Task task = tool_call_task(records, std::span(notes).first(count), requests, requests[i]);
               put_in_group(task, group, i);
               made.push_back(std::move(task));
             }
             return made;
           }));
  }
  return tasks;
}

}  // namespace kvarto
