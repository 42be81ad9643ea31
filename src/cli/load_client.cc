#include "cli/load_client.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/load_meter.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxReply = size_t{16} << 20;
constexpr int kOk = 200, kUnauthorized = 401, kForbidden = 403, kNotFound = 404, kOverloaded = 503;

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

// The number in a Retry-After header; dates are not read.
double retry_after_of(const HttpReply& reply) {
  const std::string* value = reply.header("Retry-After");
  return value == nullptr ? 0 : std::max(0.0, std::strtod(value->c_str(), nullptr));
}

}  // namespace

// One connection that stays open from request to request.
class HttpSender : public LoadSender {
 public:
  HttpSender(const LoadServer& server, const LoadTime& time, bool stream)
      : server_(server), time_(time), stream_(stream), connection_(options(server)) {}

  LoadAnswer send(const LoadRequest& request, const std::function<bool()>& give_up, LoadRecord& record) override {
    give_up_ = &give_up;
    ReplyMeter meter(record, stream_);
    BodySink sink;
    sink.begin = [&](const HttpReply& reply) -> Status {
      record.status = reply.status;
      return {};
    };
    sink.data = [&](std::string_view bytes) -> Status {
      RETURN_IF_ERROR(meter.take(bytes, time_.now_s()));
      if (give_up()) return fail(ErrorCode::cancelled, "given up");
      return {};
    };
    const char* path = request.chat ? "v1/chat/completions" : "v1/completions";
    const Result<HttpReply> reply = connection_.send(server_.request(path, request.body), sink);
    give_up_ = nullptr;
    const Status whole = reply && reply->status == kOk ? meter.end(time_.now_s()) : Status();
    LoadAnswer answer;
    if (!reply || !whole) {
      record.outcome = LoadOutcome::broken;
      record.error = printable(!reply ? reply.error().message : whole.error().message, 300);
    } else if (reply->status != kOk) {
      record.outcome = LoadOutcome::refused;
      record.status = reply->status;
      record.error = error_line(reply->error_text);
      if (reply->status == kOverloaded) answer.retry_after_s = std::max(0.1, retry_after_of(*reply));
    } else {
      record.outcome = LoadOutcome::done;
      answer.text = meter.text();
    }
    return answer;
  }

 private:
  HttpClientOptions options(const LoadServer& server) {
    HttpClientOptions out = server.http_;
    out.cancelled = [this] { return give_up_ != nullptr && (*give_up_)(); };
    return out;
  }

  const LoadServer& server_;
  const LoadTime& time_;
  const bool stream_;
  const std::function<bool()>* give_up_ = nullptr;
  HttpConnection connection_;
};

LoadServer::LoadServer(Url base, const LoadServerOptions& options)
    : base_(std::move(base)), key_given_(!options.api_key.empty()) {
  if (key_given_) authorization_ = "Bearer " + options.api_key;
  http_.idle_limit = in_ms(options.timeout_s);
}

Result<LoadServer> LoadServer::find(const LoadServerOptions& options) {
  ASSIGN_OR_RETURN(Url base, base_of(options.url));
  LoadServer server(std::move(base), options);
  RETURN_IF_ERROR(server.choose_model(options.model));
  return server;
}

HttpRequest LoadServer::request(const std::string& path, std::optional<std::string> body) const {
  HttpRequest request;
  request.url = base_;
  request.url.target += path;
  if (body) request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(body);
  request.authorization = authorization_;
  request.redirects = Redirects::none;
  return request;
}

// The body of a reply of status 200; other statuses are errors that say what to do.
Result<std::string> LoadServer::ask(const std::string& path, std::optional<std::string> body) const {
  std::string text;
  Result<HttpReply> reply = HttpClient(http_).get(request(path, std::move(body)), kMaxReply, text);
  if (!reply) {
    return fail(reply.error().code, reply.error().message + "; is the server running and --url right?");
  }
  if (reply->status == kOk) return text;
  const std::string where = shown_url() + path;
  if (reply->status == kUnauthorized || reply->status == kForbidden) {
    return fail(ErrorCode::network, key_given_ ? where + " does not accept this key; give another with --api-key"
                                               : where + " wants a key; give it with --api-key");
  }
  const ErrorCode code = reply->status == kNotFound ? ErrorCode::not_found : ErrorCode::network;
  return fail(code, where + " answers " + std::to_string(reply->status) + ": " + error_line(reply->error_text));
}

Status LoadServer::choose_model(const std::string& wanted) {
  const Result<std::string> text = ask("v1/models", std::nullopt);
  if (!text && text.error().code == ErrorCode::not_found && !wanted.empty()) {
    model_ = wanted;  // a server without that list
    return {};
  }
  if (!text) {
    const bool lacks = text.error().code == ErrorCode::not_found;
    return fail(text.error().code, text.error().message + (lacks ? "; name the model with --model" : ""));
  }
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

Result<uint32_t> LoadServer::tokenize(const std::string& text) const {
  // `prompt` is vLLM's word, `content` llama-server's; each passes over the other.
  const Json body{{"model", model_}, {"prompt", text}, {"content", text}, {"add_special", true}};
  ASSIGN_OR_RETURN(const std::string reply, ask("tokenize", body.dump()));
  const Result<Json> parsed = parse_json(reply);
  if (parsed && parsed->is_object() && parsed->contains("tokens") && (*parsed)["tokens"].is_array()) {
    return static_cast<uint32_t>((*parsed)["tokens"].size());
  }
  return fail(ErrorCode::not_found, shown_url() + "tokenize gives no tokens");
}

Result<uint32_t> LoadServer::count_by_usage(const std::string& text, bool chat) const {
  LoadJob job;
  LoadTurn turn;
  turn.text = text;
  turn.output_tokens = 1;
  job.turns.push_back(std::move(turn));
  const LoadRequest asked =
      request_of({.model = model_, .chat = chat, .stream = false, .fixed_lengths = false}, job, 0, {});
  ASSIGN_OR_RETURN(const std::string body, ask(chat ? "v1/chat/completions" : "v1/completions", asked.body));
  LoadRecord record;
  ReplyMeter meter(record, false);
  RETURN_IF_ERROR(meter.take(body, 0));
  RETURN_IF_ERROR(meter.end(0));
  if (record.usage) return record.prompt_tokens;
  return fail(ErrorCode::network, shown_url() +
                                      " has no /tokenize and counts no tokens in `usage`, so no prompt of a "
                                      "wanted length can be made; use --jsonl");
}

CountTokens LoadServer::counter(bool chat) const {
  if (tokenize("The")) return [this](const std::string& text) { return tokenize(text); };
  return [this, chat](const std::string& text) { return count_by_usage(text, chat); };
}

std::unique_ptr<LoadSender> LoadServer::sender(const LoadTime& time, bool stream) const {
  return std::make_unique<HttpSender>(*this, time, stream);
}

}  // namespace kvarto
