#include "server/openapi.h"

#include <nlohmann/json.hpp>

#include "base/ascii.h"
#include "server/openapi_schemas.h"
#include "server/routes.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

Json reference(std::string_view name) { return {{"$ref", "#/components/schemas/" + std::string(name)}}; }

Json content(std::string_view type, Json schema) {
  Json media = Json::object();
  media[std::string(type)] = {{"schema", std::move(schema)}};
  return media;
}

Json reply(std::string_view text, Json media = nullptr) {
  Json out{{"description", text}};
  if (!media.is_null()) out["content"] = std::move(media);
  return out;
}

Json json_reply(std::string_view text, std::string_view schema) {
  return reply(text, content("application/json", reference(schema)));
}

// A body's route, if the path takes one.
const char* body_of(std::string_view path) {
  if (path == "/v1/completions") return "CompletionRequest";
  if (path == "/v1/chat/completions") return "ChatRequest";
  if (path == "/tokenize") return "TokenizeRequest";
  if (path == "/detokenize") return "DetokenizeRequest";
  return nullptr;
}

Json success(std::string_view path) {
  if (path == "/v1/completions" || path == "/v1/chat/completions") {
    Json media = content("application/json", reference(path == "/v1/completions" ? "CompletionReply" : "ChatReply"));
    media["text/event-stream"] = {{"schema", {{"type", "string"}}}};
    return reply("The answer; events with stream", std::move(media));
  }
  if (path == "/v1/models") return json_reply("The names", "ModelList");
  if (path == "/tokenize") return json_reply("The tokens", "TokenizeReply");
  if (path == "/detokenize") return json_reply("The text", "DetokenizeReply");
  if (path == "/version") return json_reply("The version", "Version");
  if (path == "/load") return json_reply("The load", "Load");
  if (path == "/metrics") return reply("The series", content("text/plain", {{"type", "string"}}));
  if (path == "/dashboard/state") return reply("Numbers", content("application/json", {{"type", "object"}}));
  if (path == "/openapi.json") return reply("This document", content("application/json", {{"type", "object"}}));
  if (path == "/") return reply("A page", content("text/html", {{"type", "string"}}));
  return reply("Done");
}

bool asks_for_key(const RouteInfo& route, const OpenApiOptions& options) {
  return options.keys && needs_key(route, options.public_metrics);
}

Json responses(const RouteInfo& route, const OpenApiOptions& options) {
  Json out{{"200", success(route.path)}};
  if (asks_for_key(route, options)) out["401"] = json_reply("The key is missing or wrong", "Unauthorized");
  if (body_of(route.path) != nullptr) {
    out["400"] = json_reply("The body or a field of it is wrong; param names it", "Error");
    out["404"] = json_reply("Unknown model", "Error");
    out["408"] = json_reply("The body came too slowly", "Error");
    out["413"] = json_reply("The body is too large", "Error");
    out["500"] = json_reply("A bug of the server", "Error");
    out["503"] = json_reply("The server is full, loading or stopping; see Retry-After", "Error");
  } else if (route.id == RouteId::health) {
    out["503"] = json_reply("Loading, stopping or stuck; the message says which", "Error");
  } else {
    if (route.id == RouteId::load) out["400"] = json_reply("It is not tracked", "Error");
    if (!route.loading || !route.leaving) out["503"] = json_reply("Loading or stopping", "Error");
  }
  if (!options.keys || route.id == RouteId::page || route.id == RouteId::dashboard_state) {
    out["403"] = json_reply("A browser calls the server by a name that is not its own; see --allowed-hosts", "Error");
  }
  out["405"] = json_reply("Another method; see Allow", "Detail");
  out["431"] = json_reply("The headers are too large", "Error");
  return out;
}

Json operation(const RouteInfo& route, std::string_view method, const OpenApiOptions& options) {
  std::string id(method);
  for (const char c : route.path) id += c == '/' || c == '.' ? '_' : c;
  Json out{{"operationId", id}, {"summary", route.summary}};
  if (const char* body = body_of(route.path)) {
    out["requestBody"] = {{"required", true}, {"content", content("application/json", reference(body))}};
  }
  out["responses"] = responses(route, options);
  if (options.keys && !asks_for_key(route, options)) out["security"] = Json::array();
  return out;
}

}  // namespace

std::string openapi_json(const ApiLimits& limits, const OpenApiOptions& options) {
  Json paths = Json::object();
  for (const RouteInfo& route : server_routes()) {
    if (route.dev && !options.dev_mode) continue;
    for (const std::string_view method : {"GET", "POST"}) {
      if (route.takes(method)) paths[std::string(route.path)][ascii_lower(method)] = operation(route, method, options);
    }
  }
  Json schemas = reply_schemas();
  schemas["CompletionRequest"] = request_schema(ApiRoute::completions, limits);
  schemas["ChatRequest"] = request_schema(ApiRoute::chat, limits);
  schemas["TokenizeRequest"] = request_schema(ApiRoute::tokenize, limits);
  schemas["DetokenizeRequest"] = request_schema(ApiRoute::detokenize, limits);
  Json document{{"openapi", "3.1.0"},
                {"info",
                 {{"title", "Kvarto"},
                  {"version", options.version},
                  {"description",
                   "An OpenAI-compatible server. x-kvarto-use of a field: used, harmless (accepted, no "
                   "output depends on it) or refused (400 unless null or neutral). Unknown fields are "
                   "ignored and named in the reply's X-Kvarto-Ignored."}}},
                {"paths", std::move(paths)},
                {"components", {{"schemas", std::move(schemas)}}}};
  if (options.keys) {
    document["components"]["securitySchemes"] = {{"key", {{"type", "http"}, {"scheme", "bearer"}}}};
    document["security"] = Json::array({Json{{"key", Json::array()}}});
  }
  return document.dump();
}

}  // namespace kvarto
