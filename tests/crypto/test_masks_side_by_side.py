"""Short masks, whose streams are drawn side by side, equal long ones, drawn one by one."""

from __future__ import annotations

import numpy as np
import pytest

from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.scheme import COHORT
from tests.support.collusion import LENGTH, MaskedStep

KEYS = [bytes([i]) * 32 for i in range(12)]


@pytest.mark.parametrize("modulus", [COHORT.modulus, 1000, 3, 1 << 62])  # 1000 and 3 skip words
@pytest.mark.parametrize("length", [0, 1, 7, masking.SHORT // 12, masking.SHORT // 12 + 1])
def test_short_masks_are_the_long_ones(
    monkeypatch: pytest.MonkeyPatch, modulus: int, length: int
) -> None:
    masks = [masking.combine(KEYS[:cut], KEYS[cut:], length, modulus) for cut in (0, 5, 12)]
    stream = masking.uniform(KEYS[0], length, modulus)
    monkeypatch.setattr(masking, "SHORT", -1)
    for cut, mask in zip((0, 5, 12), masks, strict=True):
        assert mask.dtype == np.uint64
        np.testing.assert_array_equal(
            mask, masking.combine(KEYS[:cut], KEYS[cut:], length, modulus)
        )
    np.testing.assert_array_equal(stream, masking.uniform(KEYS[0], length, modulus))


def test_segments_share_a_secret_and_no_stream() -> None:
    """Each pair agrees once for all segments of a sum; every segment has masks of its own."""
    step = MaskedStep(4, 3)
    modulus = np.uint64(COHORT.modulus)
    keys = step.keys["p00"]
    for _ in range(2):  # agreed anew, and as remembered
        first, second = (
            keys.mask(step.names, StreamId("run", name, 1), LENGTH, COHORT.modulus, for_host=False)
            for name in ("one", "two")
        )
        stream = StreamId("run", "one", 1)
        pairs = {
            keys.numbers[p]: masking.agree(
                masking.mask_key(keys._mask_seed), masking.public_key(step.keys[p]._mask_seed)
            )
            for p in step.names[1:]
        }
        plus, minus = masking.pair_keys(keys.numbers["p00"], pairs, stream)
        plus.append(masking.stream_key(keys._self_seed, stream, "self"))
        expected = masking.combine(plus, minus, LENGTH, COHORT.modulus)
        np.testing.assert_array_equal(first, expected)
        assert not np.any(first == second)
        assert (first < modulus).all()
