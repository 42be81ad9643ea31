// `kvarto inspect`: what a model is and what it will need, from the file's metadata alone.
#include "cli/inspect.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/list.h"
#include "cli/model_text.h"
#include "cli/output.h"
#include "cli/serve_plan.h"
#include "engine/load.h"
#include "format/printable.h"
#include "model/list.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestText = 400;  // of a value that is shown; refusals and their remedies fit

struct Flags {
  ModelFlags model;
  bool json = false, list_architectures = false, numerics = false;
};

Json layers_json(const ModelConfig& config, const KvLayout& layout) {
  Json layers = Json::array();
  for (uint32_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const KvLayout::Place place = layout.place(i);
    const KvGroup& group = layout.groups()[place.group];
    const KvGroupLayer& kv = group.layers[place.index];
    layers.push_back(
        {{"layer", i},
         {"group", place.group},
         {"kind", group_kind_name(group.kind)},
         {"window", layer.window},
         {"heads", layer.heads},
         {"kv_heads", layer.kv_heads},
         {"head_dim", layer.head_dim},
         {"value_dim", layer.value_dim},
         {"ffn", layer.ffn},
         {"kv_bytes_per_token", static_cast<double>(kv.head_stride * kv.kv_heads) / layout.block_tokens()}});
  }
  return layers;
}

Json groups_json(const KvLayout& layout) {
  Json groups = Json::array();
  for (const KvGroup& group : layout.groups()) {
    groups.push_back({{"kind", group_kind_name(group.kind)},
                      {"window", group.window},
                      {"layers", group.layers.size()},
                      {"block_bytes", group.block_bytes},
                      {"tail_bytes", group.tail_bytes},
                      {"kv_bytes_per_token", static_cast<double>(group.block_bytes) / layout.block_tokens()}});
  }
  return groups;
}

Json tensors_json(const GgufFile& file) {
  std::map<std::string, std::array<uint64_t, 3>> types;  // tensors, elements, bytes
  for (const GgufTensor& tensor : file.tensors()) {
    auto& row = types[tensor.type->name];
    row[0] += 1;
    row[1] += tensor.elements;
    row[2] += tensor.bytes.size();
  }
  Json out = Json::object();
  for (const auto& [name, row] : types) out[name] = {{"tensors", row[0]}, {"elements", row[1]}, {"bytes", row[2]}};
  return out;
}

Json text_json(const GgufFile& file) {
  const Result<ModelText> text = ModelText::read(file);
  if (!text) return {{"error", text.error().message}};
  const Vocabulary& vocabulary = text->tokenizer->vocabulary();
  return {{"model", vocabulary.model},
          {"pre", vocabulary.pre},
          {"vocabulary", vocabulary.tokens.size()},
          {"bos", vocabulary.bos ? Json(*vocabulary.bos) : Json()},
          {"adds_bos", text->tokenizer->wants_bos()},
          {"stop_ids", text->tokenizer->stop_ids()},
          {"warnings", text->tokenizer->warnings()}};
}

// What cannot be planned still has a geometry, which is shown; the refusal stands in the plan's place.
Json plan_json(const Result<MemoryPlan>& plan) {
  if (!plan) return {{"error", plan.error().message}};
  Json lines = Json::array();
  for (const PlanLine& line : plan->lines) {
    lines.push_back({{"name", line.name}, {"bytes", line.bytes}, {"reason", line.reason}});
  }
  return {{"lines", std::move(lines)},
          {"total_bytes", plan->total_bytes},
          {"available_bytes", plan->available_bytes},
          {"kv_tokens", plan->kv_tokens},
          {"max_model_len", plan->max_model_len},
          {"max_model_len_reason", plan->max_model_len_reason},
          {"full_requests", plan->full_requests}};
}

struct Described {
  Json json;
  Result<MemoryPlan> plan;
};

Result<Described> describe(const std::string& path, const Flags& flags) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(path));
  ASSIGN_OR_RETURN(const ModelConfig config, read_config(*file));
  ASSIGN_OR_RETURN(const EngineOptions options, engine_options(flags.model, EngineOptions().max_num_seqs));
  ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::make(config.kv_geometry(), layout_options(options)));
  uint64_t elements = 0;
  for (const GgufTensor& tensor : file->tensors()) elements += tensor.elements;
  Json out;
  out["path"] = path;
  out["architecture"] = config.architecture;
  out["name"] = config.name;
  out["parameters"] = elements;
  out["width"] = config.width;
  out["vocabulary"] = config.vocabulary;
  out["context_length"] = config.context_length;
  out["block_size"] = layout.block_tokens();
  const KvLayoutOptions& kv = layout.options();
  out["kv_dtype"] = kv_dtype_name(kv.k_dtype);
  out["kv_bytes_per_token"] = layout.bytes_per_token();
  out["groups"] = groups_json(layout);
  out["layers"] = layers_json(config, layout);
  out["tensor_types"] = tensors_json(*file);
  out["tokenizer"] = text_json(*file);
  out["chat_template"] = file->has("tokenizer.chat_template");
  Result<MemoryPlan> plan = plan_for(*file, config, layout, options);
  out["plan"] = plan_json(plan);
  return Described{.json = std::move(out), .plan = std::move(plan)};
}

