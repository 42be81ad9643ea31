#include "cli/batch_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "cli/output.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::string partial_path(const std::string& output) { return output + ".partial"; }

std::string header_line(std::string_view identity) {
  Sha256 sha;
  sha.update(identity);
  return Json{{"kvarto_partial", 1}, {"sha256", to_hex(sha.finish())}}.dump();
}

// Whole lines of an earlier run; a line that it was stopped in the middle of is dropped.
Status read_partial(const std::string& path, const std::string& content, const std::string& header, size_t lines,
                    std::map<size_t, std::string>& answers, size_t& good_bytes) {
  const bool torn_header = content.size() <= header.size() && header.starts_with(content);
  if (!torn_header && !content.starts_with(header + "\n")) {
    return fail(ErrorCode::invalid_argument,
                path + " belongs to another run (other input, model or flags); delete it or choose another -o");
  }
  if (torn_header) return {};
  size_t at = header.size() + 1;
  for (size_t end = content.find('\n', at); end != std::string::npos; end = content.find('\n', at)) {
    const Json entry = Json::parse(content.substr(at, end - at), nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || !entry.contains("line") || !entry["line"].is_number_unsigned() ||
        entry["line"].get<uint64_t>() >= lines || !entry.contains("answer") || !entry["answer"].is_string()) {
      return fail(ErrorCode::corrupt, path + " has a line that is no result of this input; delete it to start anew");
    }
    answers[entry["line"].get<size_t>()] = entry["answer"].get<std::string>();
    at = end + 1;
  }
  good_bytes = at;
  return {};
}

tl::unexpected<Error> os_error(const std::string& path, const char* what) {
  return fail(ErrorCode::io, path + ": " + what + ": " + std::strerror(errno));
}

// The file, locked for as long as it is open. The lock may be of a file that its run has just removed.
Result<std::FILE*> open_locked(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) return os_error(path, "cannot create");
  std::FILE* file = ::fdopen(fd, "a");
  if (file == nullptr) {
    ::close(fd);
    return os_error(path, "cannot open");
  }
  struct stat opened {
  }, named{};
  const bool regular = ::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode);
  const bool locked = regular && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (locked && ::stat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev) {
    return file;
  }
  std::fclose(file);
  return fail(ErrorCode::io, regular ? path + ": another run is writing it; wait for it or choose another -o"
                                     : path + " is not a regular file; delete it or choose another -o");
}

Status write_line(std::FILE* file, const std::string& path, const std::string& line) {
  if (std::fputs((line + "\n").c_str(), file) >= 0 && std::fflush(file) == 0) return {};
  return fail(ErrorCode::io, path + ": cannot write: " + std::strerror(errno));
}

}  // namespace

Result<std::string> output_path(const std::string& output, const std::string& input) {
  namespace fs = std::filesystem;
  if (output.empty() || output == "-") return std::string("-");
  std::error_code ignored;
  fs::path path = fs::weakly_canonical(output, ignored);
  // A link to a file that is not there yet is not followed by the above.
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(path, ignored)); ++i) {
    path = fs::weakly_canonical(path.parent_path() / fs::read_symlink(path, ignored), ignored);
  }
  if (path.empty()) path = output;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return fail(ErrorCode::invalid_argument, "-o " + output + " is " +
                                                 (fs::is_directory(status) ? "a folder" : "not a regular file") +
                                                 "; give a regular file, or - for stdout");
  }
  const fs::path folder = path.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored)) {
    return fail(ErrorCode::not_found, "-o " + output + ": there is no folder " + folder.string() + "; make it first");
  }
  if (fs::equivalent(path, input == "-" ? "/dev/stdin" : input, ignored)) {
    return fail(ErrorCode::invalid_argument, "-o " + output + " is the file of prompts itself; give another one");
  }
  return path.string();
}

Result<BatchFile> BatchFile::open(const std::string& output, std::string_view identity, size_t lines) {
  BatchFile file;
  file.output_ = output.empty() ? "-" : output;
  if (file.output_ == "-") return file;
  const std::string path = partial_path(output), header = header_line(identity);
  ASSIGN_OR_RETURN(std::FILE * locked, open_locked(path));
  file.partial_.reset(locked);
  size_t good_bytes = 0;
  ASSIGN_OR_RETURN(const std::string content, read_file(path));
  RETURN_IF_ERROR(read_partial(path, content, header, lines, file.answers_, good_bytes));
  if (::ftruncate(::fileno(locked), static_cast<off_t>(good_bytes)) != 0) return os_error(path, "cannot shorten");
  if (good_bytes == 0) RETURN_IF_ERROR(write_line(locked, path, header));
  return file;
}

Status BatchFile::add(size_t line, std::string answer) {
  if (partial_ != nullptr) {
    RETURN_IF_ERROR(write_line(partial_.get(), partial_path(output_), Json{{"line", line}, {"answer", answer}}.dump()));
  }
  answers_[line] = std::move(answer);
  return {};
}

Status BatchFile::finish() {
  std::string content;
  for (const auto& [line, answer] : answers_) content += answer + "\n";
  if (output_ == "-") return put(content);
  RETURN_IF_ERROR(write_file_atomically(output_, content));
  ::unlink(partial_path(output_).c_str());  // while it is locked: nobody else may have begun with it
  partial_.reset();
  return {};
}

}  // namespace kvarto
