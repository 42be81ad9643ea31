// The Hugging Face cache on disk: <root>/models--org--name/{blobs,refs,snapshots}, shared with every program that keeps
// that layout. Blobs are named by their digest; a snapshot holds links to them under the names of the repository. Files
// are only ever renamed into place, so readers need no lock; writers of one blob lock it in <root>/.locks. Any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/result.h"

namespace kvarto {

// HF_HUB_CACHE, or $HF_HOME/hub, or $XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub.
std::string hub_cache_root();
// HF_TOKEN, or the file HF_TOKEN_PATH or $HF_HOME/token; empty when there is none.
Result<std::string> hub_token();

// Names that become paths, as a hub may send them.
bool is_commit(std::string_view text);  // 40 hex digits
bool is_digest(std::string_view text);  // 64 (SHA-256 of LFS) or 40 (git's SHA-1) hex digits
bool is_safe_path(
    std::string_view path);  // relative, no empty, "." or ".." component, no control character or backslash

// A lock that other processes see; held until destruction.
class FileLock {
 public:
  // Calls `on_wait` once when another process holds it, then waits.
  static Result<FileLock> take(const std::string& path, const std::function<void()>& on_wait);
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

// One repository's folder. Paths and digests must have passed the checks above.
class HubCacheRepo {
 public:
  HubCacheRepo(std::string root, std::string_view repo);

  const std::string& folder() const { return folder_; }
  std::string blob_path(const std::string& digest) const { return folder_ + "/blobs/" + digest; }
  std::string snapshot_path(const std::string& commit, const std::string& file) const;
  Result<FileLock> lock_blob(const std::string& digest, const std::function<void()>& on_wait) const;
  Status make_folders() const;
  // The snapshot's name for a blob, and what a branch or tag points to.
  Status link(const std::string& commit, const std::string& file, const std::string& digest) const;
  Status write_ref(const std::string& revision, const std::string& commit) const;

  // Commits that have a snapshot: that of refs/main first, then the youngest.
  std::vector<std::string> commits() const;
  // Files of a snapshot whose blobs are there, relative to it.
  std::vector<std::string> files(const std::string& commit) const;

 private:
  std::string root_, folder_, name_;
};

}  // namespace kvarto
