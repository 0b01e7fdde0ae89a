"""Rounds that the same parties train together in this process, under one coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from secure_fl.capture.capture import Capture
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.machine import Engine
from secure_fl.coordinator.resume import unfinished
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.errors import SecureFLError
from secure_fl.events import EventLog
from secure_fl.federation.assembly import connect
from secure_fl.federation.keys import make_keys
from secure_fl.federation.prepared import Prepared
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.session import Session
from secure_fl.protocol.messages import Ready

MakeEngine = Callable[[Mapping[str, Session]], Engine]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A whole run, or the end of a round that only some had begun."""

    spec: RunSpec
    parties: Mapping[str, Prepared]
    rules: CoordinatorRules
    until: int | None = None  # the round to end with, if not the last

    def begun(self) -> tuple[int, frozenset[str]] | None:
        """The round that some of them must end before the others can join, and who; or None."""
        ready = {
            name: Ready(party.checkpoints.available(), opened=party.checkpoints.opened())
            for name, party in self.parties.items()
        }
        return unfinished(ready, self.rules.host, self.rules.threshold)

    def train(self, engine: MakeEngine, capture: Capture, log: EventLog) -> None:
        """Lead these parties to the end, with keys and a run id of their own."""
        mode, names = self.spec.protection.mode, tuple(self.parties)
        keys = make_keys(mode, names, self.rules.host)
        wires = connect(keys)
        capture.begin(mode, self.rules.host, names, wires.run)
        sessions = {
            name: party.join(
                self.rules, keys[name], wires.parties[name], until=self.until, capture=capture
            )
            for name, party in self.parties.items()
        }
        coordinator = lead_run(
            wires.coordinator,
            capture.engine(engine(sessions)),
            self.rules,
            self.spec.protection,
            recorder=log,
        )
        try:
            coordinator.run()
        except SecureFLError as error:
            # On one machine the operator may see what the failing party would only log at home.
            own = sessions.get(str(error.where.get("party", "")))
            if own is not None and own.error is not None and not own.stopped:
                raise own.error from own.error.__cause__
            raise
