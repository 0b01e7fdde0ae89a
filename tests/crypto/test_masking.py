"""Masks: known answers, exact uniformity, cancellation, and graphs that stay connected."""

import numpy as np
import pytest
from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError
from tests.support.collusion import LENGTH, MaskedStep
from tests.support.raising import raises

T = COHORT.modulus
PRIME42 = 4398046486529  # another prime, of 42 bits
STREAM = StreamId("run", "segment", 7)
KEY = bytes(range(32))


def slow_uniform(key, length, modulus):
    """The definition, with another library's AES and Python's integers."""
    stream = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0).encrypt(bytes(64 * length + 64))
    words = (int.from_bytes(stream[at : at + 8], "little") for at in range(0, len(stream), 8))
    low_bits = (1 << (modulus - 1).bit_length()) - 1
    accepted = [word & low_bits for word in words if word & low_bits < modulus]
    return accepted[:length]


@pytest.mark.parametrize("modulus", [T, PRIME42, 2, 3, 1000, (1 << 43) + 1, 1 << 44])
@pytest.mark.parametrize("length", [1, 5, 100])
def test_streams_match_their_definition(modulus, length):
    assert masking.uniform(KEY, length, modulus).tolist() == slow_uniform(KEY, length, modulus)


def test_stream_keys_match_rfc_5869_by_another_library():
    numbers = b"".join(n.to_bytes(8, "big") for n in (11, 0, 7, 0))
    info = b"secure_fl/1\0pair\0" + numbers + b"run segment"
    expected = HKDF(KEY, 32, b"", SHA256, context=info)
    assert masking.stream_key(KEY, STREAM, "pair") == expected


def test_pair_secrets_are_x25519():
    mine, theirs = bytes(16), bytes(range(16))
    secret = masking.agree(masking.mask_key(mine), masking.public_key(theirs))
    assert secret == masking.agree(masking.mask_key(theirs), masking.public_key(mine))
    scalar = HKDF(mine, 32, b"", SHA256, context=b"secure_fl/1\0mask key")
    private = X25519PrivateKey.from_private_bytes(scalar)
    peer = X25519PublicKey.from_public_bytes(masking.public_key(theirs))
    assert secret == private.exchange(peer)


@pytest.mark.parametrize("peer", [bytes(32), b"\1" + bytes(31), bytes(31), b""])
def test_degenerate_peer_keys_are_refused(peer):
    with raises(CryptoError, "X25519"):
        masking.agree(masking.mask_key(bytes(16)), peer)


@pytest.mark.parametrize("modulus", [T, (1 << 20) + 7])  # the second rejects half of all words
def test_masks_do_not_depend_on_chunking(monkeypatch, modulus):
    whole = masking.uniform(KEY, 3000, modulus)
    for words in (1, 7, 1024):
        monkeypatch.setattr(masking, "WORDS", words)
        assert np.array_equal(masking.uniform(KEY, 3000, modulus), whole)
        assert np.array_equal(masking.uniform(KEY, 100, modulus), whole[:100])


def test_streams_differ_by_everything_that_names_them():
    keys = {
        masking.stream_key(secret, StreamId(run, segment, number), purpose)
        for secret in (KEY, KEY[::-1])
        for run in ("a", "ab")
        for segment in ("x", "xx", "y")
        for number in (0, 1, 256)
        for purpose in ("pair", "self", "host", "pad", "tag", "tag members")
    }
    assert len(keys) == 2 * 2 * 3 * 3 * 6


