"""Sums that stay seeded: half the size, exact, and strict about what is read."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.sealing import public, secret
from secure_fl.crypto.sealing.blind_sum import SealedInts
from secure_fl.crypto.sealing.public import MOST_SEEDS, SeededSum, from_parts, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError

KEY = secret.generate()
CONTEXT = public.load(KEY.public())
M = np.uint64(COHORT.modulus)


def half(count: int) -> int:
    """How many bytes come before the seeds."""
    return 1 + 7 * count


HALF = half(100)


def draw(count: int, seed: int, modulus: int = COHORT.modulus) -> Any:
    return np.random.default_rng(seed).integers(0, modulus, count, dtype=np.uint64)


def summed(parties: int, count: int = 100) -> tuple[list[bytes], Any]:
    """A sum that stayed seeded, and what it must open to."""
    total, vectors = SeededSum(CONTEXT, count), [draw(count, seed) for seed in range(parties)]
    for vector in vectors:
        total.add(secret.seal(KEY, vector))
    return total.result(), sum(vectors) % M


THREE = (summed(3)[0][0], summed(3)[1])


@pytest.mark.parametrize("parties", [1, 2, MOST_SEEDS])
@pytest.mark.parametrize("count", [1, 4097])
def test_a_seeded_sum_opens_exactly(parties: int, count: int) -> None:
    parts, expected = summed(parties, count)
    used = [4096, 1] if count > 4096 else [count]
    assert [len(part) for part in parts] == [half(one) + 64 * parties for one in used]
    assert np.array_equal(secret.open(KEY, parts, count, parties), expected)


def test_masks_come_off_the_first_half() -> None:
    total, x, mask = SeededSum(CONTEXT, 5000), draw(5000, 1), draw(5000, 2)
    for _ in range(3):
        total.add(secret.seal(KEY, x))
    total.subtract_plain(mask)
    expected = (3 * x + (M - mask)) % M
    assert np.array_equal(secret.open(KEY, total.result(), 5000, 3), expected)


def test_the_total_does_not_tell_who_answered_first() -> None:
    uploads = [secret.seal(KEY, draw(10, seed)) for seed in range(3)]
    results = set()
    for order in permutations(uploads):
        total = SeededSum(CONTEXT, 10)
        for upload in order:
            total.add(upload)
        results.add(total.result()[0])
    assert len(results) == 1


def test_a_bad_upload_leaves_the_sum_unchanged() -> None:
    good, other = (secret.seal(KEY, draw(9000, seed)) for seed in (1, 2))
    total = SeededSum(CONTEXT, 9000)
    total.add(good)
    before = total.result()
    full = public.Sum(CONTEXT, 9000)
    full.add(other)
    high = half(9000 - 2 * 4096) - 1  # the highest byte of the last coefficient
    beyond = other[2][:high] + b"\xff" + other[2][high + 1 :]
    longer = secret.seal(KEY, draw(9001, 2))
    shorter = secret.seal(KEY, draw(8999, 2))
    cut = [*other[:2], other[2][:-1]]
    for bad in (cut, shorter, longer, [*other[:2], beyond], other[:2], full.result(), []):
        with pytest.raises(CryptoError):
            total.add(bad)
    assert total.result() == before


@pytest.mark.parametrize("offered", [0, 1, 2, 4, MOST_SEEDS + 1])
def test_another_number_of_seeds_than_contributors_is_refused(offered: int) -> None:
    parts, _ = summed(3)
    with pytest.raises(CryptoError, match="contributors"):
        secret.open(KEY, parts, 100, offered)
    forged = parts[0][:HALF] + bytes(64 * offered)
    with pytest.raises(CryptoError, match="contributors"):
        secret.open(KEY, [forged], 100, 3)
    with pytest.raises(CryptoError):
        secret.open(KEY, [bytes((3,)) + bytes(64 * offered)], 100, offered)


def test_more_seeds_than_are_worth_it_are_refused() -> None:
    parties = MOST_SEEDS + 1
    parts, _ = summed(parties)
    with pytest.raises(CryptoError, match="contributors"):
        secret.open(KEY, parts, 100, parties)


def test_who_adds_and_who_scales_reads_no_seeded_sum() -> None:
    parts, _ = summed(2)
    for total in (public.Sum(CONTEXT, 100), SeededSum(CONTEXT, 100)):
        with pytest.raises(CryptoError):
            total.add(parts)


@settings(max_examples=60, deadline=None)
@given(
    change=st.sampled_from(["flip", "cut", "grow", "noise"]),
    at=st.one_of(st.integers(0, 100), st.integers(HALF - 5, HALF + 192)),
    bits=st.integers(1, 255),
    noise=st.binary(min_size=1, max_size=200),
)
def test_garbage_never_crashes(change: str, at: int, bits: int, noise: bytes) -> None:
    good, expected = THREE
    at %= len(good)
    bad = {
        "flip": good[:at] + bytes([good[at] ^ bits]) + good[at + 1 :],
        "cut": good[:at],
        "grow": good + noise,
        "noise": noise,
    }[change]
    try:
        opened = secret.open(KEY, [bad], 100, 3)
    except CryptoError:
        return
    assert change == "flip"
    # a low bit of the first half is mere noise; a seed decides over everything
    assert at < HALF or not np.array_equal(opened, expected)


@pytest.mark.parametrize(
    ("owners", "length"), [(MOST_SEEDS, half(10) + 64 * 3), (MOST_SEEDS + 1, half(10 + 4096))]
)
def test_large_cohorts_get_sums_in_full(owners: int, length: int) -> None:
    total = SealedInts(CONTEXT, owners, 10)
    for seed in range(3):
        total.add(from_parts(secret.seal(KEY, draw(10, seed))), 10)
    (part,) = to_parts(total.result(), 10)
    assert len(part) == length
    expected = sum(draw(10, seed) for seed in range(3)) % M
    assert np.array_equal(secret.open(KEY, [part], 10, 3), expected)
