"""One party's rounds on disk: what it needs to go on after a crash, and to begin none twice.

RUN/parties/NAME/checkpoints/round-00007   the party's state before round 7, whole or not at all
RUN/parties/NAME/checkpoints/opened.jsonl  over whom sums were opened
RUN/parties/NAME/evidence/MEMBER           what convicts a member, or the coordinator
RUN/parties/NAME/told.jsonl                what the coordinator signed of who is in each sum
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from secure_fl.errors import CohortError, RunError
from secure_fl.files import OPENED, Lines, remove_file, replace_whole
from secure_fl.party.context import DIGESTS, Checkpoints
from secure_fl.party.rounds import Stateful
from secure_fl.protocol.messages import JOINED, MOST_NOTES, SurvivorStatement
from secure_fl.runs import checkpoint

EVIDENCE = "evidence"  # what convicts a member, or the coordinator: a file for each
TOLD = "told.jsonl"  # what the coordinator signed of who is in each sum
KEPT = 2  # rounds: parties are at most one round apart, and repeat at most their newest one


class PartyCheckpoints(Checkpoints):
    """One party's rounds on disk."""

    def __init__(self, folder: Path, site: Stateful, opened: Path | None = None) -> None:
        """`opened`: where over whom sums were opened outlives the run's folder; None: it lies here.

        Whoever holds all parties' records in one process learns nothing by a difference of sums.
        """
        self._folder, self._site = folder, site
        self._evidence, self._told = folder.parent / EVIDENCE, folder.parent / TOLD
        self._openings = OpenedSumsLog.kept(folder / OPENED, opened)
        checkpoint.put_back(folder)  # what an earlier session set aside, and then came to nothing

    def available(self) -> tuple[int, ...]:
        """Rounds that are whole."""
        names = [p.name for p in self._folder.glob("round-*")] if self._folder.exists() else []
        return tuple(sorted(int(n.removeprefix("round-")) for n in names))

    def opened(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """List the parties of the sums that were opened: see `OpenedSumsLog.rounds`."""
        return self._openings.rounds(max(self.available(), default=1) - 1)

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Note who held the round when others joined."""
        self._openings.note_handover(after, holders)

    def export(self, shared: Mapping[str, Stateful], sums: Mapping[str, Any]) -> bytes:
        """Return the state for newcomers."""
        state = {name: thing.state_dict() for name, thing in sorted(shared.items())}
        return checkpoint.to_bytes({"shared": state, "sums": sums})

    def adopt(self, data: bytes, shared: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Take what a newcomer is given."""
        state = checkpoint.from_bytes(data)
        given, sums = state.get("shared"), state.get("sums")
        if not isinstance(given, dict) or not isinstance(sums, dict) or set(given) != set(shared):
            what = "the state handed over by another party is of another program"
            fix = "install the same version at all sites, and give them the same settings"
            raise RunError(what, fix=fix, reason="other-program")
        for name, thing in shared.items():
            thing.load_state_dict(given[name])
        return sums

    def save(self, round: int, keep: Mapping[str, Stateful], sums: Mapping[str, Any]) -> None:
        """Write one round and let go of all but the last ones."""
        state = {
            "keep": {name: thing.state_dict() for name, thing in keep.items()},
            "sums": sums,
            "site": self._site.state_dict(),
        }
        checkpoint.drop_aside(self._folder)
        checkpoint.save(self._path(round), state)
        for old in self.available():
            if old <= round - KEPT:
                remove_file(self._path(old))

    def restore(self, round: int, keep: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load one round."""
        state = checkpoint.load(self._path(round))
        if set(state["keep"]) != set(keep):
            raise self._other_program(round)
        for name, thing in keep.items():
            thing.load_state_dict(state["keep"][name])
        self._site.load_state_dict(state["site"])
        sums: Mapping[str, Any] = state["sums"]
        return sums

    def read(self, round: int, name: str) -> dict[str, Any]:
        """Return one of the states of a round."""
        states: dict[str, dict[str, Any]] = checkpoint.load(self._path(round))["keep"]
        if name not in states:
            raise self._other_program(round)
        return states[name]

    def roll_back(self, round: int) -> None:
        """Set aside what comes after it: a coordinator may say anything before a sum."""
        for later in self.available():
            if later > round:
                checkpoint.set_aside(self._path(later))

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Record the parties of an opened sum; a repeated round must open the same sums.

        Masks are bound to what was seen in a session: the old end of a round that is repeated does
        not fit to others' new one, so what was set aside is let go of here.
        """
        self._openings.admit(round, number, survivors, what)
        checkpoint.drop_aside(self._folder)

    def convict(self, party: str, evidence: bytes) -> None:
        """Keep what convicts somebody, beside the rounds."""
        try:
            self._evidence.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_whole(self._evidence / party, evidence, mode=0o600)
        except OSError as error:
            what = f"evidence against {party} cannot be written down ({error.strerror})"
            raise RunError(what, file=self._evidence, reason="unwritable") from error
        self.note_evidence(party, evidence)
        self.leave_out(party)

    def note_evidence(self, party: str, evidence: bytes) -> None:
        """Note that this party verified evidence; the keys of a later roster do not verify it."""
        self._openings.note_evidence(party, evidence)

    def verified(self, party: str, evidence: bytes) -> bool:
        """Check that this party verified exactly this evidence."""
        return self._openings.verified(party, evidence)

    def keep_statement(self, statement: SurvivorStatement) -> None:
        """Add a line; nothing waits for the disk: a lost line costs evidence, and nobody's data."""
        line = {"run": statement.run.hex(), "number": statement.number}
        line |= {"digest": statement.digest.hex(), "signature": statement.signature.hex()}
        try:
            self._told.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._told.open("a+b") as file:
                if size := file.tell():  # a last line that a crash cut off stays one of its own
                    file.seek(size - 1)
                    file.write(b"" if file.read() == b"\n" else b"\n")
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            what = f"what the coordinator signed cannot be written down ({error.strerror})"
            fix = "free disk space, then resume; nothing was revealed"
            raise RunError(what, fix=fix, file=self._told, reason="unwritable") from error

    def statements(self) -> Sequence[SurvivorStatement]:
        """All whole lines; what a crash cut off is left out."""
        found = []
        lines = self._told.read_bytes().splitlines() if self._told.exists() else []
        for text in lines:
            with suppress(ValueError, KeyError, TypeError):
                line = json.loads(text)
                run, digest, signature = (
                    bytes.fromhex(line[key]) for key in ("run", "digest", "signature")
                )
                found.append(SurvivorStatement(run, int(line["number"]), digest, signature))
        return found

    def evidence(self) -> dict[str, Path]:
        """Where what convicts somebody lies, by name."""
        return {file.name: file for file in self._evidence.glob("[!.]*")}

    def leave_out(self, *names: str) -> None:
        """Let sums be repeated without the input of these, who were convicted."""
        self._openings.without |= set(names)

    def _other_program(self, round: int) -> RunError:
        what = "the checkpoint is of another program"
        fix = "resume with the algorithm and version that the run began with"
        return RunError(what, fix=fix, file=self._path(round), reason="other-program")

    def _path(self, round: int) -> Path:
        return self._folder / f"round-{round:05d}"


class OpenedSumsLog:
    """The record of one party; it is never deleted, since any round may be repeated."""

    def __init__(self, file: Path) -> None:
        self._lines = Lines(file, "the record of opened sums")
        self.without = frozenset[str]()  # convicted members: sums are repeated without their input

    @classmethod
    def kept(cls, beside: Path, elsewhere: Path | None) -> OpenedSumsLog:
        """Open the record in the run's folder, or at another place, to which it is then moved.

        Files `*-NAME` beside a record NAME are records of earlier versions, and are moved as well.
        """
        if elsewhere is None:
            return cls(beside)
        earlier = [f for f in (beside, *elsewhere.parent.glob(f"*-{elsewhere.name}")) if f.exists()]
        if earlier:
            lines = (json.dumps(line) for file in (elsewhere, *earlier) for line in Lines(file, ""))
            try:
                text = "".join(f"{line}\n" for line in dict.fromkeys(lines))
                elsewhere.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_whole(elsewhere, text.encode(), mode=0o600)
                for file in earlier:
                    file.unlink()
            except OSError as error:
                what = f"the record of opened sums cannot be moved ({error.strerror})"
                fix = "free disk space, then start again; nothing was revealed"
                raise RunError(what, fix=fix, file=elsewhere, reason="unwritable") from error
        return cls(elsewhere)

    def rounds(self, after: int = 0) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Return round, number of a sum and members, for the last of equal entries in a row.

        Convicted members are omitted, so that the coordinator knows who accepts a sum without them.

        With `JOINED` as the number, the members are the holders of the round when others joined.
        Rounds up to `after` are not repeated, so only their `JOINED` entries and round 0 remain.
        """
        entries = self._entries()
        sums = sorted(
            {(round, number, self._left(members)) for round, number, members, _ in entries}
        )
        last = [
            (round, number, members)
            for (round, number, members), next in zip_longest(sums, sums[1:])
            if next is None or number == JOINED or (round, members) != (next[0], next[2])
        ]
        needed = [sum for sum in last if sum[0] > after or sum[0] == 0 or sum[1] == JOINED]
        return tuple(needed[-MOST_NOTES:])

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Record a sum before it is opened; a repeated round must open the same sums."""
        entries = self._entries()
        joined = max((after for after, sum, *_ in entries if sum == JOINED), default=0)
        if 0 < round <= joined:
            raise CohortError(
                f"a party joined after round {joined}, so this round cannot be repeated",
                fix="resume after the newest round",
                round=round,
                field="round",
            )
        before = [entry[2:] for entry in entries if entry[:2] == (round, number)]
        if not before:
            self._note(round, number, survivors, what)
        for members, earlier in before:  # more than one only in moved records
            if self._left(members) != self._left(survivors):
                raise CohortError(
                    "this round's inputs were sent before the crash, and a sum of them was "
                    f"opened over {', '.join(members)}; over other parties, the "
                    "difference would reveal the input of one of them",
                    fix="resume with exactly those parties",
                    round=round,
                    field="survivors",
                )
            if self._honest(earlier) != self._honest(what):
                raise CohortError(
                    "this round's inputs were sent before the crash, and this sum is of other "
                    "values or of other contributors; the difference would reveal the input of "
                    "one of them",
                    fix="resume with the same settings; if they are the same, do not trust the "
                    "coordinator",
                    round=round,
                    field="sum",
                )

    def _left(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names without convicted members, whose inputs reveal nothing about others."""
        return tuple(name for name in names if name not in self.without)

    def _honest(self, what: str) -> dict[tuple[str, ...], int]:
        """Return the digest of all names with the same contributors, without convicted members."""
        names = Counter[tuple[str, ...]]()
        for line in what.splitlines():
            digest, *owners = line.split("\t")
            if honest := self._left(tuple(owners)):
                names[honest] += int(digest, 16)
        return {honest: total % DIGESTS for honest, total in names.items()}

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Record the holders of a round after which others join; refuse it after a later sum."""
        if later := [round for round, *_ in self.rounds() if round > after]:
            what = f"sums of round {later[0]} were opened before, so nobody can join after {after}"
            fix = "finish that round with exactly the parties that began it"
            raise CohortError(what, fix=fix, round=after)
        self._note(after, JOINED, holders)

    def note_evidence(self, party: str, evidence: bytes) -> None:
        """Record verified evidence once."""
        if not self.verified(party, evidence):
            self._lines.append(_verified(party, evidence))

    def verified(self, party: str, evidence: bytes) -> bool:
        """Check that exactly this evidence is recorded."""
        return _verified(party, evidence) in list(self._lines)

    def _note(self, round: int, number: int, survivors: tuple[str, ...], what: str = "") -> None:
        self._lines.append({"round": round, "sum": number, "survivors": survivors, "what": what})

    def _entries(self) -> list[tuple[int, int, tuple[str, ...], str]]:
        return [
            (line["round"], line["sum"], tuple(line["survivors"]), line["what"])
            for line in self._lines
            if "round" in line
        ]


def _verified(party: str, evidence: bytes) -> dict[str, str]:
    return {"convicted": party, "evidence": sha256(evidence).hexdigest()}


class SavedTrainings:
    """One party's saved trainings, each a file in the format of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, round: int, key: str) -> Mapping[str, Any] | None:
        """Return the saved result of this training, if there is one."""
        place = self._path(round, key)
        return checkpoint.load(place) if place.exists() else None

    def keep(self, round: int, key: str, state: Mapping[str, Any]) -> None:
        """Save a result durably, and remove those of rounds that cannot be repeated."""
        checkpoint.save(self._path(round, key), state)
        for old in self._folder.glob("round-*"):
            if int(old.name.split("-")[1]) <= round - KEPT:
                remove_file(old)

    def _path(self, round: int, key: str) -> Path:
        return self._folder / f"round-{round:05d}-{key}"
