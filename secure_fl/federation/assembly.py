"""The assembly of one party: its sums, its cohort, and the session of both.

The coordinator's counterpart is `coordinator.assembly`, whose process never loads this file: it can
use secret keys. This file knows no models: a program is any
coroutine over a `Cohort`, an algorithm's (`federation.prepared`) or one that is written by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from secure_fl.capture.recording import Capture, NoCapture
from secure_fl.coordinator.assembly import links_to
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.clear_sum import ClearEnvelopes, ClearSums
from secure_fl.crypto.sealing.envelopes import Envelopes, PartyKeys
from secure_fl.crypto.sealing.secure_sum import SecureSums
from secure_fl.crypto.sealing.transcript import Transcript
from secure_fl.events import EventLog
from secure_fl.party.cohort import Cohort, NoiseAccount
from secure_fl.party.context import Checkpoints, Members
from secure_fl.party.hooks import RoundHook
from secure_fl.party.session import Program, Session
from secure_fl.protocol.frames import Link
from secure_fl.protocol.ports import PrivacyLayer, TranscriptLayer
from secure_fl.seeds import seed_for
from secure_fl.settings import Protection, ProtectionSettings

COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class PartyContext:
    """One party's end of a run: its keys, its link, and the state that it brings."""

    keys: PartyKeys
    link: Link  # this party's end; the run's id binds all masks
    rules: CoordinatorRules
    protection: ProtectionSettings
    members: tuple[str, ...] = ()  # with which the run must begin; empty: any
    seed: int = 0
    recorder: EventLog | None = None  # None: a new one
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    noise: NoiseAccount | None = None  # the budget of noised sums
    hooks: Sequence[RoundHook] = ()  # optional features, in their order
    surroundings: Callable[[], AbstractContextManager[None]] = nullcontext  # entered for each step
    until: int | None = None  # the last round, if it is not the program's
    capture: Capture = field(default_factory=NoCapture)  # observes the sums of this party


def join_run(program: Program, party: PartyContext) -> Session:
    """Make the session that answers the coordinator for one party."""
    keys, rules = party.keys, party.rules
    name, recorder = keys.identity.name, party.recorder or EventLog(keys.identity.name)
    layer = privacy_layer(party.protection, keys, rules, run=party.link.run, seed=party.seed)
    layer = party.capture.layer(keys, layer)
    least, t, gathered = rules.min_cohort, rules.threshold, party.members
    members = Members(name, rules.host, least, t, layer.transcript, gathered)
    cohort = Cohort(
        members, layer, party.checkpoints, recorder, noise=party.noise, hooks=party.hooks
    )
    cohort.until = party.until
    return Session(
        program,
        cohort,
        party.link,
        sums=layer.sums,
        checkpoints=party.checkpoints,
        recorder=recorder,
        surroundings=party.surroundings,
        goes_back=rules.goes_back,
    )


@dataclass(frozen=True, slots=True)
class Wires:
    """Both ends of the link between each party and a coordinator, all in this process."""

    run: bytes
    parties: Mapping[str, Link]
    coordinator: Mapping[str, Link]


def connect(
    keys: Mapping[str, PartyKeys], run: bytes | None = None, link: type[Link] = Link
) -> Wires:
    """Link parties in this process to a new identity of the coordinator, for a run with this id."""
    me, run = Identity.generate(COORDINATOR), run or os.urandom(16)
    cards = {name: own.identity.public for name, own in keys.items()}
    ends = {n: link(run, own.identity, me.public, asks=False) for n, own in keys.items()}
    return Wires(run, ends, links_to(cards, me, run, link))


def make_keys(mode: Protection, members: Sequence[str], host: str | None) -> dict[str, PartyKeys]:
    """Generate keys for a federation in one process; hospitals get theirs in a key ceremony."""
    identities = {name: Identity.generate(name) for name in members}
    cards = {name: identity.public for name, identity in identities.items()}
    cohort = secret.generate() if mode == "he+secagg" else None
    tag_key, channel_key = os.urandom(32), os.urandom(32)
    return {
        name: PartyKeys(identities[name], cards, cohort, tag_key, channel_key) for name in members
    }


def keys_of_sums(keys: PartyKeys, mode: Protection) -> PartyKeys:
    """Return the keys that a run's sums use: a ceremony deals the key of ciphertexts always."""
    return replace(keys, cohort=None) if mode == "secagg" else keys


def privacy_layer(
    protection: ProtectionSettings,
    keys: PartyKeys,
    rules: CoordinatorRules,
    *,
    run: bytes,
    seed: int,
) -> PrivacyLayer:
    """Make the party's half of all sums of a run, with its envelopes and its transcript."""
    name = keys.identity.name
    if protection.mode == "none":
        return PrivacyLayer(ClearSums(name), ClearEnvelopes(name), TranscriptLayer())
    keys = keys_of_sums(keys, protection.mode)
    rng = np.random.Generator(np.random.PCG64(seed_for(seed, "rounding", name)))
    envelopes, transcript = Envelopes(keys, run), Transcript(protection.bits, rng)
    sums = SecureSums(
        keys, run, transcript, envelopes.digest_key, host=rules.host, threshold=rules.threshold
    )
    return PrivacyLayer(sums, envelopes, transcript)
