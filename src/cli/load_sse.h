// Server-sent events, read from bytes that arrive cut anywhere: lines end in LF, CR or CRLF, comments are skipped, the
// `data` lines of one event are joined by LF. A reader belongs to one stream and one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

class SseReader {
 public:
  // Gets the data of each event; an error ends the reading.
  using OnEvent = std::function<Status(std::string_view data)>;

  explicit SseReader(size_t max_event_bytes = size_t{16} << 20) : max_event_bytes_(max_event_bytes) {}

  Status feed(std::string_view bytes, const OnEvent& on_event);
  bool inside_event() const { return has_data_ || !line_.empty(); }  // what came last is not ended by a blank line

 private:
  Status end_line(const OnEvent& on_event);

  const size_t max_event_bytes_;
  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, at_start_ = true;
};

}  // namespace kvarto
