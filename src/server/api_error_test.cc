#include "server/api_error.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/inbox.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::string header(const ServerReply& reply, std::string_view name) {
  for (const HttpHeader& one : reply.headers) {
    if (one.name == name) return one.value;
  }
  return "";
}

TEST(ApiError, EnvelopeHasTheFourKeysInOrder) {
  EXPECT_EQ(
      error_body(bad_field("top_p", "top_p must be in (0, 1], got 2")),
      R"({"error":{"message":"top_p must be in (0, 1], got 2","type":"BadRequestError","param":"top_p","code":400}})");
  EXPECT_EQ(error_body(bad_body("", "x")), R"({"error":{"message":"x","type":"Bad Request","param":null,"code":400}})");
  EXPECT_EQ(error_body(status_error(413, "too large")),
            R"({"error":{"message":"too large","type":"RequestEntityTooLargeError","param":null,"code":413}})");
  EXPECT_TRUE(Json::accept(error_body(bad_field("a\xff", "b\xff\n"))));  // bytes that are no UTF-8 are replaced
}

TEST(ApiError, OverloadSaysWhenToComeBack) {
  const ServerReply reply = error_reply(overloaded("busy", 7));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(header(reply, "Retry-After"), "7");
  EXPECT_EQ(header(reply, "Content-Type"), "application/json");
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "server_overloaded");
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "Service Unavailable");
  EXPECT_EQ(header(error_reply(bad_field("n", "x")), "Retry-After"), "");
}

TEST(ApiError, RepliesWithoutTheEnvelope) {
  EXPECT_EQ(unauthorized_reply().status, 401);
  EXPECT_EQ(unauthorized_reply().body, R"({"error":"Unauthorized"})");
  EXPECT_EQ(no_route_reply().status, 404);
  EXPECT_EQ(no_route_reply().body, R"({"detail":"Not Found"})");
  EXPECT_EQ(header(no_route_reply(), "Link"), "");
  EXPECT_EQ(no_route_reply("/llm/openapi.json").body, no_route_reply().body);
  EXPECT_EQ(header(no_route_reply("/llm/openapi.json"), "Link"), "</llm/openapi.json>; rel=\"service-desc\"");
  EXPECT_EQ(wrong_method_reply("GET").status, 405);
  EXPECT_EQ(wrong_method_reply("GET, POST").body, R"({"detail":"Method Not Allowed"})");
  EXPECT_EQ(header(wrong_method_reply("GET, POST"), "Allow"), "GET, POST");
}

TEST(ApiError, LengthErrorsHaveThePhraseThatClientsLookFor) {
  const ApiError plain = context_length_error(100, 120);
  EXPECT_TRUE(
      plain.message.starts_with("This model's maximum context length is 100 tokens. However, your prompt "
                                "contains 120 input tokens"));
  EXPECT_TRUE(plain.message.ends_with("(parameter=input_tokens, value=120)"));
  EXPECT_EQ(plain.param, "input_tokens");
  EXPECT_NE(context_length_error(100, 101, true).message.find("contains at least 101 input tokens"), std::string::npos);
  const ApiError text = context_length_of_text(100, 5000, 300);
  EXPECT_NE(text.message.find("maximum context length is 100 tokens"), std::string::npos);
  EXPECT_NE(text.message.find("5000 characters"), std::string::npos);
  EXPECT_EQ(text.param, "input_text");
  EXPECT_NE(no_room_for_output(100).message.find("plus at least 1 output token"), std::string::npos);
  EXPECT_EQ(no_room_for_output(100).param, std::nullopt);
  EXPECT_TRUE(max_tokens_error("max_completion_tokens", 500, 100)
                  .message.starts_with("max_completion_tokens=500 cannot be greater than max_model_len=100"));
}

TEST(ApiError, UnknownModelsAreNamedWithThoseThatAreServed) {
  const ApiError error = unknown_model("gpt\n4", std::vector<std::string>{"a", "b"});
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.type, "NotFoundError");
  EXPECT_EQ(error.param, "model");
  EXPECT_EQ(error.message, "The model \"gpt\\x0a4\" does not exist; this server has \"a\", \"b\"");
}

TEST(ApiError, StatusOfTheEnginesErrors) {
  const auto status = [](ErrorCode code) { return api_error({code, "x"}).status; };
  EXPECT_EQ(status(ErrorCode::invalid_argument), 400);
  EXPECT_EQ(status(ErrorCode::unsupported), 400);
  EXPECT_EQ(status(ErrorCode::out_of_memory), 400);
  EXPECT_EQ(status(ErrorCode::corrupt), 400);
  EXPECT_EQ(status(ErrorCode::not_found), 404);
  EXPECT_EQ(status(ErrorCode::cancelled), 503);
  EXPECT_EQ(status(ErrorCode::io), 500);
  EXPECT_EQ(status(ErrorCode::internal), 500);
  const ApiError full = api_error(inbox_full());
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.code, "server_overloaded");
  EXPECT_EQ(full.retry_after_s, 1u);
  EXPECT_TRUE(full.message.starts_with("65536 requests are waiting"));
  EXPECT_EQ(api_error({ErrorCode::invalid_argument, "temperature 3 is not in [0, 2]"}).param, "temperature");
  EXPECT_EQ(api_error({ErrorCode::invalid_argument, "the prompt is empty"}).param, std::nullopt);
}

TEST(ApiError, InternalErrorsShowNoPathsAndNoAddresses) {
  EXPECT_EQ(api_error({ErrorCode::internal, "cannot read \"/srv/models/x.gguf\" at 0x7f00 of 1/2"}).message,
            "cannot read [path] at [address] of 1/2");
}

}  // namespace
}  // namespace kvarto
