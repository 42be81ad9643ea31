// Records: what a run found out, one piece of work at a time, kept in a file so that a run that was stopped goes on.
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"
#include "kvarto/result.h"

namespace kvarto {

// What was run on what: the first line of the file. A run goes on only where all of it is equal, but for what no figure
// depends on: `simd_target` and `threads`.
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
  struct Server {
    std::string url, model;  // as it is shown; its name for the model
    bool echoes = false;     // it gives the log-probabilities of a prompt
    bool operator==(const Server&) const = default;
  };
  std::vector<Server> servers;  // of the last settings
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
  std::string tasks_sha256;      // of all that the tasks are; empty: no tasks
  std::string own_tasks_sha256;  // of the user's file of them; empty: none
  std::string program;           // version
  bool operator==(const RunFacts&) const = default;
};

// One text under one setting. [positions - 1] each: of the tokens from position 1 on.
struct TextRecord {
  uint32_t text = 0;  // index in RunFacts::texts
  std::vector<float> nll;
  std::vector<double> divergence;  // from the baseline; of the baseline empty
  std::vector<uint8_t> same_top;   // 1: the likeliest token is the baseline's; of the baseline empty
  std::string rows_sha256 = {};    // of the file of its rows, in hex; empty: none was written. See add_rows()
};

// One task under one setting.
struct TaskRecord {
  std::string id, family, group;  // see Task
  Skill skill = Skill::retrieval;
  uint32_t length_tokens = 0;
  std::optional<double> depth;
  std::optional<double> nll;  // of the whole answer; of a task of the user's, of what the baseline wrote
  uint32_t answer_tokens = 0;
  std::optional<double> floor_nll;  // of the baseline's record alone
  bool agreement = false;           // there is no right answer
  bool right = false;               // with `agreement`: it wrote the same
  std::string text;                 // what it wrote (the answer itself where that is what it would write)
  std::string failed;               // why a server refused it: it is neither likely nor right. Empty: it did not
};

struct SettingRecords {
  std::string setting;
  uint64_t kv_bytes_per_token = 0;
  double prompt_tokens_per_s = 0;  // of texts, their scoring included; 0: there were none
  double seconds = 0;              // of all that was computed, also before a stop
  std::vector<TextRecord> texts;
  std::vector<TaskRecord> tasks;
};

// The file: JSON lines, appended and flushed to disk after each record. A torn last line (the machine died) is dropped;
// any other damage is an error naming the line. Only one process has it open.
class RecordFile {
 public:
  // Makes the file or reads what is there. A file of another run is an error that says what differs and proposes
  // another folder or `--fresh`. `fresh`: whatever is there is thrown away, unless another process has it open.
  static Result<RecordFile> open(const std::string& path, const RunFacts& facts, bool fresh = false);
  RecordFile(RecordFile&&) noexcept;
  RecordFile& operator=(RecordFile&&) noexcept;
  ~RecordFile();

  const std::vector<SettingRecords>& settings() const { return settings_; }  // in the order of facts.settings
  // Null: not there yet. Valid until add().
  const TextRecord* text(size_t setting, uint32_t text) const;
  const TaskRecord* task(size_t setting, std::string_view id) const;

  // What is kept is what a later run will read from the file, to the bit. A text's rows may be written again later, so
  // their name has a line of its own, behind that of the text; the last one counts. A text is added without.
  Status add(size_t setting, const TextRecord& record);
  Status add_rows(size_t setting, uint32_t text, const std::string& sha256);
  Status add(size_t setting, const TaskRecord& record);
  // What a setting has cost (it is added to what stands there).
  struct Cost {
    uint64_t kv_bytes_per_token = 0;  // 0: unknown
    uint64_t text_tokens = 0;         // of texts that were scored,
    double text_seconds = 0;          // and what they took
    double seconds = 0;               // all of it
  };
  Status add_cost(size_t setting, const Cost& cost);

 private:
  class Lines;  // the open file
  struct Known {
    std::map<std::string, size_t, std::less<>> tasks;  // where they stand in SettingRecords::tasks
    std::vector<std::optional<size_t>> texts;          // [texts of the run]: where they stand in SettingRecords::texts
    uint64_t text_tokens = 0;
    double text_seconds = 0;
  };

  explicit RecordFile(const RunFacts& facts);
  Status read(const std::string& path, const std::string& facts_line);
  Status keep(std::string_view line);
  Status keep_text(size_t setting, TextRecord record);
  Status keep_rows(size_t setting, uint32_t text, std::string sha256);
  Status keep_task(size_t setting, TaskRecord record);
  void keep_cost(size_t setting, const Cost& cost);
  Status add_line(const std::string& line);

  std::unique_ptr<Lines> lines_;
  std::vector<SettingRecords> settings_;
  std::vector<Known> known_;           // [settings]
  std::vector<std::string> families_;  // of the run
  std::vector<uint64_t> text_tokens_;  // [texts of the run]
};

}  // namespace kvarto
