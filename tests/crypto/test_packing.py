"""Packing: exact sums, unbiased rounding, an honest residual, and refusal of what does not fit."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.sealing import packing
from secure_fl.crypto.sealing.packing import Codec
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError
from tests.support.raising import raises

PRIME42 = 4398046486529  # another prime, of 42 bits

codecs = st.builds(
    Codec,
    bits=st.sampled_from(packing.BITS),
    parties=st.integers(1, 128),
    modulus=st.sampled_from([COHORT.modulus, PRIME42]),
    extra=st.integers(0, 8),
)
seeds = st.integers(0, 2**32)


def encode(codec, values, clip, rng):
    integers, residual = packing.quantize(codec, values, clip, rng)
    return packing.pack(codec, integers), residual


def decode(codec, slots, contributors, clip, values):
    return packing.dequantize(codec, packing.unpack(codec, slots, contributors, values), clip)


def slow_pack(codec, integers):
    """The definition, in Python's integers."""
    count = codec.slots(len(integers))
    return [
        sum(
            (int(integers[place * count + s]) + codec.offset) << (codec.width * place)
            for place in range(codec.per_slot)
            if place * count + s < len(integers)
        )
        for s in range(count)
    ]


@pytest.mark.parametrize(
    ("bits", "parties", "per_slot"),
    [
        (4, 4, 7),
        (4, 8, 6),
        (6, 4, 5),
        (6, 8, 4),
        (8, 8, 4),
        (8, 10, 3),
        (8, 128, 2),
        (12, 8, 2),
        (16, 8, 2),
        (16, 64, 2),
        (16, 65, 1),
        (24, 128, 1),
    ],
)
def test_values_per_slot(bits, parties, per_slot):
    assert Codec(bits, parties, COHORT.modulus).per_slot == per_slot


@settings(max_examples=60, deadline=None)
@given(codec=codecs, length=st.integers(1, 50), seed=seeds)
def test_packing_matches_its_definition(codec, length, seed):
    rng = np.random.default_rng(seed)
    integers = rng.integers(-codec.offset, codec.offset, length, endpoint=True)
    integers[0] = codec.offset
    slots = packing.pack(codec, integers)
    assert slots.tolist() == slow_pack(codec, integers)
    assert np.array_equal(packing.unpack(codec, slots, 1, length), integers)


@settings(max_examples=40, deadline=None)
@given(codec=codecs, length=st.integers(1, 70), seed=seeds, data=st.data())
def test_the_sum_of_encodings_is_exact(codec, length, seed, data):
    parties = data.draw(st.integers(1, codec.parties))
    clip = data.draw(st.sampled_from([0.0, 1e-30, 0.01, 1.0, 3e30]))
    rng = np.random.default_rng(seed)
    total, integers = np.zeros(codec.slots(length), np.uint64), np.zeros(length, np.int64)
    for _ in range(parties):
        x = (rng.normal(size=length) * (clip or 1.0)).astype(np.float32)
        x[rng.integers(length)] = rng.choice([-1, 1]) * clip  # every field reaches its limits
        q, _residual = packing.quantize(codec, x, clip, rng)
        integers += q
        total = (total + packing.pack(codec, q)) % np.uint64(codec.modulus)
    step = np.float64(np.float32(clip)) / codec.levels
    assert np.array_equal(decode(codec, total, parties, clip, length), integers * step)


@pytest.mark.parametrize("bits", packing.BITS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_full_cohorts_at_the_limit_do_not_overflow(bits, sign):
    for parties in (1, 3, 8, 9, 127, 128):
        codec = Codec(bits, parties, COHORT.modulus)
        slots = packing.pack(codec, np.full(9, sign * codec.offset))
        total = [int(slot) * parties for slot in slots]
        assert max(total) < codec.modulus
        opened = packing.unpack(codec, np.array(total, np.uint64), parties, 9)
        assert np.array_equal(opened, np.full(9, sign * codec.offset * parties))


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from(packing.BITS),
    length=st.integers(1, 60),
    seed=seeds,
    double=st.booleans(),
    per_value=st.booleans(),
)
def test_the_residual_is_what_was_lost(bits, length, seed, double, per_value):
    codec, rng = Codec(bits, 4, COHORT.modulus), np.random.default_rng(seed)
    x = (rng.normal(size=length) * 2).astype(np.float64 if double else np.float32)
    clip = rng.uniform(0.5, 3, length).astype(np.float32) if per_value else 1.5
    slots, residual = encode(codec, x, clip, rng)
    shown = decode(codec, slots, 1, clip, length)
    bound = np.broadcast_to(np.float64(np.float32(clip)), x.shape)
    assert residual.dtype == np.float32
    assert np.allclose(x.astype(np.float64) - shown, residual, atol=1e-6 * bound.max(), rtol=1e-6)
    inside = np.abs(x) <= bound
    step = bound / codec.levels
    assert np.all(np.abs(residual[inside]) <= step[inside] * (1 + 1e-4) + 1e-7)
    assert np.all(np.abs(shown) <= bound * (1 + 1e-15))


@pytest.mark.parametrize("bits", [4, 8, 24])
def test_rounding_is_unbiased(bits):
    codec, n = Codec(bits, 2, COHORT.modulus), 400_000
    for fraction in (0.1, 0.5, 0.75):
        x = np.full(n, (3 + fraction) / codec.levels)
        q, _ = packing.quantize(codec, x, 1.0, np.random.default_rng(5))
        assert set(np.unique(q)) == {3, 4}
        sigma = (fraction * (1 - fraction) / n) ** 0.5
        assert abs(q.mean() - 3 - fraction) < 4 * sigma + 2**-16


