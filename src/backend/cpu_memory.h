// BlockMemory in plain RAM: one arena and one scratch area, both charged to the ledger. Owner's thread.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/memory.h"

namespace kvarto {

class CpuMemory : public BlockMemory {
 public:
  // `touch`: every page of an arena is written once, so that want of memory shows at the start.
  explicit CpuMemory(std::shared_ptr<Ledger> ledger, bool touch = false) : ledger_(std::move(ledger)), touch_(touch) {}
  ~CpuMemory() override;
  Result<std::byte*> reserve_arena(size_t bytes) override;
  Result<std::byte*> reserve_scratch(size_t bytes) override;
  Status charge_metadata(size_t bytes) override;
  Fence copy(std::byte* to, const std::byte* from, size_t bytes) override;
  Fence gather(std::byte* to, std::span<const std::span<const std::byte>> pieces) override;
  Fence stage_out(std::span<std::byte> host, const std::byte* block) override;
  Fence stage_in(std::byte* block, std::span<const std::byte> host) override;
  void wait(Fence) override {}

 private:
  std::shared_ptr<Ledger> ledger_;
  bool touch_;
  std::vector<Slab> arenas_;
  Slab scratch_;
  size_t metadata_bytes_ = 0;
};

}  // namespace kvarto
