#include "backend/cpu_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "base/log.h"
#include "kvarto/kv_cache.h"

namespace kvarto {
namespace {

std::string gib(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// A GiB takes up to a second or two: whoever waits for many is told what for.
void touch(std::byte* data, size_t size) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kPage = 4096, kSlice = size_t{64} << 20, kSilent = size_t{1} << 30;
  constexpr std::chrono::seconds kBetweenLines{5};
  const std::string all = gib(size) + " GiB of KV cache";
  if (size > kSilent) log(LogLevel::info, "touching every page of " + all + ", so that want of memory shows now");
  Clock::time_point next = Clock::now() + kBetweenLines;
  for (size_t done = 0; done < size;) {
    const size_t end = std::min(size, done + kSlice);
    for (; done < end; done += kPage) static_cast<volatile std::byte*>(data)[done] = std::byte{0};
    if (size <= kSilent || Clock::now() < next) continue;
    next = Clock::now() + kBetweenLines;
    log(LogLevel::info, "touched " + gib(std::min(done, size)) + " of " + all);
  }
}

}  // namespace

Result<std::byte*> CpuMemory::reserve_arena(size_t bytes) {
  ASSIGN_OR_RETURN(Slab slab, Slab::allocate(bytes, MemoryTag::kv_arena, ledger_));
  if (touch_) touch(slab.data(), slab.size());
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
