"""Attacks of a malicious coordinator, and the parties that notice them.

Each coordinator of `malicious_coordinators` leads a small federation of the installed program,
protected as the run is. It also leads one that lacks the defence: without protection, with links
that do not count frames, or with keys that parties take on trust. There it must succeed.

Swapped keys are tried on one masked sum of three parties at the level of
`crypto.sealing.step_keys`. The coordinator sends one party a key of its own in place of all others'
keys; a party that believes it masks with streams that the coordinator can draw too. Its self mask
comes off in every sum, by the shares that the others hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any

import numpy as np

from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior
from secure_fl.audits.selftest.malicious_coordinators import TRICKS, swapped
from secure_fl.audits.selftest.malicious_federation import Outcome, Setting, Trick, play
from secure_fl.coordinator.sum_steps import offers_to
from secure_fl.crypto.keys.identity import Identity, channel
from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.blind_sum import MASKED
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.errors import SecureFLError
from secure_fl.protocol.frames import Link
from secure_fl.protocol.messages import Offer
from secure_fl.settings import Protection

NAMES, RUN, LENGTH, THRESHOLD = ("a", "b", "c"), "audit", 16, 2
STREAM = StreamId(RUN, "segment", 1)
VICTIM = NAMES[0]


class OnTrust(StepKeys):
    """Planted: a party that believes whatever keys it is told."""

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Take the keys without opening what the others sealed for this party."""
        self._members = frozenset(members)
        self._secrets.update(
            {party: masking.agree(self._mask_key, offer.public) for party, offer in offers.items()}
        )


def input_read(keys_of_victim: type[StepKeys], *, swap: bool) -> tuple[bool, str]:
    """Play it; whether the coordinator reads the victim's input, and the error that stopped it."""
    step, seed = _Step(keys_of_victim), token_bytes(masking.SEED_BYTES)
    told = step.told(VICTIM)
    if swap:
        told = swapped(told, masking.public_key(seed))
    try:
        step.keys[VICTIM].accept(told, NAMES)
        sent = step.send(VICTIM)
    except SecureFLError as error:
        return False, error.code
    for party in NAMES[1:]:
        step.keys[party].accept(step.told(party), NAMES)
    guess = step.unmask(sent, seed)
    return bool(np.array_equal(guess, step.input)), ""


class _Step:
    """Keys of one sum, the victim's input, and the coordinator's attempt to read it."""

    def __init__(self, keys_of_victim: type[StepKeys]) -> None:
        sites = {name: Identity.generate(name) for name in NAMES}
        self.numbers = {name: number for number, name in enumerate(NAMES, 1)}
        cards = {name: site.public for name, site in sites.items()}
        self.keys = {}
        for name in NAMES:
            peers = {p: channel(sites[name], sites[p].public, b"audit") for p in NAMES if p != name}
            make = keys_of_victim if name == VICTIM else StepKeys
            self.keys[name] = make(
                sites[name], cards, None, RUN, 1, frozenset(NAMES), self.numbers, THRESHOLD, peers
            )
        self.offers = {name: keys.offer() for name, keys in self.keys.items()}
        self.input = np.arange(LENGTH, dtype=np.uint64)

    def told(self, name: str) -> dict[str, Offer]:
        """What a party is told of the others."""
        others = {p: offer for p, offer in self.offers.items() if p != name}
        return offers_to(name, others)

    def send(self, name: str) -> masking.Slots:
        """The party's input under its masks."""
        mask = self.keys[name].mask(NAMES, STREAM, LENGTH, COHORT.modulus, for_host=False)
        return (self.input + mask) % np.uint64(COHORT.modulus)

    def unmask(self, sent: masking.Slots, seed: bytes) -> masking.Slots:
        """Take off the masks of the coordinator's own key, and the self mask by others' shares."""
        mine = masking.mask_key(seed)
        secret = masking.agree(mine, self.offers[VICTIM].public)
        pairs = {self.numbers[p]: secret for p in NAMES if p != VICTIM}
        plus, minus = masking.pair_keys(self.numbers[VICTIM], pairs, STREAM)
        plus.append(
            masking.stream_key(self._self_seed([p for p in NAMES if p != VICTIM]), STREAM, "self")
        )
        mask = masking.combine(plus, minus, LENGTH, COHORT.modulus)
        modulus = np.uint64(COHORT.modulus)
        return (sent + (modulus - mask)) % modulus

    def _self_seed(self, holders: Collection[str]) -> bytes:
        """Recover the victim's self mask from the shares that the others reveal after every sum."""
        shares = {}
        for name in holders:
            self.keys[name].settle(NAMES, ())
            shares[self.numbers[name]] = self.keys[name].reveal({}, {}).seeds[VICTIM]
        return masking.recover_secret(shares, THRESHOLD)


