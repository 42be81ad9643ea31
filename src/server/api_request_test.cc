#include "server/api_request.h"

#include <gtest/gtest.h>

#include "tests/support/api_testing.h"

namespace kvarto {
namespace {

using namespace api_testing;

TEST(ApiRequest, DefaultsAreThoseOfTheApi) {
  const ApiRequest text = good(kText, "");
  EXPECT_EQ(text.max_tokens, 16u);
  EXPECT_TRUE(text.add_special_tokens && text.truncate_left && text.sampling.skip_special_tokens);
  EXPECT_EQ(text.sampling.temperature, 1.0f);
  EXPECT_EQ(text.sampling.seed, std::nullopt);
  const ApiRequest chat = good(kChat, "");
  EXPECT_EQ(chat.max_tokens, std::nullopt);
  EXPECT_FALSE(chat.add_special_tokens || chat.parse_tool_calls || chat.continue_final_message);
  EXPECT_TRUE(chat.add_generation_prompt && chat.include_reasoning);
  const auto tokenize = parse_api_request(ApiRoute::tokenize, minimal(kChat), kLimits);
  ASSERT_TRUE(tokenize);
  EXPECT_FALSE(tokenize->add_special_tokens);
  EXPECT_TRUE(good(ApiRoute::tokenize, "").add_special_tokens);
}

// --- ranges

struct Edge {
  const char* name;
  std::vector<const char*> in, out;
};

TEST(ApiRequest, RangesEndWhereTheySay) {
  const Edge edges[] = {
      {"n", {"1", "64"}, {"0", "-1", "65", "1000000000"}},
      {"max_tokens", {"1", "1000"}, {"0", "-186", "1001", "99999999999"}},
      {"min_tokens", {"0", "16"}, {"-1", "17"}},
      {"temperature", {"0", "2", "2.0"}, {"-1", "2.1", "999999", "1e300", "-1e-9"}},
      {"top_p", {"1", "0.001"}, {"0", "-1", "1.01", "1e-60"}},
      {"top_k", {"-1", "0", "1", "2147483647"}, {"-2", "2147483648"}},
      {"min_p", {"0", "1"}, {"-0.1", "1.1"}},
      {"presence_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"frequency_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"repetition_penalty", {"0.01", "1e30"}, {"0", "-1", "1e-300", "1e300"}},
      {"length_penalty", {"-1", "0"}, {"101", "1e300"}},
      {"logprobs", {"0", "20"}, {"-1", "21", "1000000000"}},
      {"prompt_logprobs", {"0", "20"}, {"-2", "-1", "21", "1000000000"}},
      {"truncate_prompt_tokens", {"-1", "0", "1000"}, {"-2", "1001"}},
      {"stream_interval", {"1", "1024"}, {"0", "1025"}},
  };
  for (const Edge& edge : edges) {
    const std::string name = "\"" + std::string(edge.name) + "\":";
    for (const char* value : edge.in) EXPECT_EQ(refusal(kText, name + value), "ok") << name << value;
    for (const char* value : edge.out) {
      EXPECT_EQ(refusal(kText, name + value).rfind(std::string(edge.name) + ": ", 0), 0u) << name << value;
    }
  }
  // Whole numbers only, of 64 bits.
  for (const char* value : {"0.01", "9223372036854775808", "-9223372036854775809", "1e30"}) {
    EXPECT_NE(refusal(kText, std::string("\"seed\":") + value).find("seed must be an integer of 64 bits"),
              std::string::npos);
    EXPECT_EQ(refusal(kText, std::string("\"top_k\":") + value).rfind("top_k: ", 0), 0u);
  }
  EXPECT_EQ(good(kText, R"("seed":-1)").sampling.seed, std::nullopt);
}

TEST(ApiRequest, MessagesHaveTheWordsThatClientsTestFor) {
  EXPECT_EQ(
      refusal(kText, R"("temperature":999999)"),
      "temperature: temperature must be non-negative and at most 2, got 999999 (parameter=temperature, value=999999)");
  EXPECT_NE(refusal(kText, R"("top_p":0)").find("top_p must be in (0, 1], got 0"), std::string::npos);
  EXPECT_NE(refusal(kText, R"("presence_penalty":3)").find("must be in [-2, 2]"), std::string::npos);
  EXPECT_NE(refusal(kText, R"("logprobs":21)").find("greater than max allowed: 20"), std::string::npos);
  EXPECT_NE(refusal(kChat, R"("max_completion_tokens":5000)")
                .find("max_completion_tokens=5000 cannot be greater than max_model_len=1000"),
            std::string::npos);
  EXPECT_EQ(refusal(kText, R"("temperature":"0.7")"),
            "temperature: temperature must be a number, got the string \"0.7\"");
  EXPECT_EQ(parse(kText, R"("temperature":"0.7")").error().type, "Bad Request");
  EXPECT_EQ(parse(kText, R"("temperature":3)").error().type, "BadRequestError");
}

TEST(ApiRequest, FieldsThatDependOnEachOther) {
  EXPECT_NE(refusal(kText, R"("n":2,"temperature":0)").find("n must be 1 when using greedy sampling"),
            std::string::npos);
  EXPECT_NE(refusal(kText, R"("min_tokens":20,"max_tokens":10)")
                .find("min_tokens must be less than or equal to max_tokens=10"),
            std::string::npos);
  EXPECT_EQ(refusal(kText, R"("stream_options":{})").rfind("stream_options: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("stream":true,"prompt_logprobs":1)").rfind("prompt_logprobs: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("stream":true,"prompt_logprobs":0)"), "ok");
  EXPECT_EQ(refusal(kText, R"("stream":true,"use_beam_search":true)").rfind("use_beam_search: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("best_of":3)").rfind("best_of: ", 0), 0u);
  EXPECT_EQ(refusal(kChat, R"("top_logprobs":3)").rfind("top_logprobs: ", 0), 0u);
  EXPECT_EQ(refusal(kChat, R"("top_logprobs":0)"), "ok");
  EXPECT_EQ(refusal(kChat, R"("top_logprobs":3,"logprobs":false)").rfind("top_logprobs: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("priority":1)").rfind("priority: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("priority":0)"), "ok");
  EXPECT_EQ(refusal(kChat, R"("chat_template":"x")").rfind("chat_template: ", 0), 0u);
  EXPECT_EQ(refusal(kChat, R"("continue_final_message":true,"add_generation_prompt":true)")
                .rfind("continue_final_message: ", 0),
            0u);
  EXPECT_EQ(refusal(kChat, R"("chat_template_kwargs":{"messages":[]})").rfind("chat_template_kwargs.messages: ", 0),
            0u);
  EXPECT_NE(
      refused_body(ApiRoute::tokenize, R"({"prompt":"p","messages":[{"role":"user","content":"x"}]})").find("exclude"),
      std::string::npos);
}

TEST(ApiRequest, EchoScoresThePrompt) {
  EXPECT_EQ(good(kText, R"("echo":true,"logprobs":3)").prompt_logprobs, 3u);
  EXPECT_FALSE(good(kText, R"("echo":true,"logprobs":3)").show_prompt_logprobs);
  const ApiRequest scored = good(kText, R"("echo":true,"max_tokens":0)");
  EXPECT_EQ(scored.max_tokens, 0u);
  EXPECT_EQ(scored.prompt_logprobs, 0u);
  EXPECT_EQ(refusal(kChat, R"("echo":true,"max_tokens":0)").rfind("max_tokens: ", 0), 0u);
}

TEST(ApiRequest, LowTemperaturesAreRaisedWithAWarning) {
  const ApiRequest request = good(kText, R"("temperature":0.001)");
  EXPECT_EQ(request.sampling.temperature, 0.01f);
  ASSERT_EQ(request.warnings.size(), 1u);
  EXPECT_TRUE(good(kText, R"("temperature":0)").warnings.empty());
}

TEST(ApiRequest, TheModelsDefaultsHoldWhereTheRequestSaysNothing) {
  ApiLimits limits = kLimits;
  limits.defaults = *parse_sampling_defaults(R"({"temperature":0.6,"top_k":20,"top_p":0.9,"min_p":0.1,
    "repetition_penalty":1.1,"max_new_tokens":12,"eos_token_id":[1],"do_sample":true})");
  const ApiRequest plain = good(kText, "", limits);
  EXPECT_EQ(plain.sampling.temperature, 0.6f);
  EXPECT_EQ(plain.sampling.top_k, 20);
  EXPECT_EQ(plain.sampling.top_p, 0.9f);
  EXPECT_EQ(plain.sampling.min_p, 0.1f);
  EXPECT_EQ(plain.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(plain.max_tokens, 12u);
  EXPECT_EQ(good(kText, R"("temperature":1,"max_tokens":500)", limits).sampling.temperature, 1.0f);
  EXPECT_EQ(good(kText, R"("max_tokens":500)", limits).max_tokens, 12u);  // a cap
  EXPECT_EQ(good(kChat, "", limits).max_tokens, 12u);
  EXPECT_EQ(good(kText, R"("use_beam_search":true)", limits).sampling.top_k, 0);
  EXPECT_TRUE(parse_sampling_defaults(""));
  EXPECT_NE(parse_sampling_defaults(R"({"top_p":7})").error().message.find("top_p"), std::string::npos);
  EXPECT_FALSE(parse_sampling_defaults("[]"));
  EXPECT_FALSE(parse_sampling_defaults("{"));
  limits.chat_template_kwargs = R"({"enable_thinking":false,"a":1})";
  EXPECT_EQ(good(kChat, R"("chat_template_kwargs":{"a":2,"b":3})", limits).chat_template_kwargs,
            R"({"enable_thinking":false,"a":2,"b":3})");
}

// --- prompts

TEST(ApiRequest, PromptsAreTextsOrIds) {
  const auto ids = [](const char* prompt) {
    std::vector<std::vector<TokenId>> out;
    for (const ApiPrompt& one : good(kText, std::string("\"prompt\":") + prompt).prompts) out.push_back(one.ids);
    return out;
  };
  EXPECT_EQ(ids("[1,2,3.0]"), (std::vector<std::vector<TokenId>>{{1, 2, 3}}));
  EXPECT_EQ(ids("[[1],[2,499]]"), (std::vector<std::vector<TokenId>>{{1}, {2, 499}}));
  EXPECT_EQ(good(kText, R"("prompt":"")").prompts.at(0).text, "");
  const std::pair<const char*, const char*> wrong[] = {{"[]", "prompt"},
                                                       {"[[]]", "prompt[0]"},
                                                       {"[[1],[]]", "prompt[1]"},
                                                       {"[1,\"a\"]", "prompt[1]"},
                                                       {"[\"a\",1]", "prompt[1]"},
                                                       {"[[1,\"a\"]]", "prompt[0][1]"},
                                                       {"[[[1]]]", "prompt[0][0]"},
                                                       {"[{}]", "prompt[0]"},
                                                       {"[1,null]", "prompt[1]"},
                                                       {"[1,[2]]", "prompt[1]"},
                                                       {"[true]", "prompt[0]"},
                                                       {"[500]", "prompt[0]"},
                                                       {"[-1]", "prompt[0]"},
                                                       {"[[7,18446744073709551615]]", "prompt[0][1]"},
                                                       {"[1,2.5]", "prompt[1]"},
                                                       {"[1e30]", "prompt[0]"},
                                                       {"[\"a\",[1]]", "prompt[1]"},
                                                       {"[[1],\"a\"]", "prompt[1]"}};
  for (const auto& [prompt, param] : wrong) {
    const std::string got = refused_body(kText, std::string("{\"prompt\":") + prompt + "}");
    EXPECT_EQ(got.substr(0, got.find(": ")), param) << prompt << " -> " << got;
  }
  EXPECT_NE(refusal(kText, R"("prompt":[500])").find("out of vocabulary; ids are 0 to 499"), std::string::npos);
  std::string many = "[\"\"";
  for (int i = 1; i < 1024; ++i) many += ",\"\"";
  EXPECT_EQ(good(kText, "\"prompt\":" + many + "]").prompts.size(), 1024u);
  EXPECT_NE(refusal(kText, "\"prompt\":" + many + ",\"\"]").find("more than 1024 prompts"), std::string::npos);
}

TEST(ApiRequest, DetokenizeTakesOneListOfIds) {
  EXPECT_TRUE(good(ApiRoute::detokenize, R"("tokens":[])").prompts.at(0).ids.empty());
  for (const char* tokens : {"[[1]]", "[\"a\"]", "[-1]", "[500]", "[1.5]", "[null]", "7", "\"7\"", "{}"}) {
    EXPECT_EQ(refused_body(ApiRoute::detokenize, std::string("{\"tokens\":") + tokens + "}").rfind("tokens", 0), 0u)
        << tokens;
  }
}

// --- messages and tools

TEST(ApiRequest, ContentBecomesTextOrPartsOfText) {
  const ApiRequest request = good(kChat, R"("messages":[
    {"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b","x":1}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
      "function":{"name":"f","arguments":"{\"z\": 1, \"a\": [2.0]}"}}]},
    {"role":"tool","tool_call_id":"1","content":"ok"},
    {"role":"assistant","reasoning":"r"}])");
  EXPECT_EQ(
      request.messages,
      R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function",)"
      R"("function":{"name":"f","arguments":{"z":1,"a":[2.0]}}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"ok"},{"role":"assistant","reasoning":"r","content":"","reasoning_content":"r"}])");
  EXPECT_EQ(request.last_role, "assistant");
  EXPECT_EQ(request.last_content, "");
  EXPECT_EQ(good(kChat, R"("messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
                        R"({"type":"text","text":"b"}]}])")
                .last_content,
            "a\nb");
}

