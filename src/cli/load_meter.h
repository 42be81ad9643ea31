// Reads what a server answers to one request of /v1/completions or /v1/chat/completions, streamed or whole, and writes
// down when its tokens came. Time is given by the caller. One reply each; one thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cli/load_sse.h"
#include "cli/load_stats.h"

namespace kvarto {

class ReplyMeter {
 public:
  // Fills times, counts and tokens of `record`, which outlives the meter; the outcome is the caller's.
  ReplyMeter(LoadRecord& record, bool stream) : record_(record), stream_(stream) {}

  // Errors: what the server reports inside the stream, and what is no reply of this API.
  Status take(std::string_view bytes, double now_s);
  // The body has ended: was it whole?
  Status end(double now_s);
  // Content of the first choice.
  const std::string& text() const { return text_; }

 private:
  Status take_event(std::string_view data, double now_s);
  Status take_whole(double now_s);
  void count_token(double now_s);
  void read_usage(const nlohmann::ordered_json& reply);

  LoadRecord& record_;
  const bool stream_;
  SseReader reader_;
  std::string text_, body_;
  bool finished_ = false, done_ = false;
};

}  // namespace kvarto
