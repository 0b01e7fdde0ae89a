"""Made-up hospitals with random codebooks, for attacks on released tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

HOSPITALS, PATIENTS = 3, 300
TOP = 40  # numbers are below
MOST_CELLS = 1_500
SHAPES = (0.3, 1.0, 3.0)  # of Dirichlet draws; small ones make rare categories
SURVIVAL = 0.2  # share of studies with survival


@dataclass(frozen=True)
class Study:
    """The records of hospitals, and codebooks that are opened over them one after the other."""

    hospitals: Mapping[str, Any]  # data frames
    codebooks: tuple[Mapping[str, Any], ...]

    @property
    def variables(self) -> dict[str, Mapping[str, Any]]:
        """The variables of all codebooks."""
        return {k: v for one in self.codebooks for k, v in one["variables"].items()}


def random_study(
    rng: np.random.Generator, patients: int = PATIENTS, most_cells: int = MOST_CELLS
) -> Study:
    """Draw records with rare values and missing ones, and one to three codebooks over them.

    `most_cells`: of the joint table of all columns.
    """
    import pandas

    while True:
        survival = rng.random() < SURVIVAL
        values = _columns(rng, survival)
        codebooks = tuple(
            _codebook(rng, values, survival) for _ in range(int(rng.choice([1, 1, 1, 2, 2, 3])))
        )
        if _cells(codebooks) <= most_cells:
            break
    drawn = {name: _records(rng, found, patients) for name, found in values.items()}
    frame = pandas.DataFrame(drawn)
    of = rng.integers(HOSPITALS, size=patients)
    return Study({f"hospital-{n + 1}": frame[of == n] for n in range(HOSPITALS)}, codebooks)


def large_groups(rng: np.random.Generator, least: int) -> Study:
    """Make hospitals in which every group has at least so many patients."""
    import pandas

    values = {"c0": ("a", "b"), "c1": ("a", "b", "c"), "n0": None}
    rows = list(product(*(range(TOP) if v is None else v for v in values.values()))) * least
    frame = pandas.DataFrame(rows, columns=list(values))
    while _cells(codebooks := (_codebook(rng, values, False, whole=True),)) > MOST_CELLS:
        pass
    return Study({f"hospital-{n + 1}": frame for n in range(HOSPITALS)}, codebooks)


def _columns(rng: np.random.Generator, survival: bool) -> dict[str, tuple[str, ...] | None]:
    """Draw the columns: categories, or None for numbers."""
    found: dict[str, tuple[str, ...] | None] = {}
    for place in range(int(rng.integers(1, 5))):
        if rng.random() < 0.5:
            found[f"c{place}"] = tuple("abcde"[: int(rng.integers(2, 6))])
        else:
            found[f"n{place}"] = None
    return found | ({"days": None, "died": ("no", "yes")} if survival else {})


def _records(rng: np.random.Generator, values: tuple[str, ...] | None, size: int) -> Any:
    """Draw a column; in some, values are missing."""
    names = np.arange(TOP) if values is None else np.array(values)
    shares = rng.dirichlet(np.full(len(names), rng.choice(SHAPES)))
    if values is not None:
        shares = np.sort(shares)[::-1]  # so a shorter list of categories has some records
    drawn = rng.choice(names, size, p=shares).astype(object)
    if rng.random() < 0.3:
        drawn[rng.random(size) < rng.choice([0.01, 0.1])] = None
    return drawn


def _codebook(
    rng: np.random.Generator,
    values: Mapping[str, tuple[str, ...] | None],
    survival: bool,
    whole: bool = False,
) -> dict[str, Any]:
    """Draw tables of one or two columns. Different tables may have different bins of a column."""
    variables: dict[str, Any] = {}

    def variable(column: str) -> str:
        known = values[column]
        if known is None:
            bins = int(rng.integers(2, 7))
            name = f"{column} in {bins}"
            variables[name] = {"column": column, "low": 0, "high": TOP, "bins": bins}
        else:
            some = len(known) - int(not whole and len(known) > 2 and rng.random() < 0.1)
            name = f"{column} of {some}"
            variables[name] = {"column": column, "values": known[:some]}
        return name

    tables = {}
    for place in range(int(rng.integers(1, 7))):
        size = min(len(values), 1 + int(rng.random() < 0.6))
        columns = rng.choice(list(values), size, replace=False)
        tables[f"table {place}"] = [variable(str(one)) for one in columns]
    found: dict[str, Any] = {"variables": variables, "tables": tables}
    if survival:
        groups = [name for name, known in values.items() if known and name != "died"]
        curves = {"time": variable("days"), "event": variable("died"), "happened": "yes"}
        if groups and rng.random() < 0.5:
            curves["group"] = variable(str(rng.choice(groups)))
        found["survival"] = {"curves": curves}
    return found


def _cells(codebooks: tuple[Mapping[str, Any], ...]) -> int:
    """Bound the cells of the joint table of all columns."""
    parts: dict[str, set[Any]] = {}
    for codebook in codebooks:
        for one in codebook["variables"].values():
            ends = one.get("values") or np.linspace(0, TOP, one.get("bins", 1) + 1).round(6)
            parts.setdefault(one["column"], set()).update([*ends, "none"])
    return int(np.prod([len(part) + 1 for part in parts.values()]))
