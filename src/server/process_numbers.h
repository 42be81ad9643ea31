// What the system counts about this process, under the names that every Prometheus client library gives them. Any
// thread.
#pragma once

#include <cstdint>

namespace kvarto {

struct ProcessNumbers {
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  double cpu_seconds = 0;    // user and system
  double start_seconds = 0;  // Unix time
  uint64_t open_fds = 0, max_fds = 0;
};

// From /proc; what cannot be read is 0.
ProcessNumbers read_process_numbers();

}  // namespace kvarto
