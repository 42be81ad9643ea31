#include "cli/hub.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/hub_cache.h"
#include "format/printable.h"

namespace kvarto {
namespace {

using nlohmann::json;

constexpr size_t kMaxPageBytes = size_t{32} << 20;
constexpr int kMaxPages = 100;
constexpr int kMaxTries = 5;
constexpr std::chrono::milliseconds kPauseBetweenTries{500};

bool is_on(const char* name) {
  const char* value = std::getenv(name);
  const std::string_view text = value == nullptr ? "" : value;
  return !text.empty() && text != "0" && text != "false" && text != "FALSE" && text != "no" && text != "NO";
}

tl::unexpected<Error> broken(const Url& url, const std::string& what) {
  return fail(ErrorCode::corrupt, shown(url) + ": " + what);
}

// A server that cannot be reached, and what helps.
tl::unexpected<Error> unreached(Error error) {
  if (error.code == ErrorCode::network) {
    error.message +=
        "; check the network, set HF_ENDPOINT to a mirror of the hub, or run a GGUF file that is here, which needs no "
        "pull";
  }
  return tl::unexpected<Error>(std::move(error));
}

std::string text_of(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::optional<uint64_t> size_of(const json& object) {
  const auto it = object.find("size");
  if (it == object.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}

// One entry of a tree; nothing for folders.
Result<std::optional<HubFile>> read_entry(const Url& url, const json& entry) {
  if (!entry.is_object()) return broken(url, "an entry of the file list is no object");
  if (text_of(entry, "type") != "file") return std::optional<HubFile>();
  HubFile file;
  file.path = text_of(entry, "path");
  if (!is_safe_path(file.path))
    return broken(url, "file name " + kvarto::quoted(file.path) + " could leave its folder; refused");
  const auto lfs = entry.find("lfs");
  const bool large = lfs != entry.end() && lfs->is_object();
  const std::optional<uint64_t> size = size_of(entry);
  if (!size) return broken(url, "no size for " + kvarto::quoted(file.path));
  file.size = *size;
  file.digest = text_of(large ? *lfs : entry, "oid");
  // Some mirrors write the algorithm in front.
  if (file.digest.starts_with("sha256:")) file.digest.erase(0, 7);
  if (!is_digest(file.digest) || (large && file.digest.size() != 64)) {
    return broken(url, "no checksum for " + kvarto::quoted(file.path) + ": " + kvarto::quoted(file.digest));
  }
  if (large && size_of(*lfs).value_or(file.size) != file.size) {
    return broken(url, "two sizes for " + kvarto::quoted(file.path));
  }
  return std::optional<HubFile>(std::move(file));
}

Status read_page(const Url& url, const std::string& body, std::vector<HubFile>& files) {
  const json page = json::parse(body, nullptr, false);
  if (!page.is_array()) return broken(url, "no list of files; is HF_ENDPOINT a model hub?");
  for (const json& entry : page) {
    ASSIGN_OR_RETURN(std::optional<HubFile> file, read_entry(url, entry));
    if (file) files.push_back(std::move(*file));
  }
  return {};
}

// The target of `<...>; rel="next"`, or empty.
std::string next_page(const HttpReply& reply) {
  const std::string* link = reply.header("Link");
  if (link == nullptr) return "";
  for (size_t start = link->find('<'); start != std::string::npos; start = link->find('<', start + 1)) {
    const size_t end = link->find('>', start);
    if (end == std::string::npos) return "";
    const std::string attributes = link->substr(end + 1, link->find('<', end) - end - 1);
    if (attributes.find("rel=\"next\"") != std::string::npos) return link->substr(start + 1, end - start - 1);
  }
  return "";
}

std::string bare_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

// Checks "bytes 100-199/200" against what was asked for.
bool range_fits(std::string_view range, uint64_t first, uint64_t size) {
  const std::string wanted = "bytes " + std::to_string(first) + "-" + std::to_string(size - 1) + "/";
  if (!range.starts_with(wanted)) return false;
  range.remove_prefix(wanted.size());
  return range == "*" || range == std::to_string(size);
}

// Makes ready for the body of a reply to a request that began at blob.have().
Status begin_body(const HttpReply& reply, const HubFile& file, BlobFile& blob) {
  if (reply.status == 206 && blob.have() > 0) {
    const std::string* range = reply.header("Content-Range");
    if (range == nullptr || !range_fits(*range, blob.have(), file.size)) {
      return broken(reply.url, "asked for bytes from " + std::to_string(blob.have()) + " on, got " +
                                   kvarto::quoted(range == nullptr ? "no Content-Range" : *range));
    }
  } else if (reply.status == 200) {
    if (blob.have() > 0) RETURN_IF_ERROR(blob.restart());  // the server knows no ranges
  } else {
    return broken(reply.url, "unexpected status " + std::to_string(reply.status));
  }
  const uint64_t missing = file.size - blob.have();
  if (reply.content_length && *reply.content_length != missing) {
    return broken(reply.url, "body of " + std::to_string(*reply.content_length) + " bytes, wanted " +
                                 std::to_string(missing) + " of " + kvarto::quoted(file.path));
  }
  return {};
}

}  // namespace

Result<Hub> Hub::from_environment() {
  for (const char* name : {"KVARTO_OFFLINE", "HF_HUB_OFFLINE"}) {
    if (is_on(name)) {
      return fail(ErrorCode::network, std::string(name) + " is set: pull needs the network; unset it to fetch models");
    }
  }
  const char* named = std::getenv("HF_ENDPOINT");
  const bool own = named != nullptr && *named != '\0';
  ASSIGN_OR_RETURN(Url endpoint, parse_url(own ? named : "https://huggingface.co"));
  if (!endpoint.user_info.empty()) {
    return fail(ErrorCode::invalid_argument, "HF_ENDPOINT: holds a user name; leave it out and set HF_TOKEN");
  }
  endpoint.target.resize(endpoint.target.find_last_not_of('/') + 1);
  HttpClientOptions options;
  ASSIGN_OR_RETURN(options.proxy, proxy_from_environment());
  ASSIGN_OR_RETURN(std::string token, hub_token());
  return Hub(std::move(endpoint), std::move(token), std::move(options));
}

HttpRequest Hub::request_for(const std::string& path) const {
  HttpRequest request;
  request.url = endpoint_;
  request.url.target += path;
  if (!token_.empty()) request.authorization = "Bearer " + token_;
  return request;
}

std::string Hub::resolve_path(const std::string& repo, const std::string& revision, const std::string& file) const {
  return "/" + repo + "/resolve/" + percent_encode(revision, false) + "/" + percent_encode(file, true);
}

tl::unexpected<Error> Hub::refusal(const HttpReply& reply, const std::string& repo) const {
  std::string message = shown(reply.url) + ": HTTP " + std::to_string(reply.status);
  if (const std::string* said = reply.header("X-Error-Message")) message += " (" + printable(*said, 160) + ")";
  const std::string page = origin(endpoint_) + endpoint_.target + "/" + repo;
  switch (reply.status) {
    case 401:
      return fail(ErrorCode::not_found,
                  message + (token_.empty() ? "; check the name " + repo + "; gated and private models need HF_TOKEN"
                                            : "; the token is not accepted, or " + repo + " is not there"));
    case 403:
      return fail(ErrorCode::not_found,
                  message + "; ask for access at " + page + (token_.empty() ? " and set HF_TOKEN" : ""));
    case 404:
      return fail(ErrorCode::not_found, message + "; no such model or revision: check the name at " + page);
    case 429:
      return fail(ErrorCode::network, message + "; too many requests: wait, or set HF_TOKEN");
    default:
      return fail(ErrorCode::network, message + "; try again later, or another HF_ENDPOINT");
  }
}

Result<std::vector<HubFile>> Hub::list(const std::string& repo, const std::string& revision) const {
  HttpRequest request =
      request_for("/api/models/" + repo + "/tree/" + percent_encode(revision, false) + "?recursive=true");
  std::vector<HubFile> files;
  for (int page = 0; page < kMaxPages; ++page) {
    std::string body;
    const Result<HttpReply> reply = client_.get(request, kMaxPageBytes, body);
    if (!reply) return unreached(reply.error());
    if (reply->status != 200) return refusal(*reply, repo);
    RETURN_IF_ERROR(read_page(reply->url, body, files));
    const std::string next = next_page(*reply);
    if (next.empty()) return files;
    ASSIGN_OR_RETURN(Url url, resolve_location(reply->url, next));
    if (origin(url) != origin(request.url)) return broken(reply->url, "the next page of the list is on another server");
    request.url = std::move(url);
  }
  return broken(request.url, "more than " + std::to_string(kMaxPages) + " pages of files");
}

Result<std::string> Hub::find_commit(const std::string& repo, const std::string& revision, const HubFile& file) const {
  HttpRequest request = request_for(resolve_path(repo, revision, file.path));
  request.head = true;
  request.redirects = Redirects::same_origin;  // the answer stands in the hub's own reply, not in the store's behind it
  const Result<HttpReply> reply = client_.send(request, {});
  if (!reply) return unreached(reply.error());
  const bool knows_no_head = reply->status == 405 || reply->status == 501;
  if (reply->status >= 400 && !knows_no_head) return refusal(*reply, repo);
  const std::string* linked = reply->header("X-Linked-Etag");
  if (linked != nullptr && file.digest.size() == 64 && bare_etag(*linked) != file.digest) {
    return broken(reply->url, "changed while it was being listed; run it again");
  }
  const std::string* commit = reply->header("X-Repo-Commit");
  if (commit == nullptr) return ask_for_commit(repo, revision);
  if (!is_commit(*commit)) return broken(reply->url, "no valid X-Repo-Commit: " + kvarto::quoted(*commit));
  return *commit;
}

// For mirrors that leave the header out.
Result<std::string> Hub::ask_for_commit(const std::string& repo, const std::string& revision) const {
  std::string body;
  const HttpRequest request = request_for("/api/models/" + repo + "/revision/" + percent_encode(revision, false));
  const Result<HttpReply> reply = client_.get(request, kMaxPageBytes, body);
  if (!reply) return unreached(reply.error());
  if (reply->status != 200) return refusal(*reply, repo);
  const json info = json::parse(body, nullptr, false);
  const std::string commit = info.is_object() ? text_of(info, "sha") : "";
  if (!is_commit(commit))
    return broken(reply->url, "names no commit (" + kvarto::quoted(commit) + "); is HF_ENDPOINT a model hub?");
  return commit;
}

Status Hub::fetch_once(const std::string& repo, const std::string& commit, const HubFile& file, BlobFile& blob,
                       const std::function<void(uint64_t)>& on_progress) const {
  HttpRequest request = request_for(resolve_path(repo, commit, file.path));
  if (blob.have() > 0) request.headers.push_back({"Range", "bytes=" + std::to_string(blob.have()) + "-"});
  BodySink sink;
  sink.begin = [&](const HttpReply& reply) { return begin_body(reply, file, blob); };
  sink.data = [&](std::string_view bytes) -> Status {
    RETURN_IF_ERROR(blob.append(bytes));
    on_progress(blob.have());
    return {};
  };
  ASSIGN_OR_RETURN(const HttpReply reply, client_.send(request, sink));
  if (reply.status / 100 != 2) return refusal(reply, repo);
  return {};
}

Status Hub::fetch(const std::string& repo, const std::string& commit, const HubFile& file, BlobFile& blob,
                  const std::function<void(uint64_t)>& on_progress) const {
  on_progress(blob.have());
  for (int tries = 1; blob.have() < file.size; ++tries) {
    const uint64_t before = blob.have();
    Status status = fetch_once(repo, commit, file, blob, on_progress);
    if (status && blob.have() == file.size) break;
    const bool may_go_on =
        !status && status.error().code == ErrorCode::network && blob.have() > before && tries < kMaxTries;
    if (may_go_on) {
      std::this_thread::sleep_for(kPauseBetweenTries);
    } else if (!status) {
      if (blob.have() > 0)
        status.error().message += "; " + std::to_string(blob.have()) + " bytes are kept, run it again to go on";
      return status;
    } else {
      break;  // a body that ended short without an error: finish() says so
    }
  }
  return blob.finish();
}

}  // namespace kvarto