@pytest.mark.parametrize("modulus", [T, PRIME42, 3 << 40, 1000])
def test_streams_are_uniform(modulus):
    drawn = masking.uniform(KEY, 200_000, modulus)
    assert drawn.max() < modulus
    bins = np.bincount((drawn * np.uint64(100) // np.uint64(modulus)).astype(int), minlength=100)
    parity = np.bincount((drawn % np.uint64(2)).astype(int))
    shares = [-(-(i + 1) * modulus // 100) - -(-i * modulus // 100) for i in range(100)]
    assert stats.chisquare(bins, np.array(shares) * (bins.sum() / modulus)).pvalue > 1e-3
    assert stats.chisquare(parity).pvalue > 1e-3
    if modulus > 1 << 30:
        assert stats.kstest(drawn / modulus, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


@settings(max_examples=30, deadline=None)
@given(
    plus=st.integers(0, 9),
    minus=st.integers(0, 9),
    length=st.integers(1, 40),
    modulus=st.sampled_from([2, 1000, T, 1 << 44, 1 << 62, (1 << 61) - 1]),
)
def test_combined_masks_match_their_definition(plus, minus, length, modulus):
    keys = [bytes([i]) * 32 for i in range(plus + minus)]
    streams = [slow_uniform(key, length, modulus) for key in keys]
    signs = [1] * plus + [-1] * minus
    expected = [
        sum(s * x[j] for s, x in zip(signs, streams, strict=True)) % modulus for j in range(length)
    ]
    assert masking.combine(keys[:plus], keys[plus:], length, modulus).tolist() == expected


def test_lower_members_add_and_higher_subtract():
    pairs = {1: bytes(32), 3: KEY}
    plus, minus = masking.pair_keys(2, pairs, STREAM)
    assert plus == [masking.stream_key(KEY, STREAM, "pair")]
    assert minus == [masking.stream_key(bytes(32), STREAM, "pair")]
    with pytest.raises(CryptoError, match="itself"):
        masking.pair_keys(1, pairs, STREAM)


def test_short_secrets_and_bad_numbers_are_refused():
    for refused in (
        lambda: masking.stream_key(bytes(15), STREAM, "pair"),
        lambda: masking.public_key(bytes(15)),
        lambda: masking.uniform(bytes(16), 1, T),
        lambda: masking.uniform(KEY, 1, 1),
        lambda: masking.stream_key(KEY, StreamId("run", "segment", -1), "self"),
        lambda: masking.stream_key(KEY, StreamId("run", "segment", 1 << 64), "self"),
    ):
        with pytest.raises(CryptoError):
            refused()


@pytest.mark.parametrize("modulus", [T, 1000, 3, 1 << 62])  # 1000 and 3 skip words
@pytest.mark.parametrize("length", [0, 1, 7, masking.SHORT // 12, masking.SHORT // 12 + 1])
def test_masks_drawn_side_by_side_equal_those_drawn_one_by_one(monkeypatch, modulus, length):
    keys, cuts = [bytes([i]) * 32 for i in range(12)], (0, 5, 12)
    masks = [masking.combine(keys[:cut], keys[cut:], length, modulus) for cut in cuts]
    stream = masking.uniform(keys[0], length, modulus)
    monkeypatch.setattr(masking, "SHORT", -1)
    for cut, mask in zip(cuts, masks, strict=True):
        assert mask.dtype == np.uint64
        long = masking.combine(keys[:cut], keys[cut:], length, modulus)
        np.testing.assert_array_equal(mask, long)
    np.testing.assert_array_equal(stream, masking.uniform(keys[0], length, modulus))


def test_segments_share_a_secret_and_no_stream():
    """Each pair agrees once for all segments of a sum; every segment has masks of its own."""
    step = MaskedStep(4, 3)
    keys, stream = step.keys["p00"], StreamId("run", "one", 1)
    first, second = (
        keys.mask(step.names, StreamId("run", name, 1), LENGTH, T, for_host=False)
        for name in ("one", "two")
    )
    mine = masking.mask_key(keys._mask_seed)
    pairs = {}
    for peer in step.names[1:]:
        seed, number = step.keys[peer]._mask_seed, keys.numbers[peer]
        halves = masking.half(keys._mask_seed, number), masking.half(seed, keys.numbers["p00"])
        agreed = masking.agree(mine, masking.public_key(seed))
        pairs[number] = masking.pair_secret(agreed, *halves)
        assert keys.links[peer] == step.keys[peer].links["p00"] == masking.link(*halves)
    plus, minus = masking.pair_keys(keys.numbers["p00"], pairs, stream)
    plus.append(masking.stream_key(keys._self_seed, stream, "self"))
    np.testing.assert_array_equal(first, masking.combine(plus, minus, LENGTH, T))
    assert not np.any(first == second) and (first < np.uint64(T)).all()


@pytest.mark.parametrize("length", [5, 3 * masking.WORDS + 1])  # side by side, and in blocks
@pytest.mark.parametrize("times", [1, 3, 128])
def test_a_pad_that_each_of_several_added_is_subtracted_exactly(length: int, times: int) -> None:
    pad, values = bytes([7]) * 32, np.arange(length, dtype=np.uint64)
    slots = values.copy()
    for _ in range(times):
        masking.add(slots, pad, COHORT.modulus)
    masking.subtract(slots, pad, times, COHORT.modulus)
    np.testing.assert_array_equal(slots, values)
