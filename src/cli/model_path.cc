#include "cli/model_path.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "cli/hub_cache.h"
#include "cli/model_name.h"
#include "format/printable.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;

struct Alias {
  std::string_view name, file, remedy;
};
constexpr std::array kAliases{
    Alias{"smollm2", "smollm2-135m-q4_1.gguf", "tools/fetch_models smollm2 (or ./run) fetches it"},
};

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

tl::unexpected<Error> in(const std::string& where, const Error& error) {
  return fail(error.code, printable(where, 200) + ": " + error.message);
}

Result<std::string> only_gguf_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code none;  // a link to nowhere
    if (it->is_regular_file(none)) names.push_back(it->path().filename().string());
  }
  if (error) return fail(ErrorCode::io, printable(folder, 200) + ": cannot list: " + error.message());
  const Result<std::vector<std::string>> files = choose_gguf(names, "");
  if (!files && files.error().code == ErrorCode::invalid_argument) {
    std::string several;
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      if (choose_gguf(std::array{name}, "")) several += (several.empty() ? "" : ", ") + printable(name, 120);
    }
    return fail(ErrorCode::invalid_argument, printable(folder, 200) + ": several models; name the file: " + several);
  }
  if (!files) return in(folder, files.error());
  return (fs::path(folder) / files->front()).string();
}

Result<ResolvedModel> at_path(const std::string& path, const std::string& how) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return ResolvedModel{path, how};
  ASSIGN_OR_RETURN(std::string file, only_gguf_in(path));
  return ResolvedModel{std::move(file), how};
}

Result<std::optional<ResolvedModel>> in_cache(const ModelName& name, const std::string& cache_root) {
  const HubCacheRepo repo(cache_root, name.repo);
  std::optional<Error> first_error;
  for (const std::string& commit : repo.commits()) {
    const Result<std::vector<std::string>> files = choose_gguf(repo.files(commit), name.quant);
    if (files) {
      return std::optional(ResolvedModel{repo.snapshot_path(commit, files->front()),
                                         "Hugging Face cache, commit " + commit.substr(0, 8)});
    }
    if (!first_error) first_error = files.error();
  }
  if (!first_error) return std::optional<ResolvedModel>();
  const bool fetchable = first_error->code == ErrorCode::not_found;
  const std::string remedy =
      "; fetch it with: kvarto pull " + name.repo + ":" + (name.quant.empty() ? "quant" : name.quant);
  return fail(first_error->code,
              name.repo + " in the Hugging Face cache: " + first_error->message + (fetchable ? remedy : ""));
}

}  // namespace

ModelPlaces model_places() {
  ModelPlaces places{{"models"}, hub_cache_root()};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  // build/PRESET/kvarto lies two folders below the tree.
  if (!error) places.folders.push_back((program.parent_path() / "../../models").lexically_normal().string());
  return places;
}

Result<ResolvedModel> resolve_model(std::string_view model, const ModelPlaces& places) {
  const std::string text(model);
  if (text.empty() || text.find('\0') != std::string::npos) {
    return fail(ErrorCode::invalid_argument,
                "MODEL " + kvarto::quoted(text) + ": give a path, smollm2, or org/name:quant");
  }
  if (exists(text)) return at_path(text, "path");

  const auto* alias = std::find_if(kAliases.begin(), kAliases.end(), [&](const Alias& a) { return a.name == text; });
  for (const std::string& folder : places.folders) {
    if (alias != kAliases.end()) {
      const std::string path = folder + "/" + std::string(alias->file);
      if (exists(path)) return ResolvedModel{path, "alias " + text + " in " + folder};
    } else if (is_safe_path(text)) {
      for (const std::string& name : {text, text + ".gguf"}) {
        if (exists(folder + "/" + name)) return at_path(folder + "/" + name, "in " + folder);
      }
    }
  }
  if (alias != kAliases.end()) {
    return fail(ErrorCode::not_found, "MODEL " + kvarto::quoted(text) + ": " + std::string(alias->file) +
                                          " is not in models/; " + std::string(alias->remedy));
  }

  const Result<ModelName> name = parse_model_name(text);
  if (!name) {
    return fail(ErrorCode::not_found, "MODEL " + kvarto::quoted(text) +
                                          ": no such file or folder, not the alias smollm2, not in models/; "
                                          "give a path, or org/name:quant after kvarto pull");
  }
  ASSIGN_OR_RETURN(std::optional<ResolvedModel> cached, in_cache(*name, places.cache_root));
  if (cached) return std::move(*cached);
  return fail(ErrorCode::not_found, "MODEL " + kvarto::quoted(text) +
                                        ": no such file or folder, not in models/, not in the Hugging Face cache " +
                                        printable(places.cache_root, 200) + "; fetch it with: kvarto pull " +
                                        name->repo + ":" + (name->quant.empty() ? "quant" : name->quant));
}

}  // namespace kvarto
