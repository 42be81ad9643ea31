#include "server/scripted_engine.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "backend/cpu_memory.h"
#include "base/check.h"
#include "engine/engine_parts.h"
#include "text/bpe.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr TokenId kEnd = 256, kFirstPiece = 258;
constexpr size_t kMostPieces = 1 << 20;
constexpr size_t kKvBytes = 64 << 20;
constexpr const char* kDefaultTemplate =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

struct Script {
  std::vector<std::string> pieces;                   // all answers', one after the other
  std::vector<std::pair<TokenId, TokenId>> answers;  // first id and the one behind the last
  uint64_t step_us = 0, prompt_token_us = 0;
  uint32_t max_model_len = 8192;
  std::string chat_template = kDefaultTemplate;
  bool endless = false;
  TokenId failing_token = -1;
};

Result<std::string> read_piece(const Json& piece) {
  if (piece.is_string()) return piece.get<std::string>();
  const bool hex = piece.is_object() && piece.size() == 1 && piece.contains("hex") && piece["hex"].is_string();
  const std::string digits = hex ? piece["hex"].get<std::string>() : "";
  if (!hex || digits.size() % 2 != 0 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return fail(ErrorCode::invalid_argument,
                "a piece is " + piece.dump() + "; a piece is a string or {\"hex\": \"F09F\"}");
  }
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

Status read_count(const Json& object, const char* name, uint64_t most, auto& value) {
  if (!object.contains(name)) return {};
  const Json& given = object[name];
  if (!given.is_number_unsigned() || given.get<uint64_t>() > most) {
    return fail(ErrorCode::invalid_argument,
                std::string(name) + " " + given.dump() + " is not a whole number up to " + std::to_string(most));
  }
  value = static_cast<std::remove_reference_t<decltype(value)>>(given.get<uint64_t>());
  return {};
}

Result<Script> read_script(const std::string& text) {
  ASSIGN_OR_RETURN(const Json object, parse_json(text));
  if (!object.is_object() || !object.contains("answers") || !object["answers"].is_array() ||
      object["answers"].empty()) {
    return fail(ErrorCode::invalid_argument, "a script is an object with answers: [{\"pieces\": [\"...\"]}]");
  }
  for (const auto& [key, value] : object.items()) {
    constexpr const char* kKnown[] = {"answers",       "step_us", "prompt_token_us", "max_model_len",
                                      "chat_template", "endless", "failing_token"};
    if (std::ranges::find(kKnown, key) == std::end(kKnown)) {
      return fail(ErrorCode::invalid_argument, "field '" + key + "' is not part of a script");
    }
  }
  Script script;
  for (const Json& answer : object["answers"]) {
    if (!answer.is_object() || !answer.contains("pieces") || !answer["pieces"].is_array() || answer["pieces"].empty()) {
      return fail(ErrorCode::invalid_argument, "an answer is {\"pieces\": [...]} with at least one piece");
    }
    const TokenId first = kFirstPiece + static_cast<TokenId>(script.pieces.size());
    for (const Json& piece : answer["pieces"]) {
      ASSIGN_OR_RETURN(std::string bytes, read_piece(piece));
      script.pieces.push_back(std::move(bytes));
    }
    if (script.pieces.size() > kMostPieces) {
      return fail(ErrorCode::invalid_argument, "a script holds at most 1,048,576 pieces");
    }
    script.answers.emplace_back(first, kFirstPiece + static_cast<TokenId>(script.pieces.size()));
  }
  RETURN_IF_ERROR(read_count(object, "step_us", 60'000'000, script.step_us));
  RETURN_IF_ERROR(read_count(object, "prompt_token_us", 1'000'000, script.prompt_token_us));
  RETURN_IF_ERROR(read_count(object, "max_model_len", 1 << 20, script.max_model_len));
  RETURN_IF_ERROR(read_count(object, "failing_token", kFirstPiece + kMostPieces, script.failing_token));
  if (object.contains("chat_template") && object["chat_template"].is_string()) {
    script.chat_template = object["chat_template"];
  }
  if (object.contains("endless")) script.endless = object["endless"].is_boolean() && object["endless"].get<bool>();
  return script;
}

// The next token follows from the last one alone.
class ScriptedModel : public Model {
 public:
  explicit ScriptedModel(Script script) : script_(std::move(script)) {
    config_.architecture = "scripted";
    config_.name = "scripted";
    config_.width = 1;
    config_.vocabulary = static_cast<uint32_t>(kFirstPiece + script_.pieces.size());
    config_.context_length = script_.max_model_len;
    config_.layers.resize(1);
    next_.assign(config_.vocabulary, kEnd);
    for (TokenId id = 0; id <= kEnd; ++id) {
      next_[static_cast<size_t>(id)] = script_.answers[static_cast<size_t>(id) % script_.answers.size()].first;
    }
    for (const auto& [first, end] : script_.answers) {
      for (TokenId id = first; id + 1 < end; ++id) next_[static_cast<size_t>(id)] = id + 1;
      next_[static_cast<size_t>(end - 1)] = script_.endless ? first : kEnd;
    }
  }
  const ModelConfig& config() const override { return config_; }
  size_t pass_bytes() const override { return 0; }
  void run(const Batch& batch, LayerRange, Workspace&, float* hidden) const override {
    if (std::ranges::find(batch.tokens, script_.failing_token) != batch.tokens.end()) {
      throw CheckFailure("the script's failing_token");
    }
    const uint64_t us = script_.step_us + script_.prompt_token_us * (batch.tokens.size() - batch.sequences.size());
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      hidden[i] = static_cast<float>(next_[static_cast<size_t>(batch.tokens[batch.logit_rows[i]])]);
    }
  }
  void logits(const float* hidden, size_t rows, float* out) const override {
    for (size_t row = 0; row < rows; ++row) {
      float* const logits = out + row * config_.vocabulary;
      std::fill_n(logits, config_.vocabulary, 0.0f);
      logits[static_cast<size_t>(hidden[row])] = 1000.0f;
    }
  }

 private:
  const Script script_;
  ModelConfig config_;
  std::vector<TokenId> next_;  // [vocabulary]
};

