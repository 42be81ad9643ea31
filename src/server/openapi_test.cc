#include "server/openapi.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "server/openapi_schemas.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

const ApiLimits kLimits{.max_model_len = 1000, .vocabulary = 500, .max_n = 8};

Json document(const OpenApiOptions& options = {.version = "1.2.3"}) {
  return Json::parse(openapi_json(kLimits, options));
}

// Every "$ref" below `json`.
void collect_references(const Json& json, std::set<std::string>& out) {
  if (!json.is_structured()) return;
  for (const auto& [key, value] : json.items()) {
    if (json.is_object() && key == "$ref") out.insert(value.get<std::string>());
    collect_references(value, out);
  }
}

TEST(OpenApi, HasEveryRouteOnce) {
  const Json plain = document();
  EXPECT_EQ(plain["openapi"], "3.1.0");
  EXPECT_EQ(plain["info"]["version"], "1.2.3");
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize", "/health", "/ping",
        "/version", "/load", "/metrics", "/dashboard/state", "/openapi.json", "/"}) {
    EXPECT_TRUE(plain["paths"].contains(path)) << path;
  }
  EXPECT_FALSE(plain["paths"].contains("/reset_prefix_cache"));
  EXPECT_TRUE(document({.dev_mode = true})["paths"].contains("/reset_prefix_cache"));
  std::set<std::string> ids;
  for (const auto& [path, methods] : plain["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      EXPECT_TRUE(ids.insert(operation["operationId"].get<std::string>()).second);
      EXPECT_TRUE(operation["responses"].contains("200")) << path;
    }
  }
  EXPECT_EQ(ids.size(), 14u);  // /ping has two methods
}

TEST(OpenApi, ReferencesLeadSomewhere) {
  const Json plain = document();
  std::set<std::string> references;
  collect_references(plain, references);
  EXPECT_GT(references.size(), 8u);
  for (const std::string& reference : references) {
    EXPECT_TRUE(plain.contains(Json::json_pointer(reference.substr(1)))) << reference;
  }
}

TEST(OpenApi, EveryFieldIsInTheSchemaOfItsRoutes) {
  const Json schemas = document()["components"]["schemas"];
  const std::pair<ApiRoute, const char*> routes[] = {{ApiRoute::completions, "CompletionRequest"},
                                                     {ApiRoute::chat, "ChatRequest"},
                                                     {ApiRoute::tokenize, "TokenizeRequest"},
                                                     {ApiRoute::detokenize, "DetokenizeRequest"}};
  for (const auto& [route, name] : routes) {
    const Json& properties = schemas[name]["properties"];
    size_t fields = 0;
    for (const ApiField& field : api_fields()) {
      if (!field.on(route)) continue;
      ++fields;
      const std::string key(field.name);
      ASSERT_TRUE(properties.contains(key)) << name << ' ' << key;
      EXPECT_EQ(properties[key]["x-kvarto-use"], field_use_name(field.use)) << key;
      EXPECT_FALSE(properties[key]["description"].get<std::string>().empty());
    }
    EXPECT_EQ(properties.size(), fields);
    EXPECT_EQ(schemas[name]["additionalProperties"], true);
  }
}

TEST(OpenApi, RangesAreThoseOfTheServer) {
  const Json fields = document()["components"]["schemas"]["CompletionRequest"]["properties"];
  EXPECT_EQ(fields["n"]["type"], Json::parse(R"(["integer","null"])"));
  EXPECT_EQ(fields["n"]["maximum"], 8);
  EXPECT_EQ(fields["max_tokens"]["maximum"], 1000);
  EXPECT_EQ(fields["logprobs"]["maximum"], 20);
  EXPECT_EQ(fields["prompt_logprobs"]["minimum"], 0);  // -1 asks for more than 20
  EXPECT_EQ(fields["temperature"]["minimum"], 0.0);
  EXPECT_EQ(fields["temperature"]["default"], 1.0);
  EXPECT_EQ(fields["top_p"]["exclusiveMinimum"], 0.0);
  EXPECT_FALSE(fields["top_p"].contains("minimum"));
  EXPECT_EQ(fields["seed"]["maximum"], INT64_MAX);
  EXPECT_EQ(fields["suffix"]["enum"], Json::parse(R"([null,""])"));
  EXPECT_EQ(fields["guided_json"]["type"], "null");
  EXPECT_EQ(fields["truncation_side"]["enum"], Json::parse(R"(["left","right",null])"));
  EXPECT_EQ(fields["stop"]["anyOf"][1]["maxItems"], 4);
  EXPECT_EQ(fields["prompt"]["anyOf"][2]["items"]["maximum"], 499);
  EXPECT_EQ(fields["prompt"]["anyOf"][3]["items"]["type"], "array");
  ApiLimits uncapped = kLimits;
  uncapped.max_logprobs = UINT32_MAX;
  EXPECT_EQ(field_schema(*find_api_field(ApiRoute::chat, "top_logprobs"), uncapped)["minimum"], -1);
}

