"""Attacks on masks: guessed seeds, masks used twice, and inputs without masks.

A mask hides a slot only if it is uniform mod t and used once. A popular framework's masks came from
numpy's generator under a secret folded to 28 effective bits. Compiled code tries all of them in 20
seconds on one core (in Python, as here, 2^16 take about a second and 2^28 about an hour). Streams
of so few seeds also repeat: of n streams n²/2^(bits+1) pairs are equal (the birthday paradox). So a
search for a repetition among n = 2^17 shows seeds of up to 28 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from secrets import token_bytes

import numpy as np
from scipy.stats import chi2

from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.coordinator.sum_steps import offers_to
from secure_fl.crypto.keys.identity import Channel, Identity
from secure_fl.crypto.sealing import masking, packing
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import Codec
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys

NAME = "weak masks"
ABOUT = (
    "Tries to guess or repeat the random masks under which hospitals send their values; success "
    "would mean that the coordinator can take a mask off one hospital's upload."
)
ROLE = "coordinator"
MODULUS = COHORT.modulus
LEVEL = 1e-6  # of a false alarm, over all tests of one finding
BINS, FEW_BINS, PER_BIN = 256, 16, 5  # of the values mod t; fewer bins where slots are few
KNOWN = 2  # slots whose plaintext an attacker knows, such as padding; 88 bits

Channels = Mapping[str, Mapping[str, Channel]]
Expand = Callable[[int], Slots]
"""Expands a guessed seed to the first slots of its stream."""


def uniformity(slots: Slots) -> float:
    """Compute the p-value of "uniform mod t", by chi-square over equal ranges; NaN: too few."""
    bins = BINS if slots.size >= BINS * PER_BIN else FEW_BINS
    if slots.size < bins * PER_BIN:
        return float("nan")
    edges = [-(-MODULUS * k // bins) for k in range(bins + 1)]
    sizes = np.diff(np.array(edges, dtype=np.float64))
    counts = np.diff(np.searchsorted(np.sort(slots), np.array(edges, dtype=np.uint64)))
    expected = slots.size * sizes / MODULUS
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, bins - 1))


def uniform_inputs(slot_vectors: Sequence[Slots], target: str = "masked inputs") -> AuditFinding:
    """Test if a party's inputs are uniform mod t; otherwise masks do not cover them."""
    return _unlike_uniform("bare masks", slot_vectors, target)


def reuse(
    slot_vectors: Sequence[Slots], target: str = "one hospital's masked inputs"
) -> AuditFinding:
    """Test if two inputs of one party share a mask: then their difference (or sum) is bare.

    The vectors are of different steps. Two of different length are compared as far as both go.
    """
    differences: list[Slots] = []
    for one, other in combinations(slot_vectors, 2):
        a, b = (v[: min(one.size, other.size)] for v in (one, other))
        differences += [_added(a, MODULUS - b), _added(a, b)]
    return _unlike_uniform("reused masks", differences, target)


def guess_seed(mask: Slots, expand: Expand, bits: int) -> int | None:
    """Try all seeds of so many bits against known slots of a mask."""
    first = int(mask[0])
    for seed in range(1 << bits):
        drawn = expand(seed)
        if int(drawn[0]) == first and np.array_equal(drawn, mask):
            return seed
    return None


def repetition(streams: Callable[[], Slots], count: int) -> bool:
    """Look for two equal beginnings among so many independent streams."""
    seen: set[bytes] = set()
    for _ in range(count):
        start = streams().tobytes()
        if start in seen:
            return True
        seen.add(start)
    return False


@dataclass(frozen=True, slots=True)
class Effort:
    """How much an attacker spends: seeds tried, and streams drawn, as powers of two."""

    bits: int = 16
    self_streams: int = 17  # shows seeds of 28 bits
    pair_streams: int = 13  # each takes two key agreements; shows seeds of 20 bits


