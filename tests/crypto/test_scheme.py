"""The parameter sets are what they claim: prime moduli, 128-bit security, exact sums."""

import dataclasses

import numpy as np
import pytest
from tenseal import sealapi

from secure_fl.crypto.scheme import (
    COHORT,
    HOST,
    SCHEMES,
    check_cohort,
    check_slots,
    largest_cohort,
    seal_context,
)
from secure_fl.errors import CryptoError


def is_prime(n: int) -> bool:
    """Miller-Rabin with the first 12 primes as bases: deterministic below 3.3e24."""
    d, r = n - 1, 0
    while d % 2 == 0:
        d, r = d // 2, r + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, d, n)
        if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(r - 1)):
            return False
    return True


@pytest.mark.parametrize(("scheme", "bits"), [(COHORT, 44), (HOST, 42)])
def test_plain_moduli_are_batching_primes(scheme, bits):
    assert scheme.modulus.bit_length() == bits
    assert is_prime(scheme.modulus)
    assert scheme.modulus % (2 * scheme.degree) == 1
    # close below a power of two: a masked word is hardly ever rejected
    assert 1 - scheme.modulus / 2**bits < 1e-6
    larger = range(scheme.modulus + 2 * scheme.degree, 2**bits, 2 * scheme.degree)
    assert not any(is_prime(candidate) for candidate in larger)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_parameters_have_128_bit_security(scheme):
    allowed = sealapi.CoeffModulus.MaxBitCount(scheme.degree, sealapi.SEC_LEVEL_TYPE.TC128)
    assert allowed == 109 == sum(scheme.coefficient_bits)
    assert seal_context(scheme).parameters_set()


def test_weaker_parameters_are_refused():
    weaker = dataclasses.replace(COHORT, coefficient_bits=(55, 56))
    with pytest.raises(CryptoError, match="refuses"):
        seal_context(weaker)


def test_scheme_numbers_are_distinct():
    assert [scheme.number for scheme in SCHEMES.values()] == list(SCHEMES)
    assert len({scheme.name for scheme in SCHEMES.values()}) == len(SCHEMES)


@pytest.mark.parametrize("scheme", [COHORT, HOST])
def test_capacity_follows_from_the_noise(scheme):
    room = 2**54 / (2 * scheme.modulus)
    assert largest_cohort(scheme) == 128
    assert scheme.tail * scheme.noise * 128**0.5 < room  # so the declared 128 is derived too
    wider = dataclasses.replace(scheme, modulus=scheme.modulus << 2)
    assert largest_cohort(wider) < 128 // 8


@pytest.mark.parametrize("scheme", [COHORT, HOST])
def test_cohorts_that_do_not_fit_are_refused(scheme):
    check_cohort(scheme, 1)
    check_cohort(scheme, 128)
    for parties in (0, -1, 129):
        with pytest.raises(CryptoError, match=str(parties)):
            check_cohort(scheme, parties)


@pytest.mark.parametrize(
    "slots",
    [
        np.array([], np.uint64),
        np.array([1], np.int64),
        np.array([[1]], np.uint64),
        np.array([COHORT.modulus], np.uint64),
    ],
)
def test_bad_slots_are_refused(slots):
    with pytest.raises(CryptoError):
        check_slots(COHORT, slots)