// Requests that the schemas allow at their edges are accepted by the parser.
TEST(OpenApi, EdgesOfTheSchemaAreAccepted) {
  for (const ApiRoute route : {ApiRoute::completions, ApiRoute::chat}) {
    const Json properties = request_schema(route, kLimits)["properties"];
    for (const auto& [name, schema] : properties.items()) {
      for (const char* edge : {"minimum", "maximum"}) {
        if (!schema.contains(edge)) continue;
        Json body = route == ApiRoute::chat ? Json::parse(R"({"messages":[{"role":"user"}]})") : Json{{"prompt", "p"}};
        body[name] = schema[edge];
        if (name == "top_logprobs") body["logprobs"] = true;
        if (name == "min_tokens") body["max_tokens"] = 1000;
        if (name == "best_of") body["n"] = schema[edge];
        if (name == "max_tokens") body["echo"] = true;
        if (name == "priority" || (name == "min_tokens" && edge == std::string_view("maximum")))
          continue;  // of the server; of max_tokens
        const auto request = parse_api_request(route, body.dump(), kLimits);
        EXPECT_TRUE(request) << body.dump() << ": " << request.error().message;
      }
    }
  }
}

TEST(OpenApi, KeysGuardAllButTheOpenRoutes) {
  const Json open = document();
  EXPECT_FALSE(open.contains("security"));
  EXPECT_FALSE(open["paths"]["/v1/models"]["get"]["responses"].contains("401"));
  const Json guarded = document({.keys = true, .public_metrics = true});
  EXPECT_EQ(guarded["components"]["securitySchemes"]["key"]["scheme"], "bearer");
  EXPECT_TRUE(guarded["paths"]["/v1/models"]["get"]["responses"].contains("401"));
  for (const char* path : {"/health", "/ping", "/metrics", "/"}) {
    EXPECT_FALSE(guarded["paths"][path]["get"]["responses"].contains("401")) << path;
    EXPECT_TRUE(guarded["paths"][path]["get"]["security"].empty()) << path;
  }
  EXPECT_TRUE(document({.keys = true})["paths"]["/metrics"]["get"]["responses"].contains("401"));
}

// Only what a route can answer.
TEST(OpenApi, RepliesAreThoseOfTheRoute) {
  const Json paths = document()["paths"];
  EXPECT_FALSE(paths["/ping"]["get"]["responses"].contains("503")) << "it is 200 while the process lives";
  EXPECT_FALSE(paths["/version"]["get"]["responses"].contains("503"));
  for (const char* path : {"/health", "/metrics", "/v1/models", "/dashboard/state"}) {
    EXPECT_TRUE(paths[path]["get"]["responses"].contains("503")) << path;
  }
  EXPECT_TRUE(paths["/v1/models"]["get"]["responses"].contains("403"));
  const Json with_keys = document({.keys = true})["paths"];
  EXPECT_FALSE(with_keys["/v1/models"]["get"]["responses"].contains("403"));
  EXPECT_TRUE(with_keys["/"]["get"]["responses"].contains("403"));
}

TEST(OpenApi, NamesOfToolsHaveTheLengthThatIsAccepted) {
  const Json tool = document()["components"]["schemas"]["ChatRequest"]["properties"]["tools"]["anyOf"][0]["items"];
  const Json schema = tool["properties"]["function"]["properties"]["name"];
  for (const int more : {0, 1}) {
    const std::string name(schema["maxLength"].get<size_t>() + more, 'n');
    const Json body{{"messages", {{{"role", "user"}, {"content", "x"}}}},
                    {"tool_choice", "none"},
                    {"tools", {{{"type", "function"}, {"function", {{"name", name}}}}}}};
    EXPECT_EQ(parse_api_request(ApiRoute::chat, body.dump(), kLimits).has_value(), more == 0) << more;
  }
}

TEST(OpenApi, ErrorsHaveTheEnvelope) {
  const Json error = reply_schemas()["Error"]["properties"]["error"];
  EXPECT_EQ(error["required"], Json::parse(R"(["message","type","param","code"])"));
  const Json post = document()["paths"]["/v1/chat/completions"]["post"];
  for (const char* status : {"400", "404", "405", "413", "503"})
    EXPECT_TRUE(post["responses"].contains(status)) << status;
  EXPECT_TRUE(post["responses"]["200"]["content"].contains("text/event-stream"));
}

}  // namespace
}  // namespace kvarto
