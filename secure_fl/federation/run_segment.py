"""The rounds that a fixed set of parties trains in this process, under one coordinator."""

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
class RunSegment:
    """All rounds of a run, or the end of one round that only some parties began."""

    spec: RunSpec
    parties: Mapping[str, Prepared]
    rules: CoordinatorRules
    until: int | None = None  # the last round, if it is not the algorithm's

    def unfinished_round(self) -> tuple[int, frozenset[str]] | None:
        """Return a round that must end before others can join, with the parties that began it."""
        ready = {
            name: Ready(party.checkpoints.available(), opened=party.checkpoints.opened())
            for name, party in self.parties.items()
        }
        return unfinished(ready, self.rules.host, self.rules.threshold)

    def train(self, engine: MakeEngine, capture: Capture, log: EventLog) -> None:
        """Lead these parties to the end, with new keys and a new run id."""
        mode, names = self.spec.protection.mode, tuple(self.parties)
        keys = make_keys(mode, names, self.rules.host)
        wires = connect(keys)
        capture.begin(mode, self.rules.host, names, wires.run)
        sessions = {
            name: party.join(keys[name], wires.parties[name], until=self.until, capture=capture)
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
            # In one process the operator may see an error that a hospital keeps in its own log.
            failed = sessions.get(str(error.where.get("party", "")))
            if failed is not None and failed.error is not None and not failed.stopped:
                raise failed.error from failed.error.__cause__
            raise
