#include "cli/tiny_models.h"

#include <array>

// The assembler copies the files in; KVARTO_TINY_FOLDER comes from CMake. 64 bytes: more than any tensor's alignment.
#define KVARTO_EMBED(name)                                                                                 \
  asm(".pushsection .rodata\n.balign 64\n.hidden " #name "_begin\n.hidden " #name "_end\n.global " #name   \
      "_begin\n"                                                                                           \
      ".global " #name "_end\n" #name "_begin:\n.incbin \"" KVARTO_TINY_FOLDER "/" #name ".gguf\"\n" #name \
      "_end:\n"                                                                                            \
      ".popsection\n");                                                                                    \
  extern "C" {                                                                                             \
  extern const std::byte name##_begin[];                                                                   \
  extern const std::byte name##_end[];                                                                     \
  }

KVARTO_EMBED(tiny_llama)
KVARTO_EMBED(tiny_gemma3)

namespace kvarto {

std::span<const TinyModel> tiny_models() {
  static const std::array<TinyModel, 2> kModels{
      {{"tiny_llama", {tiny_llama_begin, tiny_llama_end}}, {"tiny_gemma3", {tiny_gemma3_begin, tiny_gemma3_end}}}};
  return kModels;
}

}  // namespace kvarto
