// For tests of kv/ only: a small cache on plain memory that computes what it is asked to, with its checks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "kv/testing.h"
#include "kvarto/kv_cache.h"

namespace kvarto::testing {

using Tokens = std::vector<TokenId>;

// `count` tokens that no other `family` has.
inline Tokens text(TokenId family, size_t count) {
  Tokens out(count);
  std::iota(out.begin(), out.end(), family * 10000);
  return out;
}

inline Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tokens head(const Tokens& a, size_t count) {
  return Tokens(a.begin(), a.begin() + static_cast<ptrdiff_t>(count));
}

class Cache {
 public:
  explicit Cache(std::vector<LayerKv> layers, size_t blocks = 64, KvLayoutOptions layout_options = {},
                 KvCacheOptions options = {}) {
    const KvLayout layout = *KvLayout::make({std::move(layers)}, layout_options);
    options.bytes = blocks * layout.bytes_per_token() * layout.block_tokens();
    cache_ = std::move(*KvCache::create(layout, memory_, options));
  }
  KvCache* operator->() const { return cache_.get(); }
  KvCache& operator*() const { return *cache_; }
  PlainMemory& memory() const { return *memory_; }

  // Computes `tokens` after what the sequence holds, in steps of `chunk`.
  void grow(KvSequence& s, const Tokens& tokens, size_t chunk = 64, std::string_view salt = "") {
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const Tokens step(tokens.begin() + static_cast<ptrdiff_t>(at),
                        tokens.begin() + static_cast<ptrdiff_t>(std::min(tokens.size(), at + chunk)));
      const Status reserved = cache_->reserve(s, static_cast<uint32_t>(step.size()));
      ASSERT_TRUE(reserved.has_value()) << reserved.error().message;
      const Tokens all = join(Tokens(s.tokens().begin(), s.tokens().end()), step);
      ASSERT_EQ(fake_forward(cache_->views(s), cache_->layout(), s.length(), prefix_values(all, salt)), "");
      cache_->commit(s, step);
      ASSERT_EQ(cache_->audit(), "");
    }
  }

  // Opens, computes the rest and reads everything back; the match says what was found.
  PrefixMatch run(const Tokens& prompt, const OpenOptions& options = {}, size_t chunk = 64) {
    KvCache::Opened opened = cache_->open(prompt, options);
    grow(opened.sequence, Tokens(prompt.begin() + static_cast<ptrdiff_t>(opened.match.tokens), prompt.end()), chunk,
         options.adapter + options.cache_salt);  // both change what is computed
    return opened.match;
  }

 private:
  std::shared_ptr<PlainMemory> memory_ = std::make_shared<PlainMemory>();
  std::unique_ptr<KvCache> cache_;
};

}  // namespace kvarto::testing
