// Any bytes at all: GgufFile::parse refuses them in one line or every accessor works. Seeds: tools/make_gguf_seeds.py.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "format/gguf.h"
#include "tests/gguf_reading.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = kvarto::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (file) {
    volatile size_t sum = kvarto::read_everything(**file);
    (void)sum;
  } else if (file.error().message.empty() || file.error().message.find('\n') != std::string::npos) {
    std::abort();
  }
  return 0;
}
