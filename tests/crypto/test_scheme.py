"""The parameter sets are what they claim: prime moduli, 128-bit security, exact sums."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom
from tenseal import sealapi

from secure_fl.crypto.sealing.public import check_slots
from secure_fl.crypto.sealing.scheme import COHORT, check_cohort, largest_cohort, seal_context
from secure_fl.errors import CryptoError
from tests.support.raising import raises


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


def test_the_plain_modulus_is_a_batching_prime():
    scheme, bits = COHORT, 44
    assert scheme.modulus.bit_length() == bits
    assert is_prime(scheme.modulus)
    assert scheme.modulus % (2 * scheme.degree) == 1
    # close below a power of two: a masked word is hardly ever rejected
    assert 1 - scheme.modulus / 2**bits < 1e-6
    larger = range(scheme.modulus + 2 * scheme.degree, 2**bits, 2 * scheme.degree)
    assert not any(is_prime(candidate) for candidate in larger)


def test_parameters_have_128_bit_security():
    allowed = sealapi.CoeffModulus.MaxBitCount(COHORT.degree, sealapi.SEC_LEVEL_TYPE.TC128)
    assert allowed == 109 == sum(COHORT.coefficient_bits)
    assert seal_context(COHORT).parameters_set()


def test_weaker_parameters_are_refused():
    weaker = dataclasses.replace(COHORT, coefficient_bits=(55, 56))
    with pytest.raises(CryptoError, match="refuses"):
        seal_context(weaker)


def test_capacity_follows_from_the_noise():
    room = 2**54 / (2 * COHORT.modulus)
    assert largest_cohort(COHORT) == 128
    # SEAL's noise is the difference of two sums of 21 random bits.
    assert COHORT.noise**2 == pytest.approx(2 * binom(21, 0.5).var())
    assert COHORT.tail * COHORT.noise * 128**0.5 < room  # so the declared 128 is derived too
    wider = dataclasses.replace(COHORT, modulus=COHORT.modulus << 2)
    assert largest_cohort(wider) < 128 // 8


def test_cohorts_that_do_not_fit_are_refused():
    check_cohort(COHORT, 1)
    check_cohort(COHORT, 128)
    for parties in (0, -1, 129):
        with raises(CryptoError, parties):
            check_cohort(COHORT, parties)


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
        check_slots(slots)
