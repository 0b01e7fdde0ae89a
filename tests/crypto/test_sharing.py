"""Sharing: any t shares recover, fewer tell nothing, and PyCryptodome's Shamir behaves alike."""

import itertools
import secrets
from fractions import Fraction

import pytest
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.sealing.masking import PRIME, recover_secret, share_secret
from secure_fl.errors import CryptoError

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
