"""The masks of the installed program under the attacks of `masks`, beside masks that are broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes

import numpy as np

from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.selftest.masks import NAME, reuse, uniform_inputs, weak_seeds
from secure_fl.coordinator.sum_steps import offers_to
from secure_fl.crypto.keys.identity import Identity, channel
from secure_fl.crypto.sealing import masking, packing
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import Codec
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys

PARTIES, SEGMENT, STEPS, VALUES = ("a", "b", "c"), "audit segment", 3, 4000
KNOWN = 2  # slots whose plaintext an attacker knows, such as padding: 88 bits
STREAM = StreamId("audit", SEGMENT, 1)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much an attacker spends: seeds tried, and streams drawn, as powers of two."""

    bits: int = 16
    self_streams: int = 17  # shows seeds of 28 bits
    pair_streams: int = 13  # each takes two key agreements; shows seeds of 20 bits


QUICK = Effort(14, 13, 11)


def numpy_stream(modulus: int, seed: int) -> Slots:
    """Planted: a mask from numpy's generator, as weak as its seed."""
    return np.random.default_rng(seed).integers(0, modulus, KNOWN, dtype=np.uint64)


def self_stream(modulus: int, seed: bytes | int) -> Slots:
    """A self mask as parties draw it; a number is the guess of a seed."""
    return masking.uniform(masking.stream_key(_seed(seed), STREAM, "self"), KNOWN, modulus)


def pair_stream(modulus: int, peer: bytes, seed: bytes | int) -> Slots:
    """A mask that two parties share, from one's seed and the other's public key."""
    secret = masking.agree(masking.mask_key(_seed(seed)), peer)
    plus, minus = masking.pair_keys(1, {2: secret}, STREAM)
    return masking.combine(plus, minus, KNOWN, modulus)


def mask_trials(
    prior: Prior,
    quick: bool = False,
    recorded: Mapping[str, Sequence[Slots]] | None = None,
    modulus: int = COHORT.modulus,
) -> tuple[AuditTrial, ...]:
    """Attack seeds and streams of the shipped masks.

    `recorded`: masked slots that a party sent, sum by sum, for every party; they are judged too.
    """
    effort = QUICK if quick else Effort()
    clear = [_packed(prior, step, modulus) for step in range(STEPS)]
    views = {"masks drawn for this audit": shipped_inputs(clear, modulus), **(recorded or {})}
    seeds = [_seeds(prior, modulus, kind, effort) for kind in ("self masks", "pair masks")]
    covered = [_covered(prior, modulus, who, slots, clear) for who, slots in views.items()]
    return (*seeds, *(trial for pair in covered for trial in pair))


def shipped_inputs(clear: Sequence[Slots], modulus: int) -> list[Slots]:
    """What one of three parties sends in consecutive sums, masked as the program does it."""
    sites = {name: Identity.generate(name) for name in PARTIES}
    numbers = {name: number for number, name in enumerate(PARTIES, 1)}
    cards = {name: site.public for name, site in sites.items()}
    channels = {
        a: {b: channel(sites[a], sites[b].public, b"audit") for b in PARTIES if b != a}
        for a in PARTIES
    }
    found = []
    for index, slots in enumerate(clear, 1):
        everybody, all_of_them = frozenset(PARTIES), len(PARTIES)
        keys = {
            p: StepKeys(
                sites[p], cards, None, "audit", index, everybody, numbers, all_of_them, channels[p]
            )
            for p in PARTIES
        }
        offers = {p: keys[p].offer() for p in PARTIES}
        me = PARTIES[0]
        told = offers_to(me, offers)
        keys[me].accept(told, PARTIES)
        mask = keys[me].mask(
            PARTIES, StreamId("audit", SEGMENT, index), slots.size, modulus, for_host=False
        )
        found.append(_added(slots, mask, modulus))
    return found


def _covered(
    prior: Prior, modulus: int, who: str, slots: Sequence[Slots], clear: Sequence[Slots]
) -> tuple[AuditTrial, AuditTrial]:
    """Are inputs uniform, and is no mask used twice? Against none, and against one for all."""
    rng = prior.rng(NAME, "uniform", who)
    nothing = [rng.integers(0, modulus, slot.size, dtype=np.uint64) for slot in clear]
    same = [_added(slot, nothing[0], modulus) for slot in clear]

    def bare(view: Sequence[Slots]) -> AuditFinding:
        return uniform_inputs(view, modulus, target=who)

    def twice(view: Sequence[Slots]) -> AuditFinding:
        return reuse(view, modulus, target=who)

    return (
        _judged(bare(clear), bare(slots), bare(nothing)),
        _judged(twice(same), twice(slots), twice(nothing)),
    )


def _judged(control: AuditFinding, deployed: AuditFinding, null: AuditFinding) -> AuditTrial:
    """Where there is too little to judge, nothing was shown."""
    if deployed.value is None:
        return AuditTrial(None, deployed, None, reason=deployed.note)
    return AuditTrial(control, deployed, null)


def _seeds(prior: Prior, modulus: int, kind: str, effort: Effort) -> AuditTrial:
    rng = prior.rng(NAME, kind)
    known = _packed(prior, 0, modulus)[:KNOWN]
    peer = masking.public_key(token_bytes(masking.SEED_BYTES))
    pairs = kind == "pair masks"
    shipped = partial(pair_stream, modulus, peer) if pairs else partial(self_stream, modulus)
    weak = partial(numpy_stream, modulus)
    streams = effort.pair_streams if pairs else effort.self_streams
    bits = min(effort.bits, streams)

    def attack(draw: Callable[[], Slots]) -> AuditFinding:
        masked = _added(known, draw(), modulus)
        return weak_seeds(
            masked, known, modulus, draw, (weak, shipped),
            bits=bits, log_streams=streams, target=kind,
        )  # fmt: skip

    return AuditTrial(
        attack(lambda: weak(int(rng.integers(1 << bits)))),
        attack(lambda: shipped(token_bytes(masking.SEED_BYTES))),
        attack(lambda: rng.integers(0, modulus, KNOWN, dtype=np.uint64)),
    )


def _packed(prior: Prior, step: int, modulus: int) -> Slots:
    """Slots of an update as they are before masks: 16-bit values of three parties."""
    rng = prior.rng(NAME, "values", step)
    codec = Codec(16, len(PARTIES), modulus)
    values = rng.normal(0, 0.01, VALUES).astype(np.float32)
    slots = packing.pack(codec, packing.quantize(codec, values, 0.1, rng)[0])
    return slots


def _added(slots: Slots, mask: Slots, modulus: int) -> Slots:
    return (slots + mask) % np.uint64(modulus)


def _seed(seed: bytes | int) -> bytes:
    return seed if isinstance(seed, bytes) else seed.to_bytes(masking.SEED_BYTES, "little")
