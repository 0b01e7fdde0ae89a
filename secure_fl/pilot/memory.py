"""A hospital's memory over all runs: the coordinator's names for them play no part.

Which seeds it has begun with: the same seed and records give the same inputs, and two sums of them
over different hospitals differ by somebody's input. And whether a sum was forged: what opens and
what does not tells the forger about the cohort's key, so these keys open nothing more.
"""

from __future__ import annotations

from pathlib import Path

from secure_fl.crypto.roster import Roster
from secure_fl.errors import CohortError, KeyringError
from secure_fl.files import Lines

FILE = "runs.jsonl"


class Memory:
    """Notes of one site, beside its ledger."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder / FILE, "which run begins")

    def begin(self, run: str, dataset: str, seed: int) -> None:
        """Note that a run begins, or refuse to repeat another's inputs."""
        before = [line["run"] for line in self._lines if _inputs(line) == (dataset, seed)]
        if not before:
            self._lines.append({"run": run, "dataset": dataset, "seed": seed})
        elif run not in before:
            raise CohortError(
                f"the run {before[0]!r} began with seed {seed} on these records; another one would "
                "send the same inputs again, and over other hospitals the difference of two sums "
                "would show somebody's",
                fix=f"go on with {before[0]!r}, or give the plan another seed in [run]",
                field="run.seed",
            )

    def forged(self, run: str, roster: Roster) -> None:
        """Note that a sum under this roster's keys was not the one that was sent."""
        self._lines.append({"run": run, "forged": roster.digest().hex()})

    def require_unforged(self, roster: Roster) -> None:
        """Refuse keys under which a sum was forged."""
        for line in self._lines:
            if line.get("forged") == roster.digest().hex():
                raise KeyringError(
                    f"a sum of the run {line['run']!r} was changed on its way; whoever did so may "
                    "learn the cohort's key by trying again, so these keys open nothing more",
                    fix="compare transcripts with the coordinator; then a new roster (`secure-fl "
                    "keys roster --after`), new keys (`keys rotate`) and new kits",
                )


def _inputs(line: dict[str, object]) -> tuple[object, object]:
    return line.get("dataset"), line.get("seed")
