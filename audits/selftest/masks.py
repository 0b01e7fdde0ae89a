"""Attacks on masks: whether a stream's seed can be guessed, and whether masks are used twice.

A mask hides a slot only if it is uniform mod t and used once. A popular framework's masks came from
numpy's generator under a secret folded to 28 effective bits: all of them are tried in 20 seconds on
one core by compiled code (in Python, as here, 2^16 take about a second and 2^28 about an hour).
Streams of so few seeds also repeat: of n streams n²/2^(bits+1) pairs are equal (the birthday
paradox), so that looking for a repetition among n = 2^17 shows seeds of up to 28 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from scipy.stats import chi2

from secure_fl.audits.findings import AuditFinding
from secure_fl.crypto.sealing.masking import Slots

NAME = "weak masks"
ABOUT = (
    "Tries to guess or repeat the random masks under which hospitals send their values; success "
    "would mean that the coordinator can take a mask off one hospital's upload."
)
ROLE = "coordinator"
LEVEL = 1e-6  # of a false alarm, over all tests of one finding
BINS, FEW_BINS, PER_BIN = 256, 16, 5  # of the values mod t; fewer bins where slots are few
KNOWN = 2  # slots whose plaintext an attacker knows, such as padding; 88 bits

Expand = Callable[[int], Slots]
"""The first slots of the stream that a guess of the seed gives."""


def uniformity(slots: Slots, modulus: int) -> float:
    """The p-value of "uniform mod t", by chi-square over equal ranges; NaN for too few slots."""
    bins = BINS if slots.size >= BINS * PER_BIN else FEW_BINS
    if slots.size < bins * PER_BIN:
        return float("nan")
    edges = [-(-modulus * k // bins) for k in range(bins + 1)]
    sizes = np.diff(np.array(edges, dtype=np.float64))
    counts = np.diff(np.searchsorted(np.sort(slots), np.array(edges, dtype=np.uint64)))
    expected = slots.size * sizes / modulus
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, bins - 1))


def uniform_inputs(
    slot_vectors: Sequence[Slots], modulus: int, *, target: str = "masked inputs"
) -> AuditFinding:
    """Whether what a party sent is anything but uniform mod t: then masks do not cover it."""
    return _unlike_uniform("bare masks", slot_vectors, modulus, target)


def reuse(
    slot_vectors: Sequence[Slots], modulus: int, *, target: str = "one party's masked inputs"
) -> AuditFinding:
    """Whether two inputs of one party share a mask: then their difference (or sum) is bare.

    The vectors are of different steps; of two that differ in length the common beginning counts.
    """
    apart: list[Slots] = []
    for one, other in combinations(slot_vectors, 2):
        a, b = (v[: min(one.size, other.size)] for v in (one, other))
        apart.append((a + (np.uint64(modulus) - b)) % np.uint64(modulus))
        apart.append((a + b) % np.uint64(modulus))
    return _unlike_uniform("reused masks", apart, modulus, target)


def guess_seed(masked: Slots, known: Slots, modulus: int, expand: Expand, bits: int) -> int | None:
    """Try all seeds of so many bits against slots whose plaintext is known."""
    mask = (masked + (np.uint64(modulus) - known)) % np.uint64(modulus)
    first = int(mask[0])
    for seed in range(1 << bits):
        drawn = expand(seed)
        if int(drawn[0]) == first and np.array_equal(drawn, mask):
            return seed
    return None


def repetition(streams: Callable[[], Slots], count: int) -> bool:
    """Whether two of so many independent streams begin alike."""
    seen: set[bytes] = set()
    for _ in range(count):
        start = streams().tobytes()
        if start in seen:
            return True
        seen.add(start)
    return False


def weak_seeds(
    masked: Slots,
    known: Slots,
    modulus: int,
    streams: Callable[[], Slots],
    guesses: Sequence[Expand],
    *,
    bits: int,
    log_streams: int,
    target: str,
) -> AuditFinding:
    """Guess a seed of `bits` bits, for each way to expand it, and look for streams that repeat."""
    found = any(guess_seed(masked, known, modulus, way, bits) is not None for way in guesses)
    twice = repetition(streams, 1 << log_streams)
    excluded = max(bits, 2 * log_streams - 6)  # 2^5 repetitions are expected at so many bits
    details = {
        "guessed": found,
        "streams that repeat": twice,
        "bits tried": bits,
        "streams drawn": 1 << log_streams,
        "bits of a seed that would have been noticed": excluded,
    }
    value = float(found or twice)
    tried = len(guesses) << bits
    return AuditFinding(
        NAME, ROLE, target, "a mask's seed was found", value, 0.0, 1.0, tried, details=details
    )


def _unlike_uniform(what: str, vectors: Sequence[Slots], modulus: int, target: str) -> AuditFinding:
    enough = [v for v in vectors if v.size >= FEW_BINS * PER_BIN]
    slots = sum(v.size for v in enough)
    blank = AuditFinding(
        f"{NAME}: {what}", ROLE, target, "unlike uniform masks", None, LEVEL, 1.0, slots
    )
    if not enough:
        return blank.at(note="too few slots to tell masks from anything else")
    level = LEVEL / len(enough)  # Bonferroni
    unlike = sum(uniformity(v, modulus) < level for v in enough)
    details = {"tests": len(enough), "unlike uniform": unlike, "level of each": level}
    return blank.at(value=float(unlike > 0), details=details)
