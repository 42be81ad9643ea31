"""A second forward, numpy in float64, written from the format description: checks the goldens and shows that each
feature matters (`without` names what to leave out; the logits must then move)."""

import math

import numpy as np


def forward(source, ids, without=""):
    """Logits [tokens, vocabulary]."""
    w = {name: values.astype(np.float64) for name, values in source.tensors.items()}
    gemma, tokens = source.arch == "gemma3", len(ids)
    eps = source.get("attention.layer_norm_rms_epsilon")
    width, heads = source.get("embedding_length"), source.get("attention.head_count")
    head_dim = source.get("attention.key_length", width // heads)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name]

    x = w["token_embd.weight"][list(ids)]
    if gemma and without != "embedding scale":
        x = x * math.sqrt(width)
    for layer in range(source.get("block_count")):
        p = f"blk.{layer}."
        kv_heads = source.get("attention.head_count_kv")
        kv_heads = kv_heads[layer] if isinstance(kv_heads, list) else kv_heads
        window = gemma and is_window_layer(source, layer, without)
        h = norm(x, p + "attn_norm.weight")
        q, k, v = (h @ w[f"{p}attn_{c}.weight"].T + (0 if without == "bias" else w.get(f"{p}attn_{c}.bias", 0))
                   for c in "qkv")
        q, k, v = (a.reshape(tokens, -1, head_dim) for a in (q, k, v))
        if p + "attn_q_norm.weight" in w and without != "qk norm":
            q, k = norm(q, p + "attn_q_norm.weight"), norm(k, p + "attn_k_norm.weight")
        turn = rotation(source, w, head_dim, tokens, window, without)
        pairs = source.arch == "llama"
        if without == "right pairs":
            pairs = not pairs
        q, k = rotate(q, turn, pairs), rotate(k, turn, pairs)
        out = np.empty_like(q)
        age = np.arange(tokens)[:, None] - np.arange(tokens)[None]
        span = source.get("attention.sliding_window", 0) + (without == "right edge")
        visible = (age >= 0) & ((age < span) if window and without != "window" else True)
        for head in range(heads):
            kv = head % kv_heads if without == "right kv head" else head // (heads // kv_heads)
            s = np.where(visible, q[:, head] @ k[:, kv].T / math.sqrt(head_dim), -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            out[:, head] = e / e.sum(-1, keepdims=True) @ v[:, kv]
        out = out.reshape(tokens, -1) @ w[p + "attn_output.weight"].T
        x = x + (norm(out, p + "post_attention_norm.weight") if gemma else out)
        h = norm(x, p + "ffn_norm.weight")
        gate, up = h @ w[p + "ffn_gate.weight"].T, h @ w[p + "ffn_up.weight"].T
        if gemma and without != "gelu":
            gate = gate / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        out = (gate * up) @ w[p + "ffn_down.weight"].T
        x = x + (norm(out, p + "post_ffw_norm.weight") if gemma else out)
    return norm(x, "output_norm.weight") @ w.get("output.weight", w["token_embd.weight"]).T


def is_window_layer(source, layer, without=""):
    pattern = None if without == "pattern" else source.get("attention.sliding_window_pattern")
    return bool(pattern[layer]) if pattern else layer % 6 != 5


def rotation(source, w, head_dim, tokens, window, without):
    """cos and sin [tokens, 1, head_dim / 2]."""
    base = source.get("rope.freq_base")
    if window and without != "local base":
        base = 10000.0
    i = np.arange(head_dim // 2)
    inverse = base ** (-2.0 * i / head_dim)
    kind, factor = source.get("rope.scaling.type"), source.get("rope.scaling.factor", 1.0)
    amplitude = 1.0
    scaled = not window or without == "full layers only"
    if kind == "linear" and scaled and without != "rope scaling":
        inverse = inverse / factor
    if kind == "yarn" and without != "rope scaling":
        original = source.get("rope.scaling.original_context_length")

        def dimension(turns):
            return head_dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

        low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), head_dim - 1)
        ramp = np.clip((i - low) / (high - low), 0, 1)
        inverse = inverse * (1 - ramp) + inverse / factor * ramp
        amplitude = 1 + 0.1 * math.log(factor)
        if without != "attn_factor":
            amplitude *= source.get("rope.scaling.attn_factor", 1.0)
    if "rope_freqs.weight" in w and without != "rope scaling":
        inverse = inverse / w["rope_freqs.weight"]
    angle = np.arange(tokens)[:, None, None] * inverse
    return amplitude * np.cos(angle), amplitude * np.sin(angle)


def rotate(x, turn, neighbours):
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if neighbours else (slice(0, half), slice(half, None))
    out = np.empty_like(x)
    out[..., first] = x[..., first] * turn[0] - x[..., second] * turn[1]
    out[..., second] = x[..., first] * turn[1] + x[..., second] * turn[0]
    return out


def features(source):
    """What can be left out of this model."""
    found = ["right pairs"]
    kv = source.get("attention.head_count_kv")
    if isinstance(kv, list) or kv > 1:
        found.append("right kv head")
    if source.get("rope.scaling.type") or "rope_freqs.weight" in source.tensors:
        found.append("rope scaling")
    if source.get("rope.scaling.attn_factor"):
        found.append("attn_factor")
    if source.arch == "qwen2":
        found.append("bias")
    if source.arch in ("qwen3", "gemma3"):
        found.append("qk norm")
    if source.arch == "gemma3":
        found += ["window", "right edge", "local base", "embedding scale", "gelu"]
        if source.get("rope.scaling.type"):
            found += ["full layers only", "pattern"]
    return found
