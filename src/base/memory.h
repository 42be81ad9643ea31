// Memory that blocks live in, and the ledger that counts every byte of it. BlockMemory is the seam to devices: the CPU
// backend implements it with one arena of plain memory; a GPU backend would with device memory and copies on a stream.
// Called by the owner's thread only, except where said.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

// What bytes are for. Every byte the engine allocates beyond small change is charged to one tag.
enum class MemoryTag : uint8_t { weights, kv_arena, kv_scratch, kv_metadata, activations, logits, staging, count };
std::string_view memory_tag_name(MemoryTag tag);

// Running totals with a hard cap; charge() fails rather than exceed it. Thread-safe.
class Ledger {
 public:
  explicit Ledger(size_t cap_bytes) : cap_(cap_bytes) {}
  Status charge(MemoryTag tag, size_t bytes);  // out_of_memory with the numbers when over the cap
  void release(MemoryTag tag, size_t bytes);
  size_t used(MemoryTag tag) const { return used_[static_cast<size_t>(tag)].load(); }
  size_t total() const { return total_.load(); }
  size_t cap() const { return cap_; }
  // The most there was under a tag, and in which step it came to that (0: before the first).
  struct Peak {
    size_t bytes = 0;
    uint64_t step = 0;
  };
  Peak peak(MemoryTag tag) const;
  void set_step(uint64_t step) { step_ = step; }

 private:
  size_t cap_;
  std::atomic<uint64_t> step_{0};
  mutable std::mutex peaks_mutex_;
  std::array<Peak, static_cast<size_t>(MemoryTag::count)> peaks_{};
  std::atomic<size_t> total_{0};
  std::array<std::atomic<size_t>, static_cast<size_t>(MemoryTag::count)> used_{};
};

// 64-byte aligned (huge pages where the OS gives them), zeroed, charged to a ledger while it lives (ledger may be
// null).
class Slab {
 public:
  static Result<Slab> allocate(size_t bytes, MemoryTag tag, std::shared_ptr<Ledger> ledger);
  Slab() = default;
  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&& other) noexcept;
  ~Slab();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0;
  MemoryTag tag_ = MemoryTag::kv_arena;
  std::shared_ptr<Ledger> ledger_;
};

// Makes `slab` hold at least `bytes`; when it has to be allocated again, what it held is lost.
Status grow(Slab& slab, size_t bytes, MemoryTag tag, std::shared_ptr<Ledger> ledger);

// Completion of work given to BlockMemory; on the CPU it is done when the call returns.
struct Fence {
  uint64_t ticket = 0;
};

// Sealing is not here: it needs codecs, and runs on the workers as part of the backend's append operation.
// Addresses are opaque outside the backend's kernels: others may add offsets, never dereference.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  // The arena of `bytes` bytes, made once per cache; released with the memory object.
  virtual Result<std::byte*> reserve_arena(size_t bytes) = 0;
  // Scratch for raw tiles, grown to at least `bytes`; earlier addresses become invalid.
  virtual Result<std::byte*> reserve_scratch(size_t bytes) = 0;
  // Charges what the cache keeps about its blocks (ordinary memory) for as long as this object lives.
  virtual Status charge_metadata(size_t bytes) = 0;
  virtual Fence copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // Scattered pieces into one run of bytes and back (parking, tiers).
  virtual Fence gather(std::byte* to, std::span<const std::span<const std::byte>> pieces) = 0;
  virtual Fence stage_out(std::span<std::byte> host, const std::byte* block) = 0;
  virtual Fence stage_in(std::byte* block, std::span<const std::byte> host) = 0;
  virtual void wait(Fence fence) = 0;
};

}  // namespace kvarto
