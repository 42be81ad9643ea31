#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvarto {
namespace {

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, mode_t mode = 0644)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

tl::unexpected<Error> os_error(const std::string& path, const char* what) {
  const int e = errno;
  return fail(e == ENOENT ? ErrorCode::not_found : ErrorCode::io, path + ": " + what + ": " + std::strerror(e));
}

// The whole content, on the disk; with the permissions that a new file would have.
Status write_all(const Descriptor& fd, const std::string& path, std::string_view content) {
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(fd.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return os_error(path, "cannot write");
    done += static_cast<size_t>(n);
  }
  if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0) return os_error(path, "cannot sync");
  return {};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  Descriptor fd(path, O_RDONLY | O_NONBLOCK);  // a FIFO without a writer must not hang us
  if (!fd.ok()) return os_error(path, "cannot open");
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return os_error(path, "cannot stat");
  if (!S_ISREG(st.st_mode)) return fail(ErrorCode::invalid_argument, path + ": not a regular file");
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(st.st_size);
  if (file.size_ > 0) {
    void* p = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (p == MAP_FAILED) return os_error(path, "cannot map");
    file.data_ = static_cast<const std::byte*>(p);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t last = std::min(offset + size, size_) / page * page;
  if (data_ != nullptr && last > first) {
    ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
  }
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  Descriptor fd(path, O_RDONLY);
  if (!fd.ok()) return os_error(path, "cannot open");
  std::string out;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(path, "cannot read");
    if (n == 0) return out;
    if (out.size() + static_cast<size_t>(n) > max_bytes) {
      return fail(ErrorCode::invalid_argument, path + ": longer than " + std::to_string(max_bytes) + " bytes");
    }
    out.append(buffer, static_cast<size_t>(n));
  }
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  std::string temporary = path + ".XXXXXX";  // a name of its own: two writers of one file do not meet
  Status written;
  {
    Descriptor fd(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd.ok()) return os_error(temporary, "cannot create");
    written = write_all(fd, temporary, content);
  }
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  if (written) written = os_error(path, "cannot rename into place");
  ::unlink(temporary.c_str());
  return written;
}

}  // namespace kvarto
