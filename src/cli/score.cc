// `kvarto score`: how likely the model finds each token of a given sequence. Of position i: `nll` is the negative
// log-likelihood of its token after those before it, `argmax` and `top` are what the model expects next.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/vmath.h"
#include "cli/list.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace kvarto {
namespace {

struct Flags {
  ModelFlags model;
  std::string ids;
  uint32_t top_k = 20;
};

// The shortest text that reads back as the same float; JSON has no word for what is not finite.
std::string number(float value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}
std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// Best first, the lower id on ties.
std::vector<TokenId> best_tokens(std::span<const float> logits, size_t count) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(), [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  ids.resize(count);
  return ids;
}

std::string line_of(size_t position, TokenId id, std::optional<double> nll, std::span<const float> logits,
                    uint32_t top_k) {
  const std::vector<TokenId> best = best_tokens(logits, std::max(top_k, 1u));
  std::string line = "{\"pos\":" + std::to_string(position) + ",\"id\":" + std::to_string(id) +
                     ",\"nll\":" + (nll ? number(*nll) : "null") + ",\"argmax\":" + std::to_string(best.front()) +
                     ",\"top\":[";
  for (size_t i = 0; i < top_k && i < best.size(); ++i) {
    line += (i > 0 ? ",[" : "[") + std::to_string(best[i]) + "," + number(logits[static_cast<size_t>(best[i])]) + "]";
  }
  return line + "]}\n";
}

Result<int> score(const Flags& flags) {
  ASSIGN_OR_RETURN(const std::string text, read_input(flags.ids));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, parse_ids(text));
  ASSIGN_OR_RETURN(const EngineOptions options, engine_options(flags.model, 1));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load_engine(flags.model, options));
  Progress progress("scoring");
  Status written;
  std::optional<double> nll;  // of the token at the position to come
  RETURN_IF_ERROR(engine->score(ids, [&](size_t position, std::span<const float> logits) {
    if (!written) return;
    written = put(line_of(position, ids[position], nll, logits, flags.top_k));
    if (position + 1 < ids.size()) nll = log_sum_exp(logits) - logits[static_cast<size_t>(ids[position + 1])];
    progress.show(position + 1, ids.size());
  }));
  RETURN_IF_ERROR(written);
  return 0;
}

}  // namespace

VerbAction declare_score(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  add_model_flag(app, flags->model);
  app.add_option("--ids", flags->ids, "Token ids: a file with a JSON array or ids between white space; - is stdin")
      ->required();
  add_count(app, "--top-k", flags->top_k, "So many best next tokens with their raw logits");
  add_engine_flags(app, flags->model);
  return [flags] { return score(*flags); };
}

}  // namespace kvarto
