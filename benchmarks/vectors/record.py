"""Recorded runs: frames of real sessions with all keys, for vectors and for the benchmark."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from unittest.mock import patch

import numpy as np

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Audience
from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine, federate
from secure_fl.thresholds import default_threshold

NAMES = ("east", "north", "south", "west", "centre", "delta", "fjord")
HOST = "host"
Kind = Literal["plain", "carried", "partial", "host"]


@dataclass(frozen=True)
class Plan:
    """The members, the mode, the values and the dropouts of a run."""

    name: str
    mode: Protection
    parties: int
    kind: Kind = "plain"
    values: int = 12
    sums: int = 1
    bits: int = 16
    reader: str = NAMES[0]
    lose: Mapping[str, int] = field(default_factory=dict)  # the exchange at which a party is lost

    @property
    def parties_names(self) -> tuple[str, ...]:
        """The names of the parties."""
        return NAMES[: self.parties]


@dataclass
class Tape:
    """The notes about a run that are recorded with its frames."""

    frames: list[list[str]] = field(default_factory=list)
    secrets: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    sums: dict[str, dict[str, Any]] = field(default_factory=dict)

    def tap(self, party: str, direction: str, frame: Frame) -> Frame:
        """Write a frame down."""
        self.frames.append([party, direction, b64encode(frame.to_bytes()).decode()])
        return frame

    def offered(self, keys: StepKeys) -> None:
        """Write a party's seeds down, and its shares of them."""
        seeds = keys._mask_seed, keys._self_seed, *keys._held.get(keys.me, ())
        of_sum = self.secrets.setdefault(str(keys.index), {})
        of_sum[keys.me] = [seed.hex() for seed in seeds]

    def opened(self, progress: SecureSumInProgress, values: Mapping[str, Any]) -> None:
        """Write the layouts and the values of a sum down."""
        layouts = [
            {
                "bits": layout.codec.bits,
                "parties": layout.codec.parties,
                "extra": layout.codec.extra,
                "scale": progress._rule.noise.scale if progress._rule.noise else None,
                "fields": [[f.name, f.size, f.clip, f.norm] for f in layout.fields],
            }
            for layout in progress.layouts
        ]
        found = {name: np.asarray(value).tolist() for name, value in values.items()}
        given = progress._rule
        noise = given.noise and [given.noise.scale, given.noise.reach]
        rule = {"carry": given.carry, "bound": given.bound, "noise": noise}
        self.sums[str(progress._index)] = {"rule": rule, "layouts": layouts, "values": found}

    def document(self) -> dict[str, Any]:
        """Return the fields of a case."""
        sums = self.sums.items()
        return {
            "secrets": self.secrets,
            "sums": {n: {"rule": of["rule"], "layouts": of["layouts"]} for n, of in sums},
            "frames": self.frames,
            "result": {number: of["values"] for number, of in sums},
        }


@contextmanager
def _watched(tape: Tape, reader: str) -> Iterator[None]:
    offer, opening = StepKeys.offer, SecureSumInProgress.open

    def offering(keys: StepKeys, statement: Any = None) -> Any:
        made = offer(keys, statement)
        tape.offered(keys)
        return made

    def opened(progress: SecureSumInProgress, *args: Any) -> Any:
        values = opening(progress, *args)
        if progress._context.me == reader and values:
            tape.opened(progress, values)
        return values

    with (
        patch.object(StepKeys, "offer", offering),
        patch.object(SecureSumInProgress, "open", opened),
    ):
        yield


def _program(plan: Plan) -> Any:
    rng = np.random.default_rng(len(plan.name))
    inputs = {
        name: rng.uniform(-1, 1, (plan.sums, plan.values)).astype(np.float32)
        for name in (*NAMES, HOST)
    }

    async def run(cohort: Cohort) -> None:
        for number in range(plan.sums):
            mine = inputs[cohort.me][number]
            match plan.kind:
                case "plain":
                    given = {} if cohort.is_host else {"n": mine[:1], "w": mine}
                    await cohort.sum(given, bound=1.0)
                case "carried":
                    await cohort.sum({} if cohort.is_host else {"w": mine}, carry=True)
                case "host":
                    await cohort.sum({"p": mine}, reveal=Audience.HOST, bound=1.0)
                case "partial":
                    some = {"all": mine} | ({} if cohort.me == NAMES[0] else {"some": mine / 2})
                    await cohort.sum({} if cohort.is_host else some, partial=True, bound=1.0)

    return run


def record(
    plan: Plan, keys: Mapping[str, PartyKeys], coordinator: Identity, run: bytes
) -> dict[str, Any]:
    """Run a plan, and return the recording as a case of a vector."""
    host = HOST if plan.kind == "host" else None
    members = (*plan.parties_names, *([host] if host else ()))
    tape, reader = Tape(), host or plan.reader
    cards = {name: keys[name].identity.public for name in members}
    own = {name: replace(keys[name], peers=cards) for name in members}
    with _watched(tape, reader), patch.object(Identity, "generate", lambda name: coordinator):
        federate(
            dict.fromkeys(members, _program(plan)),
            mode=plan.mode,
            host=host,
            bits=plan.bits,
            keys=own,
            run=run,
            engine=lambda sessions: LossyEngine(sessions, plan.lose, tap=tape.tap),
        )
    named = {"name": plan.name, "kind": "recording", "mode": plan.mode, "run": run.hex()}
    rules = {"host": host, "threshold": default_threshold(plan.parties), "reader": reader}
    return {**named, **rules, **_keys_of(own, coordinator), **tape.document()}


def _keys_of(own: Mapping[str, PartyKeys], coordinator: Identity) -> dict[str, Any]:
    """Return all keys but that of the ciphertexts."""
    one = next(iter(own.values()))
    return {
        "identities": {n: of.identity.to_private_bytes().hex() for n, of in sorted(own.items())},
        "coordinator": coordinator.public.canonical().hex(),
        "tag_key": one.tag_key.hex(),
        "channel_key": one.channel_key.hex(),
    }
