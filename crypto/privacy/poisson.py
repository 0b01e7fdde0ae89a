"""Poisson and Skellam samples from the operating system's randomness.

numpy's generators are statistical, not secret, so uniforms come from AES-256-CTR under a fresh OS
key. The sampler is Hörmann's PTRS (Insurance: Mathematics and Economics 12, 1993) above a mean of
10 and inversion below, with log probabilities in Loader's form, exact to ~1e-9 up to means of 1e12
(the usual k·log λ - λ - log k! loses all digits there).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secure_fl.errors import CryptoError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Uniforms = Callable[[int], Floats]  # n numbers in (0, 1)
SMALL_MEAN = 10.0
LARGEST_VARIANCE = 1e12


def secure_uniforms() -> Uniforms:
    """Make a source of uniforms with 53 bits each, keyed afresh by the operating system."""
    stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()

    def draw(n: int) -> Floats:
        words = np.frombuffer(stream.update(bytes(8 * n)), dtype=np.uint64) >> np.uint64(11)
        return (words.astype(np.float64) + 0.5) * 2.0**-53

    return draw


def skellam(variance: float, size: int, uniforms: Uniforms | None = None) -> Integers:
    """Poisson(variance/2) - Poisson(variance/2): integers of mean 0. Tests alone pass uniforms."""
    if not 0 <= variance <= LARGEST_VARIANCE:
        raise CryptoError(
            f"a Skellam variance of {variance:g} is out of range",
            fix=f"lower the scale so that the variance stays below {LARGEST_VARIANCE:g}",
        )
    draw = uniforms or secure_uniforms()
    return poisson(variance / 2, size, draw) - poisson(variance / 2, size, draw)


def poisson(mean: float, size: int, draw: Uniforms) -> Integers:
    """Draw independent Poisson samples."""
    if mean < SMALL_MEAN:
        return _by_inversion(mean, size, draw)
    out = np.empty(size, dtype=np.int64)
    open_slots = np.arange(size)
    while open_slots.size:
        k, accepted = _ptrs_trial(mean, draw(open_slots.size), draw(open_slots.size))
        out[open_slots[accepted]] = k[accepted]
        open_slots = open_slots[~accepted]
    return out


def _by_inversion(mean: float, size: int, draw: Uniforms) -> Integers:
    k = np.arange(80)  # at mean 10 the tail beyond has mass below 1e-40
    mass = np.exp(-mean + k * math.log(mean) - _log_factorial(k)) if mean > 0 else 1.0 * (k == 0)
    return np.searchsorted(np.cumsum(mass), draw(size)).astype(np.int64)


def _ptrs_trial(mean: float, u: Floats, v: Floats) -> tuple[Integers, NDArray[np.bool_]]:
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    whole = math.floor(mean)  # added as an integer, so that no bit of the proposal is lost
    u = u - 0.5
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + (mean - whole) + 0.43).astype(np.int64) + whole
    sure = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    test = ~sure & (k >= 0) & ((us >= 0.013) | (v <= us))
    weight = np.log(v[test] * inverse_alpha / (a / us[test] ** 2 + b))
    accepted = sure
    accepted[test] = weight <= _log_mass(k[test], mean)
    return k, accepted


def _log_mass(k: Integers, mean: float) -> Floats:
    """Loader's saddle point form of log(mean^k e^-mean / k!)."""
    x = (k - mean) / mean
    with np.errstate(divide="ignore", invalid="ignore"):
        deviance = mean * ((1 + x) * np.log1p(x) - x)
        main = -0.5 * np.log(2 * math.pi * k) - deviance - _stirling_error(k)
    return np.where(k == 0, -mean, main)


def _stirling_error(k: Integers) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        n = k.astype(np.float64)
        series = (1 / 12 - (1 / 360 - 1 / (1260 * n * n)) / (n * n)) / n
        exact = _log_factorial(k) - (n + 0.5) * np.log(n) + n - 0.5 * math.log(2 * math.pi)
    return np.where(k < 30, exact, series)


def _log_factorial(k: Integers) -> Floats:
    table = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, 80.0)))))
    return np.asarray(table[np.minimum(k, 79)], dtype=np.float64)
