#include "cli/load_meter.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "eval/openai_server.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

const Json kNothing;

constexpr size_t kMaxBody = size_t{64} << 20;

const Json& member(const Json& object, const char* name) {
  if (!object.is_object()) return kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

bool read_count(const Json& value, uint32_t& out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) return false;
  out = value.get<uint32_t>();
  return true;
}

// Text of a chunk: of a completion `text`, of a chat what `delta` or `message` has, thoughts included.
struct Piece {
  std::string text;       // of the answer
  bool anything = false;  // tokens, also those that are no text of the answer
  bool role_only = false;
};

Piece piece_of(const Json& choice) {
  Piece piece;
  if (const Json& text = member(choice, "text"); text.is_string()) {
    piece.text = text.get<std::string>();
    piece.anything = !piece.text.empty();
    return piece;
  }
  const Json& delta = choice.contains("delta") ? member(choice, "delta") : member(choice, "message");
  if (const Json& content = member(delta, "content"); content.is_string()) piece.text = content.get<std::string>();
  piece.anything = !piece.text.empty();
  for (const char* name : {"reasoning", "reasoning_content"}) {
    const Json& thoughts = member(delta, name);
    piece.anything |= thoughts.is_string() && !thoughts.get_ref<const std::string&>().empty();
  }
  const Json& calls = member(delta, "tool_calls");
  piece.anything |= calls.is_array() && !calls.empty();
  piece.role_only = member(delta, "role").is_string() && !piece.anything;
  return piece;
}

tl::unexpected<Error> no_reply(std::string_view what, std::string_view text) {
  return fail(ErrorCode::corrupt, std::string(what) + ": " + kvarto::quoted(text, 60));
}

}  // namespace

Status ReplyMeter::take(std::string_view bytes, double now_s) {
  if (stream_) return reader_.feed(bytes, [&](std::string_view data) { return take_event(data, now_s); });
  if (bytes.size() > kMaxBody - body_.size()) return fail(ErrorCode::corrupt, "a reply longer than 64 MiB");
  body_ += bytes;
  return {};
}

Status ReplyMeter::end(double now_s) {
  if (!stream_) return take_whole(now_s);
  if (done_ || finished_) return {};
  return fail(ErrorCode::network, record_.events == 0 ? "the stream ended before its first token"
                                                      : "the stream ended without finish_reason and [DONE]");
}

void ReplyMeter::count_token(double now_s) {
  if (record_.events == 0) {
    record_.first_s = now_s;
  } else {
    record_.gaps_s.push_back(static_cast<float>(now_s - record_.last_s));
  }
  record_.last_s = now_s;
  ++record_.events;
  if (!record_.usage) record_.output_tokens = static_cast<uint32_t>(record_.events);
}

Status ReplyMeter::take_event(std::string_view data, double now_s) {
  if (done_) return {};
  if (data == "[DONE]") {
    done_ = true;
    return {};
  }
  const Result<Json> event = parse_json(data);
  if (!event || !event->is_object()) return no_reply("an event of the stream is no JSON object", data);
  if (!member(*event, "error").is_null()) return fail(ErrorCode::network, "the stream reports: " + error_line(data));
  if (const Json& choices = member(*event, "choices"); choices.is_array()) {
    for (const Json& choice : choices) {
      if (!choice.is_object()) return no_reply("a choice of the stream is no JSON object", data);
      const Piece piece = piece_of(choice);
      const bool ends = member(choice, "finish_reason").is_string();
      const Json& index = member(choice, "index");
      if (!index.is_number_unsigned() || index == 0) text_ += piece.text;
      // A token may have no text: a special one, or the start of a character. Who speaks, and the end, are none.
      if (piece.anything || (!piece.role_only && !ends)) count_token(now_s);
      finished_ |= ends;
    }
  }
  read_usage(*event);
  return {};
}

Status ReplyMeter::take_whole(double now_s) {
  const Result<Json> reply = parse_json(body_);
  if (!reply || !member(*reply, "choices").is_array()) return no_reply("the reply has no choices", body_);
  for (const Json& choice : (*reply)["choices"]) {
    if (choice.is_object() && text_.empty()) text_ = piece_of(choice).text;
  }
  record_.last_s = now_s;
  read_usage(*reply);
  return {};
}

// llama-server counts what it found in its cache in `timings`.
void ReplyMeter::read_usage(const Json& reply) {
  const Json& usage = member(reply, "usage");
  if (usage.is_object()) {
    record_.usage = read_count(member(usage, "prompt_tokens"), record_.prompt_tokens) &
                    read_count(member(usage, "completion_tokens"), record_.output_tokens);
    const Json& cached = member(member(usage, "prompt_tokens_details"), "cached_tokens");
    record_.cached_known |= read_count(cached, record_.cached_tokens);
  }
  if (!record_.cached_known) {
    record_.cached_known = read_count(member(member(reply, "timings"), "cache_n"), record_.cached_tokens);
  }
}

}  // namespace kvarto
