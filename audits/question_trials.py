"""Trials of questions and evaluations, on hospitals that the audit makes up.

A run's own records are not asked about, since its sites would keep the answers for good. Instead
the installed program asks made-up hospitals, protected as the run was. Every role's view is
recorded and attacked as views of training are. A further trial subtracts answers from each other
(`statistics.differencing`): with the rules off it must find small groups, under the shipped rules
none, and where every group is large it must invent none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.audits import roles
from secure_fl.audits.attacks.reading import (
    EVALUATION,
    QUESTIONS,
    Sent,
    counted_by_all,
    counted_by_one,
)
from secure_fl.audits.audited_run import sent_in
from secure_fl.audits.controls import recorded
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior, View
from secure_fl.capture.opening import RecordedRun
from secure_fl.capture.recording import FolderCapture
from secure_fl.config.build import RunSettings
from secure_fl.config.data import CorpusData
from secure_fl.config.load import Settings
from secure_fl.settings import Protection, ProtectionSettings, TaskSettings, TrainingSettings
from secure_fl.statistics.rules import StatisticsRules

DIFFERENCES = f"{QUESTIONS}: differences of answers"
ABOUT = {
    QUESTIONS: (
        "Asks made-up hospitals about their records, protected as this run, and compares what this "
        "role could read with what they counted. Success: nearly all of those counts."
    ),
    EVALUATION: (
        "Evaluates a model at made-up hospitals, protected as this run, and compares what this "
        "role could read with what they counted on test records. Success: nearly all of those "
        "counts."
    ),
    DIFFERENCES: (
        "Asks made-up hospitals random questions and solves all answers for groups of patients; "
        "success would mean that the shipped rules let answers reveal groups smaller than allowed."
    ),
}
ALGORITHM = "evaluate"  # an optional one
HOSPITALS, RECORDS = 4, 240  # of four hospitals one may collude
COUNTED = ("records", "patients")  # of a question's sums: the others serve its rules
LABELS = ("ade", "no-ade")

Step = tuple[str, Callable[[], Sequence[AuditTrial]]]


def steps(prior: Prior, mode: Protection, place: Path) -> Sequence[Step]:
    """Return the trials of all subjects, with the names of their steps."""
    trials = {
        QUESTIONS: lambda: _tried(QUESTIONS, prior, mode, place, _asked, COUNTED),
        EVALUATION: lambda: _tried(EVALUATION, prior, mode, place, _evaluated, ()),
    }
    return tuple((name, trials[name]) for name in subjects())


def subjects() -> tuple[str, ...]:
    """Return the subjects that hospitals can count for in this installation."""
    return (QUESTIONS, EVALUATION) if ALGORITHM in ALGORITHMS else (QUESTIONS,)


def _tried(
    name: str,
    prior: Prior,
    mode: Protection,
    place: Path,
    make: Callable[[Protection, Path], RecordedRun],
    counted: Sequence[str],
) -> tuple[AuditTrial, ...]:
    """Attack single hospitals and sums for every role: in the clear, here, and on the null."""
    clear = make("none", place / f"{name}-none")
    here = clear if mode == "none" else make(mode, place / f"{name}-{mode}")
    wires = roles.coordinator(clear, {}, clear.first_round)
    nothing, sent = roles.shuffled(wires, prior), sent_in(here)
    sent_clear: Sent = sent_in(clear)
    trials = []
    for attack in (counted_by_one, counted_by_all):
        control = attack(name, wires, sent_clear, counted)
        null = attack(name, nothing, sent_clear, counted)
        for view in _views(here):
            trials.append(AuditTrial(control, attack(name, view, sent, counted), null))
    return tuple(trials)


def _views(run: RecordedRun) -> tuple[View, ...]:
    """Make all views but that of three colluders, who know the fourth's by subtraction."""
    everybody = roles.views(run, {}, run.first_round, 1)
    return tuple(view for view in everybody if view.role != roles.role_of(HOSPITALS - 1))