Result<std::shared_ptr<const Tokenizer>> tokenizer_of(const Script& script) {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) v.tokens.push_back(byte_symbols(std::string(1, static_cast<char>(byte))));
  v.kinds.assign(256, TokenKind::normal);
  v.tokens.push_back("<end>");
  v.kinds.push_back(TokenKind::control);
  // The only merge, of bytes that no valid text contains: prompts stay bytes, whatever the pieces are.
  v.tokens.push_back(byte_symbols("\xFF\xFF"));
  v.kinds.push_back(TokenKind::normal);
  v.merges = {byte_symbols("\xFF") + " " + byte_symbols("\xFF")};
  for (const std::string& piece : script.pieces) {
    v.tokens.push_back(byte_symbols(piece));
    v.kinds.push_back(TokenKind::normal);
  }
  v.eos = kEnd;
  v.add_bos = false;
  return Tokenizer::from_vocabulary(std::move(v));
}

}  // namespace

Result<std::unique_ptr<Engine>> scripted_engine(const std::string& text, const EngineOptions& options) {
  ASSIGN_OR_RETURN(Script script, read_script(text));
  EngineParts parts;
  parts.options = options;
  ASSIGN_OR_RETURN(parts.tokenizer, tokenizer_of(script));
  parts.chat_template = script.chat_template;
  const LayerKv layer{.kind = GroupKind::full, .kv_heads = 1, .key_dim = 16, .value_dim = 16};
  ASSIGN_OR_RETURN(parts.layout, KvLayout::make({{layer}}, {.block_tokens = options.block_size}));
  parts.kv_bytes = options.kv_cache_memory_bytes > 0 ? options.kv_cache_memory_bytes : kKvBytes;
  parts.name_space = "scripted";
  parts.memory = [] { return cpu_block_memory(); };
  parts.info.model_path = "scripted";
  parts.info.numerics = "scripted";
  parts.info.threads = 1;
  parts.model = std::make_shared<ScriptedModel>(std::move(script));
  return Engine::assemble(std::move(parts));
}

}  // namespace kvarto