TEST(ApiRequest, WhatIsWrongInMessagesIsNamedByItsPath) {
  const std::string user = R"({"role":"user","content":"x"})";
  const std::pair<std::string, const char*> wrong[] = {
      {"[]", "messages"},
      {"[1]", "messages[0]"},
      {"[" + user + ",{}]", "messages[1].role"},
      {R"([{"role":"robot","content":"x"}])", "messages[0].role"},
      {R"([{"role":7}])", "messages[0].role"},
      {"[" + user + "," + user + R"(,{"role":"user","content":7}])", "messages[2].content"},
      {R"([{"role":"user","content":{}}])", "messages[0].content"},
      {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text","text":"x"},{"type":"text"}]}])", "messages[0].content[1].text"},
      {R"([{"role":"user","content":[{"type":"text","text":null}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":"x","name":3}])", "messages[0].name"},
      {R"([{"role":"assistant","reasoning":3}])", "messages[0].reasoning"},
      {R"([{"role":"assistant","reasoning_content":[]}])", "messages[0].reasoning_content"},
      {R"([{"role":"tool","content":"x","tool_call_id":3}])", "messages[0].tool_call_id"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","tool_calls":[3]}])", "messages[0].tool_calls[0]"},
      {R"([{"role":"assistant","tool_calls":[{}]}])", "messages[0].tool_calls[0].function"},
      {R"([{"role":"assistant","tool_calls":[{"id":1,"function":{"name":"f"}}]}])", "messages[0].tool_calls[0].id"},
      {R"([{"role":"assistant","tool_calls":[{"type":"x","function":{"name":"f"}}]}])",
       "messages[0].tool_calls[0].type"},
      {R"([{"role":"assistant","tool_calls":[{"function":{}}]}])", "messages[0].tool_calls[0].function.name"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":""}}]}])", "messages[0].tool_calls[0].function.name"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1,\"a\":2}"}}]}])",
       "messages[0].tool_calls[0].function.arguments.a"}};
  for (const auto& [messages, param] : wrong) {
    const std::string got = refused_body(kChat, "{\"messages\":" + messages + "}");
    EXPECT_EQ(got.substr(0, got.find(": ")), param) << messages << " -> " << got;
  }
  EXPECT_NE(refusal(kChat, R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])").find("unsupported"),
            std::string::npos);
}

