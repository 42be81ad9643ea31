"""The source of the goldens: transformers' own model classes in float32, filled from a GGUF file.

Configuration and weights are read back from the file (gguf's dequantize), never from specs.py.
"""

import math

import gguf
import torch
import transformers


class Source:
    """Metadata and dequantised tensors of one file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(str(path))
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {}
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            self.tensors[tensor.name] = values.reshape([int(n) for n in reversed(tensor.shape)]).astype("float32")
        self.arch = self.fields["general.architecture"]

    def get(self, key, default=None):
        return self.fields.get(f"{self.arch}.{key}", default)


def load(path):
    source = Source(path)
    config = _config(source)
    classes = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM,
               "qwen3": transformers.Qwen3ForCausalLM, "gemma3": transformers.Gemma3ForCausalLM}
    model = classes[source.arch](config).float().eval()
    kv_heads = source.get("attention.head_count_kv")
    if isinstance(kv_heads, list):  # transformers has one number: build each layer's attention for its own
        for i, count in enumerate(kv_heads):
            own = transformers.LlamaConfig(**{**config.to_dict(), "num_key_value_heads": count})
            own._attn_implementation = "eager"
            model.model.layers[i].self_attn = type(model.model.layers[i].self_attn)(own, i).float().eval()
    expected = set(model.state_dict())
    state = _state(source, config)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    assert set(state) == expected, set(state) ^ expected
    model.load_state_dict(state)
    return model


def _config(source):
    heads, width = source.get("attention.head_count"), source.get("embedding_length")
    kv_heads = source.get("attention.head_count_kv")
    head_dim = source.get("attention.key_length", width // heads)
    base = source.get("rope.freq_base")
    common = dict(
        vocab_size=len(source.fields["tokenizer.ggml.tokens"]), hidden_size=width,
        intermediate_size=source.get("feed_forward_length"), num_hidden_layers=source.get("block_count"),
        num_attention_heads=heads, num_key_value_heads=max(kv_heads) if isinstance(kv_heads, list) else kv_heads,
        head_dim=head_dim, rms_norm_eps=source.get("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=source.get("context_length"),
        tie_word_embeddings="output.weight" not in source.tensors, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    if source.arch == "gemma3":
        layers = source.get("block_count")
        windowed = source.get("attention.sliding_window_pattern", [(i + 1) % 6 != 0 for i in range(layers)])
        return transformers.Gemma3TextConfig(
            **common, query_pre_attn_scalar=head_dim, sliding_window=source.get("attention.sliding_window"),
            layer_types=["sliding_attention" if w else "full_attention" for w in windowed],
            rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                             "full_attention": _rope(source, base)})
    classes = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
    return classes[source.arch](**common, rope_parameters=_rope(source, base))


def _rope(source, base):
    if "rope_freqs.weight" in source.tensors:  # transformers' own llama3 rule, not the factors in the file
        return {"rope_type": "llama3", "rope_theta": base, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    kind = source.get("rope.scaling.type", "none")
    factor = source.get("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    if kind == "yarn":
        return {"rope_type": "yarn", "rope_theta": base, "factor": factor,
                "original_max_position_embeddings": source.get("rope.scaling.original_context_length"),
                "attention_factor": source.get("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(factor))}
    return {"rope_type": "default", "rope_theta": base}


NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = {**NAMES, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
               "post_ffw_norm": "post_feedforward_layernorm"}


def _state(source, config):
    names = GEMMA_NAMES if source.arch == "gemma3" else NAMES
    fixed = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
             "output.weight": "lm_head.weight"}
    state = {}
    for name, values in source.tensors.items():
        if name == "rope_freqs.weight":
            continue
        if source.arch == "gemma3" and name.endswith("norm.weight"):
            values = values - 1  # transformers adds the 1 itself
        if source.arch == "llama" and ("attn_q." in name or "attn_k." in name):
            # pairs (2i, 2i + 1) in the file, (i, i + head_dim / 2) in transformers
            rows, columns = values.shape
            values = values.reshape(-1, config.head_dim // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        if name in fixed:
            state[fixed[name]] = torch.from_numpy(values.copy())
        else:
            _, layer, part, suffix = name.split(".")
            state[f"model.layers.{layer}.{names[part]}.{suffix}"] = torch.from_numpy(values.copy())
    return state
