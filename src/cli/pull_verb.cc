// `kvarto pull`: the command line of cli/pull.h.
#include <CLI/CLI.hpp>

#include "cli/list.h"
#include "cli/output.h"
#include "cli/pull.h"

namespace kvarto {

VerbAction declare_pull(CLI::App& app) {
  const auto options = std::make_shared<PullOptions>();
  app.add_option("MODEL", options->model, "org/name or org/name:QUANT")->required();
  app.add_option("--revision", options->revision, "Branch, tag or commit");
  return [options]() -> Result<int> {
    ASSIGN_OR_RETURN(const std::string path, pull_model(*options));
    RETURN_IF_ERROR(put(path + "\n"));
    return 0;
  };
}

}  // namespace kvarto
