"""Sealing, adding and opening: exact, within capacity, and only for key holders; seeded sums."""

import copy
import pickle
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import tenseal
from hypothesis import given, settings
from hypothesis import strategies as st
from tenseal import sealapi

from secure_fl.audits.selftest.malicious_federation import ChangedSum
from secure_fl.crypto.sealing import public, secret
from secure_fl.crypto.sealing.blind_sum import SealedInts
from secure_fl.crypto.sealing.public import (
    CIPHERTEXT_HEAD,
    MOST_SEEDS,
    MemoryFile,
    SeededSum,
    from_parts,
    moved,
    to_parts,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, WireError
from tests.support.raising import raises

T = COHORT.modulus
READ = ("upload", "sum", "seeded sum", "secret key")
HALF = 1 + 7 * 100  # bytes of a seeded sum of 100 integers before its seeds


@pytest.fixture(scope="module")
def key():
    return secret.generate()


@pytest.fixture(scope="module")
def context(key):
    return public.load(key.public())


@pytest.fixture(scope="module")
def readers(key, context):
    """Everything that is read from bytes of others, and how."""
    (upload,) = secret.seal(key, draw(16))
    total = public.Sum(context, 16)
    total.add([upload])

    def add(data):
        again = public.Sum(context, 16)
        again.add([upload])
        again.add([data])
        secret.open(key, again.result(), 16)

    seeded, expected = summed(key, context, 3)

    def open_seeded(data):
        opened = secret.open(key, [data], 100, 3)
        # a low bit of the first half is mere noise; a seed changes everything
        assert data[:HALF] != seeded[0][:HALF] or data == seeded[0] or (opened != expected).any()

    return {
        "upload": (upload, add),
        "seeded sum": (seeded[0], open_seeded),
        "sum": (total.result()[0], add),
        "secret key": (key.to_bytes(), secret.SecretKey.from_bytes),
    }


def draw(count, seed=0):
    return np.random.default_rng(seed).integers(0, T, count, dtype=np.uint64)


def summed(key, context, parties, count=100):
    """A seeded sum, and the integers to which it must open."""
    total, vectors = SeededSum(context, count), [draw(count, seed) for seed in range(parties)]
    for vector in vectors:
        total.add(secret.seal(key, vector))
    return total.result(), sum(vectors) % np.uint64(T)


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097])
def test_a_sum_opens_exactly(key, context, count):
    vectors = [draw(count, seed) for seed in range(3)]
    vectors[0][0] = vectors[1][0] = T - 1  # the sum wraps around, and is never centred
    total = public.Sum(context, count)
    for vector in vectors:
        total.add(secret.seal(key, vector))
    opened = secret.open(key, total.result(), count)
    assert opened.dtype == np.uint64
    assert np.array_equal(opened, sum(vectors) % np.uint64(T))


def test_plain_and_scaled_operations(key, context):
    x, y, z = (draw(5000, seed) for seed in range(3))
    total = ChangedSum(context, 5000)
    total.add(secret.seal(key, x))
    total.add_plain(y)
    total.subtract_plain(z)
    total.scale(-3)
    total.add(secret.seal(key, x))
    expected = [
        (-3 * (int(a) + int(b) - int(c)) + int(a)) % T for a, b, c in zip(x, y, z, strict=True)
    ]
    assert secret.open(key, total.result(), 5000).tolist() == expected


def test_the_same_values_never_seal_alike(key):
    assert secret.seal(key, draw(10)) != secret.seal(key, draw(10))


def test_a_129th_party_is_refused(key, context):
    total = ChangedSum(context, 1)
    for _ in range(128):
        total.add(sealed := secret.seal(key, draw(1)))
    for refused in (lambda: total.add(sealed), lambda: total.scale(2)):
        with raises(CryptoError, "128"):
            refused()
    with raises(CryptoError, "130"):  # the error names the size that was asked for
        secret.rehearse(key, 130)
    assert secret.open(key, total.result(), 1)[0] == 128 * int(draw(1)[0]) % T


def test_joined_ciphertexts_are_split_where_they_were_joined() -> None:
    parts = [b"a" * 80, b"", b"c" * 140]
    assert to_parts(from_parts(parts), 3 * COHORT.degree) == parts
    for wrong in (from_parts(parts[:2]), from_parts(parts) + b"x", from_parts(parts)[:-1]):
        with raises(WireError, field="parts"):
            to_parts(wrong, 3 * COHORT.degree)


def test_beyond_capacity_a_sum_would_be_wrong(key, context):
    total = ChangedSum(replace(context, most=10**9), 4096)
    total.add(secret.seal(key, draw(4096)))
    total.scale(400)  # the noise of 160,000 parties
    parts = total.result()
    assert secret.noise_budget(key, parts[0]) == 0
    assert not np.array_equal(
        secret.open(key, parts, 4096), draw(4096) * np.uint64(400) % np.uint64(T)
    )


@pytest.mark.parametrize("count", [10, 4096])
def test_noise_that_no_fresh_ciphertext_has_is_seen(key, context, count):
    parts = secret.seal(key, draw(count))
    assert secret.is_fresh(key, parts, count)
    (q, _) = sealapi.CoeffModulus.Create(COHORT.degree, list(COHORT.coefficient_bits))
    for by in (100, q.value() - 100):  # it still opens to the same, alone
        noisy = [part[:1] + moved(part[1:], count, by, q.value()) for part in parts]
        assert np.array_equal(secret.open(key, noisy, count), draw(count))
        assert not secret.is_fresh(key, noisy, count)


def test_the_coordinator_cannot_open(key, context):
    part = secret.seal(key, draw(4096))
    assert len(key.public()) == 6
    with pytest.raises(ValueError, match="secret key"):
        sealapi.Decryptor(context.seal, sealapi.SecretKey())
    stranger = secret.generate()
    opened = secret.open(stranger, part, 4096)
    assert np.count_nonzero(opened == draw(4096)) < 3


def test_a_context_with_a_secret_key_is_refused(key):
    foreign = tenseal.context(
        tenseal.SCHEME_TYPE.BFV, 4096, T, [54, 55], tenseal.ENCRYPTION_TYPE.SYMMETRIC, 1
    )
    with pytest.raises(CryptoError, match="secret key"):
        public.load(key.to_bytes())
    with pytest.raises(CryptoError, match="no public context"):
        public.load(foreign.serialize(save_public_key=False, save_secret_key=True))
    for data in (b"", b"SFLC", key.public() + b"\0", b"SFLC\x01\x09"):
        with pytest.raises(CryptoError):
            public.load(data)


def test_a_foreign_ciphertext_is_refused(key, context):
    total = public.Sum(context, 1)
    own = secret.seal(key, draw(1))[0]
    for foreign in (bytes([own[0] + 2]) + own[1:], key.to_bytes()[6:]):
        with pytest.raises(CryptoError):
            total.add([foreign])
    with pytest.raises(CryptoError, match="empty"):
        total.result()


@settings(max_examples=120, deadline=None)
@given(
    which=st.sampled_from(READ),
    change=st.sampled_from(["flip", "cut", "grow", "noise"]),
    at=st.one_of(st.integers(0, 100), st.integers(HALF - 5, HALF + 192), st.integers(0, 10**6)),
    bits=st.integers(1, 255),
    noise=st.binary(min_size=1, max_size=200),
)
def test_garbage_never_crashes(readers, which, change, at, bits, noise):
    good, read = readers[which]
    at %= len(good)
    bad = {
        "flip": good[:at] + bytes([good[at] ^ bits]) + good[at + 1 :],
        "cut": good[:at],
        "grow": good + noise,
        "noise": noise,
    }[change]
    try:
        read(bad)
    except CryptoError:
        return
    assert change == "flip"  # another coefficient or seed is another valid one: tags catch that


@pytest.mark.parametrize("which", READ)
def test_what_is_read_unchanged_is_accepted(readers, which):
    good, read = readers[which]
    read(good)


def test_seals_own_form_is_refused(key, context):
    """Its parser ends the process on some malformed input, so it never sees input from outside."""
    encryptor = sealapi.Encryptor(context.seal, key._key)
    with MemoryFile() as channel:
        encryptor.encrypt_symmetric(sealapi.Plaintext("1"), own := sealapi.Ciphertext())
        own.save(channel.path)
        zipped = channel.read()
        unzipped = channel.save(own, CIPHERTEXT_HEAD + 8 * 8192)
    for data in (zipped, unzipped):
        for mark in (b"", b"\2", b"\3"):
            with pytest.raises(CryptoError, match="not a"):
                public.Sum(context, 4096).add([mark + data])


def test_coefficients_out_of_range_are_refused(context, readers):
    good, read = readers["sum"]
    words = 16 + 4096
    high = 1 + 6 * words  # the plane of the highest bits
    for plane in (b"\xff", b"\x40"):  # 2^56 - 1, and 2^54, which is just beyond q
        with pytest.raises(CryptoError, match="not a ciphertext"):
            read(good[:high] + plane + good[high + 1 :])
    with pytest.raises(CryptoError):  # a second half of zeros leaves the values in the clear
        read(good[:1] + bytes(7 * words))


def test_an_unknown_layout_is_refused(context):
    with pytest.raises(CryptoError, match="unknown layout"):
        context.full.strip(b"\0" * (CIPHERTEXT_HEAD + 8 * 8192))
    with MemoryFile() as channel, pytest.raises(CryptoError, match="expected size"):
        channel.save(sealapi.Plaintext("1"), 1000)


@pytest.mark.parametrize("kind", [public.Sum, SeededSum])
def test_a_bad_upload_leaves_the_sum_unchanged(key, context, kind):
    good, other = (secret.seal(key, draw(9000, seed)) for seed in (1, 2))
    total, full = kind(context, 9000), public.Sum(context, 9000)
    total.add(good)
    full.add(other)
    before, high = total.result(), 7 * (9000 - 2 * 4096)  # the highest byte of a coefficient
    beyond = [*other[:2], other[2][:high] + b"\xff" + other[2][high + 1 :]]
    bad = [[*other[:2], other[2][:-1]], other[:2], [], beyond]
    bad += [secret.seal(key, draw(count, 2)) for count in (8999, 9001)]
    for parts in bad if kind is public.Sum else [*bad, full.result()]:
        with pytest.raises(CryptoError):
            total.add(parts)
    assert total.result() == before


def test_opening_needs_all_parts(key):
    parts = secret.seal(key, draw(5000))
    for count, offered in ((5000, parts[:1]), (4096, parts), (0, [])):
        with pytest.raises(CryptoError):
            secret.open(key, offered, count)


def test_secret_keys_stay_secret(key):
    body = key.to_bytes()
    assert repr(key) == f"<SecretKey of scheme {COHORT.name}>"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(CryptoError, match="never pickled"):
            leak(key)
    for bad in (body[:-1], b"SFLX" + body[4:]):
        with pytest.raises(CryptoError):
            secret.SecretKey.from_bytes(bad)


def test_keys_survive_serialisation(key):
    again = secret.SecretKey.from_bytes(key.to_bytes())
    assert np.array_equal(secret.open(again, secret.seal(key, draw(50)), 50), draw(50))


def test_empty_and_mismatched_sums_are_refused(key, context):
    total = ChangedSum(context, 4097)
    for operation in (total.result, lambda: total.scale(2), lambda: total.subtract_plain(draw(1))):
        with pytest.raises(CryptoError, match="empty"):
            operation()
    total.add(secret.seal(key, draw(4097)))
    with pytest.raises(CryptoError, match="same length"):
        total.subtract_plain(draw(4096))
    with pytest.raises(CryptoError):
        total.subtract_plain(np.full(4097, T, np.uint64))


# --- sums that stay seeded -----------------------------------------------------------------------


@pytest.mark.parametrize("parties", [1, 2, MOST_SEEDS])
@pytest.mark.parametrize("count", [1, 4097])
def test_a_seeded_sum_opens_exactly(key, context, parties, count):
    parts, expected = summed(key, context, parties, count)
    used = [4096, 1] if count > 4096 else [count]
    assert [len(part) for part in parts] == [1 + 7 * size + 64 * parties for size in used]
    assert np.array_equal(secret.open(key, parts, count, parties), expected)


def test_masks_come_off_the_first_half(key, context):
    total, x, mask = SeededSum(context, 5000), draw(5000, 1), draw(5000, 2)
    for _ in range(3):
        total.add(secret.seal(key, x))
    total.subtract_plain(mask)
    expected = (3 * x + (np.uint64(T) - mask)) % np.uint64(T)
    assert np.array_equal(secret.open(key, total.result(), 5000, 3), expected)


def test_a_seeded_total_hides_the_order_of_the_uploads(key, context):
    results = set()
    for order in permutations([secret.seal(key, draw(10, seed)) for seed in range(3)]):
        total = SeededSum(context, 10)
        for upload in order:
            total.add(upload)
        results.add(total.result()[0])
    assert len(results) == 1


@pytest.mark.parametrize("offered", [0, 1, 2, 4, MOST_SEEDS + 1])
def test_another_number_of_seeds_than_contributors_is_refused(key, context, offered):
    parts, _ = summed(key, context, 3)
    forged = [parts[0][:HALF] + bytes(64 * offered)]
    wrong = [(parts, offered), (forged, 3), ([b"\3" + bytes(64 * offered)], offered)]
    wrong.append((summed(key, context, MOST_SEEDS + 1)[0], MOST_SEEDS + 1))
    for data, contributors in wrong:
        with pytest.raises(CryptoError):
            secret.open(key, data, 100, contributors)


def test_no_sum_adds_a_seeded_sum(key, context):
    parts, _ = summed(key, context, 2)
    for total in (public.Sum(context, 100), SeededSum(context, 100)):
        with pytest.raises(CryptoError):
            total.add(parts)


@pytest.mark.parametrize(("owners", "seeds"), [(MOST_SEEDS, 3), (MOST_SEEDS + 1, None)])
def test_large_cohorts_get_sums_in_full(key, context, owners, seeds):
    total = SealedInts(context, owners, 10)
    for seed in range(3):
        total.add(from_parts(secret.seal(key, draw(10, seed))), 10)
    (part,) = to_parts(total.result(), 10)
    assert len(part) == 1 + 7 * 10 + (7 * 4096 if seeds is None else 64 * seeds)
    expected = sum(draw(10, seed) for seed in range(3)) % np.uint64(T)
    assert np.array_equal(secret.open(key, [part], 10, 3), expected)
