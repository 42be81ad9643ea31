// What a request says becomes token ids: for the engine, or to be shown.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "format/printable.h"
#include "server/api_body.h"
#include "server/api_messages.h"
#include "server/server_impl.h"
#include "text/json_text.h"

namespace kvarto {

using Json = nlohmann::ordered_json;

std::vector<HttpHeader> ignored_headers(const ApiRequest& request) {
  if (request.ignored.empty()) return {};
  std::string names;
  for (const std::string& name : request.ignored) names += (names.empty() ? "" : ", ") + name;
  return {{"X-Kvarto-Ignored", names}};
}

std::string scope_of(const Job& job) { return (job.request.add_special_tokens ? "bos " : "plain ") + job.salt; }

std::string_view Server::Impl::chat_template_for(const ApiRequest& request) const {
  return request.chat_template.empty() ? options.chat_template : request.chat_template;
}

// Whoever sends a book is told before it is cut into tokens. One that is to be truncated has to be cut all the same:
// how much is left out is counted, and where tokens end depends on all that stands before.
ApiStatus Server::Impl::check_length(const Job& job, std::string_view text) const {
  if (job.request.truncate_prompt_tokens) {
    if (text.size() <= limits.max_string_bytes) return {};
    return tl::unexpected(
        bad_field("truncate_prompt_tokens", "truncate_prompt_tokens: a prompt of " + std::to_string(text.size()) +
                                                " bytes is longer than can be truncated (" +
                                                std::to_string(limits.max_string_bytes) + "); shorten it"));
  }
  const uint64_t least = text.size() / longest_token_bytes;  // no tokenizer makes fewer tokens than this
  if (least <= limits.max_model_len) return {};
  return tl::unexpected(context_length_of_text(limits.max_model_len, text.size(), least));
}

ApiResult<std::vector<TokenId>> Server::Impl::encode(const Job& job, const std::string& text, bool bos) {
  if (auto fits = check_length(job, text); !fits) return tl::unexpected(fits.error());
  auto ids = engine().encode(text, false, bos);
  if (!ids) return tl::unexpected(api_error(ids.error()));
  return *std::move(ids);
}

// Cuts what the request wants cut; refuses what does not fit.
ApiStatus Server::Impl::fit(Job& job, std::vector<TokenId>& ids, uint64_t& truncated) {
  const ApiRequest& request = job.request;
  if (request.truncate_prompt_tokens) {
    const int32_t wanted = *request.truncate_prompt_tokens;
    const size_t keep = wanted < 0 ? limits.max_model_len - 1 : static_cast<size_t>(wanted);
    if (ids.size() > keep) {
      truncated = ids.size() - keep;
      if (request.truncate_left) {
        ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(truncated));
      } else {
        ids.resize(keep);
      }
    }
  }
  if (ids.empty()) return tl::unexpected(empty_prompt());
  if (ids.size() > limits.max_model_len) {
    return tl::unexpected(context_length_error(limits.max_model_len, ids.size()));
  }
  const bool scores_only = request.max_tokens == 0u;
  if (ids.size() == limits.max_model_len && !scores_only) {
    return tl::unexpected(no_room_for_output(limits.max_model_len));
  }
  return {};
}

ApiStatus Server::Impl::make_prompts(Job& job) {
  ApiRequest& request = job.request;
  if (request.route == ApiRoute::chat || !request.messages.empty()) {
    job.volatile_note = make_stable(request, job.volatile_saved);
    auto text = engine().render_chat({.messages = request.messages,
                                      .tools = request.tools,
                                      .documents = request.documents,
                                      .kwargs = request.chat_template_kwargs,
                                      .add_generation_prompt = request.add_generation_prompt,
                                      .continue_final_message = request.continue_final_message,
                                      .content_format = options.content_format,
                                      .chat_template = chat_template_for(request)});
    if (!text) return tl::unexpected(api_error(text.error()));
    job.texts.push_back(*std::move(text));
    const std::string& rendered = job.texts.back();
    if (auto fits = check_length(job, rendered); !fits) return fits;
    auto spliced = turns->splice(scope_of(job), rendered, [&](std::string_view rest) -> Result<std::vector<TokenId>> {
      return engine().encode(rest, false, false);
    });
    if (spliced) {
      job.ids.push_back(*std::move(spliced));
    } else {
      auto ids = encode(job, rendered, request.add_special_tokens);
      if (!ids) return tl::unexpected(ids.error());
      job.ids.push_back(*std::move(ids));
    }
  } else {
    for (ApiPrompt& prompt : request.prompts) {
      if (!prompt.text) {
        job.texts.emplace_back();
        job.ids.push_back(std::move(prompt.ids));
        continue;
      }
      if (request.add_special_tokens && engine().begins_with_bos(*prompt.text) && !std::exchange(warned_of_bos, true)) {
        log(LogLevel::warning,
            "a prompt begins with the text of the BOS token, so none is put in front of it; leave it out of prompts, "
            "or "
            "send \"add_special_tokens\": false (told once)");
      }
      auto ids = encode(job, *prompt.text, request.add_special_tokens);
      if (!ids) return tl::unexpected(ids.error());
      job.ids.push_back(*std::move(ids));
      job.texts.push_back(*std::move(prompt.text));
    }
  }
  job.truncated.assign(job.ids.size(), 0);
  for (size_t p = 0; p < job.ids.size(); ++p) {
    if (auto fits = fit(job, job.ids[p], job.truncated[p]); !fits) return fits;
  }
  return {};
}

