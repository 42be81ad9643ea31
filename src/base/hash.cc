#include "base/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <vector>

#include "base/check.h"

namespace kvarto {

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  CHECK(state_->context != nullptr, "OpenSSL gave no digest context");
  CHECK(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  CHECK(state_ != nullptr, "Sha256 used after finish");
  CHECK(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1, "SHA-256 update failed");
}

void Sha256::update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }

Sha256Digest Sha256::finish() {
  CHECK(state_ != nullptr, "Sha256 finished twice");
  Sha256Digest digest;
  CHECK(EVP_DigestFinal_ex(state_->context.get(), digest.data(), nullptr) == 1, "SHA-256 finish failed");
  state_.reset();
  return digest;
}

Sha256Digest hmac_sha256(std::string_view key, std::string_view text) {
  Sha256Digest digest;
  unsigned size = 0;
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size) != nullptr,
        "OpenSSL has no HMAC-SHA256");
  CHECK(size == digest.size(), "HMAC-SHA256 has another size");
  return digest;
}

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const uint8_t b : bytes) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

namespace {

// Writes the few kinds of CBOR items that block names need, each in its only canonical form: definite lengths, shortest
// integers. Writes into one buffer whose final size is known at the start.
class CborWriter {
 public:
  explicit CborWriter(size_t capacity) { out_.reserve(capacity); }

  void array(size_t items) { head(4, items); }
  void bytes(std::span<const uint8_t> b) {
    head(2, b.size());
    out_.insert(out_.end(), b.begin(), b.end());
  }
  void text(std::string_view t) {
    head(3, t.size());
    out_.insert(out_.end(), t.begin(), t.end());
  }
  void integer(int64_t v) { v >= 0 ? head(0, static_cast<uint64_t>(v)) : head(1, static_cast<uint64_t>(-1 - v)); }
  void null() { out_.push_back(0xf6); }

  Sha256Digest digest() const {
    Sha256 sha;
    sha.update(std::as_bytes(std::span(out_)));
    return sha.finish();
  }

 private:
  // The major type in the upper three bits; the argument in the lower five, or in 1, 2, 4 or 8 bytes after it.
  void head(uint8_t major, uint64_t argument) {
    const uint8_t top = static_cast<uint8_t>(major << 5);
    int width = 0;
    if (argument < 24) {
      out_.push_back(static_cast<uint8_t>(top | argument));
    } else if (argument <= 0xff) {
      out_.push_back(top | 24);
      width = 1;
    } else if (argument <= 0xffff) {
      out_.push_back(top | 25);
      width = 2;
    } else if (argument <= 0xffffffff) {
      out_.push_back(top | 26);
      width = 4;
    } else {
      out_.push_back(top | 27);
      width = 8;
    }
    for (int i = width - 1; i >= 0; --i) out_.push_back(static_cast<uint8_t>(argument >> (8 * i)));
  }

  std::vector<uint8_t> out_;
};

constexpr size_t kMaxHead = 9;  // bytes of the longest head

}  // namespace

const BlockHash& root_hash() {
  static const BlockHash root = [] {
    CborWriter cbor(32);
    cbor.text("vllm-none-hash");
    return cbor.digest();
  }();
  return root;
}

BlockHash adapter_root(std::string_view adapter) {
  if (adapter.empty()) return root_hash();
  CborWriter cbor(64 + root_hash().size() + adapter.size());
  cbor.array(3);
  cbor.bytes(root_hash());
  cbor.text("adapter");
  cbor.text(adapter);
  return cbor.digest();
}

BlockHash chain_hash(const BlockHash& parent, std::span<const int32_t> tokens,
                     std::optional<std::string_view> extra_salt) {
  CborWriter cbor(64 + parent.size() + tokens.size() * 5 + (extra_salt ? extra_salt->size() + kMaxHead : 0));
  cbor.array(3);
  cbor.bytes(parent);
  cbor.array(tokens.size());
  for (const int32_t token : tokens) cbor.integer(token);
  if (extra_salt) {
    cbor.array(1);
    cbor.array(2);
    cbor.text("cache_salt");
    cbor.text(*extra_salt);
  } else {
    cbor.null();
  }
  return cbor.digest();
}

uint64_t event_id(const BlockHash& hash) {
  uint64_t id = 0;
  for (size_t i = hash.size() - 8; i < hash.size(); ++i) id = (id << 8) | hash[i];
  return id;
}

}  // namespace kvarto
