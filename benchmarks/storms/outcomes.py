"""Outcomes of storms: the record of each, the harm that honest hospitals took, and the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import jsonl
from benchmarks.report import Grid, Report, Target
from benchmarks.storms.lies import COORDINATOR
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.errors import SecureFLError
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.site_memory import SiteMemory
from secure_fl.runs.checkpoint import put_back

FINISHED, NAMED, ITSELF = "finished", "named", "stopped by itself"
COLUMNS = (
    "lie",
    "one model",
    "stopped, the liar named",
    "stopped by the coordinator that lied, nobody named",
    "otherwise",
    "lies told",
    "kills",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """The outcome of one seed."""

    seed: int
    within: int  # exchanges in which kills are drawn
    private: bool  # by DP-SGD
    lie: str
    liar: str
    told: int
    kills: int
    end: str  # FINISHED, NAMED, ITSELF (of a coordinator that lied), or an error
    rounds_lost: int  # by honest hospitals
    overspent: int  # payments that no honest hospital announced
    keys_lost: int  # honest hospitals that consider their keys attacked
    seconds: float

    @property
    def robbed(self) -> int:
        """Hospitals that lost keys by a member; a lying coordinator costs them rightly."""
        return 0 if self.liar == COORDINATOR else self.keys_lost

    @property
    def bad(self) -> bool:
        """True if it ended as no storm should."""
        harm = self.rounds_lost or self.overspent or self.robbed
        return self.end not in (FINISHED, NAMED, ITSELF) or bool(harm)


def read(file: Path) -> list[Storm]:
    """Read the finished storms of a file, one for each draw."""
    storms = {(s.within, s.seed): s for s in (Storm(**record) for record in jsonl.read(file))}
    return [storms[key] for key in sorted(storms)]


def table(storms: Sequence[Storm]) -> Grid:
    """Lay out a row for each lie."""
    lines = []
    for lie in sorted({storm.lie for storm in storms}):
        some = [storm for storm in storms if storm.lie == lie]
        ends = Counter("otherwise" if storm.bad else storm.end for storm in some)
        counts = (ends[FINISHED], ends[NAMED], ends[ITSELF], ends["otherwise"])
        sums = (sum(storm.told for storm in some), sum(storm.kills for storm in some))
        lines.append((lie, *(str(count) if count else "–" for count in (*counts, *sums))))
    return Grid("kills and lies", COLUMNS, lines)


def report(storms: Sequence[Storm], sizes: dict[str, int]) -> Report:
    """Report all storms with their targets."""
    return Report(
        "process-storms",
        {"storms": len(storms), **sizes},
        min(storm.seed for storm in storms),
        {"storms": [asdict(storm) for storm in storms]},
        [table(storms)],
        (
            Target("storms that ended otherwise", 0, sum(s.bad for s in storms)),
            Target("rounds that honest hospitals lost", 0, sum(s.rounds_lost for s in storms)),
            Target("hospitals that lost keys by a member", 0, sum(s.robbed for s in storms)),
            Target("payments that nobody announced", 0, sum(s.overspent for s in storms)),
        ),
    )


def models(runs: Sequence[Path]) -> str:
    """Compare the models of these runs' folders, bit for bit."""
    files = [run / "model" / "model.safetensors" for run in runs]
    if not all(file.exists() for file in files):
        return "a hospital did not finish"
    return FINISHED if len({file.read_bytes() for file in files}) == 1 else "models differ"


def rounds_lost(run: Path, name: str, ended: Iterable[int]) -> int:
    """Count the finished rounds of a hospital that are missing on its disk."""
    folder = run / "parties" / name / "checkpoints"
    put_back(folder)  # as its next start does with rounds that were set aside
    kept = [int(path.name.removeprefix("round-")) for path in folder.glob("round-*")]
    return max(0, max(ended, default=0) - max(kept, default=0))


def lost_keys(ledger: Path, roster: Roster) -> bool:
    """Return True if a hospital refuses all runs of its roster."""
    try:
        SiteMemory(ledger).require_unforged(roster)
    except SecureFLError:
        return True
    return False


def overspent(ledger: Path, announced: int, kills: int) -> int:
    """Count the payments beyond those that the log announced; each kill may hide one."""
    try:
        entries = [e for file in ledger.rglob(LEDGER) for e in load_chain(file).entries]
    except SecureFLError:
        return 1
    paid = sum(entry.state == "reserved" for entry in entries)
    return max(0, paid - announced - kills)
