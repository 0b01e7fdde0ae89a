"""What a guard does against one bad hospital of eight, and to honest rounds.

Small classifiers over what a frozen encoder reads (`heads`); one party attacks in every round and
votes for all of them (`poison`). Settings were chosen on seeds from 100 on, none of which is here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.collection import SETS, find, require
from benchmarks.federations.guard_cells import HONEST, WITHOUT, Cells, Row
from benchmarks.federations.heads import Corpus, Member, corpus, scores, train
from benchmarks.federations.poison import ATTACKS, Attack, Content, lie_of, spoiled
from benchmarks.report import Report, Target, table
from secure_fl.features.guard.settings import GuardSettings

PARTIES, ROUNDS = 8, 12
GUARD = GuardSettings(search=True, most=8)
POINTS, FALSE = 0.015, 0.05  # that may be lost; share of honest rounds that may be refused
COLUMNS = ("set", "run", "guard", "main metric", "less than without", "trigger obeyed", "refused")


def measure(
    sets: Sequence[str] = ("ade_cls", "sst2"),
    seeds: int = 5,
    rounds: int = ROUNDS,
    records: int = 1200,
    data: Path | None = None,
    cells: Path | None = None,
) -> Report:
    """Train with and without the guard under each attack; what the file holds is not run again."""
    kept = Cells(cells)
    started, folder = time.perf_counter(), find(data)
    rows: list[Row] = []
    require([name for name in sets if SETS[name].corpus is None], folder)
    for name in sets:
        found = corpus(name, folder, records * 4 // 3, 400, 800)
        for seed in range(seeds):
            rows += runs(found, seed, rounds, records, kept)
    return report(rows, {"rounds": rounds, "records": records}, seeds, started)


def runs(
    found: Corpus, seed: int, rounds: int, records: int, kept: Cells | None = None
) -> list[Row]:
    """All runs of one set and seed."""
    kept = kept or Cells(None)
    wanted: list[tuple[str, Attack | None, GuardSettings | None]] = [(WITHOUT, None, None)]
    wanted += [(HONEST, None, guard) for guard in (None, GUARD)]
    wanted += [(attack, attack, guard) for attack in ATTACKS for guard in (None, GUARD)]
    return [
        kept.row(
            (found.name, seed, run, guard is not None),
            partial(_run, found, seed, rounds, records, run, attack, guard),
        )
        for run, attack, guard in wanted
    ]


def _run(
    found: Corpus,
    seed: int,
    rounds: int,
    records: int,
    run: str,
    attack: Attack | None,
    guard: GuardSettings | None,
) -> Row:
    members = dealt(found, seed, records, attack)
    if run == WITHOUT:
        del members[bad_of(seed)]
    model, events = train(members, rounds, seed, guard)
    told = (e for e in events if (e["event"], e["party"]) == ("guard", _other(seed)))
    refused = [bool(event["refused"]) for event in told]
    metric, obeyed = (None, None) if model is None else scores(model, found)
    return Row(found.name, seed, run, guard is not None, metric, obeyed, sum(refused), len(refused))


def bad_of(seed: int) -> str:
    """Who attacks."""
    return f"h{seed % PARTIES}"


def _other(seed: int) -> str:
    return f"h{(seed + 1) % PARTIES}"


def dealt(found: Corpus, seed: int, records: int, attack: Attack | None) -> dict[str, Member]:
    """Eight hospitals with records of the same kind, one of them bad if there is an attack."""
    rng = np.random.default_rng(seed)
    own = np.array_split(rng.permutation(len(found.train.labels))[:records], PARTIES)
    dev = np.array_split(rng.permutation(len(found.dev.labels)), PARTIES)
    members = {
        f"h{k}": Member(found.train.some(own[k]), found.dev.some(dev[k])) for k in range(PARTIES)
    }
    if attack is not None:
        bad = members[bad_of(seed)]
        lie = lie_of(attack, PARTIES)
        members[bad_of(seed)] = Member(spoiled(bad.train, attack), bad.dev, lie, Content())
    return members


def report(rows: Sequence[Row], sizes: Mapping[str, int], seeds: int, started: float) -> Report:
    """Means over the seeds, beside the same seeds' runs without the bad party."""
    cells, targets = [], []
    for name in dict.fromkeys(row.set for row in rows):
        alone = {
            row.seed: row.metric or 0.0 for row in rows if (row.set, row.run) == (name, WITHOUT)
        }
        for run, guarded in dict.fromkeys((row.run, row.guarded) for row in rows):
            some = [r for r in rows if (r.set, r.run, r.guarded) == (name, run, guarded)]
            metric = mean(row.metric or 0.0 for row in some)
            less = mean(alone[row.seed] - (row.metric or 0.0) for row in some)
            obeyed = mean(row.obeyed or 0.0 for row in some)
            share = sum(r.refused for r in some) / max(1, sum(r.rounds for r in some))
            shown = f"{share:.1%}" if guarded else "-"
            cells.append(
                (name, run, "on" if guarded else "off", f"{metric:.3f}", f"{less:+.3f}",
                 f"{obeyed:.3f}", shown)
            )  # fmt: skip
            if guarded and run == HONEST:
                targets.append(Target(f"{name}: honest rounds refused", FALSE, share))
            elif guarded and "backdoor" not in run and "quiet" not in run:
                targets.append(Target(f"{name}, {run}: lost", POINTS, less))
    return Report(
        "guard",
        {**sizes, "parties": PARTIES, "seeds": seeds},
        0,
        {"rows": [asdict(row) for row in rows]},
        [table(f"one bad hospital of {PARTIES}, means of {seeds} seeds", COLUMNS, cells)],
        targets,
        seconds=time.perf_counter() - started,
    )
