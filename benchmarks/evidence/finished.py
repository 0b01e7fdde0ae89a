"""Which kept outcome belongs to which cell of a table, without the data sets at hand.

A key says it exactly, but depends on the sizes of the data files. Here an outcome belongs to a cell
if all that it says of its run is what the cell asks for. Cells that are the same run under several
titles all find it; a cell whose settings have changed since does not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import BUILT_IN, Checkpoint
from benchmarks.evidence.cells import Cell, Outcome, about, sections
from benchmarks.evidence.kept import FILE, read
from benchmarks.evidence.tables import Table
from benchmarks.evidence.tables.fedid_sizes import PRINTED

SEEDS = 3  # that a whole table has
ANY = Checkpoint(BUILT_IN, BUILT_IN)  # stands for the checkpoint, which a table does not name

TEACHERS = "teacher_learning_rate"
BEFORE = {"schedule": "constant"}  # of [training], where an outcome does not say
UNWEIGHTED = "class_weights"  # of [training]: where nothing was said there were none
LATER = ("own_shares", "labelled", "feedback_scale")  # of FedID's settings
TAUGHT_AT_ONCE = {"alone": 0}
SETTLED: Mapping[str, Mapping[str, Any]] = {  # by algorithm, of settings that it has now
    **dict.fromkeys(("fedid", "dsfl", "mhat"), TAUGHT_AT_ONCE),
    "heterofl": {"scaler": "training"},
    "fedkd": {"tied": False},
}
FEDID_BEFORE = {name: PRINTED[name] for name in LATER}
SAID = ("seed", "spread", "depths", "algorithm", "settings")

Place = tuple[str, str, str]  # group, data, method


@dataclass(frozen=True, slots=True)
class Evidence:
    """A table's cells, finished and missing, in the order of the table."""

    table: Table
    finished: Sequence[tuple[Cell, Outcome]]
    missing: Sequence[Cell]
    stale: int  # outcomes that belong to no cell of the table as it is today

    @property
    def places(self) -> list[Place]:
        """The rows that the table should have."""
        every = [cell for cell, _ in self.finished] + list(self.missing)
        known = {place_of(cell) for cell in every}
        planned = (place_of(cell) for cell in self.table.cells(0))
        return [place for place in dict.fromkeys(planned) if place in known]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a cell asks for: every setting, and those that are not a default."""

    every: Mapping[str, Any]
    own: Mapping[str, Any]

    def fits(self, outcome: Mapping[str, Any]) -> bool:
        """Whether an outcome says nothing else; settings that came later must be defaults."""
        return _fits(outcome, self.every, self.own)


def place_of(cell: Cell) -> Place:
    """The row that a cell belongs to."""
    return cell.group, cell.data, cell.method


def gather(table: Table, folder: Path) -> Evidence:
    """Find the outcome of each cell."""
    kept = list(read(folder / table.name / FILE).values())
    outcomes = [outcome for outcome in kept if "spread" in outcome]  # else not tidied yet
    checkpoint = _commonest(outcomes)
    finished, missing, used = [], [], set()
    for seed in range(max([SEEDS, *(outcome["seed"] + 1 for outcome in outcomes)])):
        here = [(k, o, said(o)) for k, o in enumerate(outcomes) if o["seed"] == seed]
        for cell in table.cells(seed):
            asked, named = wanted(cell), "name" in cell.model
            fitting = [
                (k, outcome)
                for k, outcome, what in here
                if (named or model_of(outcome) == checkpoint) and asked.fits(what)
            ]
            if fitting:
                finished.append((cell, fitting[-1][1]))  # the latest
                used |= {k for k, _ in fitting}
            elif seed < SEEDS:
                missing.append(cell)
    return Evidence(table, _in_order(table, finished), missing, len(kept) - len(used))


def model_of(outcome: Outcome) -> str:
    """The checkpoint that an outcome was measured with."""
    return str(outcome["settings"]["model"]["name"])


def wanted(cell: Cell) -> Wanted:
    """What a cell asks for; the checkpoint is left out unless the cell names one."""
    algorithm, found = sections(cell, ANY)
    every: dict[str, Any] = {
        **about(cell),
        "control": cell.control,
        "spread": asdict(cell.spread),
        "algorithm": algorithm.model_dump(mode="json"),
        "settings": {name: part.model_dump(mode="json") for name, part in found.items()},
    }
    own: dict[str, Any] = {
        **about(cell),
        "algorithm": algorithm.model_dump(mode="json", exclude_defaults=True),
        "settings": {
            name: part.model_dump(mode="json", exclude_defaults=True)
            for name, part in found.items()
        },
    }
    if "name" not in cell.model:
        every["settings"]["model"].pop("name")
        own["settings"]["model"].pop("name", None)
    every["settings"]["training"] = _unweighted(every["settings"]["training"])
    return Wanted(json.loads(json.dumps(every)), own)


def said(outcome: Outcome) -> dict[str, Any]:
    """What an outcome says of its run, or what was so before there was a setting for it."""
    found = {name: outcome[name] for name in SAID}
    own = found["settings"].get("training", {})
    training = _unweighted(BEFORE | own)
    return found | {
        "control": outcome.get("control", ""),
        "algorithm": _algorithm(found["algorithm"], own),
        "settings": found["settings"] | {"training": training},
    }


def _unweighted(training: Mapping[str, Any]) -> dict[str, Any]:
    """Tables say it where a class is looked for; elsewhere there are no weights by default."""
    return {**training, UNWEIGHTED: training.get(UNWEIGHTED) or "none"}


def _algorithm(said: Mapping[str, Any], training: Mapping[str, Any]) -> Mapping[str, Any]:
    """Teachers learned as students did; FedID had its printed form only, and batches of labels."""
    said = {**SETTLED.get(str(said["name"]), {}), **said}
    if said.get(TEACHERS, 1.0) is None and "schedule" not in training:  # it was the students'
        return {**said, TEACHERS: training["learning_rate"]}
    if said["name"] != "fedid" or "feedback_scale" in said:
        return said
    batch = said["feedback_batch"] or training["batch_size"]
    return {**FEDID_BEFORE, **said, "feedback_batch": batch}


def _fits(found: Any, every: Any, own: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(every, dict):
        return bool(found == every)
    if any(name not in found for name in own):
        return False
    return all(
        _fits(value, every[name], own.get(name, {}))
        for name, value in found.items()
        if name in every
    )


def _commonest(outcomes: Sequence[Outcome]) -> str | None:
    names = Counter(model_of(outcome) for outcome in outcomes)
    return names.most_common(1)[0][0] if names else None


def _in_order(table: Table, finished: Sequence[tuple[Cell, Outcome]]) -> list[tuple[Cell, Outcome]]:
    order = {place: k for k, place in enumerate(_planned(table))}
    return sorted(finished, key=lambda pair: (order[place_of(pair[0])], pair[0].seed))


def _planned(table: Table) -> Iterator[Place]:
    """The rows of a table: those with any seed, some have the first only."""
    yield from dict.fromkeys(place_of(cell) for cell in table.cells(0))
