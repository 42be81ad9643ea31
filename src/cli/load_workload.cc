#include "cli/load_workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/load_random.h"
#include "cli/load_stats.h"
#include "format/printable.h"

namespace kvarto {
namespace {

constexpr uint32_t kMostTokens = 10'000'000;

std::optional<uint32_t> read_tokens(std::string_view text) {
  uint32_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || value == 0 || value > kMostTokens)
    return std::nullopt;
  return value;
}

// A message or prompt of `tokens` tokens of which the server adds `overhead` by itself (the opening is among them).
std::string opened(const std::string& words) { return std::string(Filler::kOpening) + words; }

// Of a message only the opening counts: what the template adds is beside its length.
uint32_t overhead_of(const Filler& filler, bool chat) { return chat ? 1 : filler.overhead(); }

class Prompts : public Workload {
 public:
  Prompts(PromptOptions options, std::shared_ptr<const Filler> filler)
      : options_(std::move(options)), filler_(std::move(filler)) {}

  LoadJob job(uint64_t number) const override {
    const PromptOptions& o = options_;
    const auto draw = [&](LoadDraw what) { return mix({o.seed, what, number}); };
    const bool shares = o.prefix_tokens > 0 && unit(draw(kDrawShared)) < o.prefix_share;
    const uint32_t length =
        o.suffix ? o.prefix_tokens + o.suffix->draw(draw(kDrawLength)) : o.prompt.draw(draw(kDrawLength));
    const uint32_t overhead = overhead_of(*filler_, o.chat);
    const uint32_t words = length - std::min(length, overhead);
    const uint32_t prefix = o.prefix_tokens - std::min(o.prefix_tokens, overhead);
    // At least the last token is the prompt's own.
    const uint32_t shared = !shares || words == 0 ? 0 : std::min(prefix, words - 1);
    const uint64_t family = mix({o.seed, kDrawFamilyText, draw(kDrawFamily) % o.families});
    LoadTurn turn;
    turn.text = opened(filler_->words(family, shared) + filler_->words(draw(kDrawOwnText), words - shared));
    turn.output_tokens = o.output.draw(draw(kDrawOutput));
    if (!o.chat && filler_->exact()) turn.prompt_tokens_asked = overhead + words;
    return {std::nullopt, "", {std::move(turn)}};
  }

 private:
  const PromptOptions options_;
  const std::shared_ptr<const Filler> filler_;
};

class Chats : public Workload {
 public:
  Chats(ChatOptions options, std::shared_ptr<const Filler> filler)
      : options_(std::move(options)), filler_(std::move(filler)) {}

  LoadJob job(uint64_t number) const override {
    LoadJob job;
    if (options_.system_tokens > 0) {
      job.system = opened(filler_->words(mix({options_.seed, kDrawSystemText}), options_.system_tokens - 1));
    }
    for (uint64_t i = 0; i < options_.turns; ++i) {
      const auto draw = [&](LoadDraw what) { return mix({options_.seed, what, number, i}); };
      LoadTurn turn;
      turn.text = opened(filler_->words(draw(kDrawOwnText), options_.user.draw(draw(kDrawLength)) - 1));
      turn.output_tokens = options_.output.draw(draw(kDrawOutput));
      turn.think_s = i == 0 ? 0 : options_.think.draw(draw(kDrawThink));
      job.turns.push_back(std::move(turn));
    }
    return job;
  }

 private:
  const ChatOptions options_;
  const std::shared_ptr<const Filler> filler_;
};

class TraceLoad : public Workload {
 public:
  TraceLoad(uint64_t seed, bool chat, Trace trace, std::shared_ptr<const Filler> filler)
      : seed_(seed), chat_(chat), trace_(std::move(trace)), filler_(std::move(filler)) {}

  std::optional<uint64_t> size() const override { return trace_.requests.size(); }

