#include "cli/batch_file.h"

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
Status read_partial(const std::string& path, const std::string& content, const std::string& header,
                    std::map<size_t, std::string>& answers, size_t& good_bytes) {
  size_t at = 0;
  bool first = true;
  for (size_t end = content.find('\n'); end != std::string::npos; end = content.find('\n', at)) {
    const std::string line = content.substr(at, end - at);
    if (first && line != header) {
      return fail(ErrorCode::invalid_argument,
                  path + " belongs to another run (other input, model or flags); delete it or choose another -o");
    }
    if (!first) {
      const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!entry.is_object() || !entry.contains("line") || !entry["line"].is_number_unsigned() ||
          !entry.contains("answer") || !entry["answer"].is_string()) {
        return fail(ErrorCode::corrupt, path + " has a line that is no result; delete it to start anew");
      }
      answers[entry["line"].get<size_t>()] = entry["answer"].get<std::string>();
    }
    first = false;
    at = end + 1;
  }
  good_bytes = at;
  return {};
}

Status write_line(std::FILE* file, const std::string& path, const std::string& line) {
  if (std::fputs((line + "\n").c_str(), file) >= 0 && std::fflush(file) == 0) return {};
  return fail(ErrorCode::io, path + ": cannot write: " + std::strerror(errno));
}

}  // namespace

Result<BatchFile> BatchFile::open(const std::string& output, std::string_view identity) {
  BatchFile file;
  file.output_ = output.empty() ? "-" : output;
  if (file.output_ == "-") return file;
  const std::string path = partial_path(output), header = header_line(identity);
  size_t good_bytes = 0;
  if (std::filesystem::exists(path)) {
    ASSIGN_OR_RETURN(const std::string content, read_file(path));
    RETURN_IF_ERROR(read_partial(path, content, header, file.answers_, good_bytes));
    if (::truncate(path.c_str(), static_cast<off_t>(good_bytes)) != 0) {
      return fail(ErrorCode::io, path + ": cannot shorten: " + std::strerror(errno));
    }
  }
  file.partial_.reset(std::fopen(path.c_str(), "a"));
  if (file.partial_ == nullptr) return fail(ErrorCode::io, path + ": cannot create: " + std::strerror(errno));
  if (good_bytes == 0) RETURN_IF_ERROR(write_line(file.partial_.get(), path, header));
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
  partial_.reset();
  ::unlink(partial_path(output_).c_str());
  return {};
}

}  // namespace kvarto
