// Cryptographic names: SHA-256, and the chain of block hashes that vLLM calls sha256_cbor (its form for events and
// shared caches; DESIGN section 1, sentence 2). Free functions hold no state and may be called from any thread; a
// Sha256 object belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvarto {

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 over everything given to `update`, in order. `finish` ends it: neither call may follow.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  Sha256Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// HMAC-SHA256 (RFC 2104): a name of `text` that nobody without `key` can work out or check.
Sha256Digest hmac_sha256(std::string_view key, std::string_view text);

std::string to_hex(std::span<const uint8_t> bytes);  // lower case

// The name of a full block of tokens; it commits to every token before it.
using BlockHash = Sha256Digest;

// What the first block of every sequence has for a parent: SHA-256 of the canonical CBOR of the text "vllm-none-hash".
const BlockHash& root_hash();
// The same under an adapter: SHA-256 of the canonical CBOR of [root, "adapter", adapter]; of "" it is root_hash().
BlockHash adapter_root(std::string_view adapter);

// SHA-256 of the canonical CBOR of [parent, [tokens...], extra]; extra is [["cache_salt", salt]] or null. Only the
// first block of a sequence is given the salt: the chain carries it on.
BlockHash chain_hash(const BlockHash& parent, std::span<const int32_t> tokens,
                     std::optional<std::string_view> extra_salt = std::nullopt);

// The integer by which events name a block: the last 8 bytes, big-endian.
uint64_t event_id(const BlockHash& hash);

}  // namespace kvarto
