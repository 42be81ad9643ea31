#include "kvarto/kv_cache.h"

#include "base/check.h"
#include "kv/cache_core.h"

namespace kvarto {

struct KvCache::Impl {
  std::unique_ptr<CacheCore> core;
};

KvCache::KvCache() = default;
KvCache::~KvCache() = default;

Result<std::unique_ptr<KvCache>> KvCache::create(const KvLayout& layout, std::shared_ptr<BlockMemory> memory,
                                                 const KvCacheOptions& options) {
  ASSIGN_OR_RETURN(auto core, CacheCore::create(layout, std::move(memory), options));
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->impl_ = std::make_unique<Impl>(Impl{std::move(core)});
  return cache;
}

const KvLayout& KvCache::layout() const { return impl_->core->layout(); }
const KvCacheOptions& KvCache::options() const { return impl_->core->options(); }

PrefixMatch KvCache::match(std::span<const TokenId> prompt, const OpenOptions& options) const {
  return impl_->core->match(prompt, options);
}

KvCache::Opened KvCache::open(std::span<const TokenId> prompt, const OpenOptions& options) {
  Opened opened;
  opened.sequence.state_ = std::make_unique<KvSequenceState>();
  opened.match = impl_->core->open(*opened.sequence.state_, prompt, options);
  return opened;
}

Status KvCache::reserve(KvSequence& sequence, uint32_t count) { return impl_->core->reserve(*sequence.state_, count); }
void KvCache::cancel(KvSequence& sequence) { impl_->core->cancel(*sequence.state_); }
std::span<const KvView> KvCache::views(const KvSequence& sequence) const {
  CHECK(sequence.reserved() > 0, "views are valid while something is reserved");
  return sequence.state_->views;
}
void KvCache::commit(KvSequence& sequence, std::span<const TokenId> tokens) {
  impl_->core->commit(*sequence.state_, tokens);
}

Result<KvSequence> KvCache::fork(const KvSequence& sequence) {
  KvSequence child;
  child.state_ = std::make_unique<KvSequenceState>();
  RETURN_IF_ERROR(impl_->core->fork(*sequence.state_, *child.state_));
  return child;
}
uint64_t KvCache::trim(KvSequence& sequence, uint64_t length) { return impl_->core->trim(*sequence.state_, length); }

bool KvCache::could_ever_fit(uint64_t tokens, uint32_t chunk_tokens) const {
  return impl_->core->could_ever_fit(tokens, chunk_tokens);
}
uint64_t KvCache::longest_sequence(uint32_t chunk_tokens) const { return impl_->core->longest_sequence(chunk_tokens); }
bool KvCache::clear() { return impl_->core->clear(); }

KvCacheStats KvCache::stats() const { return impl_->core->stats(); }
bool KvCache::balanced() const { return impl_->core->balanced(); }
std::string KvCache::audit() const { return impl_->core->audit(); }
std::string KvCache::hash_blocks(const KvSequence& sequence) const {
  return impl_->core->hash_blocks(*sequence.state_);
}

}  // namespace kvarto
