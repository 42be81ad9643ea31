#include "cli/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "format/printable.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxComponentBytes = 255;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string user_home() {
  const std::string home = environment("HOME");
  return home.empty() ? "." : home;
}

std::string expand_home(const std::string& path) {
  return path == "~" || path.starts_with("~/") ? user_home() + path.substr(1) : path;
}

std::string hub_home() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return expand_home(home);
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? user_home() + "/.cache" : expand_home(cache)) + "/huggingface";
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r\n";
  const size_t first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(space) - first + 1));
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Status os_error(const std::string& what, const std::string& path, int error) {
  return fail(ErrorCode::io, path + ": " + what + ": " + std::strerror(error));
}

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? os_error("cannot make this folder", path, error.value()) : Status();
}

}  // namespace

std::string hub_cache_root() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string path = environment(name); !path.empty()) return expand_home(path);
  }
  return hub_home() + "/hub";
}

Result<std::string> hub_token() {
  std::string where = "HF_TOKEN";
  std::string token = trimmed(environment("HF_TOKEN"));
  if (token.empty()) {
    const std::string named = environment("HF_TOKEN_PATH");
    where = named.empty() ? hub_home() + "/token" : expand_home(named);
    std::error_code error;
    if (!fs::exists(where, error)) return std::string();
    ASSIGN_OR_RETURN(token, read_file(where, kMaxTokenBytes));
    token = trimmed(token);
  }
  // It goes into a header; it is a secret, so that it is not shown.
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return fail(ErrorCode::invalid_argument, where + ": holds no token (spaces or other characters); write it anew");
  }
  return token;
}

bool is_commit(std::string_view text) { return text.size() == 40 && is_hex(text); }
bool is_digest(std::string_view text) { return (text.size() == 64 || text.size() == 40) && is_hex(text); }

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  if (std::any_of(path.begin(), path.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; })) {
    return false;
  }
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('/', start), path.size());
    const std::string_view component = path.substr(start, end - start);
    if (component.empty() || component == "." || component == ".." || component.size() > kMaxComponentBytes)
      return false;
    start = end + 1;
  }
  return true;
}

Result<FileLock> FileLock::take(const std::string& path, const std::function<void()>& on_wait) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return tl::unexpected<Error>(os_error("cannot open the lock", path, errno).error());
  FileLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK && on_wait) on_wait();
  while (::flock(fd, LOCK_EX) != 0) {
    if (errno != EINTR) return tl::unexpected<Error>(os_error("cannot lock", path, errno).error());
  }
  return lock;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

HubCacheRepo::HubCacheRepo(std::string root, std::string_view repo) : root_(std::move(root)), name_("models--") {
  for (const char c : repo) name_ += c == '/' ? std::string("--") : std::string(1, c);
  folder_ = root_ + "/" + name_;
}

std::string HubCacheRepo::snapshot_path(const std::string& commit, const std::string& file) const {
  return folder_ + "/snapshots/" + commit + "/" + file;
}

Status HubCacheRepo::make_folders() const {
  RETURN_IF_ERROR(make_folder(folder_ + "/blobs"));
  RETURN_IF_ERROR(make_folder(folder_ + "/refs"));
  return make_folder(root_ + "/.locks/" + name_);
}

Result<FileLock> HubCacheRepo::lock_blob(const std::string& digest, const std::function<void()>& on_wait) const {
  return FileLock::take(root_ + "/.locks/" + name_ + "/" + digest + ".lock", on_wait);
}

Status HubCacheRepo::link(const std::string& commit, const std::string& file, const std::string& digest) const {
  const std::string path = snapshot_path(commit, file);
  RETURN_IF_ERROR(make_folder(fs::path(path).parent_path().string()));
  std::string target = "../../blobs/" + digest;
  for (const char c : file) {
    if (c == '/') target = "../" + target;
  }
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) return os_error("cannot link", temporary, errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return os_error("cannot rename into place", path, errno);
  return {};
}

Status HubCacheRepo::write_ref(const std::string& revision, const std::string& commit) const {
  const std::string path = folder_ + "/refs/" + revision;
  RETURN_IF_ERROR(make_folder(fs::path(path).parent_path().string()));
  // Two writers would share the temporary file's name.
  ASSIGN_OR_RETURN(const FileLock lock, FileLock::take(root_ + "/.locks/" + name_ + "/refs.lock", {}));
  return write_file_atomically(path, commit);
}

std::vector<std::string> HubCacheRepo::commits() const {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator it(folder_ + "/snapshots", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code no_time;
    if (is_commit(name)) found.emplace_back(fs::last_write_time(it->path(), no_time), name);
  }
  std::sort(found.rbegin(), found.rend());
  const Result<std::string> main = read_file(folder_ + "/refs/main", kMaxTokenBytes);
  const std::string current = main ? trimmed(*main) : "";
  std::vector<std::string> commits;
  for (const auto& [time, name] : found) commits.push_back(name);
  std::stable_partition(commits.begin(), commits.end(), [&](const std::string& name) { return name == current; });
  return commits;
}

std::vector<std::string> HubCacheRepo::files(const std::string& commit) const {
  const fs::path folder = folder_ + "/snapshots/" + commit;
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code broken;  // a link whose blob is gone is no file
    if (fs::is_regular_file(it->path(), broken)) files.push_back(it->path().lexically_relative(folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvarto
