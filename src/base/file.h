// Files as the house sees them: a read-only mapping and small whole-file helpers. Errors name the path. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

// A read-only memory map of a whole regular file; move-only, unmapped on destruction.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the OS that [offset, offset + size) will not be read again, so that its pages stop counting as ours.
  void release(size_t offset, size_t size) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

Result<std::string> read_file(const std::string& path, size_t max_bytes = size_t{1} << 30);
// Writes beside `path`, syncs, renames: a reader sees the old content or the new, never a part. Concurrent writers: one
// wins.
Status write_file_atomically(const std::string& path, std::string_view content);

}  // namespace kvarto
