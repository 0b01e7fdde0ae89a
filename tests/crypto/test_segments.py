"""Layouts: what is laid into slots comes out of a sum of slots, and the rest is left over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from secure_fl.errors import CryptoError

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


def test_a_clip_of_zero_leaves_everything_over() -> None:
    of = Layout((Field("w", 20, 0.0),), Codec(8, 2, COHORT.modulus))
    vector = np.linspace(-1, 1, 20, dtype=np.float32)
    slots, leftovers = of.encode({"w": vector}, np.random.default_rng(0), None)
    np.testing.assert_array_equal(leftovers["w"], vector)
    assert not np.any(of.decode(slots, 1)[0]["w"])


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
