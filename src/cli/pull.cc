#include "cli/pull.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <vector>

#include "cli/hub.h"
#include "cli/hub_cache.h"
#include "cli/model_name.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "format/printable.h"

namespace kvarto {
namespace {

Status check_revision(const std::string& revision) {
  const bool fit = is_safe_path(revision) && revision[0] != '-' &&
                   std::all_of(revision.begin(), revision.end(), [](unsigned char c) {
                     return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == '/' || c == '+';
                   });
  if (fit) return {};
  return fail(ErrorCode::invalid_argument,
              "--revision " + kvarto::quoted(revision) + ": wanted a branch, tag or commit");
}

// The files of the model that was asked for, its first part first.
Result<std::vector<HubFile>> choose_files(const Hub& hub, const ModelName& name, const std::string& revision) {
  ASSIGN_OR_RETURN(const std::vector<HubFile> all, hub.list(name.repo, revision));
  std::vector<std::string> paths;
  for (const HubFile& file : all) paths.push_back(file.path);
  const Result<std::vector<std::string>> chosen = choose_gguf(paths, name.quant);
  if (!chosen) return fail(chosen.error().code, name.repo + ": " + chosen.error().message);
  std::vector<HubFile> files;
  for (const std::string& path : *chosen) {
    files.push_back(*std::find_if(all.begin(), all.end(), [&](const HubFile& file) { return file.path == path; }));
  }
  return files;
}

// Whether the blob is there. One of another size is the rest of an accident and goes.
Result<bool> have_blob(const std::string& path, uint64_t size) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  if (std::filesystem::file_size(path, error) == size && !error) return true;
  if (::unlink(path.c_str()) == 0) return false;
  return fail(ErrorCode::io, path + ": has a wrong size and cannot be removed; remove it");
}

class Pull {
 public:
  Pull(const Hub& hub, const ModelName& name, const HubCacheRepo& cache, std::string commit)
      : hub_(hub), name_(name), cache_(cache), commit_(std::move(commit)) {}

  Status fetch(const HubFile& file) const {
    const auto on_wait = [&] { note("another process is fetching " + printable(file.path) + "; waiting for it"); };
    ASSIGN_OR_RETURN(const FileLock lock, cache_.lock_blob(file.digest, on_wait));
    const std::string path = cache_.blob_path(file.digest);
    ASSIGN_OR_RETURN(const bool there, have_blob(path, file.size));
    if (there) {
      note(printable(file.path) + ": already in the cache");
    } else {
      RETURN_IF_ERROR(fetch_blob(file, path));
    }
    return cache_.link(commit_, file.path, file.digest);
  }

 private:
  Status fetch_blob(const HubFile& file, const std::string& path) const {
    ASSIGN_OR_RETURN(BlobFile blob, BlobFile::open(path, file.digest, file.size));
    note("fetching " + printable(file.path) + ", " + human_bytes(static_cast<double>(file.size)) +
         (blob.have() > 0 ? ", " + human_bytes(static_cast<double>(blob.have())) + " of it are there" : ""));
    Progress bar("fetching");
    const uint64_t before = blob.have();  // what was there counts as progress, not as speed
    const auto start = std::chrono::steady_clock::now();
    return hub_.fetch(name_.repo, commit_, file, blob, [&](uint64_t done) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const double rate = static_cast<double>(done - std::min(done, before)) / std::max(seconds, 1e-3);
      bar.show(done, file.size, human_bytes(rate) + "/s");
    });
  }

  const Hub& hub_;
  const ModelName& name_;
  const HubCacheRepo& cache_;
  const std::string commit_;
};

}  // namespace

Result<std::string> pull_model(const PullOptions& options) {
  ASSIGN_OR_RETURN(const ModelName name, parse_model_name(options.model));
  RETURN_IF_ERROR(check_revision(options.revision));
  ASSIGN_OR_RETURN(const Hub hub, Hub::from_environment());
  ASSIGN_OR_RETURN(const std::vector<HubFile> files, choose_files(hub, name, options.revision));
  std::string commit = options.revision;
  if (!is_commit(commit)) {
    ASSIGN_OR_RETURN(commit, hub.find_commit(name.repo, options.revision, files.front()));
  }
  const HubCacheRepo cache(hub_cache_root(), name.repo);
  RETURN_IF_ERROR(cache.make_folders());
  const Pull pull(hub, name, cache, commit);
  for (const HubFile& file : files) RETURN_IF_ERROR(pull.fetch(file));
  if (!is_commit(options.revision)) RETURN_IF_ERROR(cache.write_ref(options.revision, commit));
  note("run it with: kvarto run " + options.model);
  return cache.snapshot_path(commit, files.front().path);
}

}  // namespace kvarto
