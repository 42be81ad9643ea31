// The table of fields against the parser: every field with every type, with null, with its effect.
#include "server/api_fields.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/api_testing.h"
#include "text/unicode.h"

namespace kvarto {
namespace {

using namespace api_testing;

TEST(ApiFields, NamesAreUniqueOnEachRouteAndDefaultsAreJson) {
  for (const ApiRoute route : kRoutes) {
    std::set<std::string_view> names;
    for (const ApiField& field : api_fields()) {
      if (!field.on(route)) continue;
      EXPECT_TRUE(names.insert(field.name).second) << field.name;
    }
    EXPECT_GT(names.size(), 1u);
  }
  for (const ApiField& field : api_fields()) {
    EXPECT_FALSE(field.text.empty()) << field.name;
    EXPECT_NE(field.routes, 0) << field.name;
    EXPECT_TRUE(field.fallback.empty() || Json::accept(field.fallback)) << field.name;
  }
  EXPECT_EQ(find_api_field(kText, "messages"), nullptr);
  EXPECT_EQ(find_api_field(kText, "logprobs")->kind, FieldKind::integer);
  EXPECT_EQ(find_api_field(kChat, "logprobs")->kind, FieldKind::boolean);
}

// --- every field with values of every type

bool takes(const ApiField& field, std::string_view type) {
  using Kind = FieldKind;
  switch (field.kind) {
    case Kind::boolean:
      return type == "boolean";
    case Kind::integer:
    case Kind::number:
      return type == "number";
    case Kind::string:
    case Kind::choice:
    case Kind::text_prompt:
    case Kind::tool_choice:
      return type == "string" || (field.kind == Kind::tool_choice && type == "object");
    case Kind::string_or_strings:
    case Kind::prompt:
      return type == "string" || type == "array";
    case Kind::strings:
    case Kind::ids:
    case Kind::objects:
    case Kind::messages:
    case Kind::tools:
    case Kind::modalities:
      return type == "array";
    case Kind::object:
    case Kind::response_format:
    case Kind::stream_options:
    case Kind::logit_bias:
      return type == "object";
    case Kind::any:
      return false;
  }
  return false;
}

TEST(ApiRequest, EveryFieldRefusesEveryOtherTypeByName) {
  const std::pair<const char*, const char*> values[] = {{"string", "\"\\u0007x\""},
                                                        {"number", "3.25"},
                                                        {"boolean", "true"},
                                                        {"array", "[[[]]]"},
                                                        {"object", "{\"a\":1}"}};
  for (const ApiRoute route : kRoutes) {
    for (const ApiField& field : api_fields()) {
      if (!field.on(route)) continue;
      const std::string name(field.name);
      for (const auto& [type, value] : values) {
        if (takes(field, type)) continue;
        const std::string text = body(route, "\"" + name + "\":" + value);
        const ApiResult<ApiRequest> request = parse_api_request(route, text, kLimits);
        ASSERT_FALSE(request) << text;
        EXPECT_EQ(request.error().status, 400) << text;
        ASSERT_TRUE(request.error().param) << text;
        EXPECT_EQ(request.error().param->rfind(name, 0), 0u) << text << ": " << *request.error().param;
        EXPECT_NE(request.error().message.find(name), std::string::npos) << text;
      }
    }
  }
}

TEST(ApiRequest, NullIsNotGivenForEveryFieldButTheRequired) {
  for (const ApiRoute route : kRoutes) {
    for (const ApiField& field : api_fields()) {
      if (!field.on(route)) continue;
      const bool required = Json::parse(minimal(route)).contains(std::string(field.name));
      const std::string got = refusal(route, "\"" + std::string(field.name) + "\":null");
      if (required) {
        EXPECT_NE(got.find("is missing"), std::string::npos) << field.name;
        EXPECT_EQ(got.rfind(std::string(field.name), 0), 0u);
      } else {
        EXPECT_EQ(got, "ok") << field.name;
      }
    }
  }
}

TEST(ApiRequest, RefusedFieldsSayWhatToDoAndTakeTheirNeutralValue) {
  for (const ApiRoute route : kRoutes) {
    for (const ApiField& field : api_fields()) {
      if (!field.on(route) || field.use != FieldUse::refused) continue;
      const std::string name = "\"" + std::string(field.name) + "\":";
      EXPECT_EQ(refusal(route, name + "12345"), std::string(field.name) + ": " + std::string(field.name) +
                                                    " is not built here: " + std::string(field.text));
      if (field.fallback.empty()) continue;
      EXPECT_EQ(refusal(route, name + std::string(field.fallback)), "ok");
    }
  }
  EXPECT_EQ(refusal(kChat, R"("typical_p":1.0,"mirostat":0.0)"), "ok");
}

// --- every used field does something

struct Effect {
  ApiRoute route;
  const char* members;
  bool (*holds)(const ApiRequest&);
};

const Effect kEffects[] = {
    {kText, R"("model":"m")", [](auto& r) { return r.model == "m"; }},
    {kText, R"("prompt":["a","b"])", [](auto& r) { return r.prompts.size() == 2 && r.prompts[1].text == "b"; }},
    {ApiRoute::tokenize, R"("prompt":"x")", [](auto& r) { return r.prompts.at(0).text == "x"; }},
    {ApiRoute::detokenize, R"("tokens":[7,8])",
     [](auto& r) {
       return r.prompts.at(0).ids == std::vector<TokenId>{7, 8} && !r.prompts[0].text;
     }},
    {kChat, R"("messages":[{"role":"user","content":"z"}])",
     [](auto& r) {
       return r.messages == R"([{"role":"user","content":"z"}])" && r.last_content == "z" && r.last_role == "user";
     }},
    {kChat, R"("tools":[{"type":"function","function":{"name":"f"}}])",
     [](auto& r) { return r.tools == R"([{"type":"function","function":{"name":"f"}}])" && r.parse_tool_calls; }},
    {kChat, R"("tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}])",
     [](auto& r) { return !r.tools.empty() && !r.parse_tool_calls; }},
    {kChat, R"("parallel_tool_calls":false)", [](auto& r) { return !r.parallel_tool_calls; }},
    {kChat, R"("documents":[{"t":"d"}])", [](auto& r) { return r.documents == R"([{"t":"d"}])"; }},
    {kChat, R"("chat_template_kwargs":{"b":1,"a":2})",
     [](auto& r) { return r.chat_template_kwargs == R"({"b":1,"a":2})"; }},
    {kChat, R"("reasoning_effort":"low")",
     [](auto& r) { return r.chat_template_kwargs == R"({"reasoning_effort":"low"})"; }},
    {kChat, R"("add_generation_prompt":false)", [](auto& r) { return !r.add_generation_prompt; }},
    {kChat, R"("continue_final_message":true)",
     [](auto& r) { return r.continue_final_message && !r.add_generation_prompt; }},
    {kText, R"("add_special_tokens":false)", [](auto& r) { return !r.add_special_tokens; }},
    {kChat, R"("add_special_tokens":true)", [](auto& r) { return r.add_special_tokens; }},
    {ApiRoute::tokenize, R"("add_special_tokens":false)", [](auto& r) { return !r.add_special_tokens; }},
    {kText, R"("truncate_prompt_tokens":-1)", [](auto& r) { return r.truncate_prompt_tokens == -1; }},
    {kText, R"("truncation_side":"right")", [](auto& r) { return !r.truncate_left; }},
    {kText, R"("n":3)", [](auto& r) { return r.sampling.n == 3; }},
    {kText, R"("best_of":2,"n":2)", [](auto& r) { return r.sampling.n == 2; }},
    {kText, R"("max_tokens":9)", [](auto& r) { return r.max_tokens == 9u; }},
    {kChat, R"("max_tokens":9)", [](auto& r) { return r.max_tokens == 9u; }},
    {kChat, R"("max_completion_tokens":8,"max_tokens":9)", [](auto& r) { return r.max_tokens == 8u; }},
    {kText, R"("min_tokens":4)", [](auto& r) { return r.sampling.min_tokens == 4; }},
    {kText, R"("temperature":0.5)", [](auto& r) { return r.sampling.temperature == 0.5f; }},
    {kText, R"("top_p":0.25)", [](auto& r) { return r.sampling.top_p == 0.25f; }},
    {kText, R"("top_k":5.0)", [](auto& r) { return r.sampling.top_k == 5; }},
    {kText, R"("min_p":0.5)", [](auto& r) { return r.sampling.min_p == 0.5f; }},
    {kText, R"("presence_penalty":-2)", [](auto& r) { return r.sampling.presence_penalty == -2.0f; }},
    {kText, R"("frequency_penalty":2)", [](auto& r) { return r.sampling.frequency_penalty == 2.0f; }},
    {kText, R"("repetition_penalty":1.5)", [](auto& r) { return r.sampling.repetition_penalty == 1.5f; }},
    {kText, R"("seed":9223372036854775807)", [](auto& r) { return r.sampling.seed == uint64_t{9223372036854775807u}; }},
    {kText, R"("stop":"x")", [](auto& r) { return r.sampling.stop == std::vector<std::string>{"x"}; }},
    {kText, R"("stop_token_ids":[499])",
     [](auto& r) { return r.sampling.stop_token_ids == std::vector<TokenId>{499}; }},
    {kText, R"("include_stop_str_in_output":true)", [](auto& r) { return r.sampling.include_stop_str_in_output; }},
    {kText, R"("ignore_eos":true)", [](auto& r) { return r.sampling.ignore_eos; }},
    {kText, R"("logit_bias":{"3":-1e9,"4":0.5})",
     [](auto& r) {
       return r.sampling.logit_bias == std::vector<std::pair<TokenId, float>>{{3, -100.0f}, {4, 0.5f}};
     }},
    {kText, R"("allowed_token_ids":[1])",
     [](auto& r) { return r.sampling.allowed_token_ids == std::vector<TokenId>{1}; }},
    {kText, R"("bad_words":["w"])", [](auto& r) { return r.bad_words == std::vector<std::string>{"w"}; }},
    {kText, R"("use_beam_search":true,"n":4)", [](auto& r) { return r.sampling.beam_width == 4 && r.sampling.n == 4; }},
    {kText, R"("length_penalty":0.5)", [](auto& r) { return r.sampling.length_penalty == 0.5f; }},
    {kText, R"("cache_salt":"s1")", [](auto& r) { return r.cache_salt == "s1"; }},
    {kText, R"("stream":true)", [](auto& r) { return r.stream && !r.include_usage; }},
    {kText, R"("stream":true,"stream_options":{"include_usage":true})",
     [](auto& r) { return r.include_usage && !r.continuous_usage_stats; }},
    {kText, R"("stream_interval":3)", [](auto& r) { return r.stream_interval == 3; }},
    {kText, R"("echo":true)", [](auto& r) { return r.echo && !r.prompt_logprobs; }},
    {kChat, R"("echo":true)", [](auto& r) { return r.echo; }},
    {kText, R"("logprobs":5)", [](auto& r) { return r.sampling.logprobs == 5u && !r.prompt_logprobs; }},
    {kChat, R"("logprobs":true)", [](auto& r) { return r.sampling.logprobs == 0u; }},
    {kChat, R"("logprobs":true,"top_logprobs":7)", [](auto& r) { return r.sampling.logprobs == 7u; }},
    {kText, R"("prompt_logprobs":2)", [](auto& r) { return r.prompt_logprobs == 2u && r.show_prompt_logprobs; }},
    {kText, R"("skip_special_tokens":false)", [](auto& r) { return !r.sampling.skip_special_tokens; }},
    {kText, R"("return_tokens_as_token_ids":true)", [](auto& r) { return r.return_tokens_as_token_ids; }},
    {kText, R"("return_token_ids":true)", [](auto& r) { return r.return_token_ids; }},
    {kChat, R"("return_prompt_text":true)", [](auto& r) { return r.return_prompt_text; }},
    {kChat, R"("include_reasoning":false)", [](auto& r) { return !r.include_reasoning; }},
    {ApiRoute::tokenize, R"("return_token_strs":true)", [](auto& r) { return r.return_token_strs; }},
    {kText, R"("request_id":"r-1")", [](auto& r) { return r.request_id == "r-1"; }},
    {kText, R"("response_format":{"type":"text"})", [](auto& r) { return r.ignored.empty(); }},
    {kChat, R"("modalities":["text"])", [](auto& r) { return r.ignored.empty(); }},
};