TEST(ApiRequest, ToolsAreKeptAsGivenAndChecked) {
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"required":[],"properties":{}}}}])";
  EXPECT_EQ(good(kChat, "\"tools\":" + tools).tools, tools);
  const std::pair<const char*, const char*> wrong[] = {
      {"[]", "tools"},
      {"[1]", "tools[0]"},
      {"[{}]", "tools[0].type"},
      {R"([{"type":"custom"}])", "tools[0].type"},
      {R"([{"type":"function"}])", "tools[0].function"},
      {R"([{"type":"function","function":{}}])", "tools[0].function.name"},
      {R"([{"type":"function","function":{"name":"f","description":1}}])", "tools[0].function.description"},
      {R"([{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"}};
  for (const auto& [given, param] : wrong) {
    const std::string got = refusal(kChat, std::string("\"tools\":") + given);
    EXPECT_EQ(got.substr(0, got.find(": ")), param) << given << " -> " << got;
  }
  const std::string with = "\"tools\":" + tools + ",\"tool_choice\":";
  EXPECT_NE(refusal(kChat, with + "\"required\"").find("not built"), std::string::npos);
  EXPECT_NE(refusal(kChat, with + R"({"type":"function","function":{"name":"f"}})").find("not built"),
            std::string::npos);
  EXPECT_NE(refusal(kChat, with + R"({"type":"function","function":{"name":"g"}})").find("none of `tools`"),
            std::string::npos);
  EXPECT_EQ(refusal(kChat, with + "\"some\"").rfind("tool_choice: ", 0), 0u);
  EXPECT_NE(refusal(kChat, R"("tool_choice":"auto")").find("`tools` must be set"), std::string::npos);
  EXPECT_EQ(refusal(kChat, R"("tool_choice":"none")"), "ok");
  ApiLimits off = kLimits;
  off.tool_calls = false;
  EXPECT_NE(refusal(kChat, "\"tools\":" + tools, off).find("requires --enable-auto-tool-choice and --tool-call-parser"),
            std::string::npos);
  EXPECT_EQ(refusal(kChat, with + "\"none\"", off), "ok");
}

