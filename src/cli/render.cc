// `kvarto render`: what the model's chat template makes of messages.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/generation.h"
#include "cli/list.h"
#include "cli/model_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  ModelFlags model;
  std::optional<std::string> prompt;
  std::string system, messages, tools;
  bool no_generation_prompt = false, json = false;
};

Result<Json> read_array(const std::string& path, const char* what) {
  ASSIGN_OR_RETURN(const std::string text, read_input(path));
  Result<Json> parsed = parse_json(text);
  if (!parsed) return fail(parsed.error().code, path + ": " + parsed.error().message);
  Json array = *std::move(parsed);
  if (array.is_object() && array.contains(what)) array = Json(array[what]);
  if (!array.is_array() || array.empty()) {
    return fail(ErrorCode::invalid_argument, path + ": not a JSON array of " + what + " with at least one entry");
  }
  return array;
}

Result<Json> read_context(const Flags& flags) {
  if (flags.prompt.has_value() != flags.messages.empty()) {
    return fail(ErrorCode::invalid_argument, flags.prompt
                                                 ? "--prompt and --messages exclude each other; give one of them"
                                                 : "the messages are missing: give --prompt TEXT or --messages FILE");
  }
  Json context;
  if (flags.prompt) {
    ASSIGN_OR_RETURN(const std::string messages, messages_json(flags.system, *flags.prompt));
    context["messages"] = Json::parse(messages);
  } else {
    ASSIGN_OR_RETURN(context["messages"], read_array(flags.messages, "messages"));
  }
  if (!flags.tools.empty()) {
    ASSIGN_OR_RETURN(context["tools"], read_array(flags.tools, "tools"));
  }
  context["add_generation_prompt"] = !flags.no_generation_prompt;
  return context;
}

Result<int> render(const Flags& flags) {
  ASSIGN_OR_RETURN(const Json context, read_context(flags));
  ASSIGN_OR_RETURN(const std::string path, find_model(flags.model));
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(path));
  ASSIGN_OR_RETURN(const ModelText model, ModelText::read(*file));
  ASSIGN_OR_RETURN(const std::string text, model.render(context));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, model.tokenizer->encode(text));
  const Json list = ids;
  const std::string out = flags.json
                              ? Json{{"text", text}, {"ids", ids}}.dump(-1, ' ', false, Json::error_handler_t::replace)
                              : text + "\n\nids: " + list.dump();
  RETURN_IF_ERROR(put(out + "\n"));
  return 0;
}

}  // namespace

VerbAction declare_render(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  add_model_flag(app, flags->model);
  app.add_option("--prompt,-p", flags->prompt, "One user message");
  app.add_option("--system", flags->system, "System message before it");
  app.add_option("--messages", flags->messages, "A file with a JSON array of messages; - is stdin");
  app.add_option("--tools", flags->tools, "A file with a JSON array of tools");
  app.add_flag("--no-generation-prompt", flags->no_generation_prompt, "Do not open the assistant's turn");
  app.add_flag("--json", flags->json, "One JSON object: text and ids");
  return [flags] { return render(*flags); };
}

}  // namespace kvarto
