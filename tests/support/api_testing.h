// What the tests of request parsing share. Included by tests alone.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/api_request.h"

namespace kvarto::api_testing {

using Json = nlohmann::ordered_json;

inline const ApiLimits kLimits{.max_model_len = 1000, .vocabulary = 500, .tool_calls = true};

inline std::string minimal(ApiRoute route) {
  switch (route) {
    case ApiRoute::completions:
      return R"({"prompt":"p"})";
    case ApiRoute::chat:
      return R"({"messages":[{"role":"user","content":"hi"}]})";
    case ApiRoute::tokenize:
      return R"({"prompt":"p"})";
    case ApiRoute::detokenize:
      return R"({"tokens":[1]})";
  }
  return "";
}

// The smallest body of the route with these members put over it.
inline std::string body(ApiRoute route, const std::string& members) {
  Json json = Json::parse(minimal(route));
  json.update(Json::parse("{" + members + "}"));
  return json.dump();
}

inline ApiResult<ApiRequest> parse(ApiRoute route, const std::string& members, const ApiLimits& limits = kLimits) {
  return parse_api_request(route, body(route, members), limits);
}

inline ApiRequest good(ApiRoute route, const std::string& members, const ApiLimits& limits = kLimits) {
  ApiResult<ApiRequest> request = parse(route, members, limits);
  EXPECT_TRUE(request) << members << ": " << (request ? "" : request.error().message);
  return request.value_or(ApiRequest());
}

// The error's "param: message"; "ok" when there is none.
inline std::string refusal(ApiRoute route, const std::string& members, const ApiLimits& limits = kLimits) {
  const ApiResult<ApiRequest> request = parse(route, members, limits);
  if (request) return "ok";
  EXPECT_EQ(request.error().status, 400);
  EXPECT_EQ(request.error().message.find('\n'), std::string::npos);
  return request.error().param.value_or("-") + ": " + request.error().message;
}

inline std::string refused_body(ApiRoute route, const std::string& text, const ApiLimits& limits = kLimits) {
  const ApiResult<ApiRequest> request = parse_api_request(route, text, limits);
  if (request) return "ok";
  EXPECT_EQ(request.error().status, 400);
  return request.error().param.value_or("-") + ": " + request.error().message;
}

inline constexpr ApiRoute kText = ApiRoute::completions, kChat = ApiRoute::chat;
inline constexpr ApiRoute kRoutes[] = {kText, kChat, ApiRoute::tokenize, ApiRoute::detokenize};

}  // namespace kvarto::api_testing
