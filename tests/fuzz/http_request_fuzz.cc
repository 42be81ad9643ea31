// Any bytes as what a client sends, in pieces whose sizes they give themselves: every request ends whole, refused in
// one line, or waits for more within its limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http/request_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using State = kvarto::RequestReader::State;
  constexpr kvarto::ReadLimits kLimits{1024, 16, 4096};
  kvarto::RequestReader reader(kLimits);
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string waiting;
  while (!input.empty() && reader.state() != State::refused) {
    const size_t piece = 1 + static_cast<uint8_t>(input.back()) % 64;
    waiting += input.substr(0, piece);
    input.remove_prefix(input.size() < piece ? input.size() : piece);
    waiting.erase(0, reader.take(waiting));
    while (reader.state() == State::complete) {
      if (reader.release().body.size() > kLimits.body_bytes) std::abort();
      waiting.erase(0, reader.take(waiting));
    }
    if (waiting.size() > kLimits.header_bytes + 1024 + 64) std::abort();
  }
  if (reader.state() == State::refused) {
    const kvarto::Refusal& refusal = reader.refusal();
    if (refusal.status < 400 || refusal.status > 501 || refusal.message.empty()) std::abort();
    if (refusal.message.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
