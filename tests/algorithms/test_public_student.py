"""A student of a private teacher: a function of the released model and public texts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import FedSGD, ModelSettings, Silo, TrainingSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.probe import Probe
from secure_fl.algorithms.public_student import STUDENT, PublicStudent
from secure_fl.corpora import make, public
from secure_fl.errors import DataError, ModelError, SettingsError
from secure_fl.events import EventLog
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.settings import AdapterSettings, DPSettings, TaskSettings
from secure_fl.testing.hospitals import LABELS, small

TASK = TaskSettings(labels=LABELS, positive="ade", max_length=16)
DP = DPSettings(epsilon=3.0, noise="shared", dropouts=0)
PRIVATE = TrainingSettings(device="cpu", class_weights="none", dp=DP)
TEACHERS: dict[str, tuple[Any, ModelSettings]] = {
    "probe": (Probe, ModelSettings(name="tiny")),
    "fedsgd": (
        FedSGD,
        ModelSettings(name="tiny", pooling="mean", adapter=AdapterSettings(rank=2, last=1)),
    ),
}


def hospitals(texts: int = 64, seed: int = 0) -> list[Silo]:
    own = public("ade", seed=0, size=texts) if texts else ()
    made = make("ade", parties=3, seed=seed, size=40)
    return [Silo(f"h{k}", s.train, s.dev, s.test, public=own) for k, s in enumerate(made)]


def algorithm(name: str, rounds: int = 3, **options: Any) -> Algorithm:
    steps = {"fit": "logistic"} if name == "probe" else {}
    made: Algorithm = TEACHERS[name][0](rounds=rounds, **steps, **options)
    return made


def run(name: str, silos: list[Silo] | None = None, **options: Any) -> Any:
    taught = algorithm(name, **options)
    given = {"training": PRIVATE, "task": TASK, "model": TEACHERS[name][1]}
    return small(taught, "secagg", silos=silos or hospitals(), **given).run()


def sent(result: Any) -> int:
    return sum(int(ways["up"]) for ways in result.document["bytes"].values())


@pytest.mark.parametrize("name", TEACHERS)
def test_anybody_with_the_released_model_computes_the_same_student(name: str) -> None:
    """A site that holds other records gets it bit for bit, so it says no more than the teacher."""
    result = run(name, student_layers=1, student_epochs=2)
    silo = replace(hospitals(seed=9)[0], name="reader")
    spec = SiteSpec(make_task(TASK), TEACHERS[name][1], TrainingSettings(device="cpu"), seed=0)
    reader = Site(silo, spec, SiteContext(EventLog("reader")))
    student = PublicStudent.of(reader, algorithm(name, student_layers=1, student_epochs=2))  # type: ignore[arg-type]
    assert student is not None
    theirs = student.taught_by(result.model).state_dict()
    ours = result.models[STUDENT].state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
    assert result.models[STUDENT].config.num_hidden_layers == 1


def test_a_student_costs_no_privacy_and_no_sum() -> None:
    name = "probe"
    alone, taught = run(name), run(name, student_layers=1, student_epochs=1)
    assert taught.document["privacy"] == alone.document["privacy"]
    scores_of_a_round = sent(alone) - sent(run(name, rounds=2))
    assert sent(taught) < sent(alone) + scores_of_a_round  # its scores are in the last round
    scored = {e["round"] for e in taught.document["history"] if STUDENT in str(e)}
    assert scored == {3}
    assert set(taught.models) == {"model", STUDENT} and set(alone.models) == {"model"}


@pytest.mark.parametrize("name", TEACHERS)
def test_the_last_round_is_scored_whatever_the_number_of_rounds(name: str) -> None:
    """Without a score of the model, the student would be served, however bad it is."""
    plain = TrainingSettings(device="cpu", class_weights="none")
    taught, model = algorithm(name, 13, student_layers=1, student_epochs=1), TEACHERS[name][1]
    options = {"training": plain, "task": TASK, "model": model, "silos": hospitals(16)}
    last = small(taught, "none", **options).run().document["metrics"]["last"]
    assert last["round"] == 13 and {"dev", f"{STUDENT}/dev"} <= last["pooled"].keys()


def test_a_student_learns_its_teachers_answers() -> None:
    """Distilled from a teacher without DP, it agrees with it on texts that neither has seen."""
    plain = TrainingSettings(device="cpu", class_weights="none")
    given = {"training": plain, "task": TASK, "model": TEACHERS["probe"][1]}
    silos = hospitals(240)
    taught = Probe(student_layers=1, student_epochs=16)
    result = small(taught, "none", silos=silos, **given).run()
    texts = [e.text for e in public("ade", seed=7, size=100)]  # type: ignore[union-attr]
    answers = {n: result.predict(texts, model=n) for n in ("model", STUDENT)}
    same = [a["label"] == b["label"] for a, b in zip(*answers.values(), strict=True)]
    assert sum(same) > 75


def test_it_is_refused_before_a_step_is_spent(tmp_path: Path) -> None:
    private = hospitals()
    overlapping = [replace(s, public=(*s.public, private[0].train[0])) for s in private]
    with pytest.raises(DataError, match="no public records"):
        run("fedsgd", hospitals(0), student_layers=1)
    with pytest.raises(DataError, match="also in the training records"):
        run("fedsgd", overlapping, student_layers=1)
    with pytest.raises(ModelError, match="layers"):
        run("fedsgd", student_layers=99)
    given = {"training": PRIVATE, "model": TEACHERS["fedsgd"][1], "silos": hospitals()}
    task = TaskSettings(kind="regression")
    with pytest.raises(SettingsError, match="classes"):
        small(algorithm("fedsgd", student_layers=1), "secagg", task=task, **given).run()
