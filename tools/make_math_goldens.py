#!/usr/bin/env python3
"""Numbers of src/base/simd_math.h and of the math and rope tests, computed with mpmath (pip install mpmath) at 60 digits.

Prints C++ literals; what is printed is pasted by hand, because it never changes.
"""
from mpmath import mp, mpf, exp, log, tanh, cos, sin, pi, floor, ceil, matrix, lu_solve

mp.dps = 60


def remez(f, weight, low, high, degree, rounds=12):
    """Coefficients (lowest first) of the polynomial p with the least maximum of |weight * (p - f)| on [low, high]."""
    n = degree + 2
    nodes = [(low + high) / 2 + (high - low) / 2 * cos(pi * (2 * i + 1) / (2 * n)) for i in range(n)][::-1]
    for _ in range(rounds):
        a = matrix(n, n)
        b = matrix(n, 1)
        for i, x in enumerate(nodes):
            for j in range(degree + 1):
                a[i, j] = x**j
            a[i, degree + 1] = (-1) ** i / weight(x)
            b[i] = f(x)
        coefficients = list(lu_solve(a, b))[:-1]
        grid = [low + (high - low) * i / 800 for i in range(801)]
        error = [weight(x) * (sum(c * x**j for j, c in enumerate(coefficients)) - f(x)) for x in grid]
        nodes, signs = [], 0
        best = 0
        for i in range(801):  # one extremum per run of equal sign
            sign = 1 if error[i] > 0 else -1
            if sign != signs:
                nodes.append(grid[i])
                best, signs = abs(error[i]), sign
            elif abs(error[i]) > best:
                nodes[-1], best = grid[i], abs(error[i])
        if len(nodes) != n:
            break
    return coefficients, max(abs(e) for e in error)


def f32(x):
    return float.hex(float(__import__("struct").unpack("f", __import__("struct").pack("f", float(x)))[0])).replace(
        "0000000p", "p") + "f"


def d(x):
    return repr(float(x))


def yarn(base, dims, factor, original, fast=32, slow=1):
    def correction(turns):
        return dims * log(mpf(original) / (2 * pi * turns)) / (2 * log(mpf(base)))

    low, high = max(floor(correction(fast)), 0), min(ceil(correction(slow)), dims - 1)
    out = []
    for i in range(dims // 2):
        ramp = min(max((i - low) / (high - low), 0), 1)
        out.append(mpf(base) ** (mpf(-2 * i) / dims) * ((1 - ramp) + ramp / factor))
    return out


half_ln2 = log(mpf(2)) / 2 * mpf("1.0001")
tiny = mpf(2) ** -200
c, e = remez(lambda r: (exp(r) - 1 - r) / r**2 if abs(r) > tiny else mpf(1) / 2, lambda r: max(r**2, mpf(1) / 10**6) / exp(r),
             -half_ln2, half_ln2, 4)
print("exp: e^r = 1 + r + r^2 (c2 + c3 r + ...), c2..c6, relative error", mp.nstr(e, 3))
print("  ", ", ".join(f32(x) for x in c))
c, e = remez(lambda z: (tanh(z**0.5) / z**0.5 - 1) / z, lambda z: z / (tanh(z**0.5) / z**0.5), mpf("1e-6"), mpf("0.4"), 4)
print("tanh: x + x^3 (t1 + t3 x^2 + ...), relative error", mp.nstr(e, 3))
print("  ", ", ".join(f32(x) for x in c))
print("ln2 upper, lower f32:", f32(mpf(float.fromhex("0x1.62e4p-1"))), f32(log(mpf(2)) - mpf(float.fromhex("0x1.62e4p-1"))))
print("log2(e):", f32(1 / log(mpf(2))), float.hex(float(1 / log(mpf(2)))))


def cut(x, bits):
    scale = mpf(2) ** (bits - 1 - floor(log(x, 2)))
    return floor(x * scale) / scale


for name, value, parts in (("pi/2", pi / 2, (30, 30, 53)), ("ln2", log(mpf(2)), (32, 53)), ("2/pi", 2 / pi, (53,))):
    rest, out = value, []
    for bits in parts:
        part = cut(rest, bits) if bits < 53 else mpf(float(rest))
        out.append(float.hex(float(part)))
        rest -= part
    print(name, ", ".join(out))

print("yarn factor 40, original 4096, base 10000, dims 64:")
print("  ", ", ".join(d(x) for x in yarn(10000, 64, 40, 4096)))
print("plain inverse frequencies, base 1e6, dims 128, i = 0, 1, 31, 63:")
print("  ", ", ".join(d(mpf(10) ** (mpf(6) * -2 * i / 128)) for i in (0, 1, 31, 63)))
print("cos, sin of position * base^(-2i/dims): (base, dims, i, position, cos, sin)")
for base, dims, i, position in ((10000, 64, 0, 1), (10000, 64, 1, 4095), (10000, 64, 31, 131071), (1000000, 128, 0, 1000000),
                                (1000000, 128, 7, 999983), (500000, 64, 3, 8388607), (1000000, 256, 100, 40000)):
    angle = position * mpf(base) ** (mpf(-2 * i) / dims)
    print(f"  {{{base}, {dims}, {i}, {position}, {d(cos(angle))}, {d(sin(angle))}}},")
print("sin and cos of doubles: {x, sin, cos}")
for x in (0.5, 1.5707963267948966, 3.141592653589793, 22.0, 355.0, 710.0, 1048576.0, 9999999.5, 8388607.0, 1e-9):
    print(f"  {{{x!r}, {d(sin(mpf(x)))}, {d(cos(mpf(x)))}}},")