TEST(ApiRequest, EveryUsedFieldHasItsEffect) {
  std::set<std::pair<ApiRoute, std::string>> seen;
  for (const Effect& effect : kEffects) {
    EXPECT_TRUE(effect.holds(good(effect.route, effect.members))) << effect.members;
    const Json members = Json::parse("{" + std::string(effect.members) + "}");
    for (const auto& [name, value] : members.items()) {
      seen.insert({effect.route, name});
    }
  }
  ApiLimits limits = kLimits;
  limits.priority_scheduling = limits.trust_chat_template = true;
  EXPECT_EQ(good(kText, R"("priority":-3)", limits).priority, -3);
  EXPECT_EQ(good(kChat, R"("chat_template":"{{ x }}")", limits).chat_template, "{{ x }}");
  seen.insert({kText, "priority"});
  seen.insert({kChat, "chat_template"});
  // Each row of the table on one of its routes.
  for (const ApiField& field : api_fields()) {
    if (field.use != FieldUse::used) continue;
    const bool covered = std::any_of(std::begin(kRoutes), std::end(kRoutes), [&](ApiRoute route) {
      return field.on(route) && seen.contains({route, std::string(field.name)});
    });
    EXPECT_TRUE(covered) << field.name << " has no row in kEffects";
  }
}

