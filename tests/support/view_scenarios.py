"""Scenarios for the checker of views: dropouts, lies and restarts, up to a renaming of parties.

Parties differ by their names only, which decide the sign of a pair's mask and the order of lists.
So a scenario gives each party a role, and scenarios with equally many parties in each role are one.
A role is a tuple; its first item is true for a colluder. Roles are dealt to names at random.

A party that hears nothing reveals nothing, so every honest party hears one of the stories.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules, offers_to
from secure_fl.crypto.sealing import tags
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import StreamId
from secure_fl.crypto.sealing.packing import from_slots, to_slots
from secure_fl.errors import SecureFLError
from secure_fl.federation.assembly import PartyContext, connect, join_run, make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.context import Checkpoints
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame, cut, peek
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import ProtectionSettings
from secure_fl.testing.harness import Program
from secure_fl.thresholds import collusion_bound
from tests.support.lying_coordinator import Change, LyingEngine
from tests.support.stateless import Stateless
from tests.support.views import WIDTH, Recording, T, symbolic

BOUND = 1 - 2.0**-23  # of values of 24 bits: each takes a slot, and -BOUND is encoded as 0
NEVER = 99
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - notes of short runs
STAYS, GONE, OUT = "stays", "gone", "no member"
Role = tuple[Any, ...]
Cast = dict[str, Role]
Story = tuple[tuple[str, ...], tuple[str, ...]]  # all members, and those that dropped out


@cache
def keys_of(n: int) -> dict[str, PartyKeys]:
    """Make the keys of n parties once."""
    return make_keys("secagg", [f"p{number}" for number in range(1, n + 1)], None)


@dataclass
class Stage:
    """One run of shipped sessions; their coordinator is the shipped one, or the checker.

    `sums`: for each sum, the contributors of each group of inputs. `lose`: the exchange from which
    a party's answers do not arrive; the view has the first of them.
    """

    recording: Recording
    threshold: int
    sums: Sequence[Mapping[int, Sequence[str]]]
    min_cohort: int = 2
    kept: Mapping[str, Checkpoints] = field(default_factory=dict)
    lose: Mapping[str, int] = field(default_factory=dict)
    exchanges: int = 0

    def __post_init__(self) -> None:
        self.names, self.keys = self.recording.names, keys_of(len(self.recording.names))
        self.rules = CoordinatorRules(None, self.min_cohort, self.threshold, spares=True)
        self.protection = ProtectionSettings(mode="secagg", bits=24, min_cohort=self.min_cohort)
        wires = connect(self.keys)
        self.links = wires.coordinator
        self.sessions = {}
        for name, keys in self.keys.items():
            kept, link = self.kept.get(name, Checkpoints()), wires.parties[name]
            party = PartyContext(keys, link, self.rules, self.protection, checkpoints=kept)
            self.sessions[name] = join_run(self._program(name), party)

    def _program(self, me: str) -> Program:
        """Sum this party's inputs: the lowest values, and one step more in their own columns."""

        def unit(group: int) -> Any:
            values = np.full(WIDTH, -BOUND, np.float32)
            values[group * len(self.names) + self.names.index(me)] += 2**-23
            return values

        async def program(cohort: Cohort) -> None:
            for groups in self.sums:
                mine = {f"x{group}": unit(group) for group, of in groups.items() if me in of}
                await cohort.sum(mine, bound=BOUND, partial=len(groups) > 1)

        return program

    def lead(self, change: Change | None = None) -> None:
        """Let the shipped coordinator lead the run, and change its frames; it may stop."""
        engine = LyingEngine(self, self.links, change) if change else self
        with suppress(SecureFLError):
            lead_run(self.links, engine, self.rules, self.protection).run()

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        """Carry frames; `Stop` does not arrive, so the checker can continue."""
        self.exchanges += 1
        for party, frame in sorted(frames.items()):
            last = self.lose.get(party, NEVER)
            if self.exchanges > last or isinstance(peek(frame.head).message, messages.Stop):
                continue
            answer = self.recording.step(party, self.sessions[party].step, frame)
            if self.exchanges < last:
                yield party, answer

    def tell(self, party: str, message: Any) -> Any:
        """Send a party any message; returns its answer."""
        frame = self.links[party].pack(message)
        answer = self.recording.step(party, self.sessions[party].step, frame)
        return peek(answer.head).message

    def begin(self, members: Mapping[str, Sequence[str]]) -> None:
        """Begin, with other members at some parties: all send their first upload."""
        offers = {p: self.tell(p, messages.Start(tuple(self.names))).offer for p in self.names}
        for party in self.names:
            here = tuple(members.get(party, self.names))
            theirs = offers_to(party, {name: offers[name] for name in here})
            self.tell(party, messages.Begin(0, here, theirs))

    def unmask(self, told: Mapping[str, Story], colluders: Collection[str], number: int) -> None:
        """Tell these parties a story of a sum, with all signatures that colluders can add."""
        statements, signed = self.recording.statements, dict[str, bytes]()
        for party, (members, gone) in told.items():
            alive = tuple(name for name in members if name not in gone)
            answer = self.tell(party, messages.Unmask(alive, gone, sum=number))
            if isinstance(answer, messages.Confirm):
                signed[party] = answer.signature
        for party in signed:
            statement = statements[party]
            signatures = {p: own for p, own in signed.items() if statements[p] == statement}
            signatures |= {p: self.keys[p].identity.sign(statement) for p in colluders}
            self.tell(party, messages.Confirmed(signatures))


