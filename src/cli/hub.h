// Hub: the routes of a model hub that `kvarto pull` speaks (those of huggingface.co and its mirrors):
//   GET  {endpoint}/api/models/{repo}/tree/{revision}?recursive=true   files with sizes and digests, in pages
//   HEAD {endpoint}/{repo}/resolve/{revision}/{file}                   which commit a branch or tag is;
//   GET  {endpoint}/api/models/{repo}/revision/{revision}              the same, where that says nothing
//   GET  {endpoint}/{repo}/resolve/{commit}/{file}                     the content, often through a redirect elsewhere
// Nothing that a hub says is trusted: names, sizes, digests and commits are checked before use. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/blob_file.h"
#include "http/client.h"
#include "kvarto/result.h"

namespace kvarto {

struct HubFile {
  std::string path;  // inside the repository
  uint64_t size = 0;
  std::string digest;  // SHA-256 of LFS files, else git's SHA-1
};

class Hub {
 public:
  // HF_ENDPOINT (https://huggingface.co), HF_TOKEN and the proxy variables. KVARTO_OFFLINE=1 and HF_HUB_OFFLINE=1
  // refuse.
  static Result<Hub> from_environment();

  Result<std::vector<HubFile>> list(const std::string& repo, const std::string& revision) const;
  // The commit behind `revision`, asked for with `file`, whose digest must be the one that `list` gave.
  Result<std::string> find_commit(const std::string& repo, const std::string& revision, const HubFile& file) const;
  // Fetches what `blob` lacks; tries again by itself as long as each try brings bytes. `on_progress` gets the bytes
  // there.
  Status fetch(const std::string& repo, const std::string& commit, const HubFile& file, BlobFile& blob,
               const std::function<void(uint64_t)>& on_progress) const;

 private:
  Hub(Url endpoint, std::string token, HttpClientOptions options)
      : endpoint_(std::move(endpoint)), token_(std::move(token)), client_(std::move(options)) {}
  Result<std::string> ask_for_commit(const std::string& repo, const std::string& revision) const;
  HttpRequest request_for(const std::string& path) const;
  std::string resolve_path(const std::string& repo, const std::string& revision, const std::string& file) const;
  Status fetch_once(const std::string& repo, const std::string& commit, const HubFile& file, BlobFile& blob,
                    const std::function<void(uint64_t)>& on_progress) const;
  // What a status other than 2xx means to somebody who wants `repo`.
  tl::unexpected<Error> refusal(const HttpReply& reply, const std::string& repo) const;

  Url endpoint_;
  std::string token_;
  HttpClient client_;
};

}  // namespace kvarto
