"""The one place where a party is put together: its sums, its cohort, and the session of both.

The coordinator's counterpart is `coordinator.assembly`. Nothing here knows models: a program is any
coroutine over a `Cohort`, an algorithm's (`federation.prepared`) or one written by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from secure_fl.capture.capture import Capture, NoCapture
from secure_fl.coordinator.assembly import links_to
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.events import EventLog
from secure_fl.federation.keys import privacy_layer
from secure_fl.party.cohort import Cohort
from secure_fl.party.hooks import RoundHook
from secure_fl.party.noise_account import NoiseAccount
from secure_fl.party.rounds import Checkpoints
from secure_fl.party.session import Program, Session
from secure_fl.protocol.frames import Link
from secure_fl.runs.party_checkpoints import NoCheckpoints
from secure_fl.settings import ProtectionSettings

COORDINATOR = "coordinator"


def join_run(
    program: Program,
    keys: PartyKeys,
    link: Link,
    rules: CoordinatorRules,
    protection: ProtectionSettings,
    *,
    seed: int = 0,
    recorder: EventLog | None = None,
    checkpoints: Checkpoints | None = None,
    noise: NoiseAccount | None = None,
    hooks: Sequence[RoundHook] = (),
    surroundings: Callable[[], AbstractContextManager[None]] = nullcontext,
    until: int | None = None,
    capture: Capture | None = None,
) -> Session:
    """Make what answers the coordinator for one party, ready for its first frame.

    `link`: this party's end; its run binds all masks. `checkpoints`: None keeps none.
    `noise`: the budget that its predictions may spend. `hooks`: optional parts of the run, in their
    order. `surroundings`: entered for every step.
    `until`: the round to end with, if not the last. `capture`: who may watch its sums.
    """
    recorder = recorder or EventLog(keys.identity.name)
    checkpoints = checkpoints or NoCheckpoints()
    layer = privacy_layer(protection, keys, rules, run=link.run, seed=seed)
    layer = (capture or NoCapture()).layer(keys, layer)
    cohort = Cohort(
        keys.identity.name,
        host=rules.host,
        min_cohort=rules.min_cohort,
        threshold=rules.threshold,
        layer=layer,
        checkpoints=checkpoints,
        recorder=recorder,
        noise=noise,
        hooks=hooks,
    )
    cohort.until = until
    return Session(
        program,
        cohort,
        link,
        sums=layer.sums,
        checkpoints=checkpoints,
        recorder=recorder,
        surroundings=surroundings,
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
    """Link parties in this process to a fresh coordinator's identity, for a run of this id."""
    me, run = Identity.generate(COORDINATOR), run or os.urandom(16)
    cards = {name: own.identity.public for name, own in keys.items()}
    ends = {n: link(run, own.identity, me.public, asks=False) for n, own in keys.items()}
    return Wires(run, ends, links_to(cards, me, run, link))
