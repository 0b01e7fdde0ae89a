"""The parameter set of the homomorphic scheme, and how much it holds.

Security: the HomomorphicEncryption.org standard (2018, table 1, ternary secret, classical attacks)
allows a coefficient modulus of 109 bits at degree 4096 for 128-bit security.

Capacity: a BFV sum opens exactly while its noise stays below q / 2t with q = 2^54. The noise of one
ciphertext is a centred variable per coefficient with standard deviation sqrt(21 / 2) = 3.2, for
SEAL draws it from a centred binomial with 21 pairs. It adds up as sqrt(n) over n ciphertexts, and
`tail` standard deviations must fit: at 11, a sub-Gaussian coefficient exceeds the bound with
probability 2 exp(-11²/2) < 2^-85, one of a million with probability < 2^-65.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tenseal import sealapi

from secure_fl.errors import CryptoError


@dataclass(frozen=True, slots=True)
class BFV:
    """Exact integers mod a prime `modulus` = 1 mod 2N, `degree` of them in one ciphertext."""

    name: str
    number: int  # its byte in serialised forms, never reused
    modulus: int
    noise: float  # standard deviation of one fresh ciphertext's noise
    degree: int = 4096
    coefficient_bits: tuple[int, int] = (54, 55)
    most: int = 128  # largest number of ciphertexts in a sum that was measured
    tail: float = 11.0


COHORT = BFV("bfv44", 1, modulus=17592186028033, noise=math.sqrt(21 / 2))


def largest_cohort(scheme: BFV) -> int:
    """Compute how many fresh ciphertexts can be added and still open exactly."""
    room = 2 ** scheme.coefficient_bits[0] / (2 * scheme.modulus)
    return min(scheme.most, int((room / (scheme.tail * scheme.noise)) ** 2))


def check_cohort(scheme: BFV, parties: int) -> None:
    """Refuse a cohort whose sums would not open exactly."""
    most = largest_cohort(scheme)
    if not 1 <= parties <= most:
        raise CryptoError(
            f"scheme {scheme.name} adds 1 to {most} sealed vectors exactly, not {parties}",
            fix=f"form cohorts of at most {most} parties",
        )


def seal_context(scheme: BFV) -> Any:
    """Make SEAL's context for a scheme; it holds parameters and no key."""
    parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(scheme.degree)
    bits = list(scheme.coefficient_bits)
    parameters.set_coeff_modulus(sealapi.CoeffModulus.Create(scheme.degree, bits))
    parameters.set_plain_modulus(scheme.modulus)
    context = sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise CryptoError(
            f"SEAL refuses scheme {scheme.name}: {context.parameters_error_message()}",
            fix="install the TenSEAL release named in constraints.txt",
        )
    return context
