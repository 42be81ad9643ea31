// Ctrl-C as a question that loops ask. Only the command line installs signal handlers, and only while something can be
// stopped cleanly; outside a scope Ctrl-C ends the program as usual. Main thread.
#pragma once

#include <csignal>

namespace kvarto {

// While it lives the first Ctrl-C only sets a flag (and interrupts a blocking read); a second one ends the program.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_;
};

bool interrupted();
void clear_interrupt();

}  // namespace kvarto
