#include "server/process_numbers.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace kvarto {
namespace {

// Seconds since 1970 when the machine was started.
double boot_seconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  double value = 0;
  while (file >> word) {
    if (word == "btime" && file >> value) return value;
  }
  return 0;
}

// Fields of /proc/self/stat, counted from 1 as proc(5) does. The second one, the program's name, may hold
// blanks and brackets; the last bracket ends it.
struct StatFields {
  StatFields() {
    std::ifstream file("/proc/self/stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    if (name_end != std::string::npos) rest = line.substr(name_end + 1);
  }
  double field(int wanted) const {
    std::istringstream in(rest);
    std::string value;
    for (int i = 3; i <= wanted; ++i) {
      if (!(in >> value)) return 0;
    }
    return std::stod(value);
  }
  std::string rest;  // from field 3 on
};

uint64_t count_open_fds() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(folder);
  return count > 0 ? count - 1 : 0;  // the folder itself
}

}  // namespace

ProcessNumbers read_process_numbers() {
  ProcessNumbers numbers;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (std::ifstream file("/proc/self/statm"); file) {
    uint64_t size = 0, resident = 0;
    if (file >> size >> resident) {
      numbers.virtual_bytes = size * page;
      numbers.resident_bytes = resident * page;
    }
  }
  const StatFields stat;
  numbers.cpu_seconds = (stat.field(14) + stat.field(15)) / ticks;
  numbers.start_seconds = boot_seconds() + stat.field(22) / ticks;
  numbers.open_fds = count_open_fds();
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0) numbers.max_fds = limit.rlim_cur;
  return numbers;
}

}  // namespace kvarto
