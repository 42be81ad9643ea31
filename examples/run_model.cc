// Runs a model: one question, streamed, with the figures of the request.  usage: run_model MODEL.gguf ["question"]
#include <cstdio>
#include <string>

#include "kvarto/engine.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL.gguf [\"question\"]\n", argv[0]);
    return 2;
  }
  auto engine = kvarto::Engine::load(argv[1], {});
  if (!engine) {
    std::fprintf(stderr, "%s\n", engine.error().message.c_str());
    return 1;
  }
  const std::string question = argc > 2 ? argv[2] : "What is the capital of France?";
  std::string text = question;
  if ((*engine)->has_chat_template()) {
    auto rendered = (*engine)->render_chat("[{\"role\": \"user\", \"content\": \"" + question + "\"}]");
    if (!rendered) {
      std::fprintf(stderr, "%s\n", rendered.error().message.c_str());
      return 1;
    }
    text = *rendered;
  }
  auto ids = (*engine)->encode(text);
  if (!ids) {
    std::fprintf(stderr, "%s\n", ids.error().message.c_str());
    return 1;
  }

  kvarto::Request request;
  request.prompt = *ids;
  request.sampling.max_tokens = 48;
  request.sampling.temperature = 0.0f;
  request.on_token = [](const kvarto::TokenEvent& event) {
    std::fwrite(event.text.data(), 1, event.text.size(), stdout);
    std::fflush(stdout);
  };
  const auto result = (*engine)->generate(request);
  if (!result) {
    std::fprintf(stderr, "\n%s\n", result.error().message.c_str());
    return 1;
  }
  std::printf("\n[%llu prompt tokens, %llu generated, first after %.0f ms, then %.1f ms each]\n",
              static_cast<unsigned long long>(result->prompt_tokens),
              static_cast<unsigned long long>(result->completion_tokens), result->ttft_ms, result->tpot_ms);
  return 0;
}
