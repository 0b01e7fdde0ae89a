"""Trials of codebooks and evaluations, on hospitals that the audit makes up.

A run's own records are not counted, since its sites would keep a note for good. Instead the
installed program counts at made-up hospitals, protected as the run was. Every role's view is
recorded and attacked as views of training are. A further trial attacks released tables: with the
rules off it must find small groups, under the shipped rules none, and where every group is large it
must invent none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.audits import roles
from secure_fl.audits.attacks.reading import (
    CODEBOOKS,
    EVALUATION,
    Sent,
    counted_by_all,
    counted_by_one,
)
from secure_fl.audits.attacks.released_tables import CLOSE, ReleasedTables
from secure_fl.audits.audited_run import recorded, sent_in
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior, View
from secure_fl.capture.opening import RecordedRun
from secure_fl.config.build import RunSettings
from secure_fl.config.data import CorpusData, PartyData, PartyFiles
from secure_fl.config.load import Settings
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation, FederationOptions
from secure_fl.federation.run_feature import SiteLimits
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.settings import Protection, ProtectionSettings, TaskSettings, TrainingSettings

RELEASED = f"{CODEBOOKS}: released tables"
ABOUT = {
    CODEBOOKS: (
        "Opens a codebook at made-up hospitals, protected as this run, and compares what this "
        "role could read with what they counted. Success: nearly all of those counts."
    ),
    EVALUATION: (
        "Evaluates a model at made-up hospitals, protected as this run, and compares what this "
        "role could read with what they counted on test records. Success: nearly all of those "
        "counts."
    ),
    RELEASED: (
        "Opens random codebooks at made-up hospitals, and bounds hidden counts by linear programs "
        "over all released tables. Success: the shipped rules let tables reveal a group smaller "
        "than allowed."
    ),
}
STATISTICS, EVALUATE = "statistics", "evaluate"  # optional algorithms
HOSPITALS, RECORDS = 4, 240  # of four hospitals one may collude
LABELS = ("ade", "no-ade")

Step = tuple[str, Callable[[], Sequence[AuditTrial]]]


def steps(prior: Prior, mode: Protection, place: Path) -> Sequence[Step]:
    """Return the trials of all subjects, with the names of their steps."""
    trials = {
        CODEBOOKS: lambda: _tried(CODEBOOKS, prior, mode, place, _opened),
        EVALUATION: lambda: _tried(EVALUATION, prior, mode, place, _evaluated),
    }
    return tuple((name, trials[name]) for name in subjects())


def subjects() -> tuple[str, ...]:
    """Return the subjects that hospitals can count for in this installation."""
    needed = {CODEBOOKS: STATISTICS, EVALUATION: EVALUATE}
    return tuple(name for name, algorithm in needed.items() if algorithm in ALGORITHMS)


def _tried(
    name: str,
    prior: Prior,
    mode: Protection,
    place: Path,
    make: Callable[[Protection, Path], RecordedRun],
) -> tuple[AuditTrial, ...]:
    """Attack single hospitals and sums for every role: in the clear, here, and on the null."""
    clear = make("none", place / f"{name}-none")
    here = clear if mode == "none" else make(mode, place / f"{name}-{mode}")
    wires = roles.coordinator(clear, {}, clear.first_round)
    nothing, sent = roles.shuffled(wires, prior), sent_in(here)
    sent_clear: Sent = sent_in(clear)
    trials = []
    for attack in (counted_by_one, counted_by_all):
        control = attack(name, wires, sent_clear)
        null = attack(name, nothing, sent_clear)
        for view in _views(here):
            trials.append(AuditTrial(control, attack(name, view, sent), null))
    return tuple(trials)


def _views(run: RecordedRun) -> tuple[View, ...]:
    """Make all views but that of three colluders, who know the fourth's by subtraction."""
    everybody = roles.views(run, {}, run.first_round, 1)
    return tuple(view for view in everybody if view.role != roles.role_of(HOSPITALS - 1))


def _opened(mode: Protection, folder: Path) -> RecordedRun:
    """Open the ages of each hospital's patients, unless this folder has that run."""
    ages = {"age": {"low": 0, "high": 100, "bins": 20}, "sex": {"values": ["f", "m"]}}
    codebook = {"variables": ages, "tables": {"ages": ["age"], "age and sex": ["age", "sex"]}}
    files = [_records(folder.parent, n) for n in range(1, HOSPITALS + 1)]
    data = PartyData(party=tuple(PartyFiles(name=f.stem, train=str(f)) for f in files))
    algorithm = ALGORITHMS[STATISTICS].settings.model_validate(codebook)
    return _run(CODEBOOKS, mode, folder, data=data, algorithm=algorithm)


def _run(name: str, mode: Protection, folder: Path, **fields: Any) -> RecordedRun:
    settings = Settings(
        run=RunSettings(name=name, record=True),
        protection=ProtectionSettings(mode=mode),
        training=TrainingSettings(device="cpu"),
        **fields,
    )
    return recorded(settings, folder, until=1)


def _records(folder: Path, seed: int) -> Path:
    import pandas

    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(50, 20, RECORDS), 0, 100).astype(int)
    file = (folder / f"{CODEBOOKS}-records" / f"hospital-{seed}.csv").resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    frame = pandas.DataFrame({"age": age, "sex": rng.choice(["f", "m"], RECORDS)})
    frame.to_csv(file, index=False)
    return file


