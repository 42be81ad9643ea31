// `kvarto tokenize`: text to token ids.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/list.h"
#include "cli/model_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "format/printable.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  ModelFlags model;
  std::optional<std::string> text;
  std::string file;
  bool from_stdin = false, json = false, ids_only = false, plain = false, bos = false;
};

Result<std::string> read_text(const Flags& flags) {
  const int given = int{flags.text.has_value()} + int{!flags.file.empty()} + int{flags.from_stdin};
  if (given == 0) {
    return fail(ErrorCode::invalid_argument, "the text is missing: give it behind MODEL " +
                                                 kvarto::quoted(flags.model.model) + ", with --file or with --stdin");
  }
  if (given > 1) {
    return fail(ErrorCode::invalid_argument, "the text is there " + std::to_string(given) +
                                                 " times; give it once: as an argument, with --file or with --stdin");
  }
  if (flags.text) return *flags.text;
  return read_input(flags.from_stdin ? "-" : flags.file);
}

Result<int> tokenize(const Flags& flags) {
  ASSIGN_OR_RETURN(const std::string text, read_text(flags));
  ASSIGN_OR_RETURN(const std::string path, find_model(flags.model));
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(path));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::from_gguf(*file));
  if (!flags.model.quiet) {
    for (const std::string& warning : tokenizer->warnings()) note("kvarto: warning: " + warning);
  }
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                   tokenizer->encode(text, {.parse_special = !flags.plain, .add_bos = flags.bos}));
  std::string out;
  if (flags.ids_only) {
    out = dump(ids) + "\n";
  } else if (flags.json) {
    Json pieces = Json::array();
    for (const TokenId id : ids) pieces.push_back(tokenizer->piece(id, /*special=*/true));
    out = dump({{"ids", ids}, {"pieces", std::move(pieces)}}) + "\n";
  } else {
    for (const TokenId id : ids) out += std::to_string(id) + "\t" + dump(tokenizer->piece(id, /*special=*/true)) + "\n";
  }
  RETURN_IF_ERROR(put(out));
  return 0;
}

}  // namespace

VerbAction declare_tokenize(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  add_model_flag(app, flags->model);
  app.add_option("TEXT", flags->text, "The text");
  app.add_option("--file,-f", flags->file, "Read the text from this file");
  app.add_flag("--stdin", flags->from_stdin, "Read the text from stdin");
  app.add_flag("--json", flags->json, "One JSON object: ids and pieces (a part of a character shows as U+FFFD)");
  app.add_flag("--ids", flags->ids_only, "Only the ids, as a JSON array");
  app.add_flag("--plain", flags->plain, "Special tokens written in the text are ordinary text");
  app.add_flag("--bos", flags->bos, "Begin with BOS when the model wants one");
  return [flags] { return tokenize(*flags); };
}

}  // namespace kvarto
