#!/usr/bin/env python3
"""Writes smollm2_kv.npz: what PyTorch makes of text.txt with keys and values kept in float16 and in bfloat16.

    python3 tests/eval/make_torch_logits.py [KVARTO]

KVARTO (build/dev/kvarto) only turns the text into ids. Needs numpy, gguf and torch from PyPI (a venv will do; the CPU build of
torch is enough) and models/smollm2-135m-q4_1.gguf. The tests never run it: its output is committed.

Weights are dequantised to float32 and all arithmetic is float32, but for keys (behind rope) and values: these are rounded to the
16-bit type, to nearest even, the moment they are computed, and nothing attends to an unrounded one. Without rounding the same
forward must give what transformers' classes gave (tests/golden/smollm2.json), or nothing is written.
"""
import json
import math
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import torch

import judge

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL = ROOT / "models/smollm2-135m-q4_1.gguf"
TOKENS, STRIDE, TOP = 1024, 3, 256  # likeliest tokens of every third position: more would be over a megabyte
SETTINGS = (lambda x: x.half().float(), lambda x: x.bfloat16().float())


class Llama:
    def __init__(self, path):
        reader = gguf.GGUFReader(str(path))
        field = {name.removeprefix("llama."): field.contents() for name, field in reader.fields.items()}
        assert field["general.architecture"] == "llama", path
        self.weights = {}
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            self.weights[tensor.name] = torch.from_numpy(values.reshape([int(n) for n in reversed(tensor.shape)]).copy())
        self.layers, self.eps = field["block_count"], field["attention.layer_norm_rms_epsilon"]
        self.heads, self.kv_heads = field["attention.head_count"], field["attention.head_count_kv"]
        self.head_dim, self.rope_base = field["embedding_length"] // self.heads, field["rope.freq_base"]

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weights[name]

    def logits(self, ids, rounded):
        """[tokens, vocabulary]; `rounded` is what the cache makes of keys and values."""
        tokens, weights = len(ids), self.weights
        angle = torch.arange(tokens, dtype=torch.float64)[:, None] * self.rope_base ** (
            -torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]

        def turned(x):  # pairs (2i, 2i + 1)
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        x = weights["token_embd.weight"][ids]
        for layer in range(self.layers):
            w = {name: weights[f"blk.{layer}.{name}.weight"] for name in
                 ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
            h = self.norm(x, f"blk.{layer}.attn_norm.weight")
            q, k, v = ((h @ w[name].T).unflatten(-1, (-1, self.head_dim)) for name in ("attn_q", "attn_k", "attn_v"))
            q, k, v = turned(q), rounded(turned(k)), rounded(v)
            k, v = (each.repeat_interleave(self.heads // self.kv_heads, dim=1) for each in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(self.head_dim)
            mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -math.inf).softmax(-1), v)
            x = x + mixed.flatten(-2) @ w["attn_output"].T
            h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            x = x + (torch.nn.functional.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        return self.norm(x, "output_norm.weight") @ weights.get("output.weight", weights["token_embd.weight"]).T


def log_probabilities(logits):
    values = logits.numpy().astype(np.float64)
    values -= values.max()
    return values - np.log(np.exp(values).sum())


def check_forward(model):
    """Transformers' logits of all short prompts."""
    worst = worst_nll = 0.0
    for case in json.loads((ROOT / "tests/golden/smollm2.json").read_text())["cases"]:
        ids = case["ids"]
        if len(ids) > 160:
            continue
        logits = model.logits(ids, lambda x: x)
        worst = max([worst] + [abs(float(logits[-1, i]) - value) for i, value in case["top20"]])
        if len(ids) > 1:
            nll = -np.mean([log_probabilities(logits[i])[ids[i + 1]] for i in range(len(ids) - 1)])
            worst_nll = max(worst_nll, abs(nll - case["prompt_nll_mean"]))
    print(f"against transformers: logits within {worst:.1e}, prompt_nll_mean within {worst_nll:.1e}")
    if worst > 1e-3 or worst_nll > 1e-4:
        sys.exit("this forward is not transformers'; nothing was written")


def score(model, ids):
    """The arrays of smollm2_kv.npz; position p has what is predicted for token p from those before it."""
    positions = np.arange(STRIDE, len(ids), STRIDE, dtype=np.int32)
    found = {"ids": np.array(ids, np.int32), "positions": positions, "top": np.zeros((len(positions), TOP), np.uint16),
             "top_logprobs": np.zeros((2, len(positions), TOP), np.float32), "rest": np.zeros((2, len(positions)), np.float32),
             "logprob": np.zeros((2, len(ids) - 1), np.float32), "argmax": np.zeros((2, len(ids) - 1), np.int32)}
    for setting, rounded in enumerate(SETTINGS):
        logits = model.logits(ids, rounded)
        for position in range(1, len(ids)):
            row = log_probabilities(logits[position - 1])
            found["logprob"][setting, position - 1] = row[ids[position]]
            found["argmax"][setting, position - 1] = row.argmax()
            if position % STRIDE:
                continue
            i = position // STRIDE - 1
            if setting == 0:
                found["top"][i] = np.argsort(-row, kind="stable")[:TOP]
            found["top_logprobs"][setting, i] = row[found["top"][i]]
            found["rest"][setting, i] = np.log(np.exp(np.delete(row, found["top"][i])).sum())
    return found


def main():
    kvarto = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/dev/kvarto"
    said = subprocess.run([kvarto, "tokenize", MODEL, "--file", HERE / "text.txt", "--ids", "--bos", "--quiet"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    ids = json.loads(said)[:TOKENS]
    assert len(ids) == TOKENS, f"text.txt has only {len(ids)} tokens"
    torch.set_grad_enabled(False)
    model = Llama(MODEL)
    check_forward(model)
    golden = HERE / "smollm2_kv.npz"
    np.savez_compressed(golden, **score(model, ids))
    print(f"{golden.name}: {golden.stat().st_size} bytes; torch {torch.__version__}, numpy {np.__version__}")
    print(json.dumps(judge.judge_torch(golden), indent=1))


if __name__ == "__main__":
    main()