class Checked(NamedTuple):
    """The decision on one view."""

    family: str
    parties: int
    threshold: int
    scenario: str
    leak: str  # what the coalition learns beyond the permitted sums
    opened: int  # number of independent combinations of honest inputs that it learns


@dataclass(frozen=True)
class Setting:
    """A number of parties and a threshold; `more`: so many colluders beyond the printed bound."""

    n: int
    t: int
    more: int = 0

    def cast(self, roles: Iterable[Role], *, lies: bool = True) -> Iterator[tuple[Cast, list[str]]]:
        """Deal roles to names, up to the order; returns the colluders, too."""
        bound, names = collusion_bound(self.n, self.t), sorted(keys_of(self.n))
        most = (bound.lying if lies else bound.honest) + self.more
        for some in combinations_with_replacement(list(roles), self.n):
            count = sum(role[0] for role in some)
            if count == most or (count < most and not self.more):
                random.Random(repr(some)).shuffle(names)
                cast = dict(zip(names, some, strict=True))
                yield cast, sorted(name for name in names if cast[name][0])

    def decide(
        self, family: str, recording: Recording, colluders: Collection[str], cast: Any, least: int
    ) -> Checked:
        """Decide the view of one coalition."""
        learned = recording.learned(colluders)
        leak = recording.leak(colluders, least - len(colluders), learned)
        scenario = f"{cast}, colluders {colluders}"
        return Checked(family, self.n, self.t, scenario, leak, len(learned))


def dropouts(setting: Setting) -> Iterator[Checked]:
    """Two sums under the shipped coordinator; any answer of a party may be its last."""
    n, t = setting.n, setting.t
    for fates in combinations_with_replacement((2, 3, 4, 5, 6, 7, NEVER), n):
        if sum(fate < NEVER for fate in fates) > n - t + 1:
            continue
        lose = dict(zip(sorted(keys_of(n)), fates, strict=True))
        with symbolic(Recording(keys_of(n), 2)) as recording:
            Stage(recording, t, ({0: [*lose]}, {1: [*lose]}), lose=lose).lead()
        most = collusion_bound(n, t).honest + setting.more
        for c in range(most if setting.more else 0, most + 1):
            unlike = {tuple(lose[name] for name in some): some for some in combinations(lose, c)}
            for colluders in unlike.values():
                yield setting.decide("dropouts", recording, colluders, lose, t)


def stories(setting: Setting) -> Iterator[Checked]:
    """Two stories of one sum about members and dropouts, each told again after the other.

    A role is the colluder's flag, the story that the party hears first, and its state in both.
    """
    states = list(product((STAYS, GONE, OUT), repeat=2))
    honest = [(False, told, *of) for told in (0, 1) for of in states if of[told] == STAYS]
    for cast, colluders in setting.cast([*honest, *((True, 0, *of) for of in states)]):
        names, heard = sorted(cast), {p: role[1] for p, role in cast.items() if not role[0]}
        absent = [sum(role[2 + story] != STAYS for role in cast.values()) for story in (0, 1)]
        most = setting.n - setting.t + (0 in absent)  # beside the truth, one story of too few
        twin = [(c, told ^ (not c), second, first) for c, told, first, second in cast.values()]
        if max(absent) > most or sorted(cast.values()) > sorted(twin):
            continue
        told = [
            (
                tuple(name for name in names if cast[name][2 + story] != OUT),
                tuple(name for name in names if cast[name][2 + story] == GONE),
            )
            for story in (0, 1)
        ]
        with symbolic(Recording(keys_of(setting.n), 1)) as recording:
            stage = Stage(recording, setting.t, ({0: names},))
            stage.begin({party: told[story][0] for party, story in heard.items()})
            for turn in (0, 1):
                stage.unmask({p: told[story ^ turn] for p, story in heard.items()}, colluders, 1)
        yield setting.decide("two stories", recording, colluders, cast, setting.t)


