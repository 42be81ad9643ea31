#include "server/openapi.h"

#include <nlohmann/json.hpp>

#include "server/openapi_schemas.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr RouteInfo kRoutes[] = {
    {.method = "POST", .path = "/v1/completions", .summary = "Continues prompts, whole or as server-sent events."},
    {.method = "POST",
     .path = "/v1/chat/completions",
     .summary = "Answers a conversation, whole or as server-sent events."},
    {.method = "GET", .path = "/v1/models", .summary = "Names under which the model is served."},
    {.method = "POST", .path = "/tokenize", .summary = "Token ids of a text or of a rendered conversation."},
    {.method = "POST", .path = "/detokenize", .summary = "Text of token ids."},
    {.method = "GET", .path = "/health", .guard = RouteGuard::open, .summary = "200 while the server makes progress."},
    {.method = "GET", .path = "/ping", .guard = RouteGuard::open, .summary = "The same."},
    {.method = "POST", .path = "/ping", .guard = RouteGuard::open, .summary = "The same."},
    {.method = "GET", .path = "/version", .summary = "The version of the program."},
    {.method = "GET", .path = "/load", .summary = "Requests that are being answered."},
    {.method = "GET", .path = "/metrics", .guard = RouteGuard::metrics, .summary = "Prometheus text."},
    {.method = "POST",
     .path = "/reset_prefix_cache",
     .dev = true,
     .summary = "Forgets cached blocks that nobody uses."},
    {.method = "GET", .path = "/openapi.json", .summary = "This document."},
    {.method = "GET", .path = "/", .guard = RouteGuard::open, .summary = "The dashboard."},
};

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
  if (path == "/openapi.json") return reply("This document", content("application/json", {{"type", "object"}}));
  if (path == "/") return reply("A page", content("text/html", {{"type", "string"}}));
  return reply("Done");
}

bool needs_key(const RouteInfo& route, const OpenApiOptions& options) {
  if (!options.keys || route.guard == RouteGuard::open) return false;
  return route.guard == RouteGuard::key || !options.public_metrics;
}

Json responses(const RouteInfo& route, const OpenApiOptions& options) {
  Json out{{"200", success(route.path)}};
  if (needs_key(route, options)) out["401"] = json_reply("The key is missing or wrong", "Unauthorized");
  if (body_of(route.path) != nullptr) {
    out["400"] = json_reply("The body or a field of it is wrong; param names it", "Error");
    out["404"] = json_reply("Unknown model", "Error");
    out["408"] = json_reply("The body came too slowly", "Error");
    out["413"] = json_reply("The body is too large", "Error");
    out["500"] = json_reply("A bug of the server", "Error");
    out["503"] = json_reply("The server is full, loading or stopping; see Retry-After", "Error");
  } else if (route.path == "/health" || route.path == "/ping") {
    out["503"] = reply("Loading, stopping or stuck");
  } else {
    if (route.path == "/load") out["400"] = json_reply("It is not tracked", "Error");
    out["503"] = json_reply("Loading or stopping", "Error");
  }
  out["405"] = json_reply("Another method; see Allow", "Detail");
  out["431"] = json_reply("The headers are too large", "Error");
  return out;
}

Json operation(const RouteInfo& route, const OpenApiOptions& options) {
  std::string id(route.method);
  for (const char c : route.path) id += c == '/' || c == '.' ? '_' : c;
  Json out{{"operationId", id}, {"summary", route.summary}};
  if (const char* body = body_of(route.path)) {
    out["requestBody"] = {{"required", true}, {"content", content("application/json", reference(body))}};
  }
  out["responses"] = responses(route, options);
  if (options.keys && !needs_key(route, options)) out["security"] = Json::array();
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  return out;
}

}  // namespace

std::span<const RouteInfo> server_routes() { return kRoutes; }

std::string openapi_json(const ApiLimits& limits, const OpenApiOptions& options) {
  Json paths = Json::object();
  for (const RouteInfo& route : kRoutes) {
    if (route.dev && !options.dev_mode) continue;
    paths[std::string(route.path)][lower(route.method)] = operation(route, options);
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
