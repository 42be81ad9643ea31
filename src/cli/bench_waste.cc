// `kvarto bench --waste`: how little of the paged cache is empty, against a reservation per sequence.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/output.h"
#include "cli/tiny_models.h"
#include "engine/load.h"

namespace kvarto {
namespace {

constexpr uint32_t kSequences = 64, kShortest = 50, kLongest = 2000, kReservation = 2048;

std::vector<uint32_t> draw_lengths(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> lengths;
  for (uint32_t i = 0; i < kSequences; ++i) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    lengths.push_back(static_cast<uint32_t>(std::lround(kShortest * std::pow(double{kLongest} / kShortest, unit))));
  }
  // Long prompts first: all are running before the short ones end.
  std::ranges::sort(lengths, std::greater());
  return lengths;
}

Result<std::unique_ptr<Engine>> load(const BenchFlags& flags) {
  ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags.model, kSequences));
  options.max_model_len = kReservation;
  // Steps are bounded by tokens alone, so that prompts do not trickle in behind the first decodes.
  options.max_step_ms = 1e6;
  options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, 2048u);
  if (!flags.model.model.empty()) return load_engine(flags.model, options);
  const TinyModel& tiny = tiny_models().front();
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::parse(tiny.gguf, std::string(tiny.name)));
  ASSIGN_OR_RETURN(EngineParts parts, load_parts(file, options));
  return Engine::assemble(std::move(parts));
}

Status submit_all(Engine& engine, const std::vector<uint32_t>& lengths, std::mt19937_64& random) {
  for (const uint32_t length : lengths) {
    const uint32_t generated = std::min(128u, length / 2);
    Request request;
    request.prompt = random_ids(random, engine.info().vocabulary, length - generated);
    request.sampling.max_tokens = generated;
    request.sampling.temperature = 0.0f;
    request.sampling.ignore_eos = true;
    RETURN_IF_ERROR(engine.submit(std::move(request)).map([](RequestId) {}));
  }
  return {};
}

// What the sequences hold and what their open blocks leave empty, averaged over the steps.
class Occupancy {
 public:
  void count(const EngineStats& stats, const KvLayout& layout) {
    if (stats.running == 0) return;  // the last ended in this step
    const double live =
        static_cast<double>(stats.kv.live_bytes) / static_cast<double>(layout.bytes_per_token()) / stats.running;
    // A sequence has one open block, in which every number of empty slots from 0 on is as likely.
    const double empty = (layout.block_tokens() - 1) / 2.0;
    live_tokens_ += live;
    expected_ += empty / (live + empty);
    ++steps_;
  }
  double live_tokens() const { return steps_ > 0 ? live_tokens_ / steps_ : 0.0; }  // of a running sequence
  double expected_waste() const { return steps_ > 0 ? expected_ / steps_ : 0.0; }

 private:
  double live_tokens_ = 0, expected_ = 0;
  int steps_ = 0;
};

}  // namespace

Result<int> bench_waste(const BenchFlags& flags) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load(flags));
  const std::vector<uint32_t> lengths = draw_lengths(flags.seed);
  std::mt19937_64 random(flags.seed);
  RETURN_IF_ERROR(submit_all(*engine, lengths, random));
  uint32_t most_running = 0;
  Occupancy occupancy;
  while (engine->step()) {
    const EngineStats stats = engine->stats();
    most_running = std::max(most_running, stats.running);
    occupancy.count(stats, engine->cache().layout());
  }
  RETURN_IF_ERROR(engine->health());

  const EngineStats stats = engine->stats();
  uint64_t tokens = 0;
  for (const uint32_t length : lengths) tokens += length;
  const uint32_t chunk = engine->cache().options().max_step_tokens;
  const size_t reserved = engine->cache().layout().bytes_for_sequence(kReservation, chunk);
  // What the sequences took at their fullest, all 64 of them, against one reservation each.
  const double times = static_cast<double>(reserved) * kSequences / static_cast<double>(stats.peak_active_bytes);
  const nlohmann::ordered_json json{{"seed", flags.seed},
                                    {"sequences", kSequences},
                                    {"running_at_once", most_running},
                                    {"tokens", tokens},
                                    {"block_size", engine->cache().layout().block_tokens()},
                                    {"waste_mean", stats.waste_mean},
                                    {"waste_expected", occupancy.expected_waste()},
                                    {"live_tokens_mean", occupancy.live_tokens()},
                                    {"waste_at_peak", stats.waste_at_peak},
                                    {"peak_active_bytes", stats.peak_active_bytes},
                                    {"reservation_bytes", reserved},
                                    {"times_the_sequences", times},
                                    {"preemptions", stats.preemptions}};
  if (flags.json) {
    RETURN_IF_ERROR(put(json.dump() + "\n"));
    return 0;
  }
  char text[500];
  std::snprintf(text, sizeof text,
                "waste %.2f %% mean (expected %.2f %%: half a block of each sequence, which hold %.0f tokens on "
                "average), %.2f %% "
                "at the peak; the same pool holds %.1fx the sequences of a reservation of %u tokens each\n(%u "
                "sequences of %u to %u tokens, log-uniform, seed %llu, %llu tokens; %u at once, %llu preemptions; peak "
                "%s against %s reserved)\n",
                100.0 * stats.waste_mean, 100.0 * occupancy.expected_waste(), occupancy.live_tokens(),
                100.0 * stats.waste_at_peak, times, kReservation, kSequences, kShortest, kLongest,
                static_cast<unsigned long long>(flags.seed), static_cast<unsigned long long>(tokens), most_running,
                static_cast<unsigned long long>(stats.preemptions),
                human_bytes(static_cast<double>(stats.peak_active_bytes)).c_str(),
                human_bytes(static_cast<double>(reserved) * kSequences).c_str());
  RETURN_IF_ERROR(put(text));
  return 0;
}

}  // namespace kvarto
