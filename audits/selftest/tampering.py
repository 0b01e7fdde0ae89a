"""Attacks of a malicious coordinator, and the parties that notice them.

Each coordinator of `malicious_coordinators` leads a small federation of the installed program,
protected as the run is. It also leads one that lacks the defence: without protection, with links
that do not count frames, or with keys that parties take on trust. There it must succeed.

Swapped keys are tried on one masked sum of three parties. The coordinator sends one party a key of
its own in place of all others' keys. A party that believes it masks with streams that the
coordinator can draw too. Its self mask comes off in every sum, by the shares that the others hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any

import numpy as np

from secure_fl.audits.findings import AuditFinding, AuditTrial
from secure_fl.audits.selftest.malicious_coordinators import COORDINATORS, swapped
from secure_fl.audits.selftest.malicious_federation import (
    FederationOutcome,
    FederationSetup,
    HonestCoordinator,
    run_federation,
)
from secure_fl.audits.selftest.masks import NUMBERS, PARTIES, STREAM, channels, step_keys
from secure_fl.coordinator.sum_steps import offers_to
from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.errors import SecureFLError
from secure_fl.protocol.frames import Link
from secure_fl.protocol.messages import Offer
from secure_fl.settings import Protection

LENGTH, THRESHOLD = 16, 2
VICTIM, OTHERS = PARTIES[0], PARTIES[1:]


class OnTrust(StepKeys):
    """A planted defect: a party that believes any keys it receives."""

    def accept(self, offers: Mapping[str, Offer], members: Sequence[str]) -> None:
        """Accept the keys without opening what the others sealed for this party."""
        self._members = frozenset(members)
        self._secrets.update(
            {party: masking.agree(self._mask_key, offer.public) for party, offer in offers.items()}
        )


def input_read(keys_of_victim: type[StepKeys], *, swap: bool) -> tuple[bool, str]:
    """Swap keys or not; return if the coordinator reads the victim's input, and any error code."""
    step, seed = _Step(keys_of_victim), token_bytes(masking.SEED_BYTES)
    offers = step.offers_for(VICTIM)
    if swap:
        offers = swapped(offers, masking.public_key(seed))
    try:
        step.keys[VICTIM].accept(offers, PARTIES)
        sent = step.send(VICTIM)
    except SecureFLError as error:
        return False, error.code
    for party in OTHERS:
        step.keys[party].accept(step.offers_for(party), PARTIES)
    guess = step.unmask(sent, seed)
    return bool(np.array_equal(guess, step.input)), ""


class _Step:
    """The keys of one sum, the victim's input, and the coordinator's attempt to read it."""

    def __init__(self, keys_of_victim: type[StepKeys]) -> None:
        peers = channels()
        self.keys = {
            name: step_keys(
                name, peers, 1, THRESHOLD, keys_of_victim if name == VICTIM else StepKeys
            )
            for name in PARTIES
        }
        self.offers = {name: keys.offer() for name, keys in self.keys.items()}
        self.input = np.arange(LENGTH, dtype=np.uint64)

    def offers_for(self, name: str) -> dict[str, Offer]:
        """Collect what a party receives from the others."""
        others = {p: offer for p, offer in self.offers.items() if p != name}
        return offers_to(name, others)

    def send(self, name: str) -> masking.Slots:
        """Mask the party's input."""
        mask = self.keys[name].mask(PARTIES, STREAM, LENGTH, COHORT.modulus, for_host=False)
        return (self.input + mask) % np.uint64(COHORT.modulus)

    def unmask(self, sent: masking.Slots, seed: bytes) -> masking.Slots:
        """Remove the masks of the coordinator's own key, and the self mask by others' shares."""
        mine = masking.mask_key(seed)
        secret = masking.agree(mine, self.offers[VICTIM].public)
        pairs = {NUMBERS[p]: secret for p in OTHERS}
        plus, minus = masking.pair_keys(NUMBERS[VICTIM], pairs, STREAM)
        plus.append(masking.stream_key(self._self_seed(), STREAM, "self"))
        mask = masking.combine(plus, minus, LENGTH, COHORT.modulus)
        modulus = np.uint64(COHORT.modulus)
        return (sent + (modulus - mask)) % modulus

    def _self_seed(self) -> bytes:
        """Recover the victim's self mask from the shares that the others reveal after every sum."""
        shares = {}
        for name in OTHERS:
            self.keys[name].settle(PARTIES, ())
            shares[NUMBERS[name]] = self.keys[name].reveal({}, {}).seeds[VICTIM]
        return masking.recover_secret(shares, THRESHOLD)


NAME = "tampering"
ABOUT = (
    "Runs a coordinator that changes sums, leaves hospitals out, swaps keys and lies; success "
    "would mean that hospitals accept wrong results."
)
ROLE = "coordinator"
KEYS, FRAME = "swaps keys", "replays a frame"


@dataclass(slots=True)
class Uncounted(Link):
    """A planted defect: an end of a link that accepts frames in any order, and again."""

    def _expect(self, field: str, holds: bool) -> None:
        Link._expect(self, field, holds or field == "exchange")


def tampering_trials(mode: Protection = "he+secagg") -> tuple[AuditTrial, ...]:
    """Run every malicious coordinator, under this protection and without its defence."""
    bare, deployed = FederationSetup.of("none"), FederationSetup.of(mode)
    uncounted = FederationSetup("none", bare.keys, Uncounted)
    honest = run_federation(deployed, HonestCoordinator())
    null = float(not honest.clean)
    trials = []
    for name in COORDINATORS:
        nothing = _finding(name, null, honest, deployed)
        if name == KEYS:
            trials.append(_keys(deployed, nothing))
            continue
        control = attacked(name, uncounted if name == FRAME else bare)
        trials.append(AuditTrial(control, attacked(name, deployed), nothing))
    return tuple(trials)


def attacked(name: str, setup: FederationSetup) -> AuditFinding:
    """Run one malicious coordinator, and test if a party accepted a wrong result."""
    out = run_federation(setup, COORDINATORS[name](setup.mode))
    return _finding(name, float(out.accepted or not out.noticed), out, setup)


def _keys(deployed: FederationSetup, null: AuditFinding) -> AuditTrial:
    """Swap keys: no result changes, and the gain is the victim's input."""
    if deployed.mode == "none":
        note = f'protection.mode = "{deployed.mode}" has no keys to swap'
        return AuditTrial(None, null.at(value=None, note=note), None, reason=note)
    control, _ = input_read(OnTrust, swap=True)
    read, _ = input_read(StepKeys, swap=True)
    without, _ = input_read(StepKeys, swap=False)
    out = run_federation(deployed, COORDINATORS[KEYS](deployed.mode))
    measure = "an input was read, or other keys were taken"
    planted = {"noticed by": {}, "without": "the check of keys"}
    return AuditTrial(
        null.at(value=float(control), measure=measure, details=planted),
        _finding(KEYS, float(read or not out.noticed), out, deployed).at(measure=measure),
        null.at(value=max(float(without), null.value or 0.0), measure=measure),
    )


def _finding(
    name: str, value: float, out: FederationOutcome, setup: FederationSetup
) -> AuditFinding:
    details: dict[str, Any] = {"mode": setup.mode, "noticed by": dict(sorted(out.noticed.items()))}
    if setup.link is not Link:
        details["without"] = "counted frames"
    measure = "a hospital accepted it, or nobody noticed"
    attack, target = f"{NAME}: {name}", "a small federation"
    return AuditFinding(attack, ROLE, target, measure, value, 0.0, 1.0, 1, details=details)
