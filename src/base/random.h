// Randomness that nobody has to repeat: ids of requests and calls, and secrets of one process. What a model draws comes
// from its own seeds. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace kvarto {

// Fast and different in each thread and process; may be guessed by who sees many of them.
uint64_t random_bits();
// 32 bytes from the system, which nobody can guess.
std::string random_secret();

}  // namespace kvarto
