"""Checkpoints of one party, and its records of opened sums, evidence and signed lists.

RUN/parties/NAME/checkpoints/round-00007   the party's state before round 7
RUN/parties/NAME/checkpoints/opened.jsonl  parties of each opened sum
RUN/parties/NAME/evidence/MEMBER           evidence against a member or the coordinator
RUN/parties/NAME/told.jsonl                the coordinator's signed lists of each sum's members
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from secure_fl.errors import RunError
from secure_fl.files import replace_whole
from secure_fl.party.opened_sums import OpenedSumsLog
from secure_fl.party.rounds import Stateful
from secure_fl.protocol.messages import SurvivorStatement
from secure_fl.runs import checkpoint

OPENED = "opened.jsonl"  # parties of each opened sum; always kept, because any round may repeat
EVIDENCE = "evidence"  # evidence, one file per accused member or coordinator
TOLD = "told.jsonl"  # the coordinator's signed lists of members
NO_FOLDER = "give the run a folder: Federation(..., folder=...)"
KEPT = 2  # parties differ by at most one round, so two rounds include a common one


class PartyCheckpoints:
    """Checkpoints of one party."""

    def __init__(self, folder: Path, site: Stateful, opened: Path | None = None) -> None:
        """`opened`: file outside the run's folder for the parties of opened sums; None: inside.

        Inside is enough for a process with all parties' records, which differences do not help.
        """
        self._folder, self._site = folder, site
        self._evidence, self._told = folder.parent / EVIDENCE, folder.parent / TOLD
        self._openings = OpenedSumsLog.kept(folder / OPENED, opened)
        checkpoint.put_back(folder)  # set aside by a session that did not continue

    def available(self) -> tuple[int, ...]:
        """List the complete rounds."""
        checkpoint.mend(self._folder)
        names = [p.name for p in self._folder.glob("round-*")] if self._folder.exists() else []
        return tuple(sorted(int(n.removeprefix("round-")) for n in names))

    def opened(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """List the parties of the sums that were opened: see `OpenedSumsLog.rounds`."""
        return self._openings.rounds(max(self.available(), default=1) - 1)

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Note the parties that had the round when others joined."""
        self._openings.note_handover(after, holders)

    def export(self, shared: Mapping[str, Stateful], sums: Mapping[str, Any]) -> bytes:
        """Return the state for newcomers."""
        state = {name: thing.state_dict() for name, thing in sorted(shared.items())}
        return checkpoint.to_bytes({"shared": state, "sums": sums})

    def adopt(self, data: bytes, shared: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load the state that newcomers receive."""
        state = checkpoint.from_bytes(data)
        if set(state["shared"]) != set(shared):
            raise RunError(
                "the state from another party is of another program",
                fix="install the same version at all sites, and give them the same settings",
                reason="other-program",
            )
        for name, thing in shared.items():
            thing.load_state_dict(state["shared"][name])
        sums: Mapping[str, Any] = state["sums"]
        return sums

    def save(self, round: int, keep: Mapping[str, Stateful], sums: Mapping[str, Any]) -> None:
        """Save one round, and remove all but the last ones."""
        state = {
            "keep": {name: thing.state_dict() for name, thing in keep.items()},
            "sums": sums,
            "site": self._site.state_dict(),
        }
        checkpoint.drop_aside(self._folder)
        checkpoint.save(self._path(round), state)
        for old in self.available():
            if old <= round - KEPT:
                checkpoint.remove(self._path(old))

    def restore(self, round: int, keep: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Load one round."""
        state = checkpoint.load(self._path(round))
        if set(state["keep"]) != set(keep):
            raise RunError(
                "the checkpoint is of another program",
                fix="resume with the algorithm and version that started the run",
                file=self._path(round),
                reason="other-program",
            )
        for name, thing in keep.items():
            thing.load_state_dict(state["keep"][name])
        self._site.load_state_dict(state["site"])
        sums: Mapping[str, Any] = state["sums"]
        return sums

    def roll_back(self, round: int) -> None:
        """Set aside later rounds; the coordinator's request is not yet authenticated by a sum."""
        for later in self.available():
            if later > round:
                checkpoint.set_aside(self._path(later))

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Note the parties of an opened sum; a repeated round must open the same sums.

        Masks are bound to a session's messages, so the old end of a repeated round does not match
        the new one of others. Rounds that were set aside are therefore removed.
        """
        self._openings.admit(round, number, survivors, what)
        checkpoint.drop_aside(self._folder)

    def convict(self, party: str, evidence: bytes) -> None:
        """Save evidence against a member."""
        try:
            self._evidence.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_whole(self._evidence / party, evidence, mode=0o600)
        except OSError as error:
            raise RunError(
                f"evidence against {party} cannot be written ({error.strerror})",
                file=self._evidence,
                reason="unwritable",
            ) from error
        self.leave_out(party)

    def keep_statement(self, statement: SurvivorStatement) -> None:
        """Append a line without sync: a lost line costs evidence, but no data."""
        line = {"run": statement.run.hex(), "number": statement.number}
        line |= {"digest": statement.digest.hex(), "signature": statement.signature.hex()}
        try:
            self._told.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._told.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(
                f"the coordinator's signed lists cannot be written ({error.strerror})",
                fix="free disk space, then resume; nothing was revealed",
                file=self._told,
                reason="unwritable",
            ) from error

    def statements(self) -> Sequence[SurvivorStatement]:
        """Return all complete lines."""
        found = []
        lines = self._told.read_text().splitlines() if self._told.exists() else []
        for text in lines:
            with suppress(ValueError, KeyError, TypeError):
                line = json.loads(text)
                run, digest, signature = (
                    bytes.fromhex(line[key]) for key in ("run", "digest", "signature")
                )
                found.append(SurvivorStatement(run, int(line["number"]), digest, signature))
        return found

    def evidence(self) -> dict[str, Path]:
        """Return the files of evidence by member."""
        return {file.name: file for file in self._evidence.glob("[!.]*")}

    def leave_out(self, *names: str) -> None:
        """Allow repeated sums without convicted members."""
        self._openings.without |= set(names)

    def _path(self, round: int) -> Path:
        return self._folder / f"round-{round:05d}"


class NoCheckpoints:
    """Checkpoints of a run without a folder: nothing is written or resumed."""

    def available(self) -> tuple[int, ...]:
        """Return no rounds."""
        return ()

    def opened(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Return no sums."""
        return ()

    def note_handover(self, after: int, holders: tuple[str, ...]) -> None:
        """Refuse newcomers, because there is no saved state."""
        raise RunError(
            "this run has no folder, so nobody can join it late", fix=NO_FOLDER, reason="no-folder"
        )

    def export(self, shared: Mapping[str, Stateful], sums: Mapping[str, Any]) -> bytes:
        """Refuse: there is no saved state."""
        raise RunError(
            "this run has no folder, so nobody can join it late", fix=NO_FOLDER, reason="no-folder"
        )

    def adopt(self, data: bytes, shared: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Refuse: there is no saved state."""
        raise RunError(
            "this run has no folder, so nobody can join it late", fix=NO_FOLDER, reason="no-folder"
        )

    def save(self, round: int, keep: Mapping[str, Stateful], sums: Mapping[str, Any]) -> None:
        """Write nothing."""

    def restore(self, round: int, keep: Mapping[str, Stateful]) -> Mapping[str, Any]:
        """Refuse: there is no saved state."""
        raise RunError(
            "this run has no folder, so it cannot be resumed", fix=NO_FOLDER, reason="no-folder"
        )

    def roll_back(self, round: int) -> None:
        """Save nothing."""

    def admit(self, round: int, number: int, survivors: tuple[str, ...], what: str) -> None:
        """Accept: no round is repeated."""

    def convict(self, party: str, evidence: bytes) -> None:
        """Save nothing."""

    def keep_statement(self, statement: SurvivorStatement) -> None:
        """Save nothing."""

    def statements(self) -> Sequence[SurvivorStatement]:
        """Return no statements."""
        return ()
