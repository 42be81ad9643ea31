#include "eval/openai_server.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxReply = size_t{16} << 20;
constexpr size_t kLongestMessage = 200;
constexpr int kOk = 200, kUnauthorized = 401, kForbidden = 403, kNotFound = 404, kTooMany = 429, kNotImplemented = 501;
constexpr double kLongestRetryAfter = 1e9;

std::chrono::milliseconds in_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::max(1.0, seconds * 1000)));
}

Result<Url> base_of(std::string text) {
  if (text.find("://") == std::string::npos) text = "http://" + text;
  while (text.ends_with('/')) text.pop_back();
  if (text.ends_with("/v1")) text.resize(text.size() - 3);
  Result<Url> url = parse_url(text);
  if (!url) {
    return fail(ErrorCode::invalid_argument,
                "--url " + kvarto::quoted(text) + ": " + url.error().message + "; write it as http://127.0.0.1:8000");
  }
  if (!url->target.ends_with('/')) url->target += '/';
  return url;
}

std::string message_of(const Json& error) {
  if (error.is_string()) return printable(error.get<std::string>(), kLongestMessage);
  const auto message = error.find("message");
  const bool has_one = message != error.end() && message->is_string();
  return printable(has_one ? message->get<std::string>() : error.dump(-1, ' ', true), kLongestMessage);
}

// Where a redirect leads; empty: nowhere.
std::string target_of(const HttpReply& reply) {
  const std::string* const location = reply.header("Location");
  if (location == nullptr) return {};
  const Result<Url> target = resolve_location(reply.url, *location);
  return target ? shown(*target) : std::string();
}

}  // namespace

std::string error_line(std::string_view body) {
  const Result<Json> reply = parse_json(body);
  if (reply && reply->is_object()) {
    for (const char* name : {"error", "message", "detail"}) {
      if (const auto error = reply->find(name); error != reply->end() && !error->is_null()) return message_of(*error);
    }
  }
  return printable(body.substr(0, body.find_first_of("\r\n")), kLongestMessage);
}

double retry_after_s(const HttpReply& reply) {
  const std::string* value = reply.header("Retry-After");
  return value == nullptr ? 0 : std::min(kLongestRetryAfter, std::max(0.0, std::strtod(value->c_str(), nullptr)));
}

BodySink whole_body(std::string where, size_t max_bytes, std::function<bool()> ended, std::string& text) {
  BodySink sink;
  sink.data = [where = std::move(where), max_bytes, ended = std::move(ended), &text](std::string_view bytes) -> Status {
    if (ended()) return fail(ErrorCode::network, where + ": the reply was not whole in time");
    if (bytes.size() > max_bytes - text.size()) {
      return fail(ErrorCode::corrupt, where + ": a reply longer than " + std::to_string(max_bytes >> 20) + " MiB");
    }
    text += bytes;
    return {};
  };
  return sink;
}

std::string with_question(const Error& error, std::string_view question) {
  const bool has_remedy = error.message.find("; ") != std::string::npos;  // no URL holds a space
  return has_remedy ? error.message : error.message + "; " + std::string(question);
}

OpenAiServer::OpenAiServer(Url base, const OpenAiOptions& options) : base_(std::move(base)) {
  if (!options.api_key.empty()) authorization_ = "Bearer " + options.api_key;
  http_.idle_limit = in_ms(options.timeout_s);
  http_.cancelled = options.cancelled;
}

Result<OpenAiServer> OpenAiServer::find(const OpenAiOptions& options) {
  ASSIGN_OR_RETURN(Url base, base_of(options.url));
  OpenAiServer server(std::move(base), options);
  RETURN_IF_ERROR(server.choose_model(options.model));
  return server;
}

HttpRequest OpenAiServer::request(const std::string& path, std::optional<std::string> body) const {
  HttpRequest request;
  request.url = base_;
  request.url.target += path;
  if (body) request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(body);
  request.authorization = authorization_;
  request.redirects = Redirects::none;
  return request;
}

Result<std::string> OpenAiServer::ask(const std::string& path, std::optional<std::string> body) const {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + http_.idle_limit;
  const auto cancelled = [this] { return http_.cancelled && http_.cancelled(); };
  HttpClientOptions options = http_;
  options.cancelled = [&] { return cancelled() || Clock::now() >= end; };
  std::string text;
  const BodySink sink = whole_body(shown_url() + path, kMaxReply, options.cancelled, text);
  const Result<HttpReply> reply = HttpClient(options).send(request(path, std::move(body)), sink);
  if (!reply && cancelled()) return fail(ErrorCode::cancelled, "ended on request");
  if (!reply) return fail(reply.error().code, with_question(reply.error(), "is the server running and --url right?"));
  if (reply->status != kOk) return tl::unexpected<Error>(refusal(path, *reply));
  return text;
}

