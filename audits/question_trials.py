"""What each role reads of questions and of an evaluation, tried on four made-up hospitals.

A run's own records are not asked about: answers would be noted at its sites for good. So the
installed program asks hospitals of the audit's own, protected as the run was, and every role's view
is recorded and attacked as those of training are. What whoever reads the answers can subtract is
tried by `shipped.differences`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.audits import roles
from secure_fl.audits.attacks import counts
from secure_fl.audits.attacks.counts import EVALUATION, QUESTIONS
from secure_fl.audits.attacks.reading import Sent
from secure_fl.audits.controls import recorded
from secure_fl.audits.findings import AuditTrial, Prior, View
from secure_fl.capture import readings
from secure_fl.capture.opening import RecordedRun
from secure_fl.capture.recording import FolderCapture
from secure_fl.config.build import RunSettings
from secure_fl.config.data import CorpusData
from secure_fl.config.load import Settings
from secure_fl.settings import Protection, ProtectionSettings, TaskSettings, TrainingSettings

ABOUT = {
    QUESTIONS: (
        "Asks made-up hospitals about their records, protected as this run, and holds what this "
        "role could read against what they counted. Success: nearly all of those counts."
    ),
    EVALUATION: (
        "Evaluates a model at made-up hospitals, protected as this run, and holds what this role "
        "could read against what they counted on test records. Success: nearly all of those counts."
    ),
}
ALGORITHM = "evaluate"  # an optional one
HOSPITALS, RECORDS = 4, 240  # within what four allow, one may collude
COUNTED = ("records", "patients")  # of a question's sums: the rest serves its rules
LABELS = ("ade", "no-ade")


def steps(
    prior: Prior, mode: Protection, place: Path
) -> Sequence[tuple[str, Callable[[], Sequence[AuditTrial]]]]:
    """Return the trials of all subjects, with their names."""
    found = {
        QUESTIONS: lambda: _tried(QUESTIONS, prior, mode, place, _asked, COUNTED),
        EVALUATION: lambda: _tried(EVALUATION, prior, mode, place, _evaluated, ()),
    }
    return tuple((name, found[name]) for name in subjects())


def subjects() -> tuple[str, ...]:
    """Return what hospitals can be asked to count for, by what is installed."""
    return (QUESTIONS, EVALUATION) if ALGORITHM in ALGORITHMS else (QUESTIONS,)


def _tried(
    name: str,
    prior: Prior,
    mode: Protection,
    place: Path,
    make: Callable[[Protection, Path], RecordedRun],
    counted: Sequence[str],
) -> tuple[AuditTrial, ...]:
    """Every role against single hospitals and against sums: in the clear, here, and on nothing."""
    clear = make("none", place / f"{name}-none")
    here = clear if mode == "none" else make(mode, place / f"{name}-{mode}")
    wires = roles.coordinator(clear, {}, clear.first_round)
    nothing, sent = roles.shuffled(wires, prior), _sent(here)
    found = []
    for attack in (counts.reading_one, counts.reading_sum):
        control = attack(name, wires, _sent(clear), counted)
        null = attack(name, nothing, _sent(clear), counted)
        for view in _views(here):
            found.append(AuditTrial(control, attack(name, view, sent, counted), null))
    return tuple(found)


def _views(run: RecordedRun) -> tuple[View, ...]:
    """The coordinator, one hospital, and both; three of four know the last one by subtraction."""
    everybody = roles.views(run, {}, run.first_round, 1)
    return tuple(view for view in everybody if view.role != roles.role_of(HOSPITALS - 1))


def _sent(run: RecordedRun) -> Sent:
    return {party: readings.given(run, party, run.first_round) for party in run.parties}


def _asked(mode: Protection, folder: Path) -> RecordedRun:
    """Ask each hospital for the ages of its patients, or take what lies there."""
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
    """Evaluate two small models, as they are drawn, or take what lies there."""
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
