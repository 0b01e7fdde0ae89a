"""Codebooks: an attack on random ones, the cost of a large one, and the share of hidden counts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from cProfile import Profile
from dataclasses import asdict, dataclass
from pathlib import Path
from pstats import Stats
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.report import Columns, Grid, Report, Target, cpu
from secure_fl.audits.attacks.released_tables import CLOSE, ReleasedTables
from secure_fl.audits.codebook_trials import Study, random_study
from secure_fl.features.statistics.codebook import Codebook
from secure_fl.features.statistics.counting import Tabulation, counts_of
from secure_fl.features.statistics.document import document_of
from secure_fl.features.statistics.opening import open_codebook
from secure_fl.features.statistics.release import layouts, tabulations, total_of
from secure_fl.features.statistics.suppression import decided, suppressed
from secure_fl.features.statistics.tables import table_of

SECONDS = 3.0  # of a codebook of 20 tables, all hospitals in one process
LEAST = 10
CONTROLS = 10  # one study of so many is attacked again with the rule off
PATIENTS, CELLS = 300, 300  # of a random study, and of its joint table

DIAGNOSES = ("I10", "E11", "J44", "I50", "N18")
VARIABLES: Mapping[str, Mapping[str, Any]] = {
    "age": {"low": 20, "high": 100, "bins": 8},
    "year of life": {"column": "age", "low": 0, "high": 100, "bins": 20},
    "sex": {"values": ("f", "m")},
    "smoker": {"values": ("never", "former", "current")},
    "diagnosis": {"values": DIAGNOSES},
    "year": {"low": 2015, "high": 2025, "bins": 10},
    "bmi": {"edges": (18.5, 25, 30, 35)},
    "creatinine": {"edges": (0.7, 1, 1.3, 2)},
    "sodium": {"edges": (130, 135, 140, 145)},
    "days": {"low": 0, "high": 730, "bins": 24},
    "died": {"values": ("no", "yes")},
}
SURVIVAL = {"time": "days", "event": "died", "happened": "yes", "group": "sex"}
SMALL: Mapping[str, Sequence[str]] = {
    "ages": ("age",),
    "sex": ("sex",),
    "diagnosis": ("diagnosis",),
}
MEDIUM: Mapping[str, Sequence[str]] = {
    **SMALL,
    "age by sex": ("age", "sex"),
    "sex by diagnosis": ("sex", "diagnosis"),
}
LARGE: Mapping[str, Sequence[str]] = {
    **MEDIUM,
    "years of life": ("year of life",),
    "smoker": ("smoker",),
    "year": ("year",),
    "bmi": ("bmi",),
    "creatinine": ("creatinine",),
    "sodium": ("sodium",),
    "died": ("died",),
    "age by diagnosis": ("age", "diagnosis"),
    "smoker by sex": ("smoker", "sex"),
    "smoker by diagnosis": ("smoker", "diagnosis"),
    "diagnosis by year": ("diagnosis", "year"),
    "bmi by diagnosis": ("bmi", "diagnosis"),
    "creatinine by diagnosis": ("creatinine", "diagnosis"),
    "died by diagnosis": ("died", "diagnosis"),
}
CODEBOOKS = {
    "3 tables of one variable": (SMALL, {}),
    "and 2 of two variables": (MEDIUM, {}),
    "19 tables and survival": (LARGE, {"survival": {"curves": SURVIVAL}}),
}


PARTS = {  # functions by the stem of their module
    "counting": (("counting", "counts_of"), ("counting", "unread")),
    "digests of records": (("note", "state_of"), ("tables", "state")),
    "merging": (("release", "layouts"), ("release", "tabulations")),
    "hiding counts, at every hospital": (("suppression", "suppressed"),),
    "tables and figures": (("document", "document_of"),),
}


@dataclass(frozen=True, slots=True)
class AttackRow:
    """An attack on the tables of random codebooks."""

    rule: str
    codebooks: int
    bounded: int  # counts that no table shows, and groups that only differences have
    narrow: int  # of them, bounded to less than the rule; of differences, small groups only
    single: int  # single patients among them
    wrong: int  # bounds that exclude the true number
    seconds: float


@dataclass(frozen=True, slots=True)
class CostRow:
    """Seconds of one part of a codebook."""

    part: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReleasedRow:
    """The share of counts that a codebook releases."""

    codebook: str
    patients: int
    counts: int  # of all tables, after merging
    cells: int  # of all tables, before
    released: float  # of the counts
    records: float  # of the records in all tables, in released counts


RELEASED: Columns = {
    "codebook": "{r.codebook}",
    "patients": "{r.patients:,}",
    "cells": "{r.cells}",
    "merged into": "{r.counts}",
    "released": "{r.released:.0%}",
    "records in them": "{r.records:.1%}",
}


def measure(
    *,
    parties: int = 10,
    records: int = 1000,
    codebooks: int = 1000,
    patients: Sequence[int] = (300, 3_000, 30_000),
    seed: int = 0,
) -> Report:
    """Attack random codebooks with the rule on and off, time a large one, count hidden counts."""
    seconds, spent, parts = timed(parties, records, seed)
    shares = [released(name, size, seed) for name in CODEBOOKS for size in patients]
    on, off = attacked(codebooks, seed)
    large = len(LARGE) + 1
    return Report(
        "statistics",
        {"parties": parties, "records": records, "codebooks": codebooks, "patients": patients},
        seed,
        {
            "attacks": [asdict(one) for one in (on, off)],
            "parts": [asdict(one) for one in parts],
            "released": [asdict(one) for one in shares],
        },
        [
            Grid(
                f"random codebooks over {PATIENTS} patients of three hospitals",
                ("rule", "codebooks", "hidden", "narrower", "single patients", "wrong", "s"),
                [tuple(str(value) for value in asdict(one).values()) for one in (on, off)],
            ),
            Grid.of(
                f"{large} tables, {parties} hospitals of {records} records, one process",
                parts,
                {"part": "{r.part}", "s": "{r.seconds:.2f}"},
            ),
            Grid.of("released counts", shares, RELEASED),
        ],
        [
            Target(f"{large} tables, seconds by the clock", SECONDS, seconds),
            Target(f"{large} tables, CPU s", SECONDS, spent),
            Target("hidden counts narrower than the rule", 0, on.narrow),
            Target("bounds that exclude the true number", 0, on.wrong + off.wrong),
            Target("single patients found with the rule off", 1, off.single, at_least=True),
        ],
    )


def attacked(count: int, seed: int) -> tuple[AttackRow, AttackRow]:
    """Attack so many random codebooks; some again with the rule off."""
    rng = np.random.default_rng(seed)
    studies: list[Study] = []
    while sum(len(study.codebooks) for study in studies) < count:
        studies.append(random_study(rng, PATIENTS, CELLS))
    rows = []
    for least, chosen in ((LEAST, studies), (1, studies[::CONTROLS])):
        started = time.perf_counter()
        found = [_bounded(study, least) for study in chosen]
        bounded, narrow, single, wrong = (sum(one) for one in zip(*found, strict=True))
        opened = sum(len(study.codebooks) for study in chosen)
        seconds = round(time.perf_counter() - started, 1)
        rule = f"min_patients = {least}"
        rows.append(AttackRow(rule, opened, bounded, narrow, single, wrong, seconds))
    return rows[0], rows[1]


def _bounded(study: Study, least: int) -> tuple[int, int, int, int]:
    """Count hidden groups, narrow ones, single patients, and wrong bounds."""
    tables = ReleasedTables(_documents(study, least), study.variables)
    every = pd.concat(list(study.hospitals.values()))
    true = tables.joint({name: every[name].tolist() for name in tables.columns})
    groups = tables.bounds(LEAST)
    narrow = [
        g for g in groups if g.high - g.low < LEAST - CLOSE and (g.counted or g.low < LEAST - CLOSE)
    ]
    single = sum(g.low > 0.5 and g.high < 1.5 for g in narrow)
    sizes = [true[g.cells].sum() for g in narrow]
    wrong = sum(
        not g.low - CLOSE <= size <= g.high + CLOSE for g, size in zip(narrow, sizes, strict=True)
    )
    return len(groups), len(narrow), single, wrong


def _documents(study: Study, least: int) -> list[Mapping[str, Any]]:
    """Release the codebooks one after the other, as each hospital does with the opened sums."""
    earlier: list[Tabulation] = []
    found: list[Mapping[str, Any]] = []
    for one in study.codebooks:
        codebook = Codebook.model_validate({**one, "min_patients": least})
        hospitals = study.hospitals.values()
        opened = np.sum([counts_of(codebook, table_of(table))[0] for table in hospitals], axis=0)
        merged = layouts(codebook, opened, merging=True)
        tables = suppressed(tabulations(codebook, merged), earlier, total_of(merged), least)
        earlier += tables
        found.append(document_of(codebook, merged, tables, list(study.hospitals)))
    return found


def timed(parties: int, records: int, seed: int) -> tuple[float, float, list[CostRow]]:
    """Open the large codebook in one process: seconds, CPU seconds, and the seconds of parts."""
    tables = {f"hospital-{k}": hospital(k + seed, records) for k in range(parties)}
    codebook = codebook_of("19 tables and survival")
    open_codebook(codebook, {name: tables[name].iloc[:60] for name in list(tables)[:3]})  # imports
    started = time.perf_counter()
    spent, _ = cpu(open_codebook, codebook, tables)
    seconds = time.perf_counter() - started
    profile = Profile()
    decided.cache_clear()
    profile.runcall(open_codebook, codebook, tables)
    return seconds, spent, _parts(profile)


def _parts(profile: Profile) -> list[CostRow]:
    """Sum a profile's seconds over the functions that do one part of the work."""
    known: dict[tuple[str, str], float] = {}
    total = 0.0
    for (file, _, function), (*_, own, cumulative, _) in Stats(profile).stats.items():  # type: ignore[attr-defined]
        known[Path(file).stem, function] = cumulative
        total += own
    rows = [
        CostRow(part, sum(known.get(place, 0.0) for place in places))
        for part, places in PARTS.items()
    ]
    return [
        *rows,
        CostRow("the rest: sealed sums and messages", total - sum(r.seconds for r in rows)),
    ]


