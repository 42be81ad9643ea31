// `kvarto inspect --numerics`: the same prompt on every SIMD target, compared by the bytes of its sealed KV blocks and
// by its raw logits.
#include <nlohmann/json.hpp>

#include "base/numerics.h"
#include "cli/inspect.h"
#include "cli/output.h"
#include "cli/tiny_models.h"
#include "engine/load.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownDigits = 32;  // of each hash; JSON has all 64
constexpr uint32_t kTokens = 4;      // the first from the prompt's pass, the others from passes of one row

struct Row {
  std::string model;
  SimdTarget target;
  std::string blocks_sha256, logits_sha256;
  bool agrees_with(const Row& other) const {
    return blocks_sha256 == other.blocks_sha256 && logits_sha256 == other.logits_sha256;
  }
};

// Three blocks and a token of the fourth: beyond the window of the tiny models, and more rows than one tile
// (kQuantTile), so that the kernels of many rows run too.
uint32_t prompt_tokens(uint32_t block_tokens) { return 3 * block_tokens + 1; }

// Ids that need no tokenizer.
std::vector<TokenId> built_in_prompt(uint32_t vocabulary, uint32_t block_tokens) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < prompt_tokens(block_tokens); ++i) {
    ids.push_back(static_cast<TokenId>((i * 7919 + 13) % vocabulary));
  }
  return ids;
}

Result<Row> run_target(const std::shared_ptr<const GgufFile>& file, const std::string& name,
                       const EngineOptions& options, SimdTarget target) {
  ASSIGN_OR_RETURN(EngineParts parts, load_parts(file, options, target));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::assemble(std::move(parts)));
  const std::vector<TokenId> prompt = built_in_prompt(engine->info().vocabulary, options.block_size);
  Request request;
  request.prompt = prompt;
  request.sampling.max_tokens = kTokens;
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  request.hash_logits = true;
  ASSIGN_OR_RETURN(const RequestResult result, engine->generate(std::move(request)));
  if (result.error) return tl::unexpected<Error>(*result.error);
  const KvCache::Opened opened = engine->cache().open(prompt);
  if (opened.match.tokens != 3 * options.block_size) {
    return fail(ErrorCode::internal, "the blocks of the built-in prompt are not in the cache; this is a bug of ours");
  }
  return Row{name, target, engine->cache().hash_blocks(opened.sequence), result.samples.front().logits_sha256};
}

Status run_model(const std::shared_ptr<const GgufFile>& file, const std::string& name, const EngineOptions& options,
                 std::vector<Row>& rows) {
  for (const SimdTarget target : available_targets()) {
    ASSIGN_OR_RETURN(Row row, run_target(file, name, options, target));
    rows.push_back(std::move(row));
  }
  return {};
}

bool all_agree(const std::vector<Row>& rows) {
  for (const Row& a : rows) {
    for (const Row& b : rows) {
      if (a.model == b.model && !a.agrees_with(b)) return false;
    }
  }
  return true;
}

std::string describe_json(std::string_view numerics, const std::vector<Row>& rows, bool agree) {
  Json list = Json::array(), not_run = Json::object();
  for (const Row& row : rows) {
    list.push_back({{"model", row.model},
                    {"target", simd_target_name(row.target)},
                    {"sha256", row.blocks_sha256},
                    {"logits_sha256", row.logits_sha256}});
  }
  for (const SimdTarget target : kAllTargets) {
    if (!why_not(target).empty()) not_run[simd_target_name(target)] = why_not(target);
  }
  const Json all = {
      {"numerics", numerics}, {"agree", agree}, {"rows", std::move(list)}, {"not_run", std::move(not_run)}};
  return all.dump(2) + "\n";
}

std::string describe_text(std::string_view numerics, const std::vector<Row>& rows, bool agree) {
  std::string out = "numerics " + std::string(numerics) + "\n";
  for (const Row& row : rows) {
    std::string target(simd_target_name(row.target));
    target.resize(8, ' ');
    out += target + "blocks " + row.blocks_sha256.substr(0, kShownDigits) + "  logits " +
           row.logits_sha256.substr(0, kShownDigits) + "  " + row.model + "\n";
  }
  for (const SimdTarget target : kAllTargets) {
    if (!why_not(target).empty()) out += std::string(simd_target_name(target)) + ": not run: " + why_not(target) + "\n";
  }
  if (!agree) return out + "TARGETS DIFFER\n";
  return out + (available_targets().size() == std::size(kAllTargets) ? "all targets agree\n"
                                                                     : "all targets that run here agree\n");
}

}  // namespace

Result<int> inspect_numerics(const ModelFlags& flags, bool json) {
  ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags, 1));
  // The prompt goes in one step.
  options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, prompt_tokens(options.block_size));
  std::vector<Row> rows;
  if (flags.model.empty()) {
    for (const TinyModel& tiny : tiny_models()) {
      ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::parse(tiny.gguf, std::string(tiny.name)));
      RETURN_IF_ERROR(run_model(file, std::string(tiny.name), options, rows));
    }
  } else {
    ASSIGN_OR_RETURN(const std::string path, find_model(flags));
    ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(path));
    RETURN_IF_ERROR(run_model(file, path, options, rows));
  }
  const bool agree = all_agree(rows);
  const std::string_view numerics = options.reference ? kNumericsF32 : kNumericsInt8;
  RETURN_IF_ERROR(put(json ? describe_json(numerics, rows, agree) : describe_text(numerics, rows, agree)));
  return agree ? 0 : 1;
}

}  // namespace kvarto
