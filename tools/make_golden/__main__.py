#!/usr/bin/env python3
"""Writes the tiny random models (tests/tiny/NAME.gguf) and what they must compute (tests/tiny/NAME.json).

    python3 tools/make_golden [--out FOLDER] [--only NAME]...

Needs numpy, gguf, torch, transformers, tokenizers and jinja2 from PyPI (a venv will do; the CPU build of torch is
enough; the versions used are in tests/tiny/README.md). The tests never run it: its output is committed.

The goldens come from transformers' model classes in float32. Every one is checked here against numpy_forward (float64,
written separately), and each feature a model is there for is left out once to show that the logits notice.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

import gguf_file
import numpy_forward
import torch_model
import vocab
from specs import SPECS, VOCABULARY

LENGTHS = [1, 5, 16, 17, 33, 70, 130]
TRACED, WITH_LOGITS = "ids_17", "ids_70"
GREEDY, CANDIDATES, WANTED_GAP, POSITION_GAP = 24, 24, 0.05, 0.002
TEXT = ("Hello, world! It's 2024: the cache of caf\u00e9 N\u00b05 keeps \u4f60\u597d and \U0001f600.\n\n  def f(x):\n"
        "\treturn x")
MESSAGES = [{"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "It is Paris."},
            {"role": "user", "content": "And where is the cat?"}]
METHOD = ("random weights; dequantised to float32, float32 arithmetic in transformers' model classes, eager attention, "
          "greedy = argmax, eos ignored")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parents[2] / "tests" / "tiny"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("--only", action="append", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    options.out.mkdir(parents=True, exist_ok=True)
    for spec in SPECS:
        if options.only and spec.name not in options.only:
            continue
        path = options.out / f"{spec.name}.gguf"
        vocabulary = vocab.make(spec.tokenizer)
        assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == VOCABULARY
        gguf_file.write(spec, vocabulary, path)
        model = torch_model.load(path)
        cases = id_cases(model, spec, vocabulary) + text_cases(model, vocabulary)
        traced = next(c for c in cases if c["name"] == TRACED)
        golden = {"model": spec.name, "gguf": path.name, "method": METHOD, "cases": cases,
                  "layer_trace_case": TRACED, "layer_trace": layer_trace(model, traced["ids"])}
        write_json(golden, path.with_suffix(".json"))
        for file in (path, path.with_suffix(".json")):
            data = file.read_bytes()
            print(f"{hashlib.sha256(data).hexdigest()}  {file.name}  {len(data)}")
        verify(path, cases)


def id_cases(model, spec, vocabulary):
    return [{"name": f"ids_{n}", **choose_prompt(model, spec, n, vocabulary)} for n in LENGTHS]


def text_cases(model, vocabulary):
    rendered = vocab.render(vocabulary, MESSAGES)
    plain = vocab.encode(vocabulary, TEXT)
    chat = vocab.encode(vocabulary, rendered, parse_special=True, bos=False)
    cases = [{"name": "text", "text": TEXT, **evaluate(model, plain, vocabulary)}]
    if not vocabulary.space_prefix:  # where the prefix goes among control tokens is not what these cases test
        cases.append({"name": "chat", "messages": MESSAGES, "rendered": rendered, **evaluate(model, chat, vocabulary)})
    return cases


def choose_prompt(model, spec, length, vocabulary):
    """The first of some seeded prompts without near ties (greedy run, best token after each position), or else the one
    with the widest gap in the greedy run."""
    prompts = [np.random.default_rng([spec.seed, length, s]).integers(0, VOCABULARY, length).tolist()
               for s in range(CANDIDATES)]
    ids = torch.tensor(prompts)
    best = model(ids, use_cache=False).logits.topk(2).values
    clear = (best[..., 0] - best[..., 1]).min(dim=1).values > POSITION_GAP
    narrowest = torch.full((CANDIDATES,), float("inf"))
    for _ in range(GREEDY):
        best = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1].topk(2)
        narrowest = torch.minimum(narrowest, best.values[:, 0] - best.values[:, 1])
        ids = torch.cat([ids, best.indices[:, :1]], dim=1)
    wide = [s for s in range(CANDIDATES) if clear[s] and narrowest[s] > WANTED_GAP]
    seed = wide[0] if wide else int(narrowest.argmax())
    case = evaluate(model, prompts[seed], vocabulary, full_row=f"ids_{length}" == WITH_LOGITS)
    return {"seed": [spec.seed, length, seed], **case}


def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def evaluate(model, ids, vocabulary, full_row=False):
    logits = logits_of(model, ids)
    last = logits[-1]
    top = last.topk(20)
    case = {"n_prompt": len(ids), "ids": ids,
            "top20": [[i, v] for i, v in zip(top.indices.tolist(), top.values.tolist())],
            "logsumexp": float(last.double().logsumexp(0))}
    if len(ids) > 1:
        chosen = logits[:-1].double().log_softmax(-1)[range(len(ids) - 1), ids[1:]]
        case["prompt_nll_mean"] = float(-chosen.mean())
    case["argmax_each_pos"] = logits.argmax(-1).tolist()
    tokens, gaps = list(ids), []
    for _ in range(GREEDY):
        best = logits_of(model, tokens)[-1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
    case["greedy"], case["greedy_gap"] = tokens[len(ids):], gaps
    ends = [i for i, t in enumerate(case["greedy"]) if t == vocabulary.ids["eos"]]
    case["first_eos"] = ends[0] if ends else None
    if full_row:
        case["logits"] = last.tolist()
    return case


def layer_trace(model, ids):
    states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
    names = ["embedding"] + [f"layer {i}" for i in range(len(states) - 2)] + ["final norm"]
    return [{"after": name, "l2": float(s[0, -1].double().norm()), "first8": s[0, -1, :8].tolist()}
            for name, s in zip(names, states)]


def write_json(golden, path):
    """One case or trace entry a line; 7 significant digits."""

    def compact(value):
        if isinstance(value, float):
            return float(f"{value:.7g}")
        if isinstance(value, dict):
            return {k: compact(v) for k, v in value.items()}
        return [compact(v) for v in value] if isinstance(value, list) else value

    golden = compact(golden)
    lines = []
    for key, value in golden.items():
        if isinstance(value, list):
            body = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value)
            lines.append(f"{json.dumps(key)}: [\n{body}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def verify(path, cases):
    """Compares with the float64 forward and shows how far each left-out feature moves the last logits."""
    source = torch_model.Source(path)
    worst, worst_nll = 0.0, 0.0
    for case in cases:
        ids, n = case["ids"], case["n_prompt"]
        logits = numpy_forward.forward(source, ids + case["greedy"][:-1])
        worst = max(worst, max(abs(logits[n - 1, i] - v) for i, v in case["top20"]))
        expected = case["argmax_each_pos"][:-1] + case["greedy"]
        if logits.argmax(-1).tolist() != expected or case["argmax_each_pos"][-1] != case["greedy"][0]:
            sys.exit(f"{path.name}: {case['name']}: the two forwards choose different tokens")
        if n > 1:
            chosen = logits[range(n - 1), ids[1:]] - np.log(np.exp(logits[:n - 1]).sum(-1))
            worst_nll = max(worst_nll, abs(-chosen.mean() - case["prompt_nll_mean"]))
    longest = next(c for c in cases if c["name"] == f"ids_{LENGTHS[-1]}")["ids"]
    right = numpy_forward.forward(source, longest)[-1]
    moved = {f: float(np.abs(numpy_forward.forward(source, longest, f)[-1] - right).max())
             for f in numpy_forward.features(source)}
    gap = min(min(c["greedy_gap"]) for c in cases)
    print(f"  float32 - float64 {worst:.1e} (nll {worst_nll:.1e}), logit deviation {right.std():.2f}, "
          f"narrowest greedy gap {gap:.4f}; left out: " + ", ".join(f"{f} {m:.2f}" for f, m in moved.items()),
          flush=True)
    if worst > 2e-4 or worst_nll > 2e-5 or min(moved.values()) < 0.1:
        sys.exit(f"{path.name}: the two forwards disagree, or a feature does not show in the logits")


if __name__ == "__main__":
    main()
