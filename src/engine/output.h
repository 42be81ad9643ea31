// Output: what one sample has generated so far: its tokens' text as it may be shown, logprobs, the hash of its logits,
// and whether a rule says that it is over. Owned by the sample; owner's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "engine/sampler.h"
#include "kvarto/engine.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace kvarto {

// The rules that are the same for all samples of a request.
struct OutputRules {
  const Tokenizer* tokenizer = nullptr;  // null: no text
  const SamplingParams* params = nullptr;
  std::vector<TokenId> stop_ids;  // ascending
  size_t prompt_tokens = 0;
  uint64_t max_model_len = 0;

  // Whether a stop token is one that ends every generation, not only this request's.
  bool is_eos(TokenId token) const;
};

class Output {
 public:
  Output(const OutputRules& rules, bool hash_logits);

  // The row that a token was chosen from, before push().
  void hash_row(std::span<const float> logits);
  // Takes the chosen token; returns the text that may be shown now. Afterwards finish() says whether it was the last.
  std::string push(const SampledToken& chosen);
  FinishReason finish_reason() const { return finish_; }
  const SampleResult& result() const { return result_; }  // text, logprobs and what stopped it, so far
  // Ends it from outside; returns text that was held back.
  std::string end(FinishReason reason);

  uint64_t generated() const { return generated_; }
  const std::unordered_map<TokenId, uint32_t>* counts() const {
    return wants_counts(*rules_->params) ? &counts_ : nullptr;
  }
  // What a caller gets; `tokens` are the generated ones. The object is spent.
  SampleResult take(std::span<const TokenId> tokens);

 private:
  std::string add_text(TokenId token);
  void note_stop(TokenId token);
  std::string flush();

  const OutputRules* rules_;
  // Two decoders in a row: the first makes valid text, the second looks for stop strings in it, from min_tokens on.
  StreamDecoder utf8_;
  StreamDecoder stops_;
  std::optional<Sha256> hash_;
  SampleResult result_;
  uint64_t generated_ = 0;
  std::unordered_map<TokenId, uint32_t> counts_;
  FinishReason finish_ = FinishReason::none;
};

}  // namespace kvarto
