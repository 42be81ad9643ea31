#include "eval/completion_reply.h"

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "eval/openai_server.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

const Json kNothing;

constexpr double kRounding = 0.01;  // a log-probability may be so far above 0
constexpr double kLeast = -1e9;     // sums of any number of them stay finite

const Json& member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

tl::unexpected<Error> wrong(const std::string& field, const char* wanted, const Json& value) {
  return fail(ErrorCode::corrupt,
              "the reply's " + field + " is " + printable(dump(value), 60) + ", not " + std::string(wanted));
}

// With one choice at least.
Result<Json> parse_reply(std::string_view text) {
  Result<Json> reply = parse_json(text);
  if (!reply) return fail(ErrorCode::corrupt, "the reply is refused: " + reply.error().message);
  const Json& choices = member(*reply, "choices");
  if (choices.is_array() && !choices.empty() && choices.front().is_object()) return reply;
  if (member(*reply, "error").is_null()) return wrong("choices", "an array with an object", choices);
  return fail(ErrorCode::invalid_argument, "the reply is an error: " + error_line(text));
}

// A `logprobs` object of a completion, all columns equally long. Its `text_offset` is not read: who counts what in
// characters differs, and some count nothing.
struct Columns {
  std::vector<std::string> tokens;
  const Json* logprobs = nullptr;
  const Json* top = nullptr;  // null: not told
};

Result<std::string> read_text(const Json& value, const std::string& field) {
  if (!value.is_string()) return wrong(field, "a string", value);
  return value.get<std::string>();
}

Result<Columns> read_columns(const Json& object) {
  const std::string name = "choices[0].logprobs.";
  const Json& tokens = member(object, "tokens");
  const Json& logprobs = member(object, "token_logprobs");
  const Json& top = member(object, "top_logprobs");
  if (!tokens.is_array()) return wrong(name + "tokens", "an array", tokens);
  const auto is_column = [&](const Json& column) { return column.is_array() && column.size() == tokens.size(); };
  if (!is_column(logprobs)) return wrong(name + "token_logprobs", "an array as long as tokens", logprobs);
  if (!top.is_null() && !is_column(top)) return wrong(name + "top_logprobs", "an array as long as tokens", top);

  Columns out{.tokens = {}, .logprobs = &logprobs, .top = top.is_null() ? nullptr : &top};
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSIGN_OR_RETURN(out.tokens.emplace_back(), read_text(tokens[i], name + "tokens[" + std::to_string(i) + "]"));
  }
  return out;
}

// Tokens of the echoed prompt; behind them stands what was generated.
size_t prompt_tokens(const Json& reply, size_t tokens, uint32_t max_tokens) {
  if (max_tokens == 0) return tokens;
  // One token was generated, or none: the prompt's end may call for that.
  const Json& told = member(member(reply, "usage"), "prompt_tokens");
  return told.is_number_unsigned() && told.get<uint64_t>() == tokens ? tokens : tokens - 1;
}

// The first of those of the first `count` tokens that end with `answer`. None where they do not spell it, as with a
// server whose texts of tokens leave out white space.
std::optional<size_t> first_of_answer(std::span<const std::string> tokens, size_t count, std::string_view answer) {
  size_t first = count, bytes = 0;
  while (first > 0 && bytes < answer.size()) bytes += tokens[--first].size();
  std::string text;
  for (size_t i = first; i < count; ++i) text += tokens[i];
  return text.ends_with(answer) ? std::optional(first) : std::nullopt;
}

Result<bool> is_likeliest(const Json& top, double logprob, const std::string& field) {
  if (!top.is_object()) return wrong(field, "an object of log-probabilities", top);
  bool likeliest = true;
  for (const Json& value : top) {
    if (!value.is_number()) return wrong(field, "an object of log-probabilities", top);
    likeliest &= value.get<double>() <= logprob;
  }
  return likeliest;
}

Result<Likelihood> add_up(const Columns& columns, size_t first, size_t count) {
  Likelihood sum{.nll = 0, .tokens = static_cast<uint32_t>(count - first), .greedy = columns.top != nullptr};
  for (size_t i = first; i < count; ++i) {
    const std::string at = "[" + std::to_string(i) + "]";
    const Json& logprob = (*columns.logprobs)[i];
    if (!logprob.is_number() || !(logprob.get<double>() <= kRounding && logprob.get<double>() >= kLeast)) {
      return wrong("choices[0].logprobs.token_logprobs" + at, "a log-probability", logprob);
    }
    sum.nll -= logprob.get<double>();
    if (columns.top == nullptr) continue;
    ASSIGN_OR_RETURN(const bool likeliest,
                     is_likeliest((*columns.top)[i], logprob.get<double>(), "choices[0].logprobs.top_logprobs" + at));
    sum.greedy = sum.greedy && likeliest;
  }
  return sum;
}

}  // namespace

Result<std::string> read_written(std::string_view reply) {
  ASSIGN_OR_RETURN(const Json parsed, parse_reply(reply));
  const Json& choice = parsed["choices"].front();
  if (!choice.contains("message")) return read_text(member(choice, "text"), "choices[0].text");
  const Json& content = member(member(choice, "message"), "content");
  if (content.is_null()) return std::string();  // thoughts or tool calls alone
  return read_text(content, "choices[0].message.content");
}

Result<EchoReply> read_echo(std::string_view reply, std::string_view sent, std::string_view answer,
                            uint32_t max_tokens) {
  ASSIGN_OR_RETURN(const Json parsed, parse_reply(reply));
  const Json& choice = parsed["choices"].front();
  ASSIGN_OR_RETURN(const std::string text, read_text(member(choice, "text"), "choices[0].text"));
  const Json& logprobs = member(choice, "logprobs");
  // Without the prompt in front, log-probabilities are those of what was generated.
  if (!text.starts_with(sent) || logprobs.is_null()) return EchoReply();
  if (logprobs.is_object() && !logprobs.contains("tokens")) return EchoReply();  // in a chat's form
  ASSIGN_OR_RETURN(const Columns columns, read_columns(logprobs));
  if (columns.tokens.empty()) return EchoReply();

  EchoReply out{.echoed = true};
  const size_t count = prompt_tokens(parsed, columns.tokens.size(), max_tokens);
  if (count == 0) return out;
  const std::optional<size_t> first = first_of_answer(columns.tokens, count, answer);
  // The very first token has nothing before it, and no probability.
  if (!first || *first == 0) return out;
  ASSIGN_OR_RETURN(out.likelihood, add_up(columns, *first, count));
  return out;
}

}  // namespace kvarto