def lists(setting: Setting) -> Iterator[Checked]:
    """A list of its own for each party: it misses one of n - t + 1 dropouts, or the party itself.

    A role is the colluder's flag, and the place of the dropout that the list misses.
    """
    n, t = setting.n, setting.t
    itself = n - t + 1
    honest = [(False, missed) for missed in range(itself + 1)]
    for cast, colluders in setting.cast([*honest, (True, 0), (True, itself)]):
        dropouts = [name for name in sorted(cast) if cast[name][1] == itself]
        if len(dropouts) != itself or n == t:
            continue
        told = {
            name: (tuple(sorted(cast)), tuple(p for p in dropouts if p not in (name, missing)))
            for name, (colludes, place) in cast.items()
            if not colludes
            for missing in [name if place == itself else dropouts[place]]
        }
        with symbolic(Recording(keys_of(n), 1)) as recording:
            stage = Stage(recording, t, ({0: sorted(cast)},))
            stage.begin({})
            stage.unmask(told, colluders, 1)
        yield setting.decide("unequal lists", recording, colluders, cast, t)


def restarts(setting: Setting) -> Iterator[Checked]:
    """A round that is repeated after a restart, with other dropouts; some unmask only then.

    A role is the colluder's flag, whether the party unmasks at first, and its state in both runs.
    """
    states = list(product((STAYS, GONE), repeat=2))
    honest = [(False, first, *of) for first in (True, False) for of in states]
    for cast, colluders in setting.cast([*honest, *((True, False, *of) for of in states)]):
        names, n, t = sorted(cast), setting.n, setting.t
        gone = [tuple(name for name in names if cast[name][2 + run] == GONE) for run in (0, 1)]
        if max(map(len, gone)) > n - t or any(role[1:3] == (True, GONE) for role in cast.values()):
            continue
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as disk,
            symbolic(Recording(keys_of(n), 1)) as recording,
        ):
            for run in (0, 1):
                kept = {p: PartyCheckpoints(Path(disk, p, "rounds"), Stateless()) for p in names}
                stage = Stage(recording, t, ({0: names},), kept=kept)
                stage.begin({})
                asked = [p for p in names if not (cast[p][0] or p in gone[run])]
                told = {p: (tuple(names), gone[run]) for p in asked if run or cast[p][1]}
                stage.unmask(told, colluders, 1)
        yield setting.decide("restarts", recording, colluders, cast, t)


def forgeries(setting: Setting) -> Iterator[Checked]:
    """Some parties get a forged first total, of all parties or of a tier, or a replayed second one.

    A role is the colluder's flag, the flag of the tier, and the number of the changed total.
    """
    honest = [(False, *of) for of in product((False, True), (0, 1, 2))]
    for cast, colluders in setting.cast([*honest, (True, False, 0), (True, True, 0)]):
        names, tier = sorted(cast), [name for name in sorted(cast) if cast[name][1]]
        forged = [name for name in names if cast[name][2] == 1]
        partial = 0 < len(tier) < setting.n
        least = 3 if partial else setting.t  # parties of a sum: a tier's bound is less by two
        beyond = partial and (len(tier) < least or len(colluders) > least - 2)
        if not tier or beyond or not set(forged) <= set(tier) or (forged and not colluders):
            continue
        first = {0: names, 1: tier} if partial else {0: names}
        with symbolic(Recording(keys_of(setting.n), 4)) as recording:
            sums = first, {2: names}, {3: names}
            stage = Stage(recording, setting.t, sums, min_cohort=min(least, 3))
            stage.lead(_forging(stage, cast))
            told = {p: (tuple(names), ()) for p in names if p not in colluders}
            for number in (2, 3):
                stage.unmask(told, colluders, number)
        yield setting.decide("forged totals", recording, colluders, cast, least)


def _forging(stage: Stage, cast: Cast) -> Change:
    """Change the first total's narrowest part, under a tag that fits, or replay the first total."""
    firsts: dict[str, tuple[Any, bytes]] = {}

    def change(party: str, total: Any, bulk: bytes) -> tuple[Any, bytes]:
        if not isinstance(total, messages.Total):
            return total, bulk
        first = firsts.setdefault(party, (total, bulk))
        if cast[party][2] != total.sum or total.sum == 2:
            return first if cast[party][2] == total.sum else (total, bulk)
        parts, names = cut(bulk, total.sizes), stage.names
        segments = stage.recording.sent[party]
        place = min(range(len(parts)), key=lambda at: len(segments[at].owners or names))
        slots = to_slots(parts[place], WIDTH + 1)
        slots[0] += np.uint64(1)
        key, stream = segments[place].key, stage.links[party].run.hex()
        owners = [names.index(name) + 1 for name in segments[place].owners or names]
        slots[-1] = tags.make(
            stage.keys[party].tag_key, slots[:-1], owners, T, StreamId(stream, key.hex(), 1)
        )
        parts[place] = from_slots(slots)
        return total, b"".join(parts)

    return change


FAMILIES = (dropouts, stories, lists, restarts, forgeries)


def settings(parties: int) -> list[Setting]:
    """List numbers of parties with thresholds above one half."""
    return [Setting(n, t) for n in range(3, parties + 1) for t in range(n // 2 + 1, n + 1)]
