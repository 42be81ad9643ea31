#include "cli/blob_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/hash.h"

namespace kvarto {
namespace {

std::string in_megabytes(uint64_t bytes) { return std::to_string((bytes + 999'999) / 1'000'000) + " MB"; }

// SHA-256, or SHA-1 over git's header and the content.
class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new()) {}
  ~Digest() { EVP_MD_CTX_free(context_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void start(bool git, uint64_t size) {
    EVP_DigestInit_ex(context_, git ? EVP_sha1() : EVP_sha256(), nullptr);
    if (!git) return;
    const std::string head = "blob " + std::to_string(size);
    update({head.c_str(), head.size() + 1});  // git closes its header with a zero byte
  }
  void update(std::string_view bytes) { EVP_DigestUpdate(context_, bytes.data(), bytes.size()); }
  std::string finish() {
    uint8_t out[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    EVP_DigestFinal_ex(context_, out, &length);
    return to_hex({out, length});
  }

 private:
  EVP_MD_CTX* context_;
};

}  // namespace

struct BlobFile::State {
  std::string blob_path, path, wanted;
  uint64_t size = 0, have = 0;
  int fd = -1;
  Digest digest;

  ~State() {
    if (fd >= 0) ::close(fd);
  }
  Status os_error(const std::string& what) const {
    const int error = errno;
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return fail(ErrorCode::io, path + ": " + what + ": " + std::strerror(error) +
                                   (full ? " (" + in_megabytes(size - have) +
                                               " are missing; make room and run it again: it goes on from there)"
                                         : ""));
  }
  Status read_what_is_there();
  Status check_room() const;
};

Status BlobFile::State::read_what_is_there() {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return os_error("cannot look at it");
  digest.start(wanted.size() == 40, size);
  have = 0;
  if (static_cast<uint64_t>(info.st_size) > size) {
    return ::ftruncate(fd, 0) == 0 ? Status() : os_error("cannot shorten");
  }
  std::vector<char> piece(size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error("cannot read");
    if (n == 0) return {};
    digest.update({piece.data(), static_cast<size_t>(n)});
    have += static_cast<uint64_t>(n);
  }
}

Status BlobFile::State::check_room() const {
  struct statvfs disk {};
  if (::fstatvfs(fd, &disk) != 0) return {};  // a file system that does not say is given the chance
  const uint64_t room = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (size - have <= room) return {};
  return fail(ErrorCode::io, path + ": needs " + in_megabytes(size - have) + " more, the disk has " +
                                 in_megabytes(room) + " left; make room, or move the cache with HF_HOME");
}

BlobFile::BlobFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlobFile::BlobFile(BlobFile&&) noexcept = default;
BlobFile::~BlobFile() = default;

Result<BlobFile> BlobFile::open(const std::string& blob_path, const std::string& digest, uint64_t size) {
  auto state = std::make_unique<State>();
  state->blob_path = blob_path;
  state->path = blob_path + ".incomplete";
  state->wanted = digest;
  state->size = size;
  state->fd = ::open(state->path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (state->fd < 0) return tl::unexpected<Error>(state->os_error("cannot create").error());
  RETURN_IF_ERROR(state->read_what_is_there());
  RETURN_IF_ERROR(state->check_room());
  return BlobFile(std::move(state));
}

uint64_t BlobFile::have() const { return state_->have; }
uint64_t BlobFile::size() const { return state_->size; }

Status BlobFile::append(std::string_view bytes) {
  State& s = *state_;
  if (bytes.size() > s.size - s.have) {
    return fail(ErrorCode::corrupt,
                s.path + ": the server sent more than the " + std::to_string(s.size) + " bytes it announced");
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(s.fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return s.os_error("cannot write");
    const auto written = static_cast<size_t>(n);
    s.digest.update(bytes.substr(0, written));
    s.have += written;
    bytes.remove_prefix(written);
  }
  return {};
}

Status BlobFile::restart() {
  if (::ftruncate(state_->fd, 0) != 0) return state_->os_error("cannot shorten");
  state_->have = 0;
  state_->digest.start(state_->wanted.size() == 40, state_->size);
  return {};
}

Status BlobFile::finish() {
  State& s = *state_;
  if (s.have != s.size) {
    return fail(ErrorCode::network, s.path + ": " + std::to_string(s.have) + " of " + std::to_string(s.size) +
                                        " bytes arrived; run it again: it goes on from there");
  }
  if (const std::string got = s.digest.finish(); got != s.wanted) {
    ::unlink(s.path.c_str());
    return fail(ErrorCode::corrupt,
                s.path + ": checksum is " + got + ", wanted " + s.wanted + "; the file was removed, run it again");
  }
  if (::fsync(s.fd) != 0) return s.os_error("cannot sync");
  if (::rename(s.path.c_str(), s.blob_path.c_str()) != 0) return s.os_error("cannot rename into place");
  return {};
}

}  // namespace kvarto
