// `kvarto inspect --numerics`: the same prompt on every SIMD target, compared by the bytes of its sealed KV blocks.
#include <nlohmann/json.hpp>

#include "base/numerics.h"
#include "cli/inspect.h"
#include "cli/output.h"
#include "cli/tiny_models.h"
#include "engine/load.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string model;
  SimdTarget target;
  std::string sha256;
};

// Ids that need no tokenizer: three blocks and a token of the fourth, beyond the window of the tiny models.
std::vector<TokenId> built_in_prompt(uint32_t vocabulary, uint32_t block_tokens) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < 3 * block_tokens + 1; ++i) ids.push_back(static_cast<TokenId>((i * 7919 + 13) % vocabulary));
  return ids;
}

Result<Row> run_target(const std::shared_ptr<const GgufFile>& file, const std::string& name,
                       const EngineOptions& options, SimdTarget target) {
  ASSIGN_OR_RETURN(EngineParts parts, load_parts(file, options, target));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::assemble(std::move(parts)));
  const std::vector<TokenId> prompt = built_in_prompt(engine->info().vocabulary, options.block_size);
  Request request;
  request.prompt = prompt;
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0.0f;
  ASSIGN_OR_RETURN(const RequestResult result, engine->generate(std::move(request)));
  if (result.error) return tl::unexpected<Error>(*result.error);
  const KvCache::Opened opened = engine->cache().open(prompt);
  if (opened.match.tokens != 3 * options.block_size) {
    return fail(ErrorCode::internal, "the blocks of the built-in prompt are not in the cache; this is a bug of ours");
  }
  return Row{name, target, engine->cache().hash_blocks(opened.sequence)};
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
      if (a.model == b.model && a.sha256 != b.sha256) return false;
    }
  }
  return true;
}

std::string describe(std::string_view numerics, const std::vector<Row>& rows, bool agree, bool json) {
  if (json) {
    Json list = Json::array();
    for (const Row& row : rows) {
      list.push_back({{"model", row.model}, {"target", simd_target_name(row.target)}, {"sha256", row.sha256}});
    }
    return Json{{"numerics", numerics}, {"agree", agree}, {"rows", std::move(list)}}.dump(2) + "\n";
  }
  std::string out = "numerics " + std::string(numerics) + "\n";
  for (const Row& row : rows) {
    std::string target(simd_target_name(row.target));
    target.resize(8, ' ');
    out += target + row.sha256 + "  " + row.model + "\n";
  }
  return out + (agree ? "all targets agree\n" : "TARGETS DIFFER\n");
}

}  // namespace

Result<int> inspect_numerics(const ModelFlags& flags, bool json) {
  ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags, 1));
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
  RETURN_IF_ERROR(put(describe(options.reference ? kNumericsF32 : kNumericsInt8, rows, agree, json)));
  return agree ? 0 : 1;
}

}  // namespace kvarto
