"""Effect of the guard against one bad hospital of eight, and on honest rounds.

Small classifiers on a frozen encoder (`heads`); one party attacks in every round and votes for all
of them. Settings were chosen on seeds from 100 on, none of which is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import jsonl
from benchmarks.collection import SETS, find, require
from benchmarks.federations.heads import TARGET, Corpus, Member, Records, corpus, scores, train
from benchmarks.report import Grid, Report, Target
from secure_fl.features.guard.settings import GuardSettings

PARTIES, ROUNDS = 8, 12
Attack = Literal[
    "sign", "labels", "boosted labels", "noise", "backdoor", "quiet sign", "quiet backdoor"
]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
TIMES = 10.0  # factor of sign-flipped updates, and of boosted ones of flipped labels
QUIET = 3.0  # a factor that does not make grids grow too much
LOUD = 100.0  # factor of noise: ten times would vanish among seven others

Update = dict[str, Tensor]
GUARD = GuardSettings(search=True, most=8)
POINTS, FALSE = 0.015, 0.05  # that may be lost; share of honest rounds that may be refused
WITHOUT, HONEST = "without the bad party", "nobody attacks"
COLUMNS = ("set", "the bad hospital", "seeds", "guard off", "on", "obeyed, off", "on", "refused")


@dataclass(frozen=True, slots=True)
class GuardRow:
    """One run: its set, seed, attack and guard, and its results."""

    set: str
    seed: int
    run: str
    guarded: bool
    metric: float | None  # None: it was stopped
    obeyed: float | None
    refused: int
    rounds: int

    @property
    def key(self) -> tuple[str, int, str, bool]:
        """The settings of the run."""
        return self.set, self.seed, self.run, self.guarded


def measure(
    sets: Sequence[str] = ("ade_cls", "sst2"),
    seeds: int = 5,
    rounds: int = ROUNDS,
    records: int = 1200,
    data: Path | None = None,
    cells: Path | None = None,
) -> Report:
    """Train with and without the guard under each attack; runs in the file are not repeated."""
    kept = {row.key: row for row in read(cells)} if cells else {}
    rows: list[GuardRow] = []
    folder = find(data)
    require([name for name in sets if SETS[name].corpus is None], folder)
    for name in sets:
        found = corpus(name, folder, records * 4 // 3, 400, 800)
        for seed in range(seeds):
            for run, guard in _wanted():
                row = kept.get((name, seed, run, guard is not None))
                if row is None:
                    row = _run(found, seed, rounds, records, run, guard)
                    if cells is not None:
                        jsonl.append(cells, asdict(row))
                rows.append(row)
    return Report(
        "guard",
        {"rounds": rounds, "records": records, "parties": PARTIES, "seeds": seeds},
        0,
        {"rows": [asdict(row) for row in rows]},
        [table(rows)],
        _targets(rows),
    )


def read(file: Path) -> list[GuardRow]:
    """Read the finished runs of a file."""
    return [GuardRow(**record) for record in jsonl.read(file)]


def _wanted() -> list[tuple[str, GuardSettings | None]]:
    runs = [(run, guard) for run in (HONEST, *ATTACKS) for guard in (None, GUARD)]
    return [(WITHOUT, None), *runs]


def _run(
    found: Corpus, seed: int, rounds: int, records: int, run: str, guard: GuardSettings | None
) -> GuardRow:
    attack = next((attack for attack in ATTACKS if attack == run), None)
    members = dealt(found, seed, records, attack)
    if run == WITHOUT:
        del members[bad_of(seed)]
    model, events = train(members, rounds, seed, guard)
    other = f"h{(seed + 1) % PARTIES}"
    verdicts = [e for e in events if (e["event"], e["party"]) == ("guard", other)]
    refused = sum(bool(event["refused"]) for event in verdicts)
    metric, obeyed = (None, None) if model is None else scores(model, found)
    return GuardRow(
        found.name, seed, run, guard is not None, metric, obeyed, refused, len(verdicts)
    )


def spoiled(records: Records, attack: Attack) -> Records:
    """Change the records that the bad party trains on."""
    if "labels" in attack:
        return replace(records, labels=1 - records.labels)
    if "backdoor" in attack:  # each text of the other class once more, with the trigger
        other = records.labels != TARGET
        vectors = np.concatenate([records.vectors, records.triggered[other]])
        labels = np.concatenate([records.labels, np.full(other.sum(), TARGET)])
        return replace(records, vectors=vectors, labels=labels)
    return records


def lie_of(attack: Attack, parties: int) -> Callable[[Update], Update]:
    """Return the function that changes the bad party's update."""
    rng = torch.Generator().manual_seed(0)

    def noise(δ: Tensor) -> Tensor:
        return LOUD * δ.square().mean().sqrt() * torch.randn(δ.shape, generator=rng)

    return {
        "sign": lambda Δ: {name: -TIMES * δ for name, δ in Δ.items()},
        "noise": lambda Δ: {name: noise(δ) for name, δ in Δ.items()},
        "backdoor": lambda Δ: {name: parties * δ for name, δ in Δ.items()},  # outweighs all others
        "quiet sign": lambda Δ: {name: -QUIET * δ for name, δ in Δ.items()},
        "quiet backdoor": lambda Δ: {name: QUIET * δ for name, δ in Δ.items()},
        "labels": lambda Δ: Δ,
        "boosted labels": lambda Δ: {name: TIMES * δ for name, δ in Δ.items()},
    }[attack]