  // The first block gives up the words for which the server's own tokens and the opening stand: blocks of the trace lie
  // where the server's do.
  LoadJob job(uint64_t number) const override {
    const TraceRequest& request = trace_.requests[number];
    const uint32_t overhead = overhead_of(*filler_, chat_);
    const uint32_t words = request.input_tokens - std::min(request.input_tokens, overhead);
    uint32_t left = words;
    std::string text;
    for (size_t i = 0; i < request.blocks.size() && left > 0; ++i) {
      const uint32_t room = trace_.block_tokens - (i == 0 ? std::min(overhead, trace_.block_tokens) : 0);
      const uint32_t count = std::min(left, room);
      text += filler_->words(mix({seed_, kDrawBlockText, request.blocks[i]}), count);
      left -= count;
    }
    text += filler_->words(mix({seed_, kDrawOwnText, number}), left);
    LoadTurn turn;
    turn.text = opened(text);
    turn.output_tokens = std::max(1u, request.output_tokens);
    if (!chat_ && filler_->exact()) turn.prompt_tokens_asked = overhead + words;
    return {request.arrival_s, "", {std::move(turn)}};
  }

 private:
  const uint64_t seed_;
  const bool chat_;
  const Trace trace_;
  const std::shared_ptr<const Filler> filler_;
};

}  // namespace

uint32_t TokenRange::draw(uint64_t bits) const {
  const double u = unit(bits);
  if (!log) return low + static_cast<uint32_t>(u * (static_cast<double>(high - low) + 1));
  const double value = std::exp(std::log(low) + u * (std::log(high) - std::log(low)));
  return std::clamp(static_cast<uint32_t>(std::lround(value)), low, high);
}

Result<TokenRange> parse_token_range(const std::string& flag, const std::string& text) {
  std::string_view rest = text;
  TokenRange range;
  range.log = rest.starts_with("log:");
  if (range.log) rest.remove_prefix(4);
  const size_t dash = rest.find('-');
  const std::optional<uint32_t> low = read_tokens(rest.substr(0, dash));
  const std::optional<uint32_t> high = dash == std::string_view::npos ? low : read_tokens(rest.substr(dash + 1));
  if (!low || !high || *low > *high) {
    return fail(ErrorCode::invalid_argument, flag + " " + kvarto::quoted(text) +
                                                 " is no number of tokens from 1 to 10000000; write 512, 100-900 "
                                                 "(each as likely) or log:10-4000 (each magnitude as likely)");
  }
  range.low = *low;
  range.high = *high;
  return range;
}

double TimeRange::draw(uint64_t bits) const { return low_s + unit(bits) * (high_s - low_s); }

Result<TimeRange> parse_time_range(const std::string& flag, const std::string& text) {
  const size_t dash = text.find('-', 1);
  TimeRange range;
  ASSIGN_OR_RETURN(range.low_s, parse_seconds(flag, text.substr(0, dash)));
  range.high_s = range.low_s;
  if (dash != std::string::npos) {
    ASSIGN_OR_RETURN(range.high_s, parse_seconds(flag, text.substr(dash + 1)));
  }
  if (range.low_s > range.high_s) {
    return fail(ErrorCode::invalid_argument, flag + " " + kvarto::quoted(text) + ": the first time is the longer one");
  }
  return range;
}

std::unique_ptr<Workload> make_prompts(PromptOptions options, std::shared_ptr<const Filler> filler) {
  return std::make_unique<Prompts>(std::move(options), std::move(filler));
}
std::unique_ptr<Workload> make_chats(ChatOptions options, std::shared_ptr<const Filler> filler) {
  return std::make_unique<Chats>(std::move(options), std::move(filler));
}
std::unique_ptr<Workload> make_trace_load(uint64_t seed, bool chat, Trace trace, std::shared_ptr<const Filler> filler) {
  return std::make_unique<TraceLoad>(seed, chat, std::move(trace), std::move(filler));
}

}  // namespace kvarto
