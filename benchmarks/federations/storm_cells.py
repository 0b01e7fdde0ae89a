"""What came of storms, a line for each that ended: whoever goes on leaves out what is there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.federations.lies import COORDINATOR
from benchmarks.report import Report, Target, table

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "docs" / "results" / "storms"  # processes.jsonl, one-process.jsonl
FINISHED, NAMED, ITSELF = "finished", "named", "stopped by itself"
BLAMING = (
    "convicted",
    "withheld",
    "rounds_repeated",
)  # of the coordinator
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
    """What came of one seed."""

    seed: int
    within: int  # exchanges: kills are drawn from so many
    private: bool  # by DP-SGD
    lie: str
    liar: str
    told: int
    kills: int
    end: str  # FINISHED, NAMED, ITSELF (of a coordinator that lied), or what should not be
    rounds_lost: int  # by honest hospitals
    overspent: int  # payments that no honest hospital announced
    keys_lost: int  # honest hospitals that take their keys for attacked
    seconds: float

    @property
    def robbed(self) -> int:
        """Who lost keys by a member: after three totals that a coordinator changed, all should."""
        return 0 if self.liar == COORDINATOR else self.keys_lost

    @property
    def bad(self) -> bool:
        """Whether it ended as none should."""
        harm = self.rounds_lost or self.overspent or self.robbed
        return self.end not in (FINISHED, NAMED, ITSELF) or bool(harm)


def read(file: Path) -> list[Storm]:
    """The storms that a file holds, by their draws."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = (Storm(**json.loads(line)) for line in lines)
    kept = {(one.within, one.seed): one for one in found}
    return [kept[key] for key in sorted(kept)]


def run(
    one: Callable[[Path, int, int], Storm],
    seeds: Sequence[int],
    within: int,
    file: Path | None,
    jobs: int = 1,
) -> list[Storm]:
    """Run those that are missing, write each down as it ends, and return all."""
    kept = [] if file is None else read(file)
    known = {storm.seed: storm for storm in kept if storm.within == within}

    def ended(seed: int) -> None:
        if seed in known:
            return
        with TemporaryDirectory(prefix=f"storm-{seed}-") as folder:
            known[seed] = one(Path(folder), seed, within)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as cells:  # one write, so that lines of several do not mix
                cells.write(json.dumps(asdict(known[seed])) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(ended, seeds))
    return [known[seed] for seed in seeds]


def rows(found: Sequence[Storm]) -> list[tuple[str, ...]]:
    """A row for each lie."""
    made = []
    for lie in dict.fromkeys(one.lie for one in found):
        some = [one for one in found if one.lie == lie]
        ends = Counter("otherwise" if one.bad else one.end for one in some)
        counts = (ends[FINISHED], ends[NAMED], ends[ITSELF], ends["otherwise"])
        sums = (sum(one.told for one in some), sum(one.kills for one in some))
        made.append((lie, *(str(count) if count else "–" for count in (*counts, *sums))))
    return made


def markdown(found: Sequence[Storm]) -> str:
    """The same as a table of a page."""
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *sorted(rows(found))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def report(name: str, found: Sequence[Storm], sizes: dict[str, int], started: float) -> Report:
    """What all of them came to."""
    return Report(
        name,
        {"storms": len(found), **sizes},
        min(one.seed for one in found),
        {"storms": [asdict(one) for one in found]},
        [table("kills and lies", COLUMNS, sorted(rows(found)))],
        (
            Target("storms that ended otherwise", 0, sum(one.bad for one in found)),
            Target("rounds that honest hospitals lost", 0, sum(one.rounds_lost for one in found)),
            Target("hospitals whose keys a member cost them", 0, sum(one.robbed for one in found)),
            Target("payments that nobody announced", 0, sum(one.overspent for one in found)),
        ),
        seconds=time.perf_counter() - started,
    )