QUICK = Effort(14, 13, 11)


def weak_seeds(
    mask: Slots,
    streams: Callable[[], Slots],
    guesses: Sequence[Expand],
    bits: int,
    log_streams: int,
) -> AuditFinding:
    """Guess a seed of `bits` bits, for each way to expand it, and look for streams that repeat."""
    guessed = any(guess_seed(mask, expand, bits) is not None for expand in guesses)
    repeats = repetition(streams, 1 << log_streams)
    excluded = max(bits, 2 * log_streams - 6)  # 2^5 repetitions are expected at so many bits
    details = {
        "guessed": guessed,
        "streams that repeat": repeats,
        "bits tried": bits,
        "streams drawn": 1 << log_streams,
        "bits of a seed that would have been noticed": excluded,
    }
    measure, samples = "a mask's seed was found", len(guesses) << bits
    value = float(guessed or repeats)
    return AuditFinding(NAME, ROLE, "", measure, value, 0.0, 1.0, samples, details=details)


def _unlike_uniform(test: str, vectors: Sequence[Slots], target: str) -> AuditFinding:
    enough = [v for v in vectors if v.size >= FEW_BINS * PER_BIN]
    slots = sum(v.size for v in enough)
    blank = AuditFinding(
        f"{NAME}: {test}", ROLE, target, "unlike uniform masks", None, LEVEL, 1.0, slots
    )
    if not enough:
        return blank.at(note="too few slots to distinguish masks from anything else")
    level = LEVEL / len(enough)  # Bonferroni
    unlike = sum(uniformity(v) < level for v in enough)
    details = {"tests": len(enough), "unlike uniform": unlike, "level of each": level}
    return blank.at(value=float(unlike > 0), details=details)


# --- the masks of the installed program, and broken ones ------------------------------------------

PARTIES, SEGMENT, STEPS, VALUES = ("a", "b", "c"), "audit segment", 3, 4000
NUMBERS = {name: number for number, name in enumerate(PARTIES, 1)}
STREAM = StreamId("audit", SEGMENT, 1)
HALF = bytes(masking.HALF_BYTES)  # the half of another party


def numpy_stream(seed: int) -> Slots:
    """Plant a defect: a mask from numpy's generator, as weak as its seed."""
    return np.random.default_rng(seed).integers(0, MODULUS, KNOWN, dtype=np.uint64)


def self_stream(seed: bytes | int) -> Slots:
    """Draw a self mask as parties do; a number is a guessed seed."""
    return masking.uniform(masking.stream_key(_seed(seed), STREAM, "self"), KNOWN, MODULUS)


def pair_stream(peer: bytes, seed: bytes | int) -> Slots:
    """Draw a mask that two parties share, from one's seed and the other's key and half."""
    own = masking.half(_seed(seed), 2)
    secret = masking.pair_secret(masking.agree(masking.mask_key(_seed(seed)), peer), own, HALF)
    plus, minus = masking.pair_keys(1, {2: secret}, STREAM)
    return masking.combine(plus, minus, KNOWN, MODULUS)


def mask_trials(
    prior: Prior,
    quick: bool = False,
    recorded: Mapping[str, Sequence[Slots]] | None = None,
) -> tuple[AuditTrial, ...]:
    """Attack seeds and streams of the shipped masks.

    `recorded`: masked slots that parties sent, sum by sum, by a description; they are tested too.
    """
    effort = QUICK if quick else Effort()
    clear = [_packed(prior, step) for step in range(STEPS)]
    views = {"masks drawn for this audit": shipped_inputs(clear), **(recorded or {})}
    seeds = [_seeds(prior, kind, effort) for kind in ("self masks", "pair masks")]
    covered = [_covered(prior, name, slots, clear) for name, slots in views.items()]
    return (*seeds, *(trial for pair in covered for trial in pair))


