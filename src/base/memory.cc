#include "base/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace kvarto {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Zeroed pages; from 2 MiB on they start at a huge page's edge and the kernel is asked for huge pages. Null on failure.
std::byte* map_pages(size_t bytes) {
  const size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(mapped);
  if (slack == 0) return start;
  const size_t skip = round_up(reinterpret_cast<uintptr_t>(start), kHugePageBytes) - reinterpret_cast<uintptr_t>(start);
  if (skip > 0) munmap(start, skip);
  if (slack > skip) munmap(start + skip + bytes, slack - skip);
  madvise(start + skip, bytes, MADV_HUGEPAGE);  // a wish: without it only speed is lost
  return start + skip;
}

}  // namespace

std::string_view memory_tag_name(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::weights:
      return "weights";
    case MemoryTag::kv_arena:
      return "kv_arena";
    case MemoryTag::kv_scratch:
      return "kv_scratch";
    case MemoryTag::kv_metadata:
      return "kv_metadata";
    case MemoryTag::activations:
      return "activations";
    case MemoryTag::logits:
      return "logits";
    case MemoryTag::staging:
      return "staging";
    case MemoryTag::count:
      break;
  }
  return "unknown";
}

Status Ledger::charge(MemoryTag tag, size_t bytes) {
  size_t before = total_.load();
  do {
    if (bytes > cap_ - before) {
      return fail(ErrorCode::out_of_memory, std::to_string(bytes) + " bytes of " + std::string(memory_tag_name(tag)) +
                                                " do not fit: " + std::to_string(before) + " of the " +
                                                std::to_string(cap_) +
                                                " bytes allowed are taken; raise the memory limit or ask for less");
    }
  } while (!total_.compare_exchange_weak(before, before + bytes));
  const size_t used = used_[static_cast<size_t>(tag)] += bytes;
  const std::scoped_lock lock(peaks_mutex_);
  if (Peak& peak = peaks_[static_cast<size_t>(tag)]; used > peak.bytes) peak = {used, step_};
  return {};
}

Ledger::Peak Ledger::peak(MemoryTag tag) const {
  const std::scoped_lock lock(peaks_mutex_);
  return peaks_[static_cast<size_t>(tag)];
}

void Ledger::release(MemoryTag tag, size_t bytes) {
  const size_t before = used_[static_cast<size_t>(tag)].fetch_sub(bytes);
  CHECK(before >= bytes, "more bytes released than charged to " + std::string(memory_tag_name(tag)));
  total_ -= bytes;
}

Result<Slab> Slab::allocate(size_t bytes, MemoryTag tag, std::shared_ptr<Ledger> ledger) {
  Slab slab;
  if (bytes == 0) return slab;
  if (bytes > SIZE_MAX - 2 * kHugePageBytes) {
    return fail(ErrorCode::out_of_memory, std::to_string(bytes) + " bytes are more than any machine has; ask for less");
  }
  if (ledger) RETURN_IF_ERROR(ledger->charge(tag, bytes));
  const size_t mapped = round_up(bytes, kPageBytes);
  std::byte* data = map_pages(mapped);
  if (data == nullptr) {
    const int error = errno;
    if (ledger) ledger->release(tag, bytes);
    return fail(ErrorCode::out_of_memory, "the system refused " + std::to_string(bytes) + " bytes of " +
                                              std::string(memory_tag_name(tag)) + " (" + std::strerror(error) +
                                              "); free memory or ask for less");
  }
  slab.data_ = data;
  slab.size_ = bytes;
  slab.mapped_ = mapped;
  slab.tag_ = tag;
  slab.ledger_ = std::move(ledger);
  return slab;
}

Status grow(Slab& slab, size_t bytes, MemoryTag tag, std::shared_ptr<Ledger> ledger) {
  if (slab.size() >= bytes) return {};
  slab = Slab();  // first: the ledger has room for one
  ASSIGN_OR_RETURN(slab, Slab::allocate(bytes, tag, std::move(ledger)));
  return {};
}

Slab::Slab(Slab&& other) noexcept { *this = std::move(other); }

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(tag_, other.tag_);
  std::swap(ledger_, other.ledger_);
  return *this;
}

Slab::~Slab() {
  if (data_ == nullptr) return;
  munmap(data_, mapped_);
  if (ledger_) ledger_->release(tag_, size_);
}

}  // namespace kvarto
