// Flags of things that are not built, that vLLM has dropped, and of llama-server.
#include "cli/serve_values.h"

namespace kvarto {
namespace {

using enum FlagKind;
using enum FlagFate;

// The types of llama-server that are no KV dtypes of ours have names that nobody else uses.
Status set_cache_type(std::optional<KvDtype>& target, const FlagValue& value) {
  const Result<std::optional<KvDtype>> dtype = parse_kv_dtype(value.text());
  if (!dtype) {
    return fail(ErrorCode::unsupported,
                dtype.error().message + "; 8-bit and smaller types (q8_0, q4_0 ...) are not built yet");
  }
  target = *dtype;
  return {};
}

constexpr const char* kNoImages = "there is no multi-modal input; leave it out";
constexpr const char* kNoAdapters =
    "adapters are not built yet; merge it into the model before converting that to GGUF";
constexpr const char* kNoDraft = "speculative decoding is not built; leave it out";

constexpr FlagRow kFeatures[] = {
    {"--limit-mm-per-prompt --mm-processor-kwargs --media-io-kwargs", json, warned, "JSON", kNoImages},
    {"--mm-processor-cache-gb --mm-processor-cache-type --mm-encoder-tp-mode --mm-encoder-attn-backend "
     "--video-pruning-rate --allowed-local-media-path --allowed-media-domains",
     value, warned, "X", kNoImages},
    {"--skip-mm-profiling --interleave-mm-strings --language-model-only --enable-mm-embeds --enable-prompt-embeds",
     toggle, warned, "", kNoImages},
    {"--enable-lora", toggle, only, "off", kNoAdapters},
    {"--lora-modules", list, refused, "NAME=PATH ...", kNoAdapters},
    {"--max-loras --max-lora-rank --max-cpu-loras --lora-dtype --lora-extra-vocab-size", value, warned, "X",
     kNoAdapters},
    {"--fully-sharded-loras", toggle, warned, "", kNoAdapters},
    {"--default-mm-loras", json, warned, "JSON", kNoAdapters},
    {"--speculative-config", json, refused, "JSON", kNoDraft},
    {"--structured-outputs-config", json, warned, "JSON",
     "constrained output is not built; requests that ask for it get 400"},
    {"--pooler-config", json, refused, "JSON", "only text generation is built"},
    {"--additional-config --attention-config --profiler-config", json, warned, "JSON", "nothing here reads it"},
    {"--attention-backend", value, warned, "NAME", "there is one attention"},
    {"--disable-cascade-attn", toggle, warned, "", "there is one attention"},
};

constexpr FlagRow kRemoved[] = {
    {"--swap-space", value, warned, "GIB",
     "preempted requests are computed again, never swapped; vLLM has dropped the flag"},
    {"--guided-decoding-backend", value, warned, "NAME",
     "constrained output is not built; requests that ask for it get 400"},
    {"--guided-decoding-disable-fallback --guided-decoding-disable-any-whitespace "
     "--guided-decoding-disable-additional-properties",
     toggle, warned, "", "constrained output is not built; requests that ask for it get 400"},
    {"--task", value, only, "auto|generate", "only text generation is built"},
    {"--num-lookahead-slots", value, warned, "N", "vLLM has dropped the flag"},
    {"--use-v2-block-manager --multi-step-stream-outputs", toggle, warned, "", "vLLM has dropped the flag"},
    {"--preemption-mode", value, warned, "MODE", "preempted requests are computed again; vLLM has dropped the flag"},
    {"--enable-reasoning", toggle, warned, "", "--reasoning-parser is enough; vLLM has dropped the flag"},
    {"--worker-use-ray --disable-frontend-multiprocessing --engine-use-ray", toggle, warned, "",
     "vLLM has dropped the flag"},
    {"--max-seq-len-to-capture --num-scheduler-steps --max-context-len-to-capture", value, warned, "N",
     "vLLM has dropped the flag"},
    {"--rope-scaling --rope-theta", value, refused, "X", "the model is what its GGUF file says; convert it again"},
};

constexpr FlagRow kLlama[] = {
    {"--ctx-size -c", value, refused, "N",
     "llama-server shares it among its slots: use --max-model-len for the longest request and --kv-cache-memory-bytes "
     "or "
     "--num-gpu-blocks-override for all of them together"},
    {"--ubatch-size -ub", value, warned, "N", "--max-num-batched-tokens is the limit of a step"},
    {"--predict --n-predict -n", value, works, "N", "Most tokens of any answer (-1: no limit)",
     KVARTO_SET(if (v.text() == "-1" || v.text() == "-2") return {}; uint32_t most = 0;
                RETURN_IF_ERROR(set_count(most, v, 1u)); f.max_new_tokens = most; return {};)},
    {"--cache-type-k -ctk", value, works, "TYPE", "How K is stored: f16, bf16, f32",
     KVARTO_SET(return set_cache_type(f.engine.k_dtype, v);)},
    {"--cache-type-v -ctv", value, works, "TYPE", "How V is stored: f16, bf16, f32",
     KVARTO_SET(return set_cache_type(f.engine.v_dtype, v);)},
    {"--kv-unified -kvu", toggle, works, "", "Always so: one pool for all requests"},
    {"--kv-unified-per-slot", value, warned, "N", "--max-model-len is the limit of a request"},
    {"--flash-attn -fa", maybe, works, "", "Always so"},
    {"--kv-offload -kvo", toggle, works, "", "Always so: KV memory is where the computing is"},
    {"--cont-batching -cb", toggle, only, "on", "requests are always batched as they come"},
    {"--cache-reuse", value, only, "0", "shifting positions changes the text; whole prefixes are always reused"},
    {"--cache-ram -cram", value, warned, "MIB",
     "cached prefixes stay in the KV cache; give it memory with --kv-cache-memory-bytes"},
    {"--cache-idle-slots", toggle, warned, "", "finished prompts stay in the KV cache until others need the room"},
    {"--ctx-checkpoints -ctxcp --swa-checkpoints -cms", value, warned, "N", "blocks of windows are kept by themselves"},
    {"--slot-prompt-similarity -sps", value, warned, "SHARE",
     "there are no slots: every request finds the longest prefix"},
    {"--slot-save-path", value, refused, "DIR", "KV memory on disk is not built yet"},
    {"--slots --props", toggle, warned, "", "there is no such route; see /metrics and the dashboard"},
    {"--metrics", toggle, works, "", "Always so, under vLLM's names"},
    {"--threads-http --threads-batch -tb", value, warned, "N", "--threads is the number of compute threads"},
    {"--numa", value, warned, "MODE", "start the server under numactl instead"},
    {"--jinja", toggle, only, "on", "chat templates are Jinja"},
    {"--fit -fit", maybe, warned, "", "see --max-model-len auto"},
    {"--fit-target -fitt --fit-ctx -fitc", value, warned, "N", "see --max-model-len auto"},
    {"--n-gpu-layers --gpu-layers -ngl", value, warned, "N", "CPUs are the only device yet"},
    {"--mlock --mmap --warmup --webui --check-tensors", toggle, warned, "", "it changes nothing here"},
    {"--verbose -v", toggle, works, "", "The same as --log-level debug",
     KVARTO_SET(if (v.on) f.log_level = LogLevel::debug; return {};)},
    {"--temp --temperature --top-k --top-p --min-p --repeat-penalty", value, refused, "X",
     "set a server's defaults with --override-generation-config '{\"temperature\": 0.7}'"},
    {"--embedding --embeddings --rerank --reranking", toggle, only, "off", "only text generation is built"},
    {"--lora --lora-scaled", value, refused, "FILE", kNoAdapters},
    {"--mmproj -mm", value, refused, "FILE", kNoImages},
    {"--model-draft -md", value, refused, "FILE", kNoDraft},
    {"--rope-freq-base --rope-freq-scale --override-kv", value, refused, "X", "the model is what its GGUF file says"},
};

}  // namespace

std::span<const FlagRow> feature_flags() { return kFeatures; }
std::span<const FlagRow> removed_flags() { return kRemoved; }
std::span<const FlagRow> llama_flags() { return kLlama; }

}  // namespace kvarto
