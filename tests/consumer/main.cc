// Compiles against the installed headers only, calls into the installed library, and runs a tiny model with it.
#include <kvarto/engine.h>

#include <cstddef>
#include <cstdio>
#include <utility>

int main(int argc, char** argv) {
  if (kvarto::Engine::load("no-such-model.gguf", {})) {
    std::puts("loaded a model that does not exist");
    return 1;
  }
  if (argc != 2) {
    std::puts("usage: consumer MODEL.gguf");
    return 2;
  }
  kvarto::EngineOptions options;
  options.threads = 1;
  options.kv_cache_memory_bytes = size_t{16} << 20;
  options.max_model_len = 64;
  auto engine = kvarto::Engine::load(argv[1], options);
  if (!engine) {
    std::puts(engine.error().message.c_str());
    return 1;
  }
  kvarto::Request request;
  request.prompt = {5, 6, 7, 8};
  request.sampling.max_tokens = 4;
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  const auto result = (*engine)->generate(std::move(request));
  if (!result) {
    std::puts(result.error().message.c_str());
    return 1;
  }
  if (result->samples.size() != 1 || result->samples[0].tokens.size() != 4) {
    std::puts("the tiny model did not generate 4 tokens");
    return 1;
  }
  std::puts("ok");
  return 0;
}
