"""The coordinator inside the server of another engine, whose messages carry its frames.

Sites are nodes of the engine. A node's name on the roster is its own statement and only decides
where frames are sent; the signature of each answer, and of each mean, proves its author.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from secure_fl.cli.service import PILOT_LOG
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.errors import (
    CohortError,
    CryptoError,
    Disagreement,
    PartyFailed,
    SecureFLError,
    SettingsError,
)
from secure_fl.features.scripts.algorithm import Script
from secure_fl.features.scripts.cohort import digest
from secure_fl.integrations.site_messages import (
    Answer,
    Ask,
    Failure,
    Mean,
    Reply,
    Turn,
    arrays,
    frame_of,
)
from secure_fl.integrations.site_names import Carrier, Node, SiteNames
from secure_fl.policy.plan import Plan
from secure_fl.protocol.frames import Frame, peek
from secure_fl.protocol.messages import Begin, Continue, Total

MEAN_SECONDS = 60.0  # for a site to send a mean that another one withholds
PATIENCE = 3600.0  # seconds to wait for missing sites
LOOK = 1.0  # seconds between two looks for missing sites
COORDINATOR = "SECURE_FL_COORDINATOR"  # environment variable with the coordinator's folder

Arrays = Mapping[str, Any]


class MeanReader(Protocol):
    """The server's use of opened means."""

    def take(self, round: int, mean: Arrays) -> None:
        """Compute the next model from the mean of a round."""