// Moves what changes with every request out of the beginning of system prompts, and says what was done. Saved are the
// tokens of the stable lines that stood behind the first changing one and stand before it now, where the cache can find
// them; of a later system prompt only if the ones before it have no changing line any more.
std::string Server::Impl::make_stable(ApiRequest& request, uint64_t& saved_tokens) const {
  if (!volatile_text || request.messages.empty()) return "";
  Json messages = Json::parse(request.messages, nullptr, false);
  VolatileResult all;
  bool changes_before = false;
  for (Json& message : messages) {
    if (message["role"] != "system" && message["role"] != "developer") break;
    const Json& content = message["content"];
    VolatileResult one = volatile_text->apply(content_text(content));
    if (one.lines_moved + one.lines_dropped == 0) continue;  // parts stay parts
    if (const auto rest = engine().encode(one.stable_rest(), false, false); rest && !changes_before) {
      saved_tokens += rest->size();
    }
    changes_before = changes_before || one.lines_moved > 0;
    message["content"] = std::move(one.text);
    all.lines_moved += one.lines_moved;
    all.lines_dropped += one.lines_dropped;
    all.stable_bytes += one.stable_bytes;
  }
  if (all.lines_moved + all.lines_dropped == 0) return "";
  request.messages = dump(messages);
  return "moved=" + std::to_string(all.lines_moved) + ", dropped=" + std::to_string(all.lines_dropped) +
         ", stable-bytes=" + std::to_string(all.stable_bytes) + ", saved-tokens=" + std::to_string(saved_tokens);
}

// What a reply would tell is known before anything is computed: a small body must not make one of a hundred megabytes.
// Streams tell of the output piece by piece, and a chat without a limit of its own mostly ends long before the context.
ApiStatus Server::Impl::check_logprobs(const Job& job) const {
  const ApiRequest& request = job.request;
  // A whole vocabulary, where the operator allows that, can be asked for at one place at least.
  const uint64_t most = std::max<uint64_t>(limits.max_logprobs_told, uint64_t{limits.vocabulary} + 1);
  const auto refused = [&](const char* field, const char* what, uint64_t tokens, uint64_t each, uint64_t choices,
                           const char* remedy) -> ApiStatus {
    if (tokens * each * choices <= most) return {};
    return tl::unexpected(bad_field(field, std::string(field) + ": " + std::to_string(tokens * each * choices) +
                                               " log-probabilities would be told (" + std::to_string(tokens) +
                                               " tokens of " + what + ", " + std::to_string(each) + " each, in " +
                                               std::to_string(choices) + " choices), and at most " +
                                               std::to_string(most) + " are in one reply; " + remedy));
  };
  const bool completions = request.route == ApiRoute::completions;
  const uint64_t n = request.sampling.n;
  const bool echoed = completions && request.echo && request.sampling.logprobs;
  if (request.prompt_logprobs && (request.show_prompt_logprobs || echoed)) {
    uint64_t tokens = 0;
    for (const std::vector<TokenId>& ids : job.ids) tokens += ids.size();
    const uint64_t shown = completions ? n * ((request.show_prompt_logprobs ? 1 : 0) + (echoed ? 1 : 0)) : 1;
    RETURN_IF_API_ERROR(refused(request.show_prompt_logprobs ? "prompt_logprobs" : "logprobs", "prompts", tokens,
                                uint64_t{*request.prompt_logprobs} + 1, shown,
                                "send fewer or shorter prompts in one call, or ask for fewer"));
  }
  if (!request.sampling.logprobs || !request.max_tokens || request.stream) return {};
  uint64_t tokens = 0;
  for (const std::vector<TokenId>& ids : job.ids) {
    tokens += std::min<uint64_t>(*request.max_tokens, limits.max_model_len - ids.size());
  }
  return refused(completions ? "logprobs" : "top_logprobs", "output", tokens, uint64_t{*request.sampling.logprobs} + 1,
                 n, "stream the answer, send fewer prompts in one call, or ask for fewer tokens, choices or logprobs");
}

