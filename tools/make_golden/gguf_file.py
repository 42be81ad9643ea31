"""Writes one tiny model: random weights scaled so that attention is sharp and logits are spread."""

import gguf
import numpy as np

from blocks import random_matrix
from specs import CONTEXT, FFN, VOCABULARY

# Deviations of an embedding entry, of what one branch adds, of the logits. With a tied head a larger share of the
# embedding in the last residual would make every token predict itself.
EMBEDDING, BRANCH, LOGITS = 0.06, 0.35, 3.0


def write(spec, vocabulary, path):
    writer = gguf.GGUFWriter(str(path), spec.arch)
    _metadata(writer, spec)
    _tokenizer(writer, vocabulary)
    _tensors(writer, spec)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(writer, spec):
    writer.add_type("model")
    writer.add_name(spec.name)
    writer.add_license("Apache-2.0")
    writer.add_description("Random weights for tests: " + spec.why)
    writer.add_block_count(spec.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(list(spec.kv_heads) if isinstance(spec.kv_heads, tuple) else spec.kv_heads)
    if spec.write_key_length:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.eps)
    writer.add_rope_freq_base(spec.rope_base)
    if spec.arch == "llama":
        writer.add_rope_dimension_count(spec.head_dim)
        writer.add_vocab_size(VOCABULARY)
    scaling = f"{spec.arch}.rope.scaling."
    for key, value in spec.rope_scaling:
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(scaling + key, value)
    if spec.window:
        writer.add_sliding_window(spec.window)
    if spec.window_pattern:
        writer.add_array(f"{spec.arch}.attention.sliding_window_pattern", list(spec.window_pattern))
    writer.add_quantization_version(2)


def _tokenizer(writer, vocabulary):
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.ids["bos"])
    writer.add_eos_token_id(vocabulary.ids["eos"])
    writer.add_unk_token_id(vocabulary.ids["unk"])
    writer.add_pad_token_id(vocabulary.ids["pad"])
    for flag, value in vocabulary.flags.items():
        writer.add_bool("tokenizer.ggml." + flag, value)
    writer.add_chat_template(vocabulary.template)


def _tensors(writer, spec):
    rng = np.random.default_rng(spec.seed)
    d, hd, q_rows = spec.width, spec.head_dim, spec.heads * spec.head_dim
    gemma = spec.arch == "gemma3"
    qk_norm = gemma or spec.arch == "qwen3"
    branch = 1.0 if gemma else BRANCH  # gemma's post norms set what a branch adds
    embedding = EMBEDDING / 2 if gemma else EMBEDDING  # gemma multiplies it by sqrt(d)
    head = embedding if spec.tied else 0.1

    def matrix(name, group, rows, columns, deviation, layer=0):
        kind = spec.types.get(name.split(".")[-2], spec.types.get(group))
        kind = kind[layer] if isinstance(kind, list) else kind
        raw_type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, random_matrix(rng, kind, rows, columns, deviation), raw_dtype=raw_type)

    def vector(name, size, mean, spread):
        writer.add_tensor(name, (mean + spread * rng.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", "token_embd", VOCABULARY, d, embedding)
    if spec.rope_freqs:
        writer.add_tensor("rope_freqs.weight", llama3_divisors(spec))
    for layer in range(spec.layers):
        p = f"blk.{layer}."
        kv_rows = hd * (spec.kv_heads[layer] if isinstance(spec.kv_heads, tuple) else spec.kv_heads)
        score = spec.score / d**0.5
        vector(p + "attn_norm.weight", d, 1.0, 0.15)
        for letter, rows, deviation in (("q", q_rows, score), ("k", kv_rows, score), ("v", kv_rows, d**-0.5)):
            matrix(f"{p}attn_{letter}.weight", "attn", rows, d, deviation, layer)
            if spec.arch == "qwen2":
                vector(f"{p}attn_{letter}.bias", rows, 0.0, 0.15 if letter == "v" else 0.8)
            if qk_norm and letter != "v":
                vector(f"{p}attn_{letter}_norm.weight", hd, spec.score, 0.3)
        matrix(p + "attn_output.weight", "attn", d, q_rows, branch * 1.3 / q_rows**0.5, layer)
        vector(p + "ffn_norm.weight", d, 1.0, 0.15)
        for name in ("ffn_gate", "ffn_up"):
            matrix(f"{p}{name}.weight", "ffn", FFN, d, 1.3 / d**0.5, layer)
        matrix(p + "ffn_down.weight", "ffn_down", d, FFN, branch / FFN**0.5, layer)
        if gemma:
            vector(p + "post_attention_norm.weight", d, 0.6, 0.1)
            vector(p + "post_ffw_norm.weight", d, 0.6, 0.1)
    gain = LOGITS / (head * d**0.5)
    vector("output_norm.weight", d, gain, 0.1 * gain)
    if not spec.tied:
        matrix("output.weight", "output", VOCABULARY, d, head)


def llama3_divisors(spec):
    """What inverse frequencies are divided by: 1 for short waves, the factor for long ones, a blend between."""
    factor, low, high, original = spec.rope_freqs
    i = np.arange(spec.head_dim // 2, dtype=np.float64)
    turns = original / (2 * np.pi * spec.rope_base ** (2 * i / spec.head_dim))
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - blend) / factor + blend)).astype(np.float32)