class MessageHub:
    """An engine of the coordinator (`pilot.gathering.HubEngine`)."""

    def __init__(self, carrier: Carrier, algorithm: Script, reader: MeanReader) -> None:
        """`reader` gets the means, if the plan opens them."""
        self._carrier, self._rounds, self._reader = carrier, algorithm.rounds, reader
        self._opens = algorithm.means_to_coordinator
        self._names = SiteNames(carrier)
        self._asked: dict[Node, str] = {}  # the nodes that get the current frames
        self._log = logging.getLogger(PILOT_LOG)
        self._means: dict[str, Mean] = {}  # by site, of the newest round
        self.cards: Mapping[str, PublicIdentity] = {}  # of the sites, which sign means
        self._begun = 0  # the last round that the coordinator began; 0: unknown
        self._taken = 0  # round of the newest mean that the reader got
        self._waiting: dict[str, float] = {}

    def connected(self) -> frozenset[str]:
        """Return the sites that are connected now."""
        return frozenset(self._names.update(self._carrier.nodes()).values())

    def wait_for(self, parties: Collection[str], timeout: float) -> frozenset[str]:
        """Wait until sites are connected; return those that are not."""
        until = time.monotonic() + timeout
        while (missing := frozenset(parties) - self.connected()) and time.monotonic() < until:
            time.sleep(min(LOOK, max(0.0, until - time.monotonic())))
        return missing

    def waited_for(self) -> dict[str, float]:
        """Return the sites that have not answered the current frame, and the seconds since."""
        return {name: time.monotonic() - since for name, since in self._waiting.items()}

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Deliver a frame to each site and yield answers as they arrive.

        A site that reports that values are due is asked again, with a request for training.
        """
        until = time.monotonic() + deadline
        self._waiting = dict.fromkeys(frames, time.monotonic())
        self._asked = {n: name for n, name in self._names.known.items() if name in frames}
        round, means = self._due(next(iter(frames.values()))) if frames else (0, False)
        asks: dict[Node, Ask] = {}
        for node, name in sorted(self._asked.items(), key=lambda one: one[1]):
            asks[node] = Ask(*frames[name], mean=means and not asks)
        turns: dict[int, dict[Node, Ask]] = {}
        failed = yield from self._answers(asks, round, until, turns)
        if not round:
            failed = {}
        for round, group in sorted(turns.items(), key=lambda one: -len(one[1])):
            if self._fetch_mean(round - 1, group, until):
                failed |= yield from self._answers(group, round, until, {})
        if failed and len(failed) == len(frames):
            raise _all_failed(failed, round)
        self._waiting = {}

    def _answers(
        self,
        asks: Mapping[Node, Ask],
        round: int,
        until: float,
        turns: dict[int, dict[Node, Ask]],
    ) -> Generator[tuple[str, Frame], None, dict[str, str]]:
        """Ask sites, yield their answers, and return the codes of those that failed.

        Without a round, requests of sites that wait for values go to `turns`, by round. Sites state
        these rounds unsigned, so one site never decides for another.
        """
        failed: dict[str, str] = {}
        if not asks or time.monotonic() >= until:
            return failed
        newest = min(self._begun + 1, self._rounds) if self._begun else self._rounds
        for node, reply in self._carrier.ask(asks, until - time.monotonic(), round):
            name = self._asked[node]
            self._note_mean(name, reply, asks[node])
            if isinstance(reply, Answer):
                self._waiting.pop(name, None)
                yield name, frame_of(reply)
            elif isinstance(reply, Turn) and not round and 1 <= reply.round <= newest:
                turns.setdefault(reply.round, {})[node] = asks[node]
            else:
                failed[name] = self._failed(node, reply)
        return failed

    def finish(self) -> None:
        """Hand the mean of the last round over, or refuse to end without it."""
        if not self._take_mean(self._rounds):
            what = f"no site sent the mean of round {self._rounds}, the last one"
            raise CohortError(what, fix="each site has it in its runs/RUN/model.safetensors")

    def _due(self, frame: Frame) -> tuple[int, bool]:
        """Return the round in which a frame lets sites train, or 0, and whether a mean is due."""
        envelope = peek(frame.head)
        match envelope.message:
            case Begin(after_round=after):
                round = after + 1
            case Continue():
                round = envelope.round
            case Total():
                return 0, self._opens
            case _:
                return 0, self._opens and not self._taken
        self._begun = round
        if round > self._rounds:  # `finish` hands the last mean over, since the engine then ends
            last = [one for one in self._means.values() if one.round == self._rounds]
            return 0, self._opens and not any(mean.vectors for mean in last)
        return (round, False) if self._take_mean(round - 1) else (0, True)

    def _note_mean(self, name: str, reply: Reply, ask: Ask) -> None:
        if isinstance(reply, Answer | Turn) and self._opens and (mean := reply.mean) is not None:
            try:
                self.cards[name].verify(mean.statement(ask.head), mean.signature)
            except (KeyError, CryptoError):
                self._log.warning(f"a node that names {name} sent a mean that {name} did not sign")
                return
            known = self._means.get(name, Mean(0, b""))
            if mean.vectors or (known.round, known.digest) != (mean.round, mean.digest):
                self._means[name] = mean

    def _fetch_mean(self, round: int, asks: Mapping[Node, Ask], until: float) -> bool:
        """Hand a mean over; ask one site after the other for it, because each may withhold it."""
        for node, ask in asks.items():
            if self._take_mean(round):
                return True
            name, wait = self._asked[node], min(MEAN_SECONDS, until - time.monotonic())
            if not ask.mean and wait > 0:
                for _, reply in self._carrier.ask({node: replace(ask, mean=True)}, wait):
                    self._note_mean(name, reply, ask)
            if not self._take_mean(round):
                self._log.warning(f"{name} did not send the mean of round {round}; see its log")
        return self._take_mean(round)

    def _take_mean(self, round: int) -> bool:
        """Give a mean that most sites reported to the reader; True if it has the mean."""
        if not self._opens or self._taken >= round:
            return True
        found = {name: mean for name, mean in self._means.items() if mean.round == round}
        votes = Counter(mean.digest for mean in found.values())
        for mean in found.values():
            if mean.vectors and 2 * votes[mean.digest] > len(found):
                values = arrays(mean.vectors)
                if digest(values) == mean.digest:
                    self._require_equal(found, mean.digest)
                    self._reader.take(round, values)
                    self._taken = round
                    return True
        return False

    def _require_equal(self, found: Mapping[str, Mean], mean: bytes) -> None:
        if other := sorted(name for name, one in found.items() if one.digest != mean):
            raise Disagreement("this site reports another mean than the others", party=other[0])

    def _failed(self, node: Node, reply: Reply) -> str:
        """Log that a site did not answer, and return why."""
        code = reply.code if isinstance(reply, Failure) else type(reply).__name__.lower()
        self._log.warning(f"{self._asked[node]} did not answer ({code}); see its log")
        self._names.forget(node)  # it is asked for its name before the next frame
        return code


def _all_failed(codes: Mapping[str, str], round: int) -> PartyFailed:
    """Return the error that ends a run whose training fails at all sites."""
    party, code = min(codes.items())
    return PartyFailed(
        f"training failed at all {len(codes)} sites ({code}); nothing was sent",
        fix="the logs of the sites show the error of the training function",
        party=party,
        round=round,
        reason="app",
    )


def coordinator_path(given: Path | str | None = None) -> Path:
    """Return the coordinator's folder on this server; default: of the environment."""
    if not (place := given or os.environ.get(COORDINATOR)):
        what = f"the coordinator's folder is missing: {COORDINATOR} is not set"
        raise SettingsError(what, fix=f"set {COORDINATOR} where the server starts")
    return Path(place)


