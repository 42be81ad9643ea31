#include "server/scrape_ring.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace kvarto {

uint64_t ScrapeRing::add(std::string text) {
  auto kept = std::make_shared<const std::string>(std::move(text));
  const std::scoped_lock lock(mutex_);
  ++last_;
  texts_[last_ % kKept] = std::move(kept);
  return last_;
}

std::shared_ptr<const std::string> ScrapeRing::find(uint64_t id) const {
  const std::scoped_lock lock(mutex_);
  if (id == 0 || id > last_ || last_ - id >= kKept) return nullptr;
  return texts_[id % kKept];
}

std::optional<uint64_t> scrape_id(std::string_view query) {
  constexpr std::string_view kName = "scrape=";
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    if (!pair.starts_with(kName)) continue;
    const std::string_view digits = pair.substr(kName.size());
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    return error == std::errc() && end == digits.data() + digits.size() ? id : 0;
  }
  return std::nullopt;
}

}  // namespace kvarto
