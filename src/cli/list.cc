#include "cli/list.h"

namespace kvarto {
namespace {

constexpr Verb kVerbs[] = {
    {"run", "Answer a prompt, a file of prompts, or chat",
     "  kvarto run smollm2                                      chat\n"
     "  kvarto run smollm2 -p \"Why is the sky blue?\"            one prompt, through the chat template\n"
     "  kvarto run m.gguf --raw -p \"Once upon\" --max-tokens 40  continues the text\n"
     "  git diff | kvarto run m.gguf --system \"Review this.\"    prompt from stdin\n"
     "  kvarto run m.gguf --prompts in.jsonl -o out.jsonl       many prompts; run again to resume",
     declare_run},
    {"score", "Log-likelihood of every token of a text",
     "  kvarto score m.gguf --ids ids.json                      one JSON line per position\n"
     "  kvarto tokenize m.gguf --ids \"A text\" | kvarto score m.gguf --ids - --top-k 5\n"
     "Each line has pos and id, nll (negative log-likelihood of that id after the ones before; null at position 0), "
     "and the\n"
     "expected next token after it: argmax, and top with raw logits.",
     declare_score},
    {"bench", "Prompt and generation speed on this machine",
     "  kvarto bench m.gguf -p 512 -n 128 -d 0,4096 -b 1,8 --threads 1,2\n"
     "  kvarto bench m.gguf -p 0 -n 16 -d 512 --recompute       what the KV cache buys\n"
     "  kvarto bench --waste                                    memory of blocks that holds no token\n"
     "  kvarto bench kernels --filter 'matmul/Q4_K|attend'      the parts, against what bounds them",
     declare_bench},
    {"serve", "An HTTP server that clients of OpenAI's and vLLM's API can use",
     "  kvarto serve smollm2                                    at http://127.0.0.1:8000, dashboard there\n"
     "  kvarto serve m.gguf --host 0.0.0.0 --api-key KEY        for other machines\n"
     "  kvarto serve m.gguf --max-model-len 8k --kv-cache-memory-bytes 2G\n"
     "  kvarto serve --config serve.yaml                        flags from a file\n"
     "  kvarto serve --check-flags YOUR VLLM FLAGS              what becomes of them (no model is looked at)",
     declare_serve},
    {"eval", "What a setting of the KV cache costs in quality: perplexity, divergence, retrieval, reasoning",
     "  kvarto eval m.gguf                                      float16 against bfloat16\n"
     "  kvarto eval m.gguf --candidate k=f16:v=bf16 --quick     another candidate, in minutes\n"
     "  kvarto eval m.gguf --text book.txt --tasks mine.jsonl   your own texts and questions\n"
     "  kvarto eval m.gguf --url http://127.0.0.1:8000          a server against the model here\n"
     "  kvarto eval m.gguf --max-drop 0.02 --output nightly     for CI: exit code 1 beyond a loss",
     declare_eval},
    {"inspect", "A model's geometry, KV bytes and memory plan, without loading it",
     "  kvarto inspect m.gguf\n"
     "  kvarto inspect m.gguf --json --kv-cache-dtype float32\n"
     "  kvarto inspect --numerics                               do all SIMD targets give the same bits?",
     declare_inspect},
    {"tokenize", "Text to token ids",
     "  kvarto tokenize m.gguf \"Hello world\"\n"
     "  kvarto tokenize m.gguf --json --stdin < text",
     declare_tokenize},
    {"render", "What the chat template makes of messages, as text and ids",
     "  kvarto render m.gguf -p \"Hi\" --system \"Be brief.\"\n"
     "  kvarto render m.gguf --messages chat.json --json",
     declare_render},
    {"pull", "Fetch a model from a hub into the local Hugging Face cache",
     "  kvarto pull org/name:Q4_K_M\n"
     "  HF_ENDPOINT=https://mirror.example kvarto pull org/name",
     declare_pull},
};

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

}  // namespace kvarto
