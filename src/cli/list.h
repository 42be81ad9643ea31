// The list of verbs: the one row to add for a new one. Main thread.
#pragma once

#include <span>

#include "cli/verb.h"

namespace kvarto {

std::span<const Verb> verbs();

VerbAction declare_run(CLI::App& app);
VerbAction declare_score(CLI::App& app);
VerbAction declare_bench(CLI::App& app);
VerbAction declare_inspect(CLI::App& app);
VerbAction declare_tokenize(CLI::App& app);
VerbAction declare_render(CLI::App& app);
VerbAction declare_pull(CLI::App& app);
VerbAction declare_serve(CLI::App& app);
VerbAction declare_eval(CLI::App& app);

}  // namespace kvarto
