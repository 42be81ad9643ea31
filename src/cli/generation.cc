#include "cli/generation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/interrupt.h"
#include "text/unicode.h"

namespace kvarto {

Result<Generation> generate(Engine& engine, Request request, const std::function<Status(std::string_view)>& on_text) {
  Generation generation;
  Status shown;
  bool finished = false;
  request.on_token = [&](const TokenEvent& event) {
    if (event.sample == 0 && shown && !event.text.empty()) shown = on_text(event.text);
  };
  request.on_finish = [&](const RequestResult& result) {
    generation.result = result;
    finished = true;
  };
  ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request)));
  bool cancelled = false;
  while (!finished && engine.step()) {
    generation.blocks_used = std::max(generation.blocks_used, engine.stats().kv.blocks_active);
    if (!cancelled && (interrupted() || !shown)) {
      engine.cancel(id);
      cancelled = true;
    }
  }
  RETURN_IF_ERROR(engine.health());
  RETURN_IF_ERROR(shown);
  if (generation.result.error) return tl::unexpected<Error>(*generation.result.error);
  const EngineStats stats = engine.stats();
  generation.blocks_used = std::max(generation.blocks_used, stats.kv.blocks_active);
  // A request of a single step was never seen at work; the blocks it filled are still there.
  if (generation.blocks_used == 0) generation.blocks_used = stats.kv.blocks_cached;
  generation.waste = stats.waste_mean;
  return generation;
}

Result<std::string> messages_json(std::string_view system, std::string_view user) {
  for (const auto& [text, what] : {std::pair(system, "the system message"), std::pair(user, "the prompt")}) {
    if (const auto bad = find_invalid_utf8(text)) {
      return fail(ErrorCode::invalid_argument, std::string(what) + " is not valid UTF-8 at byte " +
                                                   std::to_string(*bad) + "; convert it to UTF-8 first");
    }
  }
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  return messages.dump();
}

Result<std::vector<TokenId>> encode_chat(const Engine& engine, std::string_view messages) {
  ASSIGN_OR_RETURN(const std::string text, engine.render_chat(messages));
  // A template writes the BOS itself where the model wants one.
  return engine.encode(text, /*plain=*/false, /*bos=*/false);
}

Result<std::vector<TokenId>> encode_prompt(const Engine& engine, std::string_view system, std::string_view prompt,
                                           bool raw) {
  if (!raw && engine.has_chat_template()) {
    ASSIGN_OR_RETURN(const std::string messages, messages_json(system, prompt));
    return encode_chat(engine, messages);
  }
  if (!system.empty()) {
    return fail(ErrorCode::invalid_argument,
                "--system needs a chat template; leave out --raw, or put the text in front of the prompt");
  }
  return engine.encode(prompt);
}

Request make_request(const SamplingFlags& flags, float temperature, std::vector<TokenId> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = sampling_params(flags, temperature);
  request.sample_index = flags.sample_index;
  request.cache_salt = flags.cache_salt;
  request.hash_logits = flags.logits_hash;
  return request;
}

}  // namespace kvarto