class ContentJudge:
    """The bad party's judge, which finds nothing wrong."""

    def wrong(self) -> NDArray[np.float64]:
        """Return no errors."""
        return np.zeros(1)

    def forget(self, round: int) -> None:
        """Do nothing."""


def bad_of(seed: int) -> str:
    """Name the party that attacks."""
    return f"h{seed % PARTIES}"


def dealt(found: Corpus, seed: int, records: int, attack: Attack | None) -> dict[str, Member]:
    """Deal records of the same kind to eight hospitals, one of them bad if there is an attack."""
    rng = np.random.default_rng(seed)
    own = np.array_split(rng.permutation(len(found.train.labels))[:records], PARTIES)
    dev = np.array_split(rng.permutation(len(found.dev.labels)), PARTIES)
    members = {
        f"h{k}": Member(found.train.some(own[k]), found.dev.some(dev[k])) for k in range(PARTIES)
    }
    if attack is not None:
        bad = members[bad_of(seed)]
        lie = lie_of(attack, PARTIES)
        members[bad_of(seed)] = Member(spoiled(bad.train, attack), bad.dev, lie, ContentJudge())
    return members


def table(rows: Sequence[GuardRow]) -> Grid:
    """Lay out means over seeds in points, and the refused rounds of all runs with the guard."""
    lines = []
    for name, run in dict.fromkeys((row.set, row.run) for row in rows):
        off, on = (_some(rows, name, run, guarded) for guarded in (False, True))
        refused, rounds = sum(r.refused for r in on), sum(r.rounds for r in on)
        lines.append(
            (
                name,
                run,
                str(len({row.seed for row in off + on})),
                *(_points([row.metric for row in half]) for half in (off, on)),
                *(_points([row.obeyed for row in half]) for half in (off, on)),
                f"{refused} of {rounds}" if rounds else "–",
            )
        )
    return Grid("one bad hospital of eight", COLUMNS, lines)


def _targets(rows: Sequence[GuardRow]) -> list[Target]:
    """Compare runs with the guard with the same seeds' runs without the bad party."""
    targets = []
    for name, run in dict.fromkeys((row.set, row.run) for row in rows if row.guarded):
        some = _some(rows, name, run, True)
        alone = {row.seed: row.metric or 0.0 for row in _some(rows, name, WITHOUT, False)}
        lost = mean(alone[row.seed] - (row.metric or 0.0) for row in some)
        if run == HONEST:
            share = sum(r.refused for r in some) / max(1, sum(r.rounds for r in some))
            targets.append(Target(f"{name}: honest rounds refused", FALSE, share))
        elif "backdoor" not in run and "quiet" not in run:
            targets.append(Target(f"{name}, {run}: lost", POINTS, lost))
    return targets


def _some(rows: Sequence[GuardRow], name: str, run: str, guarded: bool) -> list[GuardRow]:
    return [r for r in rows if (r.set, r.run, r.guarded) == (name, run, guarded)]


def _points(values: Sequence[float | None]) -> str:
    """Format a mean in points; a stopped run counts as 0."""
    return f"{100 * mean(value or 0.0 for value in values):.1f}" if values else "–"
