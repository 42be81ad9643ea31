#include "cli/load_sse.h"

namespace kvarto {

Status SseReader::feed(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > max_event_bytes_) {
      return fail(ErrorCode::corrupt,
                  "an event of the stream is longer than " + std::to_string(max_event_bytes_) + " bytes");
    }
    if (end == std::string_view::npos) return {};
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    RETURN_IF_ERROR(end_line(on_event));
  }
  return {};
}

Status SseReader::end_line(const OnEvent& on_event) {
  std::string line;
  line.swap(line_);
  if (at_start_ && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
  at_start_ = false;
  if (line.empty()) {
    if (!has_data_) return {};
    std::string data;
    data.swap(data_);
    has_data_ = false;
    return on_event(data);
  }
  const size_t colon = line.find(':');  // in front: a comment, whose field is empty
  if (std::string_view(line).substr(0, colon) != "data") return {};
  std::string_view value = colon == std::string::npos ? std::string_view() : std::string_view(line).substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
  return {};
}

}  // namespace kvarto