class Folder:
    """The coordinator's folder on the server: plan.toml, kit/, keys/, passphrase and run/."""

    def __init__(self, path: Path, plan: Plan | None = None) -> None:
        """`plan`: another plan than plan.toml; its run is in runs/NAME/."""
        from secure_fl.pilot.plan import load_plan

        self.path = path
        self.out = path / "run" if plan is None else path / "runs" / plan.run.name
        self.plan: Plan = plan or load_plan(path / "plan.toml")
        if not isinstance(self.plan.algorithm, Script):
            what = f"the plan is for {self.plan.algorithm.name}, and another engine trains here"
            fix = 'write [algorithm] with name = "script" into plan.toml'
            raise SettingsError(what, fix=fix, field="algorithm.name")
        self.algorithm: Script = self.plan.algorithm

    def lead(self, hub: MessageHub, patience: float = PATIENCE) -> None:
        """Lead the run of the plan to its end, or continue it."""
        from secure_fl.cli.coordinate import CoordinatorLog
        from secure_fl.cli.keyring import open_ring
        from secure_fl.display.status_line import CoordinatorStatus
        from secure_fl.pilot.coordinator_process import RunLeader
        from secure_fl.pilot.kits import load_kit, require_coordinator
        from secure_fl.pilot.member_faults import arrived
        from secure_fl.pilot.plan import write_plan
        from secure_fl.pilot.progress import EarlierEvents
        from secure_fl.runs.folder import RunFolder

        kit, out = load_kit(self.path / "kit"), self.out
        me = open_ring(self.path / "keys", self.path / "passphrase").identity()
        require_coordinator(kit, me)
        run = RunFolder.open(out, write_plan(self.plan), resume=(out / "settings.toml").exists())
        log = logging.getLogger(PILOT_LOG)
        with closing(run):
            rounds = self.algorithm.rounds
            notes = CoordinatorLog(run, rounds, log, CoordinatorStatus(rounds))
            leader = RunLeader(
                hub, me, kit.roster, self.plan, notes.recorder,
                patience=patience, earlier=EarlierEvents.of(out),
            )  # fmt: skip
            hub.cards = {one.name: one.identity for one in kit.roster.members}
            arrived(hub, kit.roster.names, patience, notes.recorder)
            try:
                leader.run()
            except SecureFLError as error:
                log.error(str(error))
                raise
            hub.finish()
            run.finish(leader.document())
            notes.page.write()