def shipped_inputs(clear: Sequence[Slots]) -> list[Slots]:
    """Mask consecutive inputs of one of three parties as the program does."""
    peers, me = channels(), PARTIES[0]
    masked = []
    for index, slots in enumerate(clear, 1):
        keys = {p: step_keys(p, peers, index) for p in PARTIES}
        keys[me].accept(offers_to(me, {p: keys[p].offer() for p in PARTIES}), PARTIES)
        stream = StreamId(STREAM.run, SEGMENT, index)
        mask = keys[me].mask(PARTIES, stream, slots.size, MODULUS, for_host=False)
        masked.append(_added(slots, mask))
    return masked


def channels() -> Channels:
    """Connect three new parties, each with both others."""
    sites = {name: Identity.generate(name) for name in PARTIES}
    return {
        a: {b: Channel(sites[a], sites[b].public, b"audit") for b in PARTIES if b != a}
        for a in PARTIES
    }


def step_keys(
    party: str, peers: Channels, index: int, threshold: int = 3, kind: type[StepKeys] = StepKeys
) -> StepKeys:
    """Draw a party's keys for one sum of the three."""
    members = frozenset(PARTIES)
    return kind(party, None, STREAM.run, index, members, NUMBERS, threshold, peers[party])


def _covered(
    prior: Prior, name: str, slots: Sequence[Slots], clear: Sequence[Slots]
) -> tuple[AuditTrial, AuditTrial]:
    """Test inputs for uniformity and reuse, compared with no mask, and with one mask for all."""
    rng = prior.rng(NAME, "uniform", name)
    nothing = [rng.integers(0, MODULUS, slot.size, dtype=np.uint64) for slot in clear]
    same = [_added(slot, nothing[0]) for slot in clear]
    bare = [uniform_inputs(view, name) for view in (clear, slots, nothing)]
    twice = [reuse(view, name) for view in (same, slots, nothing)]
    return _judged(*bare), _judged(*twice)


def _judged(control: AuditFinding, deployed: AuditFinding, null: AuditFinding) -> AuditTrial:
    """Make a trial; too few slots show nothing."""
    if deployed.value is None:
        return AuditTrial(None, deployed, None, reason=deployed.note)
    return AuditTrial(control, deployed, null)


def _seeds(prior: Prior, kind: str, effort: Effort) -> AuditTrial:
    rng = prior.rng(NAME, kind)
    known = _packed(prior, 0)[:KNOWN]
    peer = masking.public_key(token_bytes(masking.SEED_BYTES))
    pairs = kind == "pair masks"
    shipped = partial(pair_stream, peer) if pairs else self_stream
    streams = effort.pair_streams if pairs else effort.self_streams
    bits = min(effort.bits, streams)

    def attack(draw: Callable[[], Slots]) -> AuditFinding:
        mask = _added(_added(known, draw()), MODULUS - known)  # the plaintext is known
        return weak_seeds(mask, draw, (numpy_stream, shipped), bits, streams).at(target=kind)

    return AuditTrial(
        attack(lambda: numpy_stream(int(rng.integers(1 << bits)))),
        attack(lambda: shipped(token_bytes(masking.SEED_BYTES))),
        attack(lambda: rng.integers(0, MODULUS, KNOWN, dtype=np.uint64)),
    )


def _packed(prior: Prior, step: int) -> Slots:
    """Pack an update into slots, without masks: 16-bit values of three parties."""
    rng = prior.rng(NAME, "values", step)
    codec = Codec(16, len(PARTIES), MODULUS)
    values = rng.normal(0, 0.01, VALUES).astype(np.float32)
    return packing.pack(codec, packing.quantize(codec, values, 0.1, rng)[0])


def _added(slots: Slots, mask: Slots) -> Slots:
    return (slots + mask) % np.uint64(MODULUS)


def _seed(seed: bytes | int) -> bytes:
    return seed if isinstance(seed, bytes) else seed.to_bytes(masking.SEED_BYTES, "little")
