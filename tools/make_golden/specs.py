"""The tiny models: what each one is there to test. One entry = one file tests/tiny/NAME.gguf.

Types are GGUF names; a list gives one type per layer. Rows of ffn_down are 256 wide, so K-quants fit there.
"""

from dataclasses import dataclass

VOCABULARY = 512
FFN = 256
CONTEXT = 2048


@dataclass(frozen=True)
class Spec:
    name: str
    arch: str
    why: str
    seed: int
    layers: int
    width: int
    heads: int
    kv_heads: int | tuple[int, ...]  # a tuple is written as an array, one number per layer
    head_dim: int
    tokenizer: str  # smollm, gpt-2, llama-bpe, qwen2, spm or spm-prefix (see vocab.py)
    types: dict[str, str | list[str]]
    write_key_length: bool = True  # False: readers must take width / heads
    rope_base: float = 10000.0
    eps: float = 1e-5
    tied: bool = True
    rope_scaling: tuple[tuple[str, object], ...] = ()
    rope_freqs: tuple[float, float, float, int] | None = None  # llama3: factor, low, high, original context
    window: int = 0
    window_pattern: tuple[bool, ...] | None = None  # True: window layer; None: the key is left out (period 6)
    score: float = 1.4  # deviation of q and k entries: sharp attention, so that a wrong rope or window shows


SPECS = [
    Spec(
        "tiny_llama", "llama", "GQA, head_dim 24 = width / heads (no multiple of 16), no key_length keys, tied head",
        seed=101, layers=3, width=96, heads=4, kv_heads=2, head_dim=24, tokenizer="smollm", write_key_length=False,
        types={"token_embd": "Q8_0", "attn": "Q8_0", "ffn": "Q8_0", "ffn_down": ["Q4_K", "Q6_K", "Q4_K"]},
    ),
    Spec(
        "tiny_llama_linear", "llama", "linear rope scaling, own output head, head_dim 32 with width / heads 16",
        seed=102, layers=2, width=64, heads=4, kv_heads=2, head_dim=32, tokenizer="smollm", tied=False,
        rope_scaling=(("type", "linear"), ("factor", 4.0)),
        types={"token_embd": "F16", "attn": "F16", "ffn": "F16", "ffn_down": ["Q5_K", "Q3_K"], "output": "F16"},
    ),
    Spec(
        "tiny_llama_yarn", "llama", "YaRN with attn_factor, 4, 1 and 2 KV heads by layer",
        seed=113, layers=3, width=128, heads=4, kv_heads=(4, 1, 2), head_dim=32, tokenizer="gpt-2",
        rope_scaling=(("type", "yarn"), ("factor", 4.0), ("original_context_length", 512), ("attn_factor", 0.9)),
        types={"token_embd": "Q8_0", "attn": "Q8_0", "ffn": "Q4_0", "ffn_down": ["IQ4_XS", "Q4_K", "IQ4_XS"]},
    ),
    Spec(
        "tiny_llama3", "llama", "llama3 scaling baked into rope_freqs.weight, 32-element formats, BOS on by default",
        seed=104, layers=3, width=128, heads=4, kv_heads=2, head_dim=32, tokenizer="llama-bpe", rope_base=500000.0,
        rope_freqs=(8.0, 1.0, 4.0, 512),
        types={"token_embd": "Q5_0", "attn": ["Q5_0", "Q4_1", "Q5_0"], "ffn": ["Q4_1", "Q5_1", "Q4_1"],
               "ffn_down": ["Q2_K", "Q6_K", "Q4_K"]},
    ),
    Spec(
        "tiny_qwen2", "qwen2", "biases on q, k and v, head_dim 16, no key_length keys, tied head",
        seed=105, layers=3, width=64, heads=4, kv_heads=2, head_dim=16, tokenizer="qwen2", write_key_length=False,
        rope_base=1000000.0, eps=1e-6,
        types={"token_embd": "Q8_0", "attn": "F16", "ffn": ["F16", "BF16", "Q8_0"],
               "ffn_down": ["Q6_K", "Q4_K", "Q3_K"]},
    ),
    Spec(
        "tiny_qwen3", "qwen3", "QK-norm, head_dim 64 with width / heads 16, own output head, attn_output in a K-quant",
        seed=106, layers=3, width=64, heads=4, kv_heads=2, head_dim=64, tokenizer="qwen2", rope_base=1000000.0,
        eps=1e-6, tied=False,
        types={"token_embd": "Q8_0", "attn": "Q8_0", "attn_output": ["Q4_K", "Q6_K", "Q5_K"],
               "ffn": ["Q8_0", "IQ4_NL", "Q8_0"], "ffn_down": ["Q6_K", "Q5_K", "Q4_K"], "output": "Q8_0"},
    ),
    Spec(
        "tiny_gemma3", "gemma3", "window 32 with full attention in layer 5 only (no pattern key), one KV head",
        seed=107, layers=7, width=96, heads=4, kv_heads=1, head_dim=32, tokenizer="spm", rope_base=1000000.0,
        eps=1e-6, window=32,
        types={"token_embd": "Q8_0", "attn": "Q5_0", "ffn": "Q4_0",
               "ffn_down": ["Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K"]},
    ),
    Spec(
        "tiny_gemma3_linear", "gemma3", "window pattern as an array, linear factor 8 on full layers only, 2 KV heads",
        seed=108, layers=7, width=64, heads=4, kv_heads=2, head_dim=32, tokenizer="spm-prefix", rope_base=1000000.0,
        eps=1e-6, window=32, window_pattern=(True, True, False, True, True, False, True),
        rope_scaling=(("type", "linear"), ("factor", 8.0)),
        types={"token_embd": "Q8_0", "attn": "Q8_0", "ffn": "Q5_0",
               "ffn_down": ["Q4_K", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "IQ4_XS", "Q2_K"]},
    ),
]