// --- the same for people

std::string text_of(const Json& value) {
  return value.is_string() ? printable(value.get<std::string>(), kLongestText) : value.dump();
}

// Columns of the named fields of an array of objects; `first` heads the running number.
std::string table(const Json& rows, const std::vector<const char*>& fields) {
  std::vector<std::vector<std::string>> cells(1);
  for (const char* field : fields) cells[0].push_back(field);
  for (const Json& row : rows) {
    cells.emplace_back();
    for (const char* field : fields) cells.back().push_back(text_of(row[field]));
  }
  std::vector<size_t> widths(fields.size());
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) out += "  " + std::string(widths[i] - row[i].size(), ' ') + row[i];
    out += "\n";
  }
  return out;
}

std::string plan_text(const Result<MemoryPlan>& plan) {
  if (!plan) return "plan: none\n";  // the error says why
  return plan_table(*plan) + "\n  holds " + std::to_string(plan->kv_tokens) + " tokens; longest request " +
         std::to_string(plan->max_model_len) + " (" + printable(plan->max_model_len_reason, kLongestText) + "), " +
         std::to_string(plan->full_requests) + " of them at once\n";
}

std::string text(const Described& model) {
  const Json& m = model.json;
  std::string out = "model: " + text_of(m["name"]) + ", architecture " + text_of(m["architecture"]) + ", " +
                    m["parameters"].dump() + " parameters, width " + m["width"].dump() + ", vocabulary " +
                    m["vocabulary"].dump() + ", context " + m["context_length"].dump() + "\n";
  out += "KV: " + m["kv_bytes_per_token"].dump() + " bytes per token in " + text_of(m["kv_dtype"]) + ", blocks of " +
         m["block_size"].dump() + " tokens\n";
  out += table(m["groups"], {"kind", "window", "layers", "block_bytes", "tail_bytes", "kv_bytes_per_token"});
  out += "layers:\n" + table(m["layers"], {"layer", "group", "kind", "window", "heads", "kv_heads", "head_dim",
                                           "value_dim", "ffn", "kv_bytes_per_token"});
  out += "tensor types:\n";
  for (const auto& [name, row] : m["tensor_types"].items()) {
    out += "  " + name + ": " + row["tensors"].dump() + " tensors, " + human_bytes(row["bytes"]) + "\n";
  }
  const Json& tokenizer = m["tokenizer"];
  if (tokenizer.contains("error")) {
    out += "tokenizer: " + text_of(tokenizer["error"]) + "\n";
  } else {
    const std::string pre = text_of(tokenizer["pre"]);
    out += "tokenizer: " + text_of(tokenizer["model"]) + (pre.empty() ? "" : ", pre-tokenizer " + pre) +
           (tokenizer["adds_bos"].get<bool>() ? ", BOS in front" : ", no BOS") + "; ends at " +
           tokenizer["stop_ids"].dump() + "\n";
  }
  out += std::string("chat template: ") + (m["chat_template"].get<bool>() ? "yes" : "none") + "\n";
  return out + plan_text(model.plan);
}

Status list_architectures(bool json) {
  Json rows = Json::array();
  std::string lines;
  for (const Architecture& row : architectures()) {
    rows.push_back({{"name", row.name}, {"models", row.models}});
    lines += std::string(row.name) + "\t" + std::string(row.models) + "\n";
  }
  return put(json ? rows.dump(2) + "\n" : lines);
}

Result<int> inspect(const Flags& flags) {
  if (flags.list_architectures) return list_architectures(flags.json).map([] { return 0; });
  if (flags.numerics) return inspect_numerics(flags.model, flags.json);
  if (flags.model.model.empty()) {
    return fail(ErrorCode::invalid_argument, "MODEL is missing; name one, or use --list-architectures or --numerics");
  }
  ASSIGN_OR_RETURN(const std::string path, find_model(flags.model));
  ASSIGN_OR_RETURN(const Described model, describe(path, flags));
  RETURN_IF_ERROR(
      put(flags.json ? model.json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text(model)));
  if (!model.plan) return tl::unexpected<Error>(model.plan.error());
  return 0;
}

}  // namespace

VerbAction declare_inspect(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  add_model_flag(app, flags->model, /*required=*/false);
  app.add_flag("--json", flags->json, "One JSON object, kv_bytes_per_token among its fields");
  app.add_flag("--list-architectures", flags->list_architectures, "What models this program can run");
  app.add_flag("--numerics", flags->numerics,
               "Run a built-in prompt on every SIMD target and compare KV blocks and logits bit for bit; without MODEL "
               "on the tiny "
               "models inside the program");
  add_count(app, "--threads", flags->model.engine.threads,
            "Compute threads of --numerics; 0: one per usable physical core");
  add_plan_flags(app, flags->model);
  return [flags] { return inspect(*flags); };
}

}  // namespace kvarto