Error OpenAiServer::refusal(const std::string& path, const HttpReply& reply) const {
  const std::string where = shown_url() + path;
  const int status = reply.status;
  if (status == kUnauthorized || status == kForbidden) {
    const bool given = !authorization_.empty();
    return {ErrorCode::network, where + (given ? " does not accept this key; give another with --api-key"
                                               : " wants a key; give it with --api-key")};
  }
  std::string message = where + " answers " + std::to_string(status);
  if (status / 100 == 3) {
    // Not followed: a key is for the server that it was given for, and a POST would come out as a GET.
    if (const std::string target = target_of(reply); !target.empty()) message += " and points to " + target;
    return {ErrorCode::network, message + "; give --url the address of the server itself"};
  }
  if (const std::string line = error_line(reply.error_text); !line.empty()) message += ": " + line;
  if (status == kNotFound) return {ErrorCode::not_found, message};
  if (status == kNotImplemented) return {ErrorCode::unsupported, message};
  const bool this_alone = status / 100 == 4 && status != kTooMany;
  return {this_alone ? ErrorCode::invalid_argument : ErrorCode::network, message};
}

Status OpenAiServer::choose_model(const std::string& wanted) {
  const Result<std::string> text = ask("v1/models", std::nullopt);
  if (!text && text.error().code == ErrorCode::not_found && !wanted.empty()) {
    model_ = wanted;  // a server without that list
    return {};
  }
  if (!text) return tl::unexpected<Error>(text.error());
  const Result<Json> reply = parse_json(*text);
  std::string names;
  if (reply && reply->is_object() && reply->contains("data") && (*reply)["data"].is_array()) {
    for (const Json& model : (*reply)["data"]) {
      if (!model.is_object() || !model.contains("id") || !model["id"].is_string()) continue;
      const std::string name = model["id"].get<std::string>();
      if (wanted.empty() || wanted == name) {
        model_ = name;
        return {};
      }
      names += (names.empty() ? "" : ", ") + printable(name);
    }
  }
  if (names.empty()) {
    return fail(ErrorCode::network, shown_url() + "v1/models lists no model; is this a server of OpenAI's API?");
  }
  return fail(ErrorCode::not_found, "the server has no model " + kvarto::quoted(wanted) + "; it has " + names);
}

std::string OpenAiServer::tokenize_body(const std::string& text) const {
  // `prompt` is vLLM's word, `content` llama-server's; each passes over the other.
  return dump(Json{{"model", model_}, {"prompt", text}, {"content", text}, {"add_special", true}});
}

Result<uint32_t> OpenAiServer::tokens_of(std::string_view tokenize_reply) const {
  const Result<Json> parsed = parse_json(tokenize_reply);
  if (parsed && parsed->is_object() && parsed->contains("tokens") && (*parsed)["tokens"].is_array()) {
    return static_cast<uint32_t>((*parsed)["tokens"].size());
  }
  return fail(ErrorCode::not_found, shown_url() + "tokenize gives no tokens");
}

std::string OpenAiServer::one_token_body(const std::string& text, bool chat) const {
  Json body = Json::object();
  if (chat) {
    Json message{{"role", "user"}, {"content", text}};
    body["messages"] = Json::array();
    body["messages"].push_back(std::move(message));
  } else {
    body["prompt"] = text;
  }
  body["model"] = model_;
  body["stream"] = false;
  body["temperature"] = 0;
  body["max_tokens"] = 1;
  return dump(body);
}

Result<uint32_t> OpenAiServer::prompt_tokens_of(std::string_view reply) const {
  const Result<Json> parsed = parse_json(reply);
  if (parsed && parsed->is_object() && parsed->contains("usage") && (*parsed)["usage"].is_object()) {
    const Json& usage = (*parsed)["usage"];
    if (const auto count = usage.find("prompt_tokens"); count != usage.end() && count->is_number_unsigned()) {
      const auto tokens = count->get<uint64_t>();
      if (tokens <= std::numeric_limits<uint32_t>::max()) return static_cast<uint32_t>(tokens);
    }
  }
  return fail(ErrorCode::network, shown_url() +
                                      " has no /tokenize and counts no tokens in `usage`, so no prompt of a "
                                      "wanted length can be made");
}

}  // namespace kvarto