TEST(ApiRequest, ToolsThatMayNotBeCalledAreLeftOutWhenAskedFor) {
  const std::string tools = R"([{"type":"function","function":{"name":"f"}}])";
  ApiLimits excluding = kLimits;
  excluding.exclude_tools_when_none = true;
  const auto left = [&](const std::string& choice, const ApiLimits& limits) {
    const ApiResult<ApiRequest> request = parse_api_request(
        kChat, R"({"messages":[{"role":"user","content":"x"}],"tools":)" + tools + choice + "}", limits);
    EXPECT_TRUE(request) << request.error().message;
    return request ? request->tools : "";
  };
  const std::string none = R"(,"tool_choice":"none")";
  EXPECT_EQ(left(none, excluding), "");
  EXPECT_EQ(left(none, kLimits), tools);
  EXPECT_EQ(left(R"(,"tool_choice":"auto")", excluding), tools);
  EXPECT_EQ(left("", excluding), tools);
  EXPECT_NE(refusal(kChat, R"("tools":[{}])" + none, excluding), "ok") << "they are checked all the same";
}

// B12: written by hand after the rule: a tool's own keys as OpenAI documents them, those of its schema by the alphabet.
TEST(ApiRequest, KeysOfToolsAreSortedWhenAskedFor) {
  ApiLimits sorting = kLimits;
  sorting.sort_tool_keys = true;
  const auto tools = [&](const char* given) {
    for (const ApiRoute route : {kChat, ApiRoute::tokenize}) {
      const std::string body = std::string(R"({"messages":[{"role":"user","content":"x"}],"tools":)") + given + "}";
      const ApiResult<ApiRequest> request = parse_api_request(route, body, sorting);
      EXPECT_TRUE(request) << request.error().message;
      if (route == kChat) continue;
      return request->tools;
    }
    return std::string();
  };
  const std::string sorted =
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":)"
      R"({"properties":{"a":{"enum":["z","b"],"type":"string"},"b":{"type":"object"}},"required":["b","a"],)"
      R"("type":"object"},"strict":true}},{"type":"function","function":{"name":"a"}}])";
  EXPECT_EQ(tools(R"([{"function":{"strict":true,"parameters":{"type":"object","required":["b","a"],"properties":)"
                  R"({"b":{"type":"object"},"a":{"type":"string","enum":["z","b"]}}},"description":"d","name":"f"},)"
                  R"("type":"function"},{"type":"function","function":{"name":"a"}}])"),
            sorted);
  EXPECT_EQ(tools(sorted.c_str()), sorted);
  // The order of the tools and of what arrays hold is the client's.
  EXPECT_EQ(tools(R"([{"type":"function","function":{"name":"b"}},{"type":"function","function":{"name":"a"}}])"),
            R"([{"type":"function","function":{"name":"b"}},{"type":"function","function":{"name":"a"}}])");
}

