// The textbook loop over a KV cache: the whole prompt once, then one token at a time, the cache handed along; argmax;
// stop at the end token.  usage: textbook_loop MODEL.gguf ["prompt"]
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kvarto/engine.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL.gguf [\"prompt\"]\n", argv[0]);
    return 2;
  }
  auto loaded = kvarto::Engine::load(argv[1], {});
  if (!loaded) {
    std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
    return 1;
  }
  kvarto::Engine& engine = **loaded;
  auto prompt = engine.encode(argc > 2 ? argv[2] : "Once upon a time");
  if (!prompt) {
    std::fprintf(stderr, "%s\n", prompt.error().message.c_str());
    return 1;
  }

  // A sequence holds the keys and values of the tokens it has seen. A second run of this prompt would find them in the
  // cache.
  kvarto::KvSequence sequence = engine.cache().open(*prompt).sequence;
  std::vector<kvarto::TokenId> next(prompt->begin() + static_cast<long>(sequence.length()), prompt->end());
  const std::vector<kvarto::TokenId> ends = engine.stop_ids();
  for (int step = 0; step < 32; ++step) {
    auto logits = engine.forward(sequence, next);  // the prompt first, then one token
    if (!logits) {
      std::fprintf(stderr, "%s\n", logits.error().message.c_str());
      return 1;
    }
    const auto best = static_cast<kvarto::TokenId>(std::ranges::max_element(*logits) - logits->begin());
    if (std::ranges::find(ends, best) != ends.end()) break;
    std::fputs(engine.decode({&best, 1}).c_str(), stdout);
    std::fflush(stdout);
    next = {best};
  }
  std::printf("\n[%llu tokens in the cache]\n", static_cast<unsigned long long>(sequence.length()));
  return 0;
}
