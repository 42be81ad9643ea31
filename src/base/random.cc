#include "base/random.h"

#include <random>

namespace kvarto {

uint64_t random_bits() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

std::string random_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) {
    for (unsigned bits = random(), byte = 0; byte < 4; ++byte, bits >>= 8) secret += static_cast<char>(bits & 255);
  }
  return secret;
}

}  // namespace kvarto
