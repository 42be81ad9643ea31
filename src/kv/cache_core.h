// The cache behind KvCache: what open, reserve, commit, fork and trim do to blocks, names and tables. Owned by KvCache;
// the owner's thread only. Holds addresses, reads no KV byte.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv/block_store.h"
#include "kv/sequence.h"
#include "kvarto/kv_cache.h"

namespace kvarto {

class CacheCore {
 public:
  static Result<std::unique_ptr<CacheCore>> create(const KvLayout& layout, std::shared_ptr<BlockMemory> memory,
                                                   const KvCacheOptions& options);
  ~CacheCore();

  const KvLayout& layout() const { return layout_; }
  const KvCacheOptions& options() const { return options_; }

  PrefixMatch match(std::span<const TokenId> prompt, const OpenOptions& options) const;
  PrefixMatch open(KvSequenceState& s, std::span<const TokenId> prompt, const OpenOptions& options);
  Status reserve(KvSequenceState& s, uint32_t count);
  void cancel(KvSequenceState& s);
  void commit(KvSequenceState& s, std::span<const TokenId> tokens);
  Status fork(const KvSequenceState& parent, KvSequenceState& child);
  uint64_t trim(KvSequenceState& s, uint64_t length);
  void release(KvSequenceState& s);
  // Releasing found the books wrong (a bug of ours, met in a destructor): reserve and commit CHECK from now on.
  void mark_broken() { broken_ = true; }
  bool clear();

  bool could_ever_fit(uint64_t tokens, uint32_t chunk_tokens) const;
  uint64_t longest_sequence(uint32_t chunk_tokens) const;
  KvEvents take_events();
  void block_map(std::vector<BlockCell>& out) const;
  std::optional<NearMiss> nearest(std::span<const TokenId> prompt, const OpenOptions& options) const;
  KvCacheStats stats() const;
  const BlockStore& store() const { return *store_; }
  bool balanced() const { return store_->pool().balanced(); }
  std::string audit() const;
  std::string hash_blocks(const KvSequenceState& s) const;

 private:
  // The nodes of the longest prefix that can be used, and why it is not longer.
  struct Found {
    std::vector<NodeId> nodes;
    MissReason reason = MissReason::none;
  };
  // What a group's blocks in use hold, for live_bytes.
  struct Live {
    uint64_t sealed = 0;  // blocks
    uint64_t open_tokens = 0;
  };
  struct GroupClass {
    uint32_t block = 0, tail = 0;  // size classes
  };
  // What the tables say of a block, for the map of blocks.
  struct Holder {
    uint32_t group = 0;
    bool open = false;
  };

  CacheCore(const KvLayout& layout, const KvCacheOptions& options) : layout_(layout), options_(options) {}
  Status allocate(std::shared_ptr<BlockMemory> memory);
  void sort_into_classes(std::vector<size_t>& class_bytes);

  uint32_t block_tokens() const { return layout_.block_tokens(); }
  uint32_t group_count() const { return static_cast<uint32_t>(layout_.groups().size()); }
  const KvGroup& group(uint32_t g) const { return layout_.groups()[g]; }
  std::span<const TokenId> block_of(std::span<const TokenId> tokens, uint64_t block) const {
    return tokens.subspan(block * block_tokens(), block_tokens());
  }
  BlockHash block_hash(std::span<const TokenId> tokens, uint64_t block, const BlockHash& parent,
                       std::string_view salt) const;

  Found find(std::span<const TokenId> prompt, const OpenOptions& options) const;
  uint64_t window_length(std::span<const NodeId> nodes) const;
  bool has_full_groups(NodeId node) const;
  MissReason why_not(std::span<const TokenId> prompt, const BlockHash& next, bool first,
                     const OpenOptions& options) const;

  std::vector<Holder> holders() const;
  BlockCell cell(BlockId id, std::span<const Holder> holders, uint64_t now) const;

  void join(KvSequenceState& s);
  void leave(KvSequenceState& s);
  uint64_t needs(const KvSequenceState& s, uint32_t count, std::vector<uint64_t>& counts) const;
  bool take_blocks(KvSequenceState& s, uint64_t end);
  void give_back_reserved(KvSequenceState& s);
  bool take(uint32_t size_class, BlockId& id);
  void drop_sealed(GroupTable& table, uint32_t g, uint64_t block);
  void drop_open(BlockId& id);
  void count_open_tokens(uint64_t before, uint64_t after);  // a sequence's length changes
  void name_blocks(KvSequenceState& s, uint64_t from, uint64_t to);
  NodeId node_of(KvSequenceState& s, uint64_t block);
  void name_own(KvSequenceState& s, uint64_t block, NodeId node);
  void move_windows(KvSequenceState& s);
  Status copy_open(const KvSequenceState& parent, KvSequenceState& child);
  bool windows_held(const KvSequenceState& s, uint64_t length) const;
  bool windows_in_reach(const KvSequenceState& s, uint64_t edge) const;
  void cut(KvSequenceState& s, uint64_t edge);
  void drop_from(KvSequenceState& s, uint64_t block);
  void publish_prompt_early(KvSequenceState& s, uint64_t end);
  void check_balance() const;
  std::string audit_references() const;
  std::string audit_names() const;
  std::string audit_sequence(const KvSequenceState& s) const;
  std::string audit_live() const;

  KvLayout layout_;
  KvCacheOptions options_;
  std::unique_ptr<BlockStore> store_;
  std::vector<GroupClass> classes_;  // [group]
  std::vector<Live> live_;           // [group]
  KvSequenceState* sequences_ = nullptr;
  ScratchPlace scratch_;
  bool uses_scratch_ = false;  // some group seals by copying
  bool broken_ = false;
  uint32_t scratch_slots_ = 0;
  std::vector<uint32_t> free_scratch_;
  std::vector<uint64_t> counts_;  // [class], reused by reserve
  uint64_t query_tokens_ = 0, hit_tokens_ = 0, window_blocks_freed_ = 0, copied_tails_ = 0;
};

}  // namespace kvarto
