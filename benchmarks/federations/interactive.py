"""What an interactive step costs: a sum that the host opens and a broadcast, FedID's inner loop.

The same steps in the clear and protected take turns in one process, so their difference is what
protection adds. There are no models in it: a second table shows whole rounds of FedID, with them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from benchmarks.federations.interactive_stage import HOST, Shape, Spent, play
from benchmarks.report import Grid, Report, Target
from secure_fl import corpora
from secure_fl.algorithms.fedid import FedID
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.federation.keys import make_keys
from secure_fl.settings import (
    NoiseSettings,
    Protection,
    ProtectionSettings,
    TaskSettings,
    TrainingSettings,
)

LIMIT_MS, LIMIT_SECONDS = 5.0, 20.0
# Only the time of noise is looked at: any amount takes as long, and ε is of no matter here.
NOISE = NoiseSettings(epsilon=1e12, std=1.0, force=True)
WAYS: Mapping[str, ProtectionSettings] = {
    "none": ProtectionSettings(mode="none"),
    "he+secagg": ProtectionSettings(),
    "he+secagg, noise": ProtectionSettings(noise=NOISE),
}
RECORDS, PUBLIC, LABELLED = 400, 240, 60  # of a party, of all, of the host


@dataclass(frozen=True, slots=True)
class Row:
    """One way of playing a step: medians over turns; `over`: less what it takes in the clear."""

    name: str
    examples: int
    step: Spent
    over_party: float
    over_host: float
    over_coordinator: float
    over_all: float  # parties, host and coordinator together, by party


def measure(
    *,
    parties: int = 10,
    batch: int = 32,
    classes: int = 2,
    together: Sequence[int] = (1, 8),
    steps: int = 20,
    turns: int = 7,
    federate: bool = True,
    seed: int = 0,
) -> Report:
    """Measure steps in turns and, where asked for, whole rounds."""
    started = time.perf_counter()
    names = [*(f"p{number:04d}" for number in range(parties)), HOST]
    keys = {mode: make_keys(mode, names, HOST) for mode in _modes()}
    rows = []
    for count in together:
        shape = Shape(batch, classes, count)
        played: dict[str, list[Spent]] = {name: [] for name in WAYS}
        for turn in range(turns + 1):
            for name, protection in WAYS.items():
                spent = play(protection, keys[protection.mode], shape, steps)
                if turn:  # the first turn warms up
                    played[name].append(spent)
        rows += _rows(played, shape, parties)
    rounds = [_round(mode, seed) for mode in _modes()] if federate else []
    first = {row.name: row for row in rows[: len(WAYS)]}
    sealed, noised = first["he+secagg"], first["he+secagg, noise"]
    ms = f"of a step of {batch}, ms"
    targets = [
        Target(f"he+secagg: party's overhead {ms}", LIMIT_MS, sealed.over_party),
        Target(f"he+secagg with noise: party's overhead {ms}", LIMIT_MS, noised.over_party),
        Target(f"he+secagg with noise: everybody's / parties {ms}", LIMIT_MS, noised.over_all),
    ]
    targets += [
        Target(f"{one['mode']}: a whole FedID round, s", LIMIT_SECONDS, one["round_seconds"])
        for one in rounds
    ]
    sizes = {"parties": parties, "batch": batch, "classes": classes, "together": list(together)}
    return Report(
        "interactive",
        {**sizes, "steps": steps, "turns": turns, "torch_threads": torch.get_num_threads()},
        seed,
        {"rows": [asdict(row) for row in rows], "rounds": rounds},
        [
            _step_table(rows, parties),
            _part_table(rows),
            *([_round_table(rounds)] if rounds else []),
        ],
        targets,
        seconds=time.perf_counter() - started,
    )


def _modes() -> Sequence[Protection]:
    return tuple(dict.fromkeys(way.mode for way in WAYS.values()))


def _rows(played: Mapping[str, Sequence[Spent]], shape: Shape, parties: int) -> list[Row]:
    clear, rows = played["none"], []
    for name, turns in played.items():
        pairs = list(zip(turns, clear, strict=True))

        def over(what: str, pairs: list[tuple[Spent, Spent]] = pairs) -> float:
            return float(median(getattr(one, what) - getattr(none, what) for one, none in pairs))

        over_all = over("party") + (over("host") + over("coordinator")) / parties
        spent = (over("party"), over("host"), over("coordinator"), over_all)
        rows.append(Row(name, shape.examples, _middle(turns), *spent))
    return rows


def _middle(turns: Sequence[Spent]) -> Spent:
    """The median of each figure."""
    figures = ("party", "host", "coordinator", "up", "down")
    middle = {what: median(getattr(one, what) for one in turns) for what in figures}
    parts = {part: median(one.parts.get(part, 0.0) for one in turns) for part in turns[0].parts}
    return replace(turns[0], **middle, parts=parts)


def _step_table(rows: Sequence[Row], parties: int) -> Grid:
    columns = (
        "way",
        "records",
        "party ms",
        "host ms",
        "coordinator ms",
        "+ party",
        "+ host",
        "+ coordinator",
        "+ all / party",
        "party up B",
        "party down B",
    )
    cells = [
        (
            row.name,
            str(row.examples),
            *(f"{ms:.2f}" for ms in (row.step.party, row.step.host, row.step.coordinator)),
            *(f"{ms:.2f}" for ms in (row.over_party, row.over_host, row.over_coordinator)),
            f"{row.over_all:.2f}",
            f"{row.step.up:,.0f}",
            f"{row.step.down:,.0f}",
        )
        for row in rows
    ]
    title = f"a step of {parties} parties and a host, CPU and bytes; +: over none"
    return Grid(title, columns, cells)


def _part_table(rows: Sequence[Row]) -> Grid:
    groups = {
        "keys drawn": ("next_keys",),
        "keys taken": ("accept",),
        "seal": ("begin",),
        "shares": ("settle", "shares"),
        "open": ("open",),
        "broadcast": ("envelopes",),
    }
    cells = []
    for row in rows:
        parts = [sum(row.step.parts.get(p, 0.0) for p in group) for group in groups.values()]
        rest = row.step.party - sum(row.step.parts.values())
        figures = (f"{ms:.3f}" for ms in (*parts, rest))
        cells.append((row.name, str(row.examples), *figures))
    columns = ("way", "records", *groups, "frames and door")
    return Grid("a party's ms of it, by part", columns, cells)


def _round(mode: Protection, seed: int) -> dict[str, Any]:
    """Whole rounds of FedID on the built-in corpus, with evaluation, by the wall clock."""
    rounds, cpu = 2, time.process_time()
    federation = Federation(
        _silos(seed),
        FedID(rounds=rounds, epochs=2, distill_epochs=3, alone=0),
        task=TaskSettings(labels=("ade", "no-ade"), max_length=64),
        training=TrainingSettings(learning_rate=2e-3, device="cpu"),
        protection=ProtectionSettings(mode=mode),
        seed=seed,
    )
    seconds = federation.run().document["seconds"]
    loading = sum(party.get("load model", 0.0) for party in seconds["party"].values())
    return {
        "mode": mode,
        "round_seconds": (seconds["coordinator"]["run"] - loading) / rounds,
        "round_cpu_seconds": (time.process_time() - cpu) / rounds,  # models' loading included
        "privacy_share": seconds["privacy_share"],
        "steps": 3 * (PUBLIC // 32),
    }


def _silos(seed: int) -> list[Silo]:
    """Four hospitals, and a host with labelled records of its own."""
    written = corpora.make("ade", parties=4, seed=seed, size=RECORDS)
    drawn = corpora.public("ade", seed=seed, size=PUBLIC + LABELLED + 120)
    public, own = drawn[:PUBLIC], drawn[PUBLIC:]  # a silo takes labels off the public ones
    train, dev, test = own[:LABELLED], own[LABELLED : LABELLED + 40], own[LABELLED + 40 :]
    silos = [
        Silo(f"h{number}", split.train, split.dev, split.test, public=public)
        for number, split in enumerate(written)
    ]
    return [*silos, Silo(HOST, train, dev, test, role="host", public=public)]


def _round_table(rounds: Sequence[Mapping[str, Any]]) -> Grid:
    cells = [
        (
            one["mode"],
            str(one["steps"]),
            f"{one['round_seconds']:.1f}",
            f"{one['round_cpu_seconds']:.1f}",
            f"{100 * one['privacy_share']:.1f} %",
        )
        for one in rounds
    ]
    columns = ("mode", "steps of a round", "wall s of a round", "CPU s", "privacy's share")
    return Grid(f"FedID: 4 parties of {RECORDS} records, {PUBLIC} public ones", columns, cells)