def _evaluated(mode: Protection, folder: Path) -> RecordedRun:
    """Evaluate two small initial models, unless this folder has that evaluation."""
    models = [_model(folder.parent / f"{EVALUATION}-model-{seed}", seed) for seed in (1, 2)]
    named = [{"name": str(model.resolve()), "label": model.name} for model in models]
    data = CorpusData(corpus="ade", parties=HOSPITALS, size=RECORDS)
    algorithm = ALGORITHMS[EVALUATE].settings.model_validate({"models": named})
    task = TaskSettings(labels=LABELS, max_length=32)
    return _run(EVALUATION, mode, folder, data=data, algorithm=algorithm, task=task)


def _model(folder: Path, seed: int) -> Path:
    from secure_fl.learning.exporting import export
    from secure_fl.learning.models import load_model, load_tokenizer
    from secure_fl.learning.tasks import make_task
    from secure_fl.settings import ModelSettings

    if not folder.exists():
        task, spec = make_task(TaskSettings(labels=LABELS, max_length=32)), ModelSettings(layers=1)
        tokenizer = load_tokenizer(spec)
        export(load_model(spec, task, tokenizer, seed), tokenizer, folder, task)
    return folder


# --- released tables ------------------------------------------------------------------------------

QUICK, FULL = 3, 20  # studies
PATIENTS, CELLS = 150, 150  # of a study, and of its joint table
LEAST = 10  # the shipped min_patients


def released_trials(prior: Prior, quick: bool = False) -> tuple[AuditTrial, ...]:
    """Attack tables with the rules off, with the shipped rules, and without small groups."""
    if STATISTICS not in ALGORITHMS:
        return ()
    rng = prior.rng(RELEASED)
    few = [random_study(rng, PATIENTS, CELLS) for _ in range(QUICK if quick else FULL)]
    many = [large_groups(prior.rng(RELEASED, "null"), LEAST)]
    off: Mapping[str, Any] = {"min_patients": 1}
    control, deployed = _small_groups(few, off), _small_groups(few, {})
    return (AuditTrial(control, deployed, _small_groups(many, off)),)


def _small_groups(studies: Sequence[Study], rules: Mapping[str, Any]) -> AuditFinding:
    """Count the small groups that the tables of these studies reveal, under these rules."""
    found, bounded = [], 0
    for study in studies:
        tables = ReleasedTables(_results(study, rules), study.variables)
        groups = tables.bounds(LEAST)
        bounded += len(groups)
        found += [g for g in groups if g.high - g.low < LEAST - CLOSE and g.low < LEAST - CLOSE]
    return AuditFinding(
        attack=RELEASED,
        role="who reads tables",
        target="small groups",
        measure="groups of few patients that were found",
        value=float(len(found)),
        chance=0.0,
        threshold=1.0,
        samples=bounded,
        details={
            "codebooks": sum(len(study.codebooks) for study in studies),
            "single patients": sum(g.low > 0.5 and g.high < 1.5 for g in found),
        },
    )


def _results(study: Study, rules: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Open the codebooks of a study one after the other; each hospital keeps its notes."""
    silos = [Silo(name, (), table=records) for name, records in study.hospitals.items()]
    clear = ProtectionSettings(mode="none")  # tables are the same, and sooner there
    settings = ALGORITHMS[STATISTICS].settings
    found = []
    with TemporaryDirectory() as notes:

        def limits(name: str) -> SiteLimits:
            return SiteLimits(ledger=partial(open_ledger, Path(notes) / name, name))

        for one in study.codebooks:
            codebook = settings.model_validate({**one, **rules})
            options: FederationOptions = {"progress": False, "limits": limits}
            run = Federation(silos, codebook, protection=clear, **options).run()
            found.append(run.document[STATISTICS])
    return found


# --- made-up hospitals with random codebooks ------------------------------------------------------

STUDY_HOSPITALS = 3
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


def random_study(rng: np.random.Generator, patients: int, most_cells: int) -> Study:
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
    drawn = {name: _column(rng, found, patients) for name, found in values.items()}
    frame = pandas.DataFrame(drawn)
    of = rng.integers(STUDY_HOSPITALS, size=patients)
    return Study({f"hospital-{n + 1}": frame[of == n] for n in range(STUDY_HOSPITALS)}, codebooks)


def large_groups(rng: np.random.Generator, least: int) -> Study:
    """Make hospitals in which every group has at least so many patients."""
    import pandas

    values = {"c0": ("a", "b"), "c1": ("a", "b", "c"), "n0": None}
    rows = list(product(*(range(TOP) if v is None else v for v in values.values()))) * least
    frame = pandas.DataFrame(rows, columns=list(values))
    while _cells(codebooks := (_codebook(rng, values, False, whole=True),)) > MOST_CELLS:
        pass
    return Study({f"hospital-{n + 1}": frame for n in range(STUDY_HOSPITALS)}, codebooks)


def _columns(rng: np.random.Generator, survival: bool) -> dict[str, tuple[str, ...] | None]:
    """Draw the columns: categories, or None for numbers."""
    found: dict[str, tuple[str, ...] | None] = {}
    for place in range(int(rng.integers(1, 5))):
        if rng.random() < 0.5:
            found[f"c{place}"] = tuple("abcde"[: int(rng.integers(2, 6))])
        else:
            found[f"n{place}"] = None
    return found | ({"days": None, "died": ("no", "yes")} if survival else {})


def _column(rng: np.random.Generator, values: tuple[str, ...] | None, size: int) -> Any:
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
