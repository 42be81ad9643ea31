#include "backend/cpu_memory.h"

#include <cstring>
#include <limits>

#include "kvarto/kv_cache.h"

namespace kvarto {

Result<std::byte*> CpuMemory::reserve_arena(size_t bytes) {
  ASSIGN_OR_RETURN(Slab slab, Slab::allocate(bytes, MemoryTag::kv_arena, ledger_));
  constexpr size_t kPage = 4096;
  if (touch_) {
    for (size_t at = 0; at < slab.size(); at += kPage) static_cast<volatile std::byte*>(slab.data())[at] = std::byte{0};
  }
  arenas_.push_back(std::move(slab));
  return arenas_.back().data();
}

Result<std::byte*> CpuMemory::reserve_scratch(size_t bytes) {
  if (bytes > scratch_.size()) {
    scratch_ = Slab();  // give the old one back first, so that the cap holds
    ASSIGN_OR_RETURN(scratch_, Slab::allocate(bytes, MemoryTag::kv_scratch, ledger_));
  }
  return scratch_.data();
}

Status CpuMemory::charge_metadata(size_t bytes) {
  if (ledger_ == nullptr) return {};
  RETURN_IF_ERROR(ledger_->charge(MemoryTag::kv_metadata, bytes));
  metadata_bytes_ += bytes;
  return {};
}

CpuMemory::~CpuMemory() {
  if (ledger_ != nullptr) ledger_->release(MemoryTag::kv_metadata, metadata_bytes_);
}

Fence CpuMemory::copy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

Fence CpuMemory::gather(std::byte* to, std::span<const std::span<const std::byte>> pieces) {
  for (const std::span<const std::byte> piece : pieces) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  return {};
}

Fence CpuMemory::stage_out(std::span<std::byte> host, const std::byte* block) {
  std::memcpy(host.data(), block, host.size());
  return {};
}

Fence CpuMemory::stage_in(std::byte* block, std::span<const std::byte> host) {
  std::memcpy(block, host.data(), host.size());
  return {};
}

std::shared_ptr<BlockMemory> cpu_block_memory(size_t cap_bytes) {
  return std::make_shared<CpuMemory>(
      std::make_shared<Ledger>(cap_bytes == 0 ? std::numeric_limits<size_t>::max() : cap_bytes));
}

}  // namespace kvarto
