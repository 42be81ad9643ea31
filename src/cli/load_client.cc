#include "cli/load_client.h"

#include <algorithm>

#include "cli/load_meter.h"
#include "format/printable.h"
#include "http/client.h"

namespace kvarto {
namespace {

constexpr int kOk = 200, kOverloaded = 503;

const char* path_of(bool chat) { return chat ? "v1/chat/completions" : "v1/completions"; }

// One connection that stays open from request to request.
class HttpSender : public LoadSender {
 public:
  HttpSender(const OpenAiServer& server, const LoadTime& time, bool stream)
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
    const Result<HttpReply> reply = connection_.send(server_.request(path_of(request.chat), request.body), sink);
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
      if (reply->status == kOverloaded) answer.retry_after_s = std::max(0.1, retry_after_s(*reply));
    } else {
      record.outcome = LoadOutcome::done;
      answer.text = meter.text();
    }
    return answer;
  }

 private:
  HttpClientOptions options(const OpenAiServer& server) {
    HttpClientOptions out = server.http();
    out.cancelled = [this] { return give_up_ != nullptr && (*give_up_)(); };
    return out;
  }

  const OpenAiServer& server_;
  const LoadTime& time_;
  const bool stream_;
  const std::function<bool()>* give_up_ = nullptr;
  HttpConnection connection_;
};

}  // namespace

Result<LoadServer> LoadServer::find(const LoadServerOptions& options) {
  Result<OpenAiServer> server = OpenAiServer::find(options);
  if (server) return LoadServer(std::move(*server));
  const bool lacks_list = server.error().code == ErrorCode::not_found && options.model.empty();
  return fail(server.error().code, server.error().message + (lacks_list ? "; name the model with --model" : ""));
}

Result<uint32_t> LoadServer::tokenize(const std::string& text) const {
  ASSIGN_OR_RETURN(const std::string reply, server_.ask("tokenize", server_.tokenize_body(text)));
  return server_.tokens_of(reply);
}

Result<uint32_t> LoadServer::count_by_usage(const std::string& text, bool chat) const {
  ASSIGN_OR_RETURN(const std::string reply, server_.ask(path_of(chat), server_.one_token_body(text, chat)));
  const Result<uint32_t> tokens = server_.prompt_tokens_of(reply);
  if (!tokens) return fail(tokens.error().code, tokens.error().message + "; use --jsonl");
  return tokens;
}

CountTokens LoadServer::counter(bool chat) const {
  if (tokenize("The")) return [this](const std::string& text) { return tokenize(text); };
  return [this, chat](const std::string& text) { return count_by_usage(text, chat); };
}

std::unique_ptr<LoadSender> LoadServer::sender(const LoadTime& time, bool stream) const {
  return std::make_unique<HttpSender>(server_, time, stream);
}

}  // namespace kvarto
