#!/usr/bin/env python3
"""The expected figures of src/eval/stats_test.cc and report_test.cc, from the words in src/eval/stats.h and report.h.

Plain integers and fractions, none of our code: `python3 tests/eval/resample.py`.
"""
import math
from fractions import Fraction

MASK = (1 << 64) - 1
RESAMPLES, SEED, STRETCH = 10_000, 20_231, 64


def number(i):
    """Number i >= 1 of SplitMix64 from SEED."""
    z = (SEED + i * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def quantile(ordered, q):
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def bootstrap(sums, counts):
    """Of a mean: sum of sums over sum of counts."""
    units, values = len(sums), []
    for r in range(RESAMPLES):
        drawn = [((number(r * units + j + 1) >> 32) * units) >> 32 for j in range(units)]
        below = sum(counts[i] for i in drawn)
        if below:
            values.append(sum(sums[i] for i in drawn) / below)
    values.sort()
    return sum(sums) / sum(counts), quantile(values, 0.025), quantile(values, 0.975)


def mcnemar(lost, gained):
    n = lost + gained
    tail = sum(math.comb(n, i) for i in range(min(lost, gained) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))


def show(name, values):
    print(name, *(repr(float(v)) for v in values))


show("five", bootstrap([1, 2, 4, 8, 3], [1, 1, 2, 1, 3]))
show("zeros among counts", bootstrap([5, 7, 1], [0, 0, 1]))
show("37", bootstrap([i * i * 7 % 101 - 50 for i in range(37)], [1 + i % 5 for i in range(37)]))
for pair in [(0, 0), (1, 0), (5, 0), (6, 0), (8, 1), (10, 3), (25, 12), (33, 33), (700, 600), (2000, 1500), (900, 0)]:
    show(f"mcnemar{pair}", [mcnemar(*pair)])

# Answers: NLL per token without the context, of the baseline, of the candidate; in the order of the tasks' ids.
FLOOR, BEFORE, NOW = [3.0, 2.0, 4.0, 2.5], [0.5, 0.25, 1.0, 0.0], [0.5, 0.5, 2.0, 0.25]
show("retention", bootstrap([f - n for f, n in zip(FLOOR, NOW)], [f - b for f, b in zip(FLOOR, BEFORE)]))
show("retention without floor", map(math.exp, bootstrap([b - n for b, n in zip(BEFORE, NOW)], [1] * 4)))
show("drop, 1 lost of 4", bootstrap([0, 0, 1, 0], [1] * 4))
# The first and the third share a text.
left, worth = [f - n for f, n in zip(FLOOR, NOW)], [f - b for f, b in zip(FLOOR, BEFORE)]
show("retention by groups", bootstrap([left[0] + left[2], left[1], left[3]], [worth[0] + worth[2], worth[1], worth[3]]))
show("drop by groups", bootstrap([1, 0, 0], [2, 1, 1]))
show("retention, no floor of the second", bootstrap([left[0], *left[2:]], [worth[0], *worth[2:]]))

# Texts of 300 and 100 positions: NLL (k * k mod 97) / 32 and ((k + 1)^2 mod 97) / 32, divergence (k mod 5) / 64.
nll = [[((k + t) ** 2 % 97) / 32 for k in range(length)] for t, length in enumerate([300, 100])]
stretches = [text[at:at + STRETCH] for text in nll for at in range(0, len(text), STRETCH)]
show("stretches", [len(stretches)])
show("nll", bootstrap([sum(stretch) for stretch in stretches], [len(stretch) for stretch in stretches]))
kl = [[(k % 5) / 64 for k in range(len(text))] for text in nll]
kl_stretches = [text[at:at + STRETCH] for text in kl for at in range(0, len(text), STRETCH)]
show("kl", bootstrap([sum(stretch) for stretch in kl_stretches], [len(stretch) for stretch in kl_stretches]))
for low, high in [(1, 256), (256, 512)]:
    inside = [(n, d) for texts in zip(nll, kl) for k, (n, d) in enumerate(zip(*texts)) if low <= k + 1 < high]
    show(f"bucket {low}", [len(inside), sum(n for n, _ in inside) / len(inside), sum(d for _, d in inside) / len(inside)])
