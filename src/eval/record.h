// Records: what a run found out, one piece of work at a time, kept in a file so that a run that was stopped goes on.
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"
#include "kvarto/result.h"

namespace kvarto {

// What was run on what: the first line of the file. A run goes on only where all of it is equal.
struct RunFacts {
  std::string model;        // file name, or the server's name for it
  std::string fingerprint;  // of the model; empty: a server
  std::string architecture, numerics, simd_target;
  std::string weight_types;  // "Q4_1, Q8_0"; empty: unknown
  int threads = 0;
  uint32_t block_size = 0;
  uint64_t seed = 0;
  uint32_t context_tokens = 0, samples = 0;
  std::vector<std::string> settings;  // the baseline first
  // Index of the setting that is there to show what any change costs, however small, since it tips roundings of other
  // numbers over: the baseline with a noise on its keys that no cache would notice. Texts only. None: no such setting.
  std::optional<size_t> noise_floor;
  std::vector<std::string> families;
  struct Text {
    std::string name, sha256;
    uint64_t tokens = 0;
    bool operator==(const Text&) const = default;
  };
  std::vector<Text> texts;
  std::string own_tasks_sha256;  // empty: none
  std::string program;           // version
  bool operator==(const RunFacts&) const = default;
};

// One text under one setting. [positions - 1] each: of the tokens from position 1 on.
struct TextRecord {
  uint32_t text = 0;  // index in RunFacts::texts
  std::vector<float> nll;
  std::vector<double> divergence;  // from the baseline; of the baseline empty
  std::vector<uint8_t> same_top;   // 1: the likeliest token is the baseline's; of the baseline empty
};

// One task under one setting.
struct TaskRecord {
  std::string id, family;
  Skill skill = Skill::retrieval;
  uint32_t length_tokens = 0;
  std::optional<double> depth;
  std::optional<double> nll;  // of the whole answer
  uint32_t answer_tokens = 0;
  std::optional<double> floor_nll;  // of the baseline's record alone
  bool right = false;
  std::string text;  // what it wrote (the answer itself where that is what it would write)
};

struct SettingRecords {
  std::string setting;
  uint64_t kv_bytes_per_token = 0;
  double prompt_tokens_per_s = 0, seconds = 0;  // over all that was computed, also before a stop
  std::vector<TextRecord> texts;
  std::vector<TaskRecord> tasks;
};

// The file: JSON lines, appended and flushed to disk after each record. A torn last line (the machine died) is dropped;
// any other damage is an error naming the line. Only one process has it open.
class RecordFile {
 public:
  // Makes the file or reads what is there. A file of another run is an error that says what differs and proposes
  // another folder or `--fresh`.
  static Result<RecordFile> open(const std::string& path, const RunFacts& facts);
  RecordFile(RecordFile&&) noexcept;
  RecordFile& operator=(RecordFile&&) noexcept;
  ~RecordFile();

  const std::vector<SettingRecords>& settings() const { return settings_; }  // in the order of facts.settings
  bool has_text(size_t setting, uint32_t text) const;
  const TaskRecord* task(size_t setting, std::string_view id) const;  // null: not there yet; valid until add()

  // What is kept is what a later run will read from the file, to the bit.
  Status add(size_t setting, const TextRecord& record);
  Status add(size_t setting, const TaskRecord& record);
  // What a setting has cost so far (it is added to what stands there).
  Status add_cost(size_t setting, uint64_t kv_bytes_per_token, uint64_t prompt_tokens, double seconds);

 private:
  class Lines;  // the open file

  explicit RecordFile(const RunFacts& facts);
  Status read(const std::string& path, const std::string& facts_line);
  Status keep(std::string_view line);
  Status add_line(const std::string& line);

  std::unique_ptr<Lines> lines_;
  std::vector<SettingRecords> settings_;
  std::vector<uint64_t> prompt_tokens_;  // [settings]
  size_t texts_ = 0;                     // of the run
};

}  // namespace kvarto
