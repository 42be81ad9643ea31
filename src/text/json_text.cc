#include "text/json_text.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/printable.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDeepest = 64;

class Watch {
 public:
  // False as soon as something is wrong.
  bool see(Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if (error_) return false;
    if (event == Event::object_start || event == Event::array_start) {
      if (keys_.size() == kDeepest) error_ = "the JSON is nested deeper than " + std::to_string(kDeepest) + " levels";
      keys_.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      keys_.pop_back();
    } else if (event == Event::key && !keys_.back().insert(value.get<std::string>()).second) {
      error_ = "key " + kvarto::quoted(value.get<std::string>()) + " comes twice in one object; give it once";
    }
    return !error_;
  }
  const std::optional<std::string>& error() const { return error_; }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open; arrays have none
  std::optional<std::string> error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Watch watch;
  const auto see = [&](int, Json::parse_event_t event, Json& value) { return watch.see(event, value); };
  try {
    Json value = Json::parse(text, see);
    if (!watch.error()) return value;
  } catch (const Json::out_of_range&) {
    if (!watch.error()) {
      return fail(ErrorCode::invalid_argument, "a number is beyond the range of floating point; give a finite one");
    }
  } catch (const Json::parse_error& error) {
    if (!watch.error()) return fail(ErrorCode::corrupt, "not JSON from byte " + std::to_string(error.byte) + " on");
  } catch (const Json::exception&) {
    if (!watch.error()) return fail(ErrorCode::corrupt, "not JSON");
  }
  return fail(ErrorCode::invalid_argument, *watch.error());
}

}  // namespace kvarto
