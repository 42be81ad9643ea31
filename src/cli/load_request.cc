// The JSON of a load run's requests: those that it words itself, and those that a file brings.
#include <nlohmann/json.hpp>

#include "cli/load_random.h"
#include "cli/load_workload.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

class Lines : public Workload {
 public:
  Lines(std::vector<std::string> bodies, TokenRange output, uint64_t seed)
      : bodies_(std::move(bodies)), output_(output), seed_(seed) {}

  std::optional<uint64_t> size() const override { return bodies_.size(); }
  LoadJob job(uint64_t number) const override {
    LoadTurn turn;
    turn.body = bodies_[number];
    turn.output_tokens = output_.draw(mix({seed_, kDrawOutput, number}));
    return {std::nullopt, "", {std::move(turn)}};
  }

 private:
  const std::vector<std::string> bodies_;
  const TokenRange output_;
  const uint64_t seed_;
};

Result<std::string> read_line(std::string_view text, size_t number) {
  const std::string where = "line " + std::to_string(number) + " of the requests: ";
  Result<Json> line = parse_json(text);
  if (!line || !line->is_object()) {
    return fail(ErrorCode::corrupt, where + "no JSON object: " + kvarto::quoted(text, 60));
  }
  if (const auto body = line->find("body"); body != line->end() && body->is_object()) line = Json(*body);
  if (!line->contains("prompt") && !line->contains("messages")) {
    return fail(ErrorCode::corrupt, where + "has neither prompt nor messages");
  }
  return line->dump();
}

const char* limit_name(const Json& body) {
  return body.contains("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
}

Json worded(const LoadJob& job, size_t turn, bool chat, const std::vector<std::string>& answers) {
  if (!chat) return {{"prompt", job.turns[turn].text}};
  Json messages = Json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push_back({{"role", role}, {"content", content}});
  };
  if (!job.system.empty()) add("system", job.system);
  for (size_t i = 0; i < turn; ++i) {
    add("user", job.turns[i].text);
    add("assistant", answers[i]);
  }
  add("user", job.turns[turn].text);
  return {{"messages", std::move(messages)}};
}

}  // namespace

Result<std::unique_ptr<Workload>> make_lines(std::string_view text, TokenRange output, uint64_t seed) {
  std::vector<std::string> bodies;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ASSIGN_OR_RETURN(bodies.emplace_back(), read_line(line, number));
  }
  if (bodies.empty()) return fail(ErrorCode::corrupt, "the file of requests is empty");
  return std::make_unique<Lines>(std::move(bodies), output, seed);
}

LoadRequest request_of(const RequestStyle& style, const LoadJob& job, size_t turn,
                       const std::vector<std::string>& answers) {
  const LoadTurn& asked = job.turns[turn];
  const bool from_file = !asked.body.empty();
  Json body = from_file ? Json::parse(asked.body) : worded(job, turn, style.chat, answers);
  const bool chat = body.contains("messages");
  body["model"] = style.model;
  body["stream"] = style.stream;
  if (style.stream) {
    body["stream_options"] = {{"include_usage", true}};
  } else {
    body.erase("stream_options");
  }
  if (!body.contains("temperature")) body["temperature"] = style.temperature;
  const char* const limit = limit_name(body);
  if (!body.contains(limit)) body[limit] = asked.output_tokens;
  if (style.fixed_lengths) {
    body["min_tokens"] = body[limit];
    body["ignore_eos"] = true;
  }
  if (!style.extra.empty()) body.update(Json::parse(style.extra));
  const Json& tokens = body[limit_name(body)];
  const uint32_t output_tokens = tokens.is_number_unsigned() ? tokens.get<uint32_t>() : asked.output_tokens;
  // What is not UTF-8 in an answer came cut out of a stream.
  return {chat, body.dump(-1, ' ', false, Json::error_handler_t::replace), output_tokens, asked.prompt_tokens_asked};
}

}  // namespace kvarto
