#!/usr/bin/env python3
"""The independent judge of `kvarto eval`: figures of texts once more, by NumPy and none of Kvarto's code. Prints JSON.

    judge.py DUMP                   each setting of DUMP/logprobs/SETTING-TEXT.npy against setting 0. The last one must be the
                                    noise floor: dumps of a run with candidates have it
    judge.py --torch GOLDEN [DUMP]  PyTorch's two settings; with DUMP also its first two, and how far they are from PyTorch's
"""
import json
import pathlib
import sys

import numpy as np

RESAMPLES, SEED, STRETCH = 10_000, 20_231, 64  # stretches of 64 positions are drawn: neighbours hang together
ROW = np.dtype([("position", "<i4"), ("token", "<i4"), ("argmax", "<i4"), ("logprob", "<f4"), ("rest", "<f4"),
                ("ids", "<i4", (256,)), ("logprobs", "<f4", (256,))])


def splitmix_at(seed, i):  # number i, an array of uint64, of SplitMix64; sums and products wrap around
    x = np.uint64(seed) + i * np.uint64(0x9e3779b97f4a7c15)
    for shift, factor in ((30, 0xbf58476d1ce4e5b9), (27, 0x94d049bb133111eb)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def quantile(values, q):  # linear between the neighbours at q * (n - 1)
    values, at = np.sort(values), q * (len(values) - 1)
    low = values[int(at)]
    return float(low + at % 1 * (values[int(np.ceil(at))] - low))


def interval(stretches, values):  # mean and 95 % percentile bootstrap; `stretches` has the number of each position's stretch
    sums, counts, units = np.bincount(stretches, values), np.bincount(stretches), int(stretches.max()) + 1
    i = np.arange(1, RESAMPLES * units + 1, dtype=np.uint64).reshape(RESAMPLES, units)
    drawn = (splitmix_at(SEED, i) >> np.uint64(32)) * np.uint64(units) >> np.uint64(32)
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    return [float(sums.sum() / counts.sum()), quantile(means, .025), quantile(means, .975)]


def divergence(baseline, candidate):  # KL(baseline || candidate) of each row: the baseline's 256 likeliest tokens, and the rest
    assert all((baseline[name] == candidate[name]).all() for name in ("position", "token", "ids"))
    p, q = (np.column_stack([rows["logprobs"], rows["rest"]]).astype(float) for rows in (baseline, candidate))
    with np.errstate(invalid="ignore"):  # what has no probability adds nothing: -infinity - -infinity
        return np.where(np.isneginf(p), 0, np.exp(p) * (p - q)).sum(1)


def figures(baseline, candidate, noise_floor):  # of lists of rows, one entry per text
    text = np.repeat(np.arange(len(baseline)), [len(rows) for rows in baseline])
    baseline, candidate, noise_floor = (np.concatenate(rows) for rows in (baseline, candidate, noise_floor))
    at = candidate["position"]
    stretches = np.unique(text << 32 | (at - 1) // STRETCH, return_inverse=True)[1]
    nll, before = (-rows["logprob"].astype(float) for rows in (candidate, baseline))
    kl, same = divergence(baseline, candidate), (baseline["argmax"] == candidate["argmax"]).astype(float)
    excess, buckets, low, high = kl - divergence(baseline, noise_floor) * kl.any(), [], 1, 256
    while low <= at.max():
        here = (low <= at) & (at < high)
        buckets.append({"from": low, "tokens": int(here.sum()), "nll_nats": nll[here].mean(),
                        "kl_mean_nats": kl[here].mean(), "kl_excess_nats": excess[here].mean(),
                        "kl_p99_nats": quantile(kl[here], .99), "same_top_share": same[here].mean()})
        low, high = high, 2 * high
    likely, difference, divergent, beyond, agree = (interval(stretches, v) for v in (nll, nll - before, kl, excess, same))
    return {"tokens": len(kl), "nll_nats": likely, "perplexity": np.exp(likely).tolist(), "nll_difference_nats": difference,
            "perplexity_ratio": np.exp(difference).tolist(), "kl_mean_nats": divergent, "kl_excess_nats": beyond,
            "kl_p99_nats": quantile(kl, .99), "kl_max_nats": kl.max(), "same_top_share": agree, "positions": buckets}


def read_dump(folder):  # [setting][text] -> rows
    paths = {tuple(map(int, p.stem.split("-"))): p for p in pathlib.Path(folder, "logprobs").glob("*-*.npy")}
    settings, texts = (1 + max(numbers) for numbers in zip(*paths))
    rows = [[np.load(paths[setting, text]) for text in range(texts)] for setting in range(settings)]
    assert all(each.dtype == ROW for setting in rows for each in setting), f"{folder}: not rows of `kvarto eval --dump`"
    return rows


def judge_dump(folder):
    *settings, noise_floor = read_dump(folder)
    return [figures(settings[0], rows, noise_floor) for rows in settings]


def judge_torch(path, dump=None):
    golden = dict(np.load(path))
    at, rows = golden["positions"], np.zeros((2, len(golden["positions"])), ROW)
    rows["position"], rows["token"], rows["ids"] = at, golden["ids"][at], golden["top"]
    rows["rest"], rows["logprobs"] = golden["rest"], golden["top_logprobs"]
    rows["argmax"], rows["logprob"] = golden["argmax"][:, at - 1], golden["logprob"][:, at - 1]
    found = {"torch": figures(rows[:1], rows[1:], rows[:1])}
    if dump:
        whole = np.array([setting[0] for setting in read_dump(dump)[:2]])  # of all tokens
        assert (whole["token"] == golden["ids"][1:]).all(), "the dump is of other tokens"
        found["dump"] = figures(whole[:1, at - 1], whole[1:, at - 1], whole[:1, at - 1])
        apart = golden["logprob"].astype(float) - whole["logprob"]
        found["distance"] = {"logprob_max": np.abs(apart).max(1).tolist(), "logprob_mean": np.abs(apart).mean(1).tolist(),
                             "perplexity": np.expm1(-apart.mean(1)).tolist(),
                             "same_top": (golden["argmax"] == whole["argmax"]).mean(1).tolist()}
    return found


if __name__ == "__main__":
    print(json.dumps(judge_torch(*sys.argv[2:]) if sys.argv[1] == "--torch" else judge_dump(sys.argv[1]), indent=1))
