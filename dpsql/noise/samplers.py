"""Exact noise from the operating system's randomness. No other module of dpsql draws randomness.

Both distributions are sampled exactly: every probability is compared with a uniform number whose digits are drawn one
after another, until the digits drawn so far decide. No probability is ever rounded.

Nothing is buffered between calls. The kernel is fast enough, and without state two forked workers or two threads can
never share random bytes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import isqrt, log, sqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpsql.tables import Integers

# At these caps a draw leaves 64 bits with probability below exp(-8191), about 10**-3557.
MAX_LAPLACE_SCALE = Fraction(2**50)
MAX_GAUSSIAN_VARIANCE = Fraction(2**100)

MAX_CANDIDATES = 2**30
# Candidates are proposed with weights 1, 1/2, 1/4 … down to 2**-40, or as far as 62 bits hold their sum.
_LEVELS, _WEIGHT_BITS = 40, 62

# Allowed error of the floating-point estimate of an acceptance probability. Its true error is below 2**-40; the wide
# band costs about two exact decisions in a million draws.
_BAND = 2.0**-20

# Base-256 digits of a probability that are computed together.
_DIGITS = 8

# Extra bits of precision. So few that bounds sometimes disagree and are computed again: a path that is never taken is
# never tested.
_SPARE = 4

# Random bytes drawn together: large enough for numpy, small enough for the processor's cache.
_BLOCK = 1 << 19

# Losses of candidates: integers, Python's own where 64 bits do not hold them.
Losses = npt.NDArray[np.int64] | npt.NDArray[np.object_]
# The exact loss of the candidate at a position, where its run only gives a lower bound.
Exact = Callable[[int], int]

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float64]


class Sampler(Protocol):
    """The source of noise and secrets."""

    def discrete_laplace(self, scale: Fraction, size: int) -> Integers:
        """Independent draws with P(x) proportional to exp(-|x| / scale)."""
        ...

    def discrete_gaussian(self, variance: Fraction, size: int) -> Integers:
        """Independent draws with P(x) proportional to exp(-x² / (2 · variance))."""
        ...

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        """The place of one candidate of P proportional to exp(-loss / scale); of losses[i] there are widths[i].

        With `exact`, which gives the loss of the candidate at a position, losses[i] are lower bounds.
        """
        ...

    def salt(self) -> str:
        """A fresh secret of 128 bits, in hexadecimal."""
        ...


class SystemSampler:
    """The sampler used in production: exact distributions, randomness of the operating system."""

    def discrete_laplace(self, scale: Fraction, size: int) -> Integers:
        """Independent draws with P(x) proportional to exp(-|x| / scale).

        Claim: the law is exact for every rational scale in (0, 2**50].
        Because: see `_laplace`.
        Needs: the scale in that range (checked here), so that 64 bits hold every draw.
        """
        if not 0 < scale <= MAX_LAPLACE_SCALE:
            raise ValueError("scale of the Laplace law must be positive and at most 2**50")
        return _laplace(scale, size)

    def discrete_gaussian(self, variance: Fraction, size: int) -> Integers:
        """Independent draws with P(x) proportional to exp(-x² / (2 · variance)).

        Claim: the law is exact for every rational variance in (0, 2**100].
        Because: rejection (Canonne, Kamath, Steinke 2020, algorithm 3). A proposal y has the discrete Laplace law of
        the integer scale t, and stays with probability exp(-(|y| - variance/t)² / (2 · variance)). The product of
        both is exp(-y² / (2 · variance)) times a constant. How many proposals are made, and which surplus is
        dropped, does not depend on the values of those that stay.
        Needs: exact proposals (`_laplace`), exact acceptance (`_accepted`), and the variance in that range (checked
        here), so that 64 bits hold every draw.
        """
        if not 0 < variance <= MAX_GAUSSIAN_VARIANCE:
            raise ValueError("variance of the Gaussian law must be positive and at most 2**100")
        # Any t gives the right law; the smallest integer above the deviation wastes few proposals.
        t = isqrt(int(variance)) + 1
        draws = np.empty(size, np.int64)
        filled = 0
        while filled < size:
            missing = size - filled
            proposals = _laplace(Fraction(t), min(missing + missing // 2 + 8, _BLOCK))
            kept = proposals[_accepted(np.abs(proposals), variance, t)][:missing]
            draws[filled : filled + kept.size] = kept
            filled += kept.size
        return draws

    def exponential(self, widths: Integers, losses: Losses, scale: Fraction, exact: Exact | None = None) -> int:
        """The place of one candidate, each with P proportional to exp(-loss / scale); of losses[i] there are widths[i].

        Claim: the law is exact.
        Because: rejection. Less the least of them, a loss x (in scales) is proposed with weight 2**-k for an integer
        k with 2**-k >= exp(-x), and stays with probability exp(-x) · 2**k. The product of both is exp(-x). Weights are
        whole multiples of 2**-deepest, so that proposals are drawn among integers. Most stay: k is the largest of its
        kind, but for candidates so bad that hardly any is ever proposed. Where a candidate loses more than its run
        says (`exact`), k is that of the run: smaller, and as right.
        Needs: k not too large. It is floor(x / ln 2), computed in doubles and made smaller by far more than their
        rounding. At most 2**30 candidates (checked here), so that 64 bits hold the sum of all weights.
        """
        if scale <= 0 or not 0 < (total := int(widths.sum())) <= MAX_CANDIDATES:
            raise ValueError("a choice needs a positive scale and at most 2**30 candidates")
        deepest = min(_LEVELS, _WEIGHT_BITS - total.bit_length())
        least = int(losses.min())
        losses = losses - least
        halvings = losses.astype(np.float64) / (float(scale) * log(2)) * (1 - 2.0**-40)
        levels = np.minimum(np.floor(halvings), deepest).astype(np.int64)
        ends = np.cumsum(widths << (deepest - levels))
        while True:
            drawn = secrets.randbelow(int(ends[-1]))
            run = int(np.searchsorted(ends, drawn, side="right"))
            level = int(levels[run])
            before = int(ends[run]) - (int(widths[run]) << (deepest - level))
            place = int(widths[:run].sum()) + (drawn - before >> (deepest - level))
            loss = int(losses[run]) if exact is None else exact(place) - least
            if _uniform_below_exp(loss / scale, 0, 0, level):
                return place

    def salt(self) -> str:
        """A fresh secret of 128 bits, in hexadecimal."""
        return secrets.token_hex(16)


def _random_bytes(count: int) -> _Bytes:
    return np.frombuffer(os.urandom(count), np.uint8)


def _laplace(scale: Fraction, size: int) -> Integers:
    """Draws from the discrete Laplace distribution, composed of independent coins.

    Claim: P(x) is proportional to r**|x|, with r = exp(-1 / scale).
    Because: let g >= 0 have P(g) = (1 - r) · r**g.
        (1) With probability r / (1 + r) return -1 - g, else g. Then P(x) = (1 - r) / (1 + r) · r**|x| on both sides.
        (2) Write g = carry · 2**w + (b_{w-1} … b_0) in binary. r**g is a product with one factor for the carry and
        one for each bit, so these are independent: bit j is 1 with probability r**(2**j) / (1 + r**(2**j)), and the
        carry is geometric: it grows by one as long as a coin of probability r**(2**w) shows heads.
        So every choice is a coin of one of the forms of `_digits`, tossed exactly by `_toss`.
    Needs: scale <= 2**50 + 1 (the caller's caps), so that w <= 53 and 64 bits hold the draw.
    """
    draws = np.empty(size, np.int64)
    coins = _digits(scale, 0).shape[1]
    step = max(1, _BLOCK // coins)
    for start in range(0, size, step):
        part = draws[start : start + step]
        heads = _toss(scale, part.size)
        negative, bits, carry = heads[:, 0], heads[:, 1:-1], heads[:, -1]
        part[:] = _integers(bits)
        growing = np.flatnonzero(carry)
        while growing.size:
            part[growing] += 1 << bits.shape[1]
            growing = growing[_toss(scale, growing.size, slice(-1, None))[:, 0]]
        part ^= -negative.astype(np.int64)  # -1 - g is the complement of g
    return draws


def _integers(bits: _Flags) -> Integers:
    """Each row's bits, lowest first, as one integer."""
    octets = np.zeros((len(bits), 8), np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view("<i8")[:, 0].astype(np.int64)


def _toss(scale: Fraction, count: int, chosen: slice = slice(None)) -> _Flags:
    """Toss the chosen coins of `_digits` `count` times: one row per toss, one column per coin.

    Claim: the tosses are independent, and each shows heads with exactly its coin's probability p.
    Because: heads means U < p for a uniform U whose base-256 digits are drawn from the first on. The first digit
    that differs from p's decides, whatever follows; while all digits are equal, one more is drawn.
    Needs: independent uniform bytes; p's digits exact, and p irrational, so that U and p do differ.
    """
    digits = _digits(scale, 0)[:, chosen]
    coins = digits.shape[1]
    drawn = _random_bytes(count * coins).reshape(count, coins)
    heads: _Flags = drawn < digits[0]
    flat = heads.reshape(-1)
    tied = np.flatnonzero(drawn == digits[0])
    depth = 1
    while tied.size:
        block, offset = divmod(depth, _DIGITS)
        digit = _digits(scale, block)[offset, chosen][tied % coins]
        more = _random_bytes(tied.size)
        flat[tied] = more < digit
        tied = tied[more == digit]
        depth += 1
    return heads


@lru_cache(maxsize=1024)
def _digits(scale: Fraction, block: int) -> _Bytes:
    """The base-256 digits of the probabilities of `_laplace`'s coins: sign, bits from the lowest on, carry.

    One column per coin; the rows are the digits from `block * _DIGITS` on.

    Claim: the digits are those of the probability itself.
    Because: they are read off lower and upper bounds that agree on all of them.
    Needs: correct bounds (`exp_bounds`); an irrational probability, so that close bounds do agree. It is one:
    e to a rational power other than 0 is transcendental.
    """
    # 2**width >= 4 · scale: fewer than one draw in fifty carries.
    width = max(0, (-(-4 * scale.numerator // scale.denominator) - 1).bit_length())
    length = 8 * _DIGITS * (block + 1)
    rate = 1 / scale
    floors = [_logistic_floor(rate, length)]
    floors += [_logistic_floor(rate * 2**bit, length) for bit in range(width)]
    floors += [_exp_floor(rate * 2**width, length)]
    rows = [(floor % 256**_DIGITS).to_bytes(_DIGITS, "big") for floor in floors]
    return np.ascontiguousarray(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, _DIGITS).T)


def _exp_floor(x: Fraction, length: int) -> int:
    """floor(p · 2**length) for p = exp(-x), x > 0."""
    precision = length + _SPARE
    while True:
        low, high = (bound >> (precision - length) for bound in exp_bounds(x, precision))
        if low == high:
            return low
        precision += 64


def _logistic_floor(x: Fraction, length: int) -> int:
    """floor(p · 2**length) for p = exp(-x) / (1 + exp(-x)), x > 0."""
    precision = length + _SPARE
    while True:
        # p grows with exp(-x), so bounds of the one give bounds of the other.
        low, high = ((bound << length) // ((1 << precision) + bound) for bound in exp_bounds(x, precision))
        if low == high:
            return low
        precision += 64


def exp_bounds(x: Fraction, precision: int) -> tuple[int, int]:
    """Integers around exp(-x) · 2**precision, for x >= 0 and precision > 0; they are at most 2 apart.

    Claim: low <= exp(-x) · 2**precision <= high.
    Because: integer arithmetic in which each step rounds the lower bound down and the upper bound up. With y = x
    / 2**halvings < 2**-8: exp(y) from its Taylor series, whose terms after any one add up to less than that one;
    its reciprocal; squared `halvings` times. For x >= precision, exp(-x) < 2**-precision.
    Needs: nothing. The width of the result is a matter of speed only: callers ask for more precision if bounds do
    not decide.
    """
    if x >= precision:
        return 0, 1
    # A fraction is below 2 to the power of: bits of its numerator, minus bits of its denominator, plus one.
    halvings = 8 + max(0, x.numerator.bit_length() - x.denominator.bit_length() + 1)
    working = precision + halvings + 16
    y_low = (x.numerator << working) // (x.denominator << halvings)
    y_high = y_low + 1
    low = high = term_low = term_high = 1 << working
    index = 1
    while term_high > 1:
        term_low = term_low * y_low // (index << working)
        term_high = -(-term_high * y_high // (index << working))
        low += term_low
        high += term_high
        index += 1
    high += term_high
    low, high = (1 << 2 * working) // high, (1 << 2 * working) // low + 1
    for _ in range(halvings):
        low, high = low * low >> working, (high * high >> working) + 1
    spare = working - precision
    return low >> spare, (high >> spare) + 1


def _accepted(sizes: Integers, variance: Fraction, t: int) -> _Flags:
    """Which proposals of `discrete_gaussian` stay, given their absolute values.

    Claim: each stays with probability exactly p = exp(-(|y| - variance/t)² / (2 · variance)), independently.
    Because: it stays iff U < p for a uniform U of which 32 bits are drawn first. The estimate of p is within the
    band of p; a U whose known bits place it outside the band around the estimate lies on the same side of p
    itself. All others are decided by `_uniform_below_exp`, which continues the same U.
    Needs: an estimate within the band (`_estimate`).
    """
    known = np.frombuffer(os.urandom(4 * sizes.size), np.uint32)
    uniform = known * 2.0**-32
    estimate = _estimate(sizes, variance, t)
    accepted = uniform + 2.0**-32 <= estimate - _BAND
    rejected = uniform >= estimate + _BAND
    for index in np.flatnonzero(~(accepted | rejected)):
        exponent = (int(sizes[index]) - variance / t) ** 2 / (2 * variance)
        accepted[index] = _uniform_below_exp(exponent, int(known[index]), 32)
    return accepted


def _estimate(sizes: Integers, variance: Fraction, t: int) -> _Floats:
    """The acceptance probability exp(-z²), z = (|y| - variance/t) / sqrt(2 · variance), in floating point.

    Claim: its absolute error is below 2**-40, far inside the band.
    Because: each operation up to z has a relative error of at most 2**-53, and since variance/t <
    sqrt(variance), no intermediate value exceeds (|z| + 1) · sqrt(2 · variance), or |z| + 1 once divided. So z is
    off by less than (|z| + 1) · 2**-49. The slope of exp(-z²) times (|z| + 1) is below 2, which leaves an error
    below 2**-47, also where |y| > 2**53 is itself rounded. Variances below 2**-100 are estimated as 2**-100: for
    y = 0 both have p > 1 - 2**-100, for others both have p < 2**-100.
    Needs: t = floor(sqrt(variance)) + 1; IEEE 754 doubles; numpy's exp within 2**-41 (it is within a few 2**-53).
    """
    bounded = max(variance, Fraction(1, 2**100))
    z = (sizes - float(bounded / t)) / sqrt(float(2 * bounded))
    return np.exp(-(z * z))


def _uniform_below_exp(x: Fraction, known: int, bits: int, doublings: int = 0) -> bool:
    """Whether U < exp(-x) · 2**doublings, for a uniform U whose first `bits` bits are `known`; more are drawn at need.

    Claim: the answer is right for U, so over all U it is yes with exactly that probability, where it is one.
    Because: known <= U · 2**bits < known + 1, and this interval lies wholly on one side of the bounds.
    Needs: correct bounds, at most a constant apart (`exp_bounds`), so that each round leaves fewer U undecided.
    """
    while True:
        if bits:
            low, high = exp_bounds(x, bits + doublings)
            if known + 1 <= low:
                return True
            if known >= high:
                return False
        known = known << 32 | int.from_bytes(os.urandom(4), "big")
        bits += 32
