#include "kvarto/kv_cache.h"

#include "base/check.h"
#include "kv/cache_core.h"

namespace kvarto {
namespace {

// A sequence of this cache; one that is empty, moved from, or of a cache that is gone must not be used.
KvSequenceState& own(const std::unique_ptr<KvSequenceState>& state, const CacheCore& core) {
  CHECK(state != nullptr && state->cache == &core,
        "the sequence was not opened in this cache, or the cache was rebuilt");
  return *state;
}

}  // namespace

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

bool KvCache::owns(const KvSequence& sequence) const {
  return sequence.state_ != nullptr && sequence.state_->cache == impl_->core.get();
}
Status KvCache::reserve(KvSequence& sequence, uint32_t count) {
  return impl_->core->reserve(own(sequence.state_, *impl_->core), count);
}
void KvCache::cancel(KvSequence& sequence) { impl_->core->cancel(own(sequence.state_, *impl_->core)); }
std::span<const KvView> KvCache::views(const KvSequence& sequence) const {
  CHECK(sequence.reserved() > 0, "views are valid while something is reserved");
  return own(sequence.state_, *impl_->core).views;
}
void KvCache::commit(KvSequence& sequence, std::span<const TokenId> tokens) {
  impl_->core->commit(own(sequence.state_, *impl_->core), tokens);
}

Result<KvSequence> KvCache::fork(const KvSequence& sequence) {
  KvSequence child;
  child.state_ = std::make_unique<KvSequenceState>();
  RETURN_IF_ERROR(impl_->core->fork(own(sequence.state_, *impl_->core), *child.state_));
  return child;
}
uint64_t KvCache::trim(KvSequence& sequence, uint64_t length) {
  return impl_->core->trim(own(sequence.state_, *impl_->core), length);
}

bool KvCache::could_ever_fit(uint64_t tokens, uint32_t chunk_tokens) const {
  return impl_->core->could_ever_fit(tokens, chunk_tokens);
}
uint64_t KvCache::longest_sequence(uint32_t chunk_tokens) const { return impl_->core->longest_sequence(chunk_tokens); }
bool KvCache::clear() { return impl_->core->clear(); }

KvEvents KvCache::take_events() { return impl_->core->take_events(); }
void KvCache::block_map(std::vector<BlockCell>& out) const { impl_->core->block_map(out); }
std::optional<NearMiss> KvCache::nearest(std::span<const TokenId> prompt, const OpenOptions& options) const {
  return impl_->core->nearest(prompt, options);
}

KvCacheStats KvCache::stats() const { return impl_->core->stats(); }
bool KvCache::balanced() const { return impl_->core->balanced(); }
std::string KvCache::audit() const { return impl_->core->audit(); }
std::string KvCache::hash_blocks(const KvSequence& sequence) const {
  return impl_->core->hash_blocks(own(sequence.state_, *impl_->core));
}

}  // namespace kvarto
