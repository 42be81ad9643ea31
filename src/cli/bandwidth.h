// How fast this machine reads memory: the measure of generation speed, since each step reads all weights. One object
// measures each number of threads once (about 0.3 s). Main thread, while nothing else computes.
#pragma once

#include <map>

namespace kvarto {

class Bandwidth {
 public:
  // Bytes per second that `threads` threads read together from memory no cache holds; 0 when there is no memory to try
  // it.
  double bytes_per_s(int threads);

 private:
  std::map<int, double> measured_;
};

}  // namespace kvarto