def released(name: str, size: int, seed: int) -> ReleasedRow:
    """Release a codebook over so many patients, and count what is hidden."""
    codebook, table = codebook_of(name), table_of(hospital(seed, size))
    merged = layouts(codebook, counts_of(codebook, table)[0], merging=True)
    tables = suppressed(tabulations(codebook, merged), [], total_of(merged), codebook.least)
    counts = sum(one.counts.size for one in tables)
    shown = sum(int(one.shown.sum()) for one in tables)
    records = sum(int(one.counts[one.shown].sum()) for one in tables)
    share = records / (size * len(tables))
    return ReleasedRow(name, size, counts, codebook.cells, shown / counts, share)


def codebook_of(name: str) -> Codebook:
    """Make one of the typical codebooks."""
    tables, more = CODEBOOKS[name]
    used = {one for scope in tables.values() for one in scope} | set(
        SURVIVAL.values() if more else ()
    )
    variables = {one: found for one, found in VARIABLES.items() if one in used}
    return Codebook.model_validate({"variables": variables, "tables": tables, **more})


def hospital(seed: int, size: int) -> pd.DataFrame:
    """Make a table of random records."""
    rng = np.random.default_rng(seed)
    days = np.minimum(rng.exponential(500, size), 730).astype(int)
    return pd.DataFrame(
        {
            "age": np.clip(rng.normal(60, 17, size), 18, 99).astype(int),
            "sex": rng.choice(["f", "m"], size),
            "smoker": rng.choice(["never", "former", "current"], size, p=[0.5, 0.3, 0.2]),
            "diagnosis": rng.choice(DIAGNOSES, size, p=[0.4, 0.25, 0.15, 0.12, 0.08]),
            "year": rng.integers(2015, 2025, size),
            "bmi": rng.normal(27, 5, size).round(1),
            "creatinine": rng.lognormal(0, 0.4, size).round(2),
            "sodium": rng.normal(139, 4, size).round(),
            "days": days,
            "died": np.where(days < 730, "yes", "no"),
        }
    )
