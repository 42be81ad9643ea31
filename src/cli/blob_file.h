// A blob of the hub cache while it is being fetched: `<blob>.incomplete`, which grows and is kept when a fetch ends
// early, so that the next one resumes. Renamed to its name only when size and digest are right. The holder of the
// blob's lock owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

class BlobFile {
 public:
  // Opens what an earlier fetch left and reads it through the digest. `blob_path` ends in the digest: 64 hex digits are
  // the SHA-256 of the content, 40 git's SHA-1 of it. Refuses at once what the disk has no room for.
  static Result<BlobFile> open(const std::string& blob_path, const std::string& digest, uint64_t size);
  BlobFile(BlobFile&&) noexcept;
  BlobFile& operator=(BlobFile&&) = delete;
  ~BlobFile();

  uint64_t have() const;
  uint64_t size() const;
  Status append(std::string_view bytes);  // longer than `size` is an error
  Status restart();                       // from the first byte
  Status finish();                        // checks the digest, renames; a wrong digest removes the file

 private:
  struct State;
  explicit BlobFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvarto
