"""Tags: exact arithmetic, and every way a coordinator may change a sum is caught."""

import itertools
import secrets
from fractions import Fraction

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.sealing import tags
from secure_fl.crypto.sealing.masking import (
    PRIME,
    StreamId,
    recover_secret,
    share_secret,
    stream_key,
    uniform,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CryptoError, TamperError
from tests.support.raising import raises

T = COHORT.modulus
PRIME42 = 4398046486529  # another prime, of 42 bits
KEY = bytes(range(32))
STREAM = StreamId("run", "segment", 5)
MEMBERS = [1, 2, 4]


def slots_of_all(length=300):
    rng = np.random.default_rng(0)
    return {member: rng.integers(0, T, length, dtype=np.uint64) for member in MEMBERS}


def total(*parts):
    return sum(parts, np.zeros_like(parts[0])) % np.uint64(T)


def make(slots, member, stream=STREAM):
    return tags.make(KEY, slots, [member], T, stream)


def check(slots, tag, contributors=MEMBERS, stream=STREAM):
    tags.check(KEY, slots, tag % T, contributors, T, stream)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 200),
    seed=st.integers(0, 2**32),
    modulus=st.sampled_from([T, PRIME42, 1 << 44, 3]),
)
def test_the_dot_product_is_exact(length, seed, modulus):
    rng = np.random.default_rng(seed)
    x, r = rng.integers(0, modulus, (2, length), dtype=np.uint64)
    x[0] = r[0] = modulus - 1
    expected = sum(int(a) * int(b) for a, b in zip(x, r, strict=True)) % modulus
    assert tags.dot(x, r, modulus) == expected


def test_the_dot_product_does_not_overflow_over_many_blocks():
    x = np.full(3 * tags.BLOCK + 5, (1 << 44) - 1, np.uint64)
    assert tags.dot(x, x, T) == x.size * ((1 << 44) - 1) ** 2 % T


def test_known_answer():
    x = slots_of_all()[2]
    r = uniform(stream_key(KEY, STREAM, "tag"), x.size, T)
    constant = int(uniform(stream_key(KEY, STREAM, "tag members"), 3, T)[2])
    expected = sum(int(a) * int(b) for a, b in zip(r, x, strict=True)) + constant
    assert make(x, 2) == expected % T


def test_an_honest_sum_passes():
    x = slots_of_all()
    check(total(*x.values()), sum(make(x[m], m) for m in MEMBERS))
    check(total(x[1], x[4]), make(x[1], 1) + make(x[4], 4), [4, 1])


def honest():
    x = slots_of_all()
    return x, {m: make(x[m], m) for m in MEMBERS}


def test_a_scaled_sum_is_caught():
    x, tag = honest()
    for factor in (2, 3, T - 1, pow(3, -1, T)):
        scaled = [int(slot) * factor % T for slot in total(*x.values())]
        with raises(TamperError, sum=5):
            check(np.array(scaled, np.uint64), sum(tag.values()) * factor)
    with pytest.raises(TamperError):
        check(np.zeros(300, np.uint64), 0)


def test_an_injected_or_changed_slot_is_caught():
    x, tag = honest()
    opened = total(*x.values())
    for place in (0, 299):
        for difference in (1, T - 1, 1 << 33):
            changed = opened.copy()
            changed[place] = (int(changed[place]) + difference) % T
            with pytest.raises(TamperError):
                check(changed, sum(tag.values()))
    with pytest.raises(TamperError):
        check(opened[::-1].copy(), sum(tag.values()))
    with pytest.raises(TamperError):
        check(opened, sum(tag.values()) + 1)


def test_one_party_counted_twice_is_caught():
    x, tag = honest()
    with pytest.raises(TamperError):
        check(total(*x.values(), x[1]), sum(tag.values()) + tag[1])
    # the number of contributors alone would not show this: 1 twice, 2 not at all
    with pytest.raises(TamperError):
        check(total(x[1], x[1], x[4]), 2 * tag[1] + tag[4])


def test_a_missing_or_foreign_contributor_is_caught():
    x, tag = honest()
    with pytest.raises(TamperError):
        check(total(x[1], x[2]), tag[1] + tag[2])
    with pytest.raises(TamperError):
        check(total(*x.values()), sum(tag.values()), [1, 2, 3])


def test_a_replay_is_caught_and_named():
    x, tag = honest()
    opened = total(*x.values())
    for stream in (
        StreamId("run", "segment", 6),
        StreamId("run", "other", 5),
        StreamId("nur", "segment", 5),
    ):
        with raises(TamperError, reason="wrong-sum", sum=stream.sum):
            check(opened, sum(tag.values()), stream=stream)


def test_bad_input_is_refused():
    x = slots_of_all()[1]
    for refused in (
        lambda: make(x, -1),
        lambda: make(x, 1 << 20),
        lambda: check(x, 0, [1, 1]),
        lambda: make(x[:0], 1),
        lambda: make(np.array([T], np.uint64), 1),
        lambda: make(x.astype(np.int64), 1),
        lambda: tags.dot(x, x[1:], T),
        lambda: tags.dot(x, x, 1 << 45),
        lambda: tags.make(bytes(8), x, [1], T, STREAM),
    ):
        with pytest.raises(CryptoError):
            refused()


# --- sharing ------------------------------------------------------------------------------------


SECRET = bytes(range(16))


def slow_combine(points):
    """Lagrange's formula at 0 over the rationals' numerators and denominators."""
    total = 0
    for x, y in points.items():
        weight = Fraction(1)
        for other in points:
            if other != x:
                weight *= Fraction(other, other - x)
        total += y * weight.numerator * pow(weight.denominator, -1, PRIME)
    return total % PRIME


def test_known_answers(monkeypatch):
    drawn = iter([5, PRIME - 7, 1 << 129])
    monkeypatch.setattr(secrets, "randbelow", lambda below: next(drawn) % below)
    shares = share_secret(SECRET, 4, [1, 2, 9, 1000])
    secret = int.from_bytes(SECRET, "big")
    for x, share in shares.items():
        expected = 5 * x**3 + (PRIME - 7) * x**2 + (1 << 129) * x + secret
        assert share == (expected % PRIME).to_bytes(17, "big")
    points = {x: int.from_bytes(share, "big") for x, share in shares.items()}
    assert slow_combine(points) == secret


@pytest.mark.parametrize("secret", [bytes(16), b"\xff" * 16, SECRET])
@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (3, 3), (5, 4), (10, 7)])
def test_any_threshold_of_shares_recovers(secret, holders, threshold):
    ours = share_secret(secret, threshold, range(1, holders + 1))
    theirs = dict(Shamir.split(threshold, holders, secret)) if threshold > 1 else {}
    for subset in itertools.combinations(range(1, holders + 1), threshold):
        assert recover_secret({x: ours[x] for x in subset}, threshold) == secret
        if theirs:
            assert Shamir.combine([(x, theirs[x]) for x in subset]) == secret
    assert recover_secret(ours, threshold) == secret


@settings(max_examples=25, deadline=None)
@given(
    secret=st.binary(min_size=16, max_size=16),
    holders=st.sets(st.integers(1, 2**32 - 1), min_size=1, max_size=20),
    data=st.data(),
)
def test_any_holders(secret, holders, data):
    threshold = data.draw(st.integers(1, len(holders)))
    shares = share_secret(secret, threshold, sorted(holders))
    chosen = data.draw(st.permutations(sorted(holders)))[:threshold]
    assert recover_secret({x: shares[x] for x in chosen}, threshold) == secret


def test_fewer_shares_fit_every_secret():
    """Given t-1 shares, each secret is explained by exactly one share of the next holder."""
    shares = share_secret(SECRET, 3, [1, 2, 3])
    known = {x: int.from_bytes(shares[x], "big") for x in (1, 2)}
    for other in (bytes(16), b"\xff" * 16, b"any other secret"):
        # with f(0), f(1), f(2) given, f(3) = f(0) - 3 f(1) + 3 f(2)
        third = (int.from_bytes(other, "big") - 3 * known[1] + 3 * known[2]) % PRIME
        forged = {1: shares[1], 2: shares[2], 3: third.to_bytes(17, "big")}
        assert recover_secret(forged, 3) == other


def test_two_sharings_of_one_secret_differ():
    assert share_secret(SECRET, 2, [1, 2]) != share_secret(SECRET, 2, [1, 2])


def test_too_few_shares_are_refused():
    shares = share_secret(SECRET, 3, [1, 2, 3, 4])
    with pytest.raises(CryptoError, match="too few, 3"):
        recover_secret({1: shares[1], 2: shares[2]}, 3)
    for threshold in (0, -1):
        with pytest.raises(CryptoError):
            recover_secret(shares, threshold)


@pytest.mark.parametrize("holders", [[1, 1], [0, 1], [-1, 1], [1, 1 << 32]])
def test_bad_holders_are_refused(holders):
    with pytest.raises(CryptoError, match="distinct"):
        share_secret(SECRET, 1, holders)


def test_impossible_sharings_are_refused():
    for secret, threshold, holders in ((SECRET, 0, [1]), (SECRET, 3, [1, 2]), (b"short", 1, [1])):
        with pytest.raises(CryptoError):
            share_secret(secret, threshold, holders)


@pytest.mark.parametrize(
    "bad", [b"", bytes(16), bytes(18), b"\xff" * 17, PRIME.to_bytes(17, "big")]
)
def test_malformed_shares_are_refused(bad):
    shares = share_secret(SECRET, 2, [1, 2]) | {2: bad}
    with pytest.raises(CryptoError, match="holder 2 is malformed"):
        recover_secret(shares, 2)


def test_shares_of_different_secrets_never_combine_to_either():
    refused = 0
    for _ in range(40):
        one, two = share_secret(SECRET, 2, [1, 2]), share_secret(bytes(16), 2, [1, 2])
        try:
            assert recover_secret({1: one[1], 2: two[2]}, 2) not in (SECRET, bytes(16))
        except CryptoError as error:
            assert "do not belong" in str(error)
            refused += 1
    assert refused > 10  # 3 in 4 are expected


def test_errors_never_show_secrets():
    shares = share_secret(SECRET, 2, [1, 2]) | {2: b"\xff" * 17}
    with pytest.raises(CryptoError) as caught:
        recover_secret(shares, 2)
    assert SECRET.hex() not in str(caught.value) and shares[1].hex() not in str(caught.value)
