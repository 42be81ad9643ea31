#include "cli/interrupt.h"

namespace kvarto {
namespace {

// A handler has nowhere else to write.
volatile std::sig_atomic_t seen = 0;

void on_interrupt(int signal_number) {
  if (seen != 0) {
    std::signal(signal_number, SIG_DFL);
    std::raise(signal_number);
  }
  seen = 1;
}

}  // namespace

InterruptScope::InterruptScope() {
  seen = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

InterruptScope::~InterruptScope() { ::sigaction(SIGINT, &before_, nullptr); }

bool interrupted() { return seen != 0; }
void clear_interrupt() { seen = 0; }

}  // namespace kvarto