// --- lists and strings

TEST(ApiRequest, StringsOfAllKinds) {
  EXPECT_EQ(refusal(kText, R"("stop":["a","b","c","d"])"), "ok");
  EXPECT_NE(refusal(kText, R"("stop":["a","b","c","d","e"])").find("at most 4"), std::string::npos);
  EXPECT_NE(refusal(kText, R"("stop":"")").find("stop cannot be an empty string"), std::string::npos);
  EXPECT_EQ(refusal(kText, R"("stop":["a",""])").rfind("stop[1]: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("stop":["a",3])").rfind("stop[1]: ", 0), 0u);
  EXPECT_EQ(refusal(kText, "\"stop\":\"" + std::string(256, 'x') + "\""), "ok");
  EXPECT_EQ(refusal(kText, "\"stop\":\"" + std::string(257, 'x') + "\"").rfind("stop: ", 0), 0u);
  for (const char* salt : {R"("")", R"("a@b")", R"("a/b")", R"("a\\b")", R"("a\u0000b")"}) {
    EXPECT_EQ(refusal(kText, std::string("\"cache_salt\":") + salt).rfind("cache_salt: ", 0), 0u) << salt;
  }
  std::string umlauts;
  for (int i = 0; i < 128; ++i) umlauts += "ö";
  EXPECT_EQ(refusal(kText, "\"cache_salt\":\"" + umlauts + "\""), "ok");
  EXPECT_EQ(refusal(kText, "\"cache_salt\":\"" + umlauts + "x\"").rfind("cache_salt: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("request_id":"a\r\nSet-Cookie: x")").rfind("request_id: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("truncation_side":"top")"),
            "truncation_side: truncation_side must be one of left, right, got the string \"top\"");
  EXPECT_EQ(refusal(kText, R"("logit_bias":{"1000000000":1})").rfind("logit_bias.1000000000: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("logit_bias":{"-1":1})").rfind("logit_bias.-1: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("logit_bias":{"99999999999999999999":1})").rfind("logit_bias.", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("logit_bias":{"x":1})").rfind("logit_bias.x: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("logit_bias":{"1":"1"})").rfind("logit_bias.1: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("stop_token_ids":[500])").rfind("stop_token_ids[0]: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("allowed_token_ids":[])").rfind("allowed_token_ids: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("response_format":{"type":"json_object"})").rfind("response_format: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("response_format":{})").rfind("response_format.type: ", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("stream":true,"stream_options":{"include_usage":1})")
                .rfind("stream_options.include_usage: ", 0),
            0u);
  EXPECT_EQ(refusal(kChat, R"("modalities":["text","audio"])").rfind("modalities: ", 0), 0u);
}