def test_rounding_is_deterministic_and_follows_its_generator():
    codec, x = Codec(8, 2, COHORT.modulus), np.linspace(-1, 1, 20_000, dtype=np.float32)
    runs = [encode(codec, x, 1.0, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(runs[0][0], runs[1][0]) and np.array_equal(runs[0][1], runs[1][1])
    assert not np.array_equal(runs[0][0], runs[2][0])


def test_zero_and_representable_values_are_exact():
    codec, x = Codec(8, 2, COHORT.modulus), np.arange(-127, 128, dtype=np.float32)
    q, residual = packing.quantize(codec, x, 127.0, np.random.default_rng(0))
    assert np.array_equal(q, x) and not residual.any()


def test_a_clip_of_zero_represents_nothing():
    codec, x = Codec(8, 2, COHORT.modulus), np.array([1.0, -2.0, 0.0], np.float32)
    clip = np.array([0.0, 1.0, 0.0], np.float32)
    slots, residual = encode(codec, x, clip, np.random.default_rng(0))
    assert decode(codec, slots, 1, clip, 3).tolist() == [0.0, -1.0, 0.0]
    assert residual.tolist() == [1.0, -1.0, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_values_that_are_not_finite_are_refused(bad, kind):
    values = np.zeros(10_000)
    values[9_999] = bad
    with np.errstate(over="ignore"):
        values = values.astype(kind)
    with raises(CryptoError, "NaN"):
        encode(Codec(8, 2, COHORT.modulus), values, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("clip", [np.nan, np.inf, -1.0, 1e300, np.ones(3, np.float32)])
def test_bad_clips_are_refused(clip):
    with pytest.raises(CryptoError, match="clips"):
        encode(Codec(8, 2, COHORT.modulus), np.zeros(4, np.float32), clip, np.random.default_rng(0))


def test_bad_shapes_are_refused():
    codec, rng = Codec(8, 2, COHORT.modulus), np.random.default_rng(0)
    shapes: list[Any] = [np.zeros(0), np.zeros((2, 2)), np.zeros(2, np.int64)]
    for values in shapes:
        with pytest.raises(CryptoError):
            packing.quantize(codec, values, 1.0, rng)
    with pytest.raises(CryptoError):
        packing.pack(codec, np.zeros(0, np.int64))


def test_an_integer_beyond_its_field_is_refused():
    codec = Codec(8, 4, COHORT.modulus, extra=2)
    packing.pack(codec, np.array([codec.offset, -codec.offset]))
    for outside in (codec.offset + 1, -codec.offset - 1):
        with pytest.raises(CryptoError):
            packing.pack(codec, np.array([0, outside]))


def test_noise_between_quantising_and_packing():
    codec, rng = Codec(8, 3, COHORT.modulus, extra=4), np.random.default_rng(7)
    noise = rng.integers(-1500, 1500, (3, 99))
    values = rng.uniform(-1, 1, (3, 99)).astype(np.float32)
    integers = [
        packing.quantize(codec, x, 1.0, rng)[0] + e for x, e in zip(values, noise, strict=True)
    ]
    total: Any = np.array([packing.pack(codec, q) for q in integers]).sum(axis=0)
    assert np.array_equal(packing.unpack(codec, total, 3, 99), sum(integers))


@pytest.mark.parametrize(
    ("bits", "parties", "extra", "modulus"),
    [
        (7, 2, 0, 1 << 44),
        (2, 2, 0, 1 << 44),
        (8, 0, 0, 1 << 44),
        (24, 128, 14, COHORT.modulus),
        (8, 2, -1, 1 << 44),
        (8, 2, 0, 1 << 63),
    ],
)
def test_codecs_that_do_not_fit_are_refused(bits, parties, extra, modulus):
    with pytest.raises(CryptoError):
        Codec(bits, parties, modulus, extra)


def test_opening_with_the_wrong_codec_is_refused():
    codec = Codec(8, 4, COHORT.modulus)
    slots = packing.pack(codec, np.zeros(10, np.int64))
    for contributors, values in ((0, 10), (5, 10), (1, 20)):
        with pytest.raises(CryptoError):
            packing.unpack(codec, slots, contributors, values)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(-(2.0**40), 2.0**40, allow_nan=False), min_size=3, max_size=3),
        min_size=1,
        max_size=20,
    )
)
def test_wide_sums_are_exact(rows):
    total = np.zeros(packing.WIDE_LIMBS * 3, np.uint64)
    for row in rows:
        total += packing.encode_wide(np.array(row))
    assert int(total.max()) < PRIME42
    grid = [
        sum(Fraction(round(Fraction(row[column]) * 2**40), 2**40) for row in rows)
        for column in range(3)
    ]
    assert packing.decode_wide(total, len(rows)).tolist() == [float(value) for value in grid]


def test_wide_limbs_hold_a_million_parties():
    for edge in (2.0**40, -(2.0**40), -(2.0**-40)):
        one = packing.encode_wide(np.array([edge]))
        total = one * np.uint64(1 << 20)
        assert int(one.max()) < 1 << 20
        assert packing.decode_wide(total, 1 << 20)[0] == edge * 2**20


def test_bad_wide_values_are_refused():
    for bad in (np.nan, np.inf, 2.0**40 + 1):
        with pytest.raises(CryptoError):
            packing.encode_wide(np.array([0.0, bad]))
    for slots, contributors in ((np.zeros(4, np.uint64), 1), (np.zeros(5, np.uint64), 0)):
        with pytest.raises(CryptoError):
            packing.decode_wide(slots, contributors)