// A word is banned as it stands at the beginning of a text and as it follows a space.
ApiStatus Server::Impl::make_bad_words(Job& job) {
  for (const std::string& word : job.request.bad_words) {
    for (const std::string& written : {word, " " + word}) {
      auto ids = engine().encode(written, true, false);
      if (!ids) return tl::unexpected(bad_field("bad_words", ids.error().message));
      if (!ids->empty() && std::ranges::find(job.bad_words, *ids) == job.bad_words.end()) {
        job.bad_words.push_back(*std::move(ids));
      }
    }
  }
  return {};
}

// --- text only

// What a list of ids spells, while that is no longer than a text may be that is sent.
ApiStatus Server::Impl::check_spelling(std::span<const TokenId> ids) const {
  if (ids.size() <= limits.max_string_bytes / longest_token_bytes) return {};
  size_t bytes = 0;
  for (const TokenId id : ids) {
    bytes += engine().piece(id, true).size();
    if (bytes <= limits.max_string_bytes) continue;
    return tl::unexpected(bad_field("tokens", "tokens: " + std::to_string(ids.size()) + " ids spell more than " +
                                                  std::to_string(limits.max_string_bytes) +
                                                  " bytes; send fewer at a time"));
  }
  return {};
}

ApiStatus Server::Impl::tokenize(const Exchange& exchange, ApiRoute route) {
  auto parsed = parse_api_request(route, exchange->take_body(), limits);
  if (!parsed) return tl::unexpected(parsed.error());
  if (auto known = check_model(*parsed); !known) return known;
  note_odd_fields(*parsed);
  uint64_t saved_tokens = 0;
  const std::string volatile_note = make_stable(*parsed, saved_tokens);  // the ids are those that would run
  Json reply;
  if (route == ApiRoute::detokenize) {
    if (auto fits = check_spelling(parsed->prompts.front().ids); !fits) return fits;
    reply["prompt"] = engine().decode(parsed->prompts.front().ids, true);
  } else {
    std::string text;
    if (!parsed->messages.empty()) {
      auto rendered = engine().render_chat({.messages = parsed->messages,
                                            .tools = parsed->tools,
                                            .documents = parsed->documents,
                                            .kwargs = parsed->chat_template_kwargs,
                                            .add_generation_prompt = parsed->add_generation_prompt,
                                            .continue_final_message = parsed->continue_final_message,
                                            .content_format = options.content_format,
                                            .chat_template = chat_template_for(*parsed)});
      if (!rendered) return tl::unexpected(api_error(rendered.error()));
      text = *std::move(rendered);
      if (text.size() > limits.max_string_bytes) {
        return tl::unexpected(bad_field(
            "messages", "messages: a text of " + std::to_string(text.size()) + " bytes comes of them, and at most " +
                            std::to_string(limits.max_string_bytes) + " are cut into tokens; send fewer"));
      }
    } else {
      text = parsed->prompts.front().text.value_or("");
    }
    auto ids = engine().encode(text, false, parsed->add_special_tokens);
    if (!ids) return tl::unexpected(api_error(ids.error()));
    reply["count"] = ids->size();
    reply["max_model_len"] = limits.max_model_len;
    reply["tokens"] = *ids;
    reply["token_strs"] = nullptr;
    if (parsed->return_token_strs) {
      if (ids->size() > limits.max_values) {
        return tl::unexpected(bad_field("return_token_strs", "return_token_strs: the text has " +
                                                                 std::to_string(ids->size()) + " tokens, and at most " +
                                                                 std::to_string(limits.max_values) +
                                                                 " are spelled out; send less text"));
      }
      reply["token_strs"] = Json::array();
      for (const TokenId id : *ids) reply["token_strs"].push_back(engine().piece(id, true));
    }
  }
  ServerReply told{.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = dump(reply)};
  for (HttpHeader& header : ignored_headers(*parsed)) told.headers.push_back(std::move(header));
  if (!volatile_note.empty()) told.headers.push_back({kVolatileHeader, volatile_note});
  answer(exchange, std::move(told));
  return {};
}

}  // namespace kvarto