TEST(ApiRequest, UnknownFieldsAreIgnoredAndListedOrRefused) {
  const ApiRequest request = good(kText, R"("foo":1,"ba\nr":{"x":[]},"stream":true,"stream_options":{"y":1})");
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"foo", "ba\\x0ar", "stream_options.y"}));
  EXPECT_EQ(good(kText, R"("messages":3)").ignored, std::vector<std::string>{"messages"});  // of another route
  std::string many;
  for (int i = 0; i < 100; ++i) many += (i > 0 ? ",\"u" : "\"u") + std::to_string(i) + "\":1";
  EXPECT_EQ(good(kText, many).ignored.size(), 32u);
  EXPECT_EQ(good(kText, many).ignored_count, 100u);
  EXPECT_EQ(good(ApiRoute::tokenize, R"("foo":1)").ignored, std::vector<std::string>{"foo"});
  EXPECT_EQ(good(ApiRoute::detokenize, R"("prompt":"p")").ignored, std::vector<std::string>{"prompt"});
  ApiLimits strict = kLimits;
  strict.strict_fields = true;
  EXPECT_EQ(refusal(kText, R"("foo":1)", strict).rfind("foo: field \"foo\" is unknown", 0), 0u);
  EXPECT_EQ(refusal(kText, R"("user":"u","seed":1)", strict), "ok");
  for (const ApiRoute route : {ApiRoute::tokenize, ApiRoute::detokenize}) {
    EXPECT_EQ(refusal(route, R"("foo":1)", strict).rfind("foo: field \"foo\" is unknown", 0), 0u);
  }
}

TEST(ApiRequest, HarmlessFieldsAreAccepted) {
  const ApiRequest request = good(kChat, R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto",
    "kv_transfer_params":{"do_remote_decode":true},"prediction":{"type":"content","content":"x"},"cache_prompt":false)");
  EXPECT_TRUE(request.ignored.empty());
}

}  // namespace
}  // namespace kvarto
