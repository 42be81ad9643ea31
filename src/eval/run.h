// A run of the evaluation: every setting in turn, texts first, then tasks; what is in the record file already is not
// done again. One thread, which owns the engines.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "eval/record.h"
#include "eval/setting.h"
#include "eval/subject.h"
#include "eval/text_score.h"
#include "kvarto/engine.h"

namespace kvarto {

// One text, cut from a file, as ids (BOS in front where the model wants one).
struct EvalText {
  std::string name;
  std::vector<TokenId> ids;
};

// Where a setting's work is done. `engine` is null for a server, which gets no texts.
struct Contestant {
  std::unique_ptr<Subject> subject;
  Engine* engine = nullptr;  // the subject's
};

// What tasks without a sure answer are generated in: as many as run well beside each other, and few enough that their
// prompts are still in the cache from being scored.
inline constexpr uint32_t kTasksTogether = 8;
// A task that a subject refuses is recorded as failed, and others go on. Where the first so many of a setting, or all
// of them, are refused, it is no matter of tasks: the run ends, and none of them is recorded.
inline constexpr size_t kMostRefused = 5;

struct EvalWork {
  RunFacts facts;
  size_t engines = 0;  // the first so many settings are engines, the others servers
  std::vector<EvalText> texts;
  std::vector<Task> tasks;                                       // of a family side by side
  std::string folder;                                            // of the record file and of rows
  bool keep_rows = false;                                        // --dump: leave all rows there
  std::function<Result<Contestant>(size_t setting)> contestant;  // loads; one lives at a time
};

inline constexpr std::string_view kEvalTexts = "texts";

struct EvalProgress {
  size_t setting = 0;
  std::string_view what;               // kEvalTexts, or a family's name
  size_t pieces_done = 0, pieces = 0;  // of this setting: texts, or tasks of all families
  double done = 0, total = 0;          // prompt tokens of the whole run, about
  double seconds_left = -1;            // below 0: not known yet
};

// Rows of text t under setting s, beside the record file: FOLDER/logprobs/S-T.npy. The baseline's are kept while a
// candidate needs them, all with keep_rows. A file that is not the one that was written is made again.
std::string rows_path(const std::string& folder, size_t setting, uint32_t text);
// Those of any run. Files of other names stay, and so does their folder.
Status remove_all_rows(const std::string& folder);

// `progress` is called between pieces of work, and before what a piece gave is kept; false ends the run with
// ErrorCode::cancelled: all that was kept stays in the file. So whoever lets `progress` say no may break off what an
// engine computes, whatever it then answers. Records come in the order of the work, however often the run was stopped.
Result<std::vector<SettingRecords>> run_eval(const EvalWork& work, RecordFile& records,
                                             const std::function<bool(const EvalProgress&)>& progress);

}  // namespace kvarto