def _asked(mode: Protection, folder: Path) -> RecordedRun:
    """Ask each hospital for the ages of its patients, unless this folder has the answers."""
    from secure_fl.statistics import asking
    from secure_fl.statistics.pages import DOCUMENT, write_answers
    from secure_fl.statistics.questions import Histogram
    from secure_fl.statistics.site import StatisticsSite

    if (folder / DOCUMENT).exists():
        return RecordedRun(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    question = Histogram(name="ages", kind="histogram", field="age", low=0, high=100, bins=20)
    sites = [StatisticsSite(f"hospital-{n}", _table(n)) for n in range(1, HOSPITALS + 1)]
    capture = FolderCapture(folder)
    try:
        asking.run(sites, [question], ProtectionSettings(mode=mode), capture=capture)
    finally:
        capture.close()
    write_answers(folder, sites[0].answers, mode)
    return RecordedRun(folder)


def _table(seed: int) -> Any:
    import pandas

    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(50, 20, RECORDS), 0, 100)
    return pandas.DataFrame({"text": ["note"] * RECORDS, "age": age.astype(int)})


def _evaluated(mode: Protection, folder: Path) -> RecordedRun:
    """Evaluate two small initial models, unless this folder has that evaluation."""
    models = [_model(folder.parent / f"{EVALUATION}-model-{seed}", seed) for seed in (1, 2)]
    named = [{"name": str(model.resolve()), "label": model.name} for model in models]
    settings = Settings(
        run=RunSettings(name=EVALUATION, record=True),
        task=TaskSettings(labels=LABELS, max_length=32),
        data=CorpusData(corpus="ade", parties=HOSPITALS, size=RECORDS),
        protection=ProtectionSettings(mode=mode),
        algorithm=ALGORITHMS[ALGORITHM].settings.model_validate({"models": named}),
        training=TrainingSettings(device="cpu"),
    )
    return recorded(settings, folder, until=1)


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


# --- differences of answers -----------------------------------------------------------------------

FIELDS: Mapping[str, Sequence[str]] = {
    "label": ("a", "b", "c"),
    "sex": ("f", "m"),
    "died": ("0", "1"),
}
SHARES = {"label": (0.57, 0.4, 0.03), "sex": (0.5, 0.5), "died": (0.7, 0.3)}
READERS, ROWS = 3, 40  # hospitals with so many records each
QUICK, ASKED = 24, 100  # questions
LEAST = StatisticsRules().min_patients


def difference_trials(prior: Prior, quick: bool = False) -> tuple[AuditTrial, ...]:
    """Ask with the rules off, with the shipped rules, and where there are no small groups."""
    count = QUICK if quick else ASKED
    few, many = _rare_groups(prior), _large_groups()
    off, on = StatisticsRules(min_patients=1), StatisticsRules()
    control, deployed = (_small_groups(few, rules, count, prior) for rules in (off, on))
    return (AuditTrial(control, deployed, _small_groups(many, off, QUICK, prior)),)


def _small_groups(
    tables: Mapping[str, Any], rules: StatisticsRules, count: int, prior: Prior
) -> AuditFinding:
    """Count the small groups that so many questions reveal, under these rules at all hospitals."""
    from secure_fl.statistics.asking import ask
    from secure_fl.statistics.differencing import groups_found, random_questions

    asked = random_questions(FIELDS, count, prior.rng(DIFFERENCES))
    answers = ask(
        asked,
        tables,
        rules=rules.model_copy(update={"questions_a_day": count}),
        protection=ProtectionSettings(mode="none"),  # answers are the same, and sooner there
    )
    groups = groups_found(FIELDS, asked, answers, few=LEAST - 1)
    return AuditFinding(
        attack=DIFFERENCES,
        role="who reads answers",
        target="small groups",
        measure="groups of few patients that were found",
        value=float(len(groups)),
        chance=0.0,
        threshold=1.0,
        samples=count,
        details={
            "questions": count,
            "answered": sum(answer.status == "answered" for answer in answers),
            "single patients": sum(size == 1 for size in groups.values()),
        },
    )


def _rare_groups(prior: Prior) -> dict[str, Any]:
    """Make hospitals with a rare class, so that groups of it are small."""
    import pandas

    rng = prior.rng(DIFFERENCES, "records")
    return {
        f"hospital-{n}": pandas.DataFrame(
            {name: rng.choice(values, ROWS, p=SHARES[name]) for name, values in FIELDS.items()}
        )
        for n in range(1, READERS + 1)
    }


def _large_groups() -> dict[str, Any]:
    """Make hospitals in which every group has at least as many patients as the rules require."""
    import pandas

    rows = list(product(*FIELDS.values())) * LEAST
    table = pandas.DataFrame(rows, columns=list(FIELDS))
    return {f"hospital-{n}": table for n in range(1, READERS + 1)}
