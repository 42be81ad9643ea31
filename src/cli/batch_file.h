// Results of a run over many prompts on their way to the output file. They are appended to OUTPUT.partial as they come,
// under a header that names the input and the flags; the whole run, in input order, replaces OUTPUT at the end. A run
// that was stopped finds its results in OUTPUT.partial. Main thread.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "kvarto/result.h"

namespace kvarto {

// The file that -o OUTPUT means, links resolved; "-" for stdout. Refused before a model is loaded: what is no regular
// file, a folder that is not there, and the input itself.
Result<std::string> output_path(const std::string& output, const std::string& input);

class BatchFile {
 public:
  // `identity` says what results depend on; a partial file of another one, or one that another run is writing, is
  // refused and stays as it is. `lines` of the input. `output` "-" or empty: stdout, nothing is kept.
  static Result<BatchFile> open(const std::string& output, std::string_view identity, size_t lines);

  // Answers by input line, those of an earlier run included.
  const std::map<size_t, std::string>& answers() const { return answers_; }
  bool keeps() const { return partial_ != nullptr; }  // answers outlive a run that is stopped
  Status add(size_t line, std::string answer);
  // All lines are answered: writes the output and removes the partial file.
  Status finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string output_;
  std::map<size_t, std::string> answers_;
  std::unique_ptr<std::FILE, Close> partial_;
};

}  // namespace kvarto
