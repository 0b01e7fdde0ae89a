"""Packing: exact sums, unbiased rounding, an honest residual, and refusal of what does not fit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.sealing import packing
from secure_fl.crypto.sealing.packing import (
    BITS,
    CLIP_IN_RMS,
    SMALL,
    Codec,
    Field,
    Layout,
    dequantize,
    quantize,
    squared_norm,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, WireError
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
    [(4, 4, 7), (8, 8, 4), (8, 10, 3), (16, 64, 2), (16, 65, 1), (24, 128, 1)],
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


def test_zero_and_representable_values_are_exact():
    codec, x = Codec(8, 2, COHORT.modulus), np.arange(-127, 128, dtype=np.float32)
    q, residual = packing.quantize(codec, x, 127.0, np.random.default_rng(0))
    assert np.array_equal(q, x) and not residual.any()


@pytest.mark.parametrize(
    ("bits", "x"),
    [(16, np.full(100, 1 + 2.0**-30)), (24, np.linspace(0.1, 1.9, 100, dtype=np.float32))],
)
def test_nothing_of_a_fine_value_is_lost(bits: Any, x: Any) -> None:
    """In float32, the last digits would be in neither the integer nor the residual."""
    codec = Codec(bits, 2, COHORT.modulus)
    q, residual = packing.quantize(codec, x, 2.0, np.random.default_rng(0))
    np.testing.assert_allclose(dequantize(codec, q, 2.0) + residual, x, rtol=0, atol=1e-11)


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


def test_a_slot_of_the_modulus_is_not_reduced_and_refused() -> None:
    slots = np.array([0, COHORT.modulus - 1], np.uint64)
    assert packing.to_slots(packing.from_slots(slots), 2, COHORT.modulus).tolist() == slots.tolist()
    slots[1] += np.uint64(1)
    with raises(WireError, field="slots"):
        packing.to_slots(packing.from_slots(slots), 2, COHORT.modulus)


def test_a_codec_has_room_for_a_million_parties_and_no_more() -> None:
    assert Codec(4, 1 << 20, COHORT.modulus).per_slot == 1
    with raises(CryptoError, field="bits"):
        Codec(4, (1 << 20) + 1, COHORT.modulus)


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


# --- layouts ------------------------------------------------------------------------------------


M = np.uint64(COHORT.modulus)


def layout(bits: int = 16, parties: int = 4, **sizes: int) -> Layout:
    """Names with `n_` send their norm, those of at most SMALL values travel exactly."""
    fields = tuple(
        Field(name, size) if size <= SMALL else Field(name, size, 2.0, name.startswith("n_"))
        for name, size in sizes.items()
    )
    return Layout(fields, Codec(bits, parties, COHORT.modulus))


def values_for(of: Layout, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {f.name: rng.uniform(-2, 2, f.size).astype(np.float32) for f in of.fields}


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from(BITS),
    parties=st.integers(1, 16),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    norms=st.booleans(),
)
def test_a_sum_of_layouts_is_a_layout_of_sums(
    bits: int, parties: int, sizes: list[int], norms: bool
) -> None:
    of = layout(bits, parties, **{f"{'n_' * norms}v{i}": s for i, s in enumerate(sizes)})
    total, left = np.zeros(of.slots, np.uint64), {f.name: np.zeros(f.size) for f in of.packed}
    given_ = [values_for(of, k) for k in range(parties)]
    for k, mine in enumerate(given_):
        slots, leftovers = of.encode(mine, np.random.default_rng(k), None)
        assert slots.size == of.slots and int(slots.max(initial=0)) < COHORT.modulus
        total = (total + slots) % M
        for name, rest in leftovers.items():
            left[name] += rest
    opened, squares = of.decode(total, parties)
    assert set(opened) == {f.name for f in of.fields}
    for field in of.fields:
        expected = np.sum([v[field.name].astype(np.float64) for v in given_], axis=0)
        if field.clip is None:
            np.testing.assert_allclose(opened[field.name], expected, atol=parties * 2.0**-40)
        else:
            np.testing.assert_allclose(opened[field.name] + left[field.name], expected, atol=1e-4)
    assert set(squares) == {f.name for f in of.packed if f.norm}
    for name, square in squares.items():
        expected = sum(squared_norm(v[name]) for v in given_)
        assert square == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [1e-18, 1e-9, 1e-3, 1.0, 1e5, 5e6])
def test_norms_keep_their_digits_whatever_their_size(size: float) -> None:
    of = layout(n_w=20)
    vector = np.full(20, size, np.float32)
    slots, _ = of.encode({"n_w": vector}, np.random.default_rng(0), None)
    _, squares = of.decode(slots, 1)
    # the smallest step of the magnified scale is 2^-78
    assert squares["n_w"] == pytest.approx(squared_norm(vector), rel=1e-6, abs=2.0**-78)


def test_small_vectors_travel_exactly_and_need_no_clip() -> None:
    of = layout(count=1, losses=SMALL, w=SMALL + 1)
    assert [f.name for f in of.exact] == ["count", "losses"]
    assert [f.name for f in of.packed] == ["w"]
    values = {"count": np.array([1e9 + 1]), "losses": np.arange(8) / 8, "w": np.zeros(9)}
    values = {n: np.asarray(v, np.float32) for n, v in values.items()}
    slots, leftovers = of.encode(values, np.random.default_rng(0), None)
    opened, _ = of.decode(slots * np.uint64(3) % M, 3)
    for name in ("count", "losses"):
        assert (opened[name] == 3 * values[name].astype(np.float64)).all()
    assert set(leftovers) == {"w"}


def test_what_cannot_be_laid_out_is_refused() -> None:
    of = layout(n_w=20, one=1)
    for name in ("n_w", "one"):
        for bad in (np.nan, np.inf):
            values = values_for(of, 0)
            values[name][0] = bad
            with pytest.raises(CryptoError), np.errstate(invalid="ignore"):
                of.encode(values, np.random.default_rng(0), None)
    with pytest.raises(CryptoError):
        of.decode(np.zeros(of.slots, np.uint64), 5)  # more contributors than the codec is for


def test_finer_values_are_clipped_further_out() -> None:
    clips = [CLIP_IN_RMS[bits] for bits in BITS]
    assert clips == sorted(clips)


@pytest.mark.parametrize("bits", [4, 6])
def test_coarse_values_are_clipped_where_gaussians_lose_least(bits: int) -> None:
    x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)

    def lost(clip: float) -> float:
        codec = Codec(bits, 4, COHORT.modulus)
        integers, _ = quantize(codec, x, clip, np.random.default_rng(1))
        return float(np.mean(np.square(x - dequantize(codec, integers, clip))))

    chosen = CLIP_IN_RMS[bits]
    assert lost(chosen) < min(lost(chosen * 0.85), lost(chosen * 1.15))