// Bodies made from good ones by random edits: each gives a request or one line of error, and what is handed on is JSON.
TEST(ApiRequest, RandomEditsNeverSurprise) {
  std::vector<std::pair<ApiRoute, std::string>> seeds;
  for (const Effect& effect : kEffects) seeds.emplace_back(effect.route, body(effect.route, effect.members));
  const char* const pieces[] = {"null",     "true", "-1", "1e400",   "9223372036854775808",
                                "\"\"",     "[",    "]",  "{",       "}",
                                ",",        ":",    "\"", "\\u0000", "\\ud800",
                                "\xff",     "\xc3", "[[", "{\"a\":", "0.5",
                                "\"role\"", " "};
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  size_t accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    auto [route, text] = seeds[below(seeds.size())];
    for (size_t edits = 1 + below(3); edits > 0 && !text.empty(); --edits) {
      const size_t at = below(text.size());
      const auto& [other, source] = seeds[below(seeds.size())];
      switch (below(4)) {
        case 0:
          text.erase(at, 1 + below(4));
          break;
        case 1:
          text.insert(at, pieces[below(std::size(pieces))]);
          break;
        case 2:
          text[at] = static_cast<char>(below(256));
          break;
        default:
          text.insert(at, source.substr(below(source.size()), below(20)));
      }
    }
    const ApiResult<ApiRequest> request = parse_api_request(route, text, kLimits);
    if (request) {
      ++accepted;
      for (const std::string* json : {&request->messages, &request->tools, &request->documents}) {
        ASSERT_TRUE(json->empty() || Json::accept(*json)) << text;
      }
      ASSERT_LE(request->sampling.temperature, 2.0f);
      ASSERT_GE(request->sampling.n, 1u);
    } else {
      ASSERT_EQ(request.error().status, 400) << text;
      ASSERT_FALSE(request.error().message.empty());
      ASSERT_EQ(request.error().message.find('\n'), std::string::npos) << request.error().message;
      ASSERT_FALSE(find_invalid_utf8(request.error().message)) << request.error().message;
    }
  }
  EXPECT_GT(accepted, 1000u);
}

}  // namespace
}  // namespace kvarto
