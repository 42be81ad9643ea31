// Flags that say what the engine is: model, KV cache, scheduler, devices.
#include <algorithm>

#include "cli/serve_values.h"

namespace kvarto {
namespace {

using enum FlagKind;
using enum FlagFate;

Status set_dtype(std::optional<KvDtype>& target, const FlagValue& value) {
  const std::string& name = value.text();
  const bool halved = name == "half";
  if (name == "float") return parse_kv_dtype("float32").map([&](auto dtype) { target = dtype; });
  const Result<std::optional<KvDtype>> dtype = parse_kv_dtype(halved ? "float16" : name);
  if (!dtype) {
    return fail(
        ErrorCode::unsupported,
        dtype.error().message + "; 8-bit and smaller KV dtypes (fp8, int8, int4, nvfp4, q8_0) are not built yet");
  }
  target = *dtype;
  return {};
}

constexpr FlagRow kModel[] = {
    {"--model --model-tag -m -hf --hf-repo", value, works, "MODEL",
     "The same as the word behind `kvarto serve`, which counts when both are given: a GGUF file, an alias (smollm2), a "
     "folder, org/name[:quant] in the local Hugging Face cache, or scripted:FILE",
     KVARTO_SET(return set_text(f.model, v);)},
    {"--served-model-name -a --alias", list, works, "NAME ...",
     "Names that requests may use; the first one is echoed and labels the metrics (default: MODEL as given)",
     KVARTO_SET(return set_list(f.serve.served_model_names, v);)},
    {"--max-model-len", value, works, "N|auto",
     "Longest prompt and output together, 25.6k and 32K allowed; auto or -1: what memory holds, at most the model's "
     "context (that is the default, too)",
     KVARTO_SET(f.fit_max_model_len = v.text() == "auto" || v.text() == "-1"; if (f.fit_max_model_len) return {};
                return set_human<uint32_t>(f.engine.max_model_len, v, 1, INT32_MAX);)},
    {"--tokenizer", value, warned, "NAME", "the tokenizer inside the GGUF file is used"},
    {"--tokenizer-mode", value, warned, "MODE", "the tokenizer inside the GGUF file is used"},
    {"--skip-tokenizer-init", toggle, warned, "",
     "the tokenizer is always loaded; prompts of token ids work all the same, and return_token_ids gives ids out"},
    {"--dtype", value, works, "auto",
     "Weights are computed with as the file stores them: other values than auto have no effect (--reference computes "
     "in "
     "float32, --kv-cache-dtype is the KV cache's)",
     KVARTO_SET(const Result<size_t> at = choice(v, {"auto", "half", "float16", "bfloat16", "float", "float32"});
                if (!at) return tl::unexpected<Error>(at.error());
                if (*at > 0) f.warnings.push_back("has no effect: weights are computed with as the file stores them");
                return {};)},
    {"--seed", value, works, "N", "Of requests that bring none (0)", KVARTO_SET(return set_count(f.engine.seed, v);)},
    {"--max-logprobs", value, works, "N",
     "Most alternatives that logprobs and prompt_logprobs may ask for (20); -1: no limit",
     KVARTO_SET(if (v.text() == "-1") {
       f.serve.max_logprobs = UINT32_MAX;
       return {};
     } return set_count(f.serve.max_logprobs, v);)},
    {"--logprobs-mode", value, works, "MODE",
     "What logprobs are of: raw_logprobs (default), processed_logprobs, raw_logits, processed_logits",
     KVARTO_SET(ASSIGN_OR_RETURN(const size_t at,
                                 choice(v, {"raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"}));
                f.engine.logprobs_mode = static_cast<LogprobsMode>(at); return {};)},
    {"--generation-config", value, works, "auto|vllm|FOLDER",
     "Where default sampling values come from: generation_config.json beside the model (auto), nowhere (vllm), or of a "
     "folder; its max_new_tokens caps every output",
     KVARTO_SET(return set_text(f.generation_config, v);)},
    {"--override-generation-config", json, works, "JSON", "Default sampling values, over those of the file",
     KVARTO_SET(return set_text(f.override_generation_config, v);)},
    {"--disable-sliding-window", toggle, only, "off", "windows are part of the model; shorten --max-model-len instead"},
    {"--hf-overrides", json, only, "{}", "the model is what its GGUF file says; convert it again to change its config"},
    {"--hf-config-path --config-format", value, warned, "X", "a GGUF file carries its own configuration"},
    {"--hf-token", value, warned, "TOKEN", "`kvarto serve` fetches nothing; `kvarto pull` reads HF_TOKEN", nullptr,
     true},
    {"--trust-remote-code", toggle, warned, "", "no code of a model is ever run"},
    {"--enforce-eager", toggle, works, "", "Always so: there are no graphs to capture"},
    {"--revision", value, only, "main",
     "`kvarto pull` fetches main; for another revision give the path of its file in the cache as MODEL"},
    {"--tokenizer-revision", value, warned, "X", "the tokenizer inside the GGUF file is used"},
    {"--code-revision", value, warned, "X", "no code of a model is ever run"},
    {"--runner", value, only, "auto|generate|None", "only text generation is built"},
    {"--convert", value, only, "auto|none|None", "only text generation is built"},
    {"--model-impl", value, only, "auto|vllm", "there is one implementation of each architecture"},
    {"--logits-processors", list, refused, "X", "no foreign code is run; logit_bias and bad_words of a request may do"},
};

constexpr FlagRow kWeights[] = {
    {"--quantization -q", value, only, "gguf|None",
     "the file decides: take a GGUF file in the quantisation that you want"},
    {"--load-format", value, only, "auto|gguf", "GGUF files are what can be read"},
    {"--download-dir", value, warned, "DIR",
     "nothing is fetched here; `kvarto pull` uses the Hugging Face cache (HF_HOME)"},
    {"--model-loader-extra-config", json, warned, "JSON", "GGUF files need none"},
    {"--ignore-patterns", list, warned, "X", "nothing is fetched here"},
    {"--use-tqdm-on-load", toggle, works, "", "A bar is drawn on terminals"},
    {"--pt-load-map-location --safetensors-load-strategy", value, warned, "X", "GGUF files need none"},
    {"--cpu-offload-gb", value, warned, "GIB", "weights are in main memory anyway"},
    {"--offload-backend --cpu-offload-params --offload-group-size --offload-num-in-group --offload-prefetch-step",
     value, warned, "X", "weights are in main memory anyway"},
    {"--compilation-config -O", json, warned, "JSON", "nothing is compiled while it runs"},
    {"--enable-sleep-mode", toggle, warned, "", "there is no sleep mode; stop the server to free its memory"},
};

constexpr FlagRow kCache[] = {
    {"--block-size", value, works, "N", "Tokens per KV block: 16 (default), 32, 64, 128 or 256",
     KVARTO_SET(uint32_t tokens = 0; RETURN_IF_ERROR(set_count(tokens, v, 1u));
                if (tokens != 16 && tokens != 32 && tokens != 64 && tokens != 128 && tokens != 256) {
                  return bad_value(v, "one of 16, 32, 64, 128, 256");
                } f.engine.block_size = tokens;
                f.block_size_given = true; return {};)},
    {"--gpu-memory-utilization --device-memory-utilization", value, works, "SHARE",
     "Share of the memory that this process may use (the least of what is available on the machine and what its "
     "cgroup leaves) for weights, buffers and KV cache, 0 to 1; the KV cache is touched at start",
     KVARTO_SET(double share = 0; RETURN_IF_ERROR(set_number(share, v, 0, 1, true)); f.memory.utilization = share;
                return {};)},
    {"--kv-cache-memory-bytes", value, works, "BYTES",
     "Exact size of the KV cache, such as 2G (1,024s) or 2g (1,000s); counts before --gpu-memory-utilization; touched "
     "at "
     "start",
     KVARTO_SET(size_t bytes = 0; RETURN_IF_ERROR(set_human(bytes, v, size_t{1})); f.memory.kv_bytes = bytes;
                return {};)},
    {"--num-gpu-blocks-override", value, works, "N", "Exact size of the KV cache in blocks (of each group of layers)",
     KVARTO_SET(uint64_t blocks = 0; RETURN_IF_ERROR(set_count<uint64_t>(blocks, v, 1, 1u << 30));
                f.memory.blocks = blocks; return {};)},
    {"--kv-cache-dtype", value, works, "DTYPE",
     "How K and V are stored: auto (float16 for GGUF), float16, bfloat16, float32",
     KVARTO_SET(RETURN_IF_ERROR(set_dtype(f.engine.k_dtype, v)); f.engine.v_dtype = f.engine.k_dtype; return {};)},
    {"--kv-cache-dtype-skip-layers", list, warned, "LAYER ...", "no KV dtype of less than 16 bits is built yet"},
    {"--enable-prefix-caching --cache-prompt", toggle, works, "", "Reuse blocks of prompts that begin alike (on)",
     KVARTO_SET(return set_on(f.engine.enable_prefix_caching, v);)},
    {"--prefix-caching-hash-algo", value, works, "sha256_cbor",
     "Blocks are named by sha256_cbor; other values change nothing",
     KVARTO_SET(ASSIGN_OR_RETURN(const size_t at, choice(v, {"sha256_cbor", "sha256", "xxhash", "xxhash_cbor"}));
                if (at > 1) f.warnings.push_back("has no effect: blocks are named by sha256_cbor"); return {};)},
    {"--prefix-match-unit", value, warned, "N", "prefixes are matched in whole blocks; see --block-size"},
    {"--prefix-cache-retention-interval", value, warned, "N", "window blocks stay as long as there is room"},
    {"--calculate-kv-scales", toggle, warned, "",
     "there are no 8-bit KV dtypes with scales; vLLM has dropped the flag"},
    {"--kv-offloading-size", value, refused, "GIB",
     "a second tier of KV memory is not built yet; give the memory to --kv-cache-memory-bytes"},
    {"--kv-offloading-backend", value, refused, "native|lmcache",
     "a second tier of KV memory is not built yet; leave it out"},
    {"--kv-sharing-fast-prefill", toggle, only, "off", "every layer computes its own keys and values; leave it out"},
    {"--swa-bounded-replay", toggle, warned, "", "windows keep the blocks that they need"},
    {"--mamba-block-size --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-cache-mode", value, warned, "X",
     "no recurrent architecture is built yet"},
    {"--disable-hybrid-kv-cache-manager --swa-full", toggle, warned, "",
     "layers with a window always keep only what they can see; outputs do not depend on it"},
};

constexpr FlagRow kScheduler[] = {
    {"--max-num-seqs -np --parallel", value, works, "N", "Sequences that run at once (64)",
     KVARTO_SET(if (v.text() == "-1") return {}; return set_count(f.engine.max_num_seqs, v, 1u, 4096u);)},
    {"--max-num-batched-tokens -b --batch-size", value, works, "N",
     "Most tokens computed in one step (512; vLLM's server takes 2,048 on CPUs)",
     KVARTO_SET(return set_human(f.engine.max_num_batched_tokens, v, 1u, 65536u);)},
    {"--max-num-scheduled-tokens", value, works, "N", "A further limit of --max-num-batched-tokens",
     KVARTO_SET(uint32_t cap = 0; RETURN_IF_ERROR(set_human(cap, v, 1u, 65536u)); f.token_cap = cap; return {};)},
    {"--max-num-active-seqs", value, warned, "N", "--max-num-seqs is the limit"},
    {"--max-num-queued-reqs", value, works, "N", "Requests that may wait; more get 503 with Retry-After (no limit)",
     KVARTO_SET(return set_count(f.serve.max_num_queued_reqs, v);)},
    {"--max-num-queued-tokens", value, works, "N",
     "Prompt tokens that may wait; more get 503 with Retry-After (no limit)",
     KVARTO_SET(return set_human(f.serve.max_num_queued_tokens, v);)},
    {"--enable-chunked-prefill", toggle, only, "on",
     "long prompts are always computed in parts beside running requests"},
    {"--long-prefill-token-threshold", value, works, "N",
     "Most tokens of one prompt in one step (0: no limit of its own)",
     KVARTO_SET(return set_human(f.engine.long_prefill_token_threshold, v);)},
    {"--long-prefill-token-threshold-adaptive", toggle, warned, "",
     "a step's length is bound by time; see --max-step-ms"},
    {"--max-num-partial-prefills --max-long-partial-prefills", value, warned, "N",
     "any number of prompts may be under way; vLLM has dropped the flag"},
    {"--scheduling-policy", value, works, "fcfs|priority", "Who runs first: by arrival, or by the request's `priority`",
     KVARTO_SET(ASSIGN_OR_RETURN(const size_t at, choice(v, {"fcfs", "priority"}));
                f.engine.scheduling_policy = static_cast<SchedulingPolicy>(at); return {};)},
    {"--watermark", value, works, "SHARE", "Share of the KV cache kept free when waiting requests are admitted (0)",
     KVARTO_SET(RETURN_IF_ERROR(set_number(f.engine.watermark, v, 0, 0.99)); return {};)},
    {"--scheduler-reserve-full-isl", toggle, warned, "",
     "admission looks at what is free for the prompt; what can never fit is refused with the numbers"},
    {"--prefill-schedule-interval", value, warned, "N", "prompts are computed in every step, as far as its time goes"},
    {"--disable-chunked-mm-input", toggle, warned, "", "there is no multi-modal input"},
    {"--async-scheduling", toggle, warned, "",
     "the next step is planned while nothing computes; it takes microseconds"},
    {"--scheduler-cls", value, refused, "CLASS", "no foreign code is run; see --scheduling-policy"},
    {"--stream-interval", value, works, "N", "Tokens per event of a stream; the first and the last come at once (1)",
     KVARTO_SET(return set_count(f.serve.stream_interval, v, 1u);)},
    {"--performance-mode", value, works, "balanced", "Other values have no effect: give --max-num-seqs instead",
     KVARTO_SET(ASSIGN_OR_RETURN(const size_t at, choice(v, {"balanced", "throughput", "interactivity"}));
                if (at > 0) f.warnings.push_back("has no effect: set --max-num-seqs and --max-num-batched-tokens");
                return {};)},
};

constexpr const char* kOneProcess =
    "one process on CPUs is what there is; start one server per machine and balance them";
constexpr FlagRow kParallel[] = {
    {"--tensor-parallel-size -tp", value, only, "1", kOneProcess},
    {"--pipeline-parallel-size -pp", value, only, "1", kOneProcess},
    {"--data-parallel-size -dp --data-parallel-size-local -dpl", value, only, "1", kOneProcess},
    {"--decode-context-parallel-size -dcp --prefill-context-parallel-size -pcp", value, only, "1", kOneProcess},
    {"--nnodes", value, only, "1", kOneProcess},
    {"--node-rank --data-parallel-rank -dpn --data-parallel-start-rank -dpr", value, only, "0", kOneProcess},
    {"--data-parallel-address -dpa --data-parallel-rpc-port -dpp --data-parallel-backend -dpb --master-addr "
     "--master-port",
     value, warned, "X", kOneProcess},
    {"--data-parallel-hybrid-lb --data-parallel-external-lb", toggle, only, "off", kOneProcess},
    {"--enable-expert-parallel -ep", toggle, only, "off", kOneProcess},
    {"--enable-eplb --enable-dbo", toggle, only, "off", kOneProcess},
    {"--eplb-config", json, warned, "JSON", kOneProcess},
    {"--all2all-backend --expert-placement-strategy --dcp-kv-cache-interleave-size", value, warned, "X", kOneProcess},
    {"--distributed-executor-backend", value, only, "mp|uni|None", kOneProcess},
    {"--max-parallel-loading-workers", value, warned, "N", "loading uses all --threads"},
    {"--disable-custom-all-reduce --ray-workers-use-nsight", toggle, warned, "", kOneProcess},
    {"--worker-cls --worker-extension-cls", value, only, "auto", "no foreign code is run"},
    {"--device", value, only, "auto|cpu", "CPUs are the only device yet"},
};

}  // namespace

std::span<const FlagRow> model_flags() { return kModel; }
std::span<const FlagRow> weight_flags() { return kWeights; }
std::span<const FlagRow> cache_flags() { return kCache; }
std::span<const FlagRow> scheduler_flags() { return kScheduler; }
std::span<const FlagRow> parallel_flags() { return kParallel; }

}  // namespace kvarto