NAME = "tampering"
ABOUT = (
    "Plays a coordinator that changes sums, leaves hospitals out, swaps keys and tells lies; "
    "success would mean that hospitals accept what it made of their results."
)
ROLE = "coordinator"
KEYS, FRAME = "swaps keys", "replays a frame"


@dataclass(slots=True)
class Uncounted(Link):
    """Planted: an end of the wire that takes frames in any order, and again."""

    def _expect(self, field: str, holds: bool) -> None:
        Link._expect(self, field, holds or field == "exchange")


def tampering_trials(
    prior: Prior | None = None,
    quick: bool = False,
    mode: Protection = "he+secagg",
) -> tuple[AuditTrial, ...]:
    """Play every trick; pass the run's own mode.

    Nothing of it depends on the prior, and all of it is quick.
    """
    bare, deployed = Setting.of("none"), Setting.of(mode)
    uncounted = Setting("none", bare.keys, Uncounted)
    honest = play(deployed, Trick())
    null = float(not honest.clean)
    trials = []
    for name in TRICKS:
        nothing = _finding(name, null, honest, deployed)
        if name == KEYS:
            trials.append(_keys(deployed, nothing))
            continue
        control = played(name, uncounted if name == FRAME else bare)
        trials.append(AuditTrial(control, played(name, deployed), nothing))
    return tuple(trials)


def played(name: str, setting: Setting) -> AuditFinding:
    """Play one trick on a small federation, and see whether any party took a wrong result."""
    out = play(setting, TRICKS[name](setting.mode))
    return _finding(name, float(out.accepted or not out.noticed), out, setting)


def _keys(deployed: Setting, null: AuditFinding) -> AuditTrial:
    """Swapped keys change no result: what they win is the victim's input."""
    if deployed.mode not in MASKED:
        note = f'protection.mode = "{deployed.mode}" has no keys that could be swapped'
        return AuditTrial(None, null.at(value=None, note=note), None, reason=note)
    control, _ = input_read(OnTrust, swap=True)
    read, _ = input_read(StepKeys, swap=True)
    without, _ = input_read(StepKeys, swap=False)
    out = play(deployed, TRICKS[KEYS](deployed.mode))
    measure = "an input was read, or other keys were taken"
    planted = {"noticed by": {}, "without": "the check of keys"}
    return AuditTrial(
        null.at(value=float(control), measure=measure, details=planted),
        _finding(KEYS, float(read or not out.noticed), out, deployed).at(measure=measure),
        null.at(value=max(float(without), null.value or 0.0), measure=measure),
    )


def _finding(name: str, value: float, out: Outcome, setting: Setting) -> AuditFinding:
    details: dict[str, Any] = {
        "mode": setting.mode,
        "noticed by": dict(sorted(out.noticed.items())),
    }
    if setting.link is not Link:
        details["without"] = "counted frames"
    measure = "a party accepted it, or nobody noticed"
    attack, target = f"{NAME}: {name}", "a small federation"
    return AuditFinding(attack, ROLE, target, measure, value, 0.0, 1.0, 1, details=details)
