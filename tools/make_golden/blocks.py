"""Random matrices in GGUF formats. The gguf package has no encoders for K-quants, so those blocks are drawn directly:
random quants and group scales under half-float scales that give the wanted standard deviation.

Nothing here sums floats: the bytes depend on the seed alone, not on the CPU.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

# Deviation of the decoded values of the blocks below for d = 1.
UNIT_DEVIATION = {"Q2_K": 11.5, "Q3_K": 43.5, "Q4_K": 195.0, "Q5_K": 390.0, "Q6_K": 1375.0, "IQ4_XS": 1270.0,
                  "IQ4_NL": 68.0}


def random_matrix(rng, kind, rows, columns, deviation):
    """Bytes (or floats for F16 and F32) of a [rows, columns] matrix of mean about 0, for GGUFWriter.add_tensor."""
    if kind in UNIT_DEVIATION:
        elements, size = gguf.GGML_QUANT_SIZES[T[kind]]
        count = rows * columns // elements
        d = deviation / UNIT_DEVIATION[kind] * rng.uniform(0.75, 1.25, count)
        blocks = _DRAW[kind](rng, count, d)
        assert blocks.shape == (count, size) and columns % elements == 0, (kind, columns)
        return blocks.reshape(rows, -1)
    values = (rng.standard_normal((rows, columns)) * deviation).astype(np.float32)
    if kind == "F16":
        return values.astype(np.float16)
    return gguf.quants.quantize(values, T[kind])


def _half(values):
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _bytes(rng, count, size):
    return rng.integers(0, 256, (count, size), dtype=np.uint8)


def _draw_q2_k(rng, count, d):
    scale = rng.integers(4, 16, (count, 16))
    minimum = np.clip(scale + rng.integers(-1, 2, scale.shape), 0, 15)
    packed = (scale | minimum << 4).astype(np.uint8)
    return np.hstack([packed, _bytes(rng, count, 64), _half(d), _half(d * 1.5)])


def _draw_q3_k(rng, count, d):
    return np.hstack([_bytes(rng, count, 108), _half(d)])


def _six_bit_pairs(rng, count):
    """Eight 6-bit scales and minima in 12 bytes; minima near the scales keep the decoded mean near 0."""
    s = rng.integers(16, 64, (count, 8))
    m = np.clip(s + rng.integers(-3, 4, s.shape), 0, 63)
    first = s[:, :4] | (s[:, 4:] >> 4) << 6
    second = m[:, :4] | (m[:, 4:] >> 4) << 6
    third = (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return np.hstack([first, second, third]).astype(np.uint8)


def _draw_q4_k(rng, count, d):
    return np.hstack([_half(d), _half(d * 7.5), _six_bit_pairs(rng, count), _bytes(rng, count, 128)])


def _draw_q5_k(rng, count, d):
    return np.hstack([_half(d), _half(d * 15.5), _six_bit_pairs(rng, count), _bytes(rng, count, 160)])


def _draw_q6_k(rng, count, d):
    return np.hstack([_bytes(rng, count, 208), _half(d)])


def _draw_iq4_xs(rng, count, d):
    return np.hstack([_half(d), _bytes(rng, count, 134)])


def _draw_iq4_nl(rng, count, d):
    return np.hstack([_half(d), _bytes(rng, count, 16)])


_DRAW = {
    "Q2_K": _draw_q2_k, "Q3_K": _draw_q3_k, "Q4_K": _draw_q4_k, "Q5_K": _draw_q5_k, "Q6_K": _draw_q6_k,
    "IQ4_XS": _draw_iq4_xs, "IQ4_NL": _draw_iq4_nl,
}
