// ScrapeRing: the last texts of /metrics that the dashboard's numbers were taken from, each under its scrape id, so
// that whoever doubts a number on the page can read the very text that it came from. Owned by the server; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace kvarto {

class ScrapeRing {
 public:
  static constexpr size_t kKept = 8;

  // The new id: 1, 2, 3, ...
  uint64_t add(std::string text);
  // Null when it is gone or never was.
  std::shared_ptr<const std::string> find(uint64_t id) const;

 private:
  mutable std::mutex mutex_;
  std::array<std::shared_ptr<const std::string>, kKept> texts_;  // id modulo kKept
  uint64_t last_ = 0;
};

// The id that a query like "scrape=17" names: nothing when there is none, 0 when it is no number.
std::optional<uint64_t> scrape_id(std::string_view query);

}  // namespace kvarto
