#include "cli/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/output.h"

namespace kvarto {

Progress::Progress(std::string label)
    : label_(std::move(label)),
      on_terminal_(stderr_is_terminal()),
      next_draw_(Clock::now() + std::chrono::seconds(1)) {}

Progress::~Progress() { wipe(); }

void Progress::wipe() {
  if (std::exchange(drawn_, false)) std::fputs("\r\033[K", stderr);
}

void Progress::show(size_t done, size_t total, const std::string& extra) {
  if (!on_terminal_ || total == 0) return;
  if (done >= total) return wipe();  // what follows may say something
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  drawn_ = true;
  constexpr int kWidth = 30;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kWidth);
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kWidth - filled), '-');
  std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %%%s%s", label_.c_str(), bar.c_str(), 100 * share,
               extra.empty() ? "" : "  ", extra.c_str());
}

}  // namespace kvarto
