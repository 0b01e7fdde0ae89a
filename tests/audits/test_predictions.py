"""Predictions on public records tell of private ones, unless noise drowns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from secure_fl import corpora
from secure_fl.algorithms.baselines.settings import DSFL
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.public_distillation import PublicRecords
from secure_fl.audits.attacks import predictions, shadow_models
from secure_fl.audits.attacks.predictions import Predictions
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import Prior, PublicView, Reading, Truth, View
from secure_fl.audits.public_trials import PublicTrials
from secure_fl.capture import readings
from secure_fl.corpora.codes import LABELS
from secure_fl.data.examples import Example, Text
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import Task, make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from tests.support.audited_runs import train
from tests.support.readings import prior_of

COUNT, MODELS = 24, 2
ADE = make_task(TaskSettings(labels=("no-ade", "ade"), max_length=48))


def corpus(seed: int, size: int, name: str = "ade") -> tuple[Example, ...]:
    return corpora.make(name, parties=1, seed=seed, size=size, shift=0.0)[0].train


def small(members: tuple[Example, ...], outsiders: tuple[Example, ...], task: Task = ADE) -> Prior:
    training = TrainingSettings(learning_rate=4e-3, batch_size=8, device="cpu")
    made = partial(prior_of, rounds=3, epochs=8, layers=1, seed=1)
    return made({"north": members}, training, task=task, public=outsiders)


@cache
def prior() -> Prior:
    records = corpus(1, 2 * COUNT)
    return small(records[:COUNT], records[COUNT:])


def trained(p: Prior, records: tuple[Example, ...], name: str) -> nn.Module:
    return shadow_models.imitate(
        p, shadow_models.site_of(p, p.task.encode(records, p.tokenizer), name)
    )


def predicted(p: Prior, model: nn.Module, public: tuple[Example, ...]) -> np.ndarray:
    encoded = p.task.encode(public, p.tokenizer, labelled=False)
    return shadow_models.probabilities(p.task, model, encoded)


def host(y: np.ndarray, weight: float | None = 1.0, **changes) -> View:
    values = {"predictions": (weight or 1.0) * (y - 1 / y.shape[1])}
    if weight is not None:
        values["weight"] = np.array([weight])
    reading = Reading(("north",), 1, values, ("wire/3",))
    return View("host", (replace(reading, **changes),))


def read(readings: Sequence[Reading], p: Prior, public: Sequence[Example]) -> Predictions:
    finding = predictions.predictions_of(readings, p, public)
    assert isinstance(finding, Predictions)
    return finding


def test_members_show_where_public_records_are_much_like_them():
    p = prior()
    # The control: private records lie among the public ones, as `overlap` warns. They tell most.
    public = (*p.truth["north"].records, *p.outsiders)
    y = predicted(p, trained(p, p.truth["north"].records, "members"), public)
    other = predicted(p, trained(p, corpus(77, COUNT), "others"), public)
    noise = np.random.default_rng(1).normal(0, 5, y.shape)
    pool = predictions.candidates_of(p, ("north",), public)
    made = predictions.shadows_for(p, public, pool.records, MODELS)
    finding, null, noised = (
        predictions.membership_of(host(values), p, public, shadows=made)
        for values in (y, other, y + noise)
    )
    assert finding.succeeded, finding.value
    assert not null.succeeded
    assert not noised.succeeded
    assert finding.target == "north"
    assert finding.evidence == ("wire/3",)
    assert finding.details["public"] == 2 * COUNT


@pytest.mark.slow
def test_members_show_through_other_records_too():
    records = corpus(1, 120)
    usual = small(records[:60], records[60:])
    training = usual.training.model_copy(update={"batch_size": 16})
    p, public = replace(usual, training=training), corpora.public("ade", seed=1, size=150)
    pool = predictions.candidates_of(p, ("north",), public)
    made = predictions.shadows_for(p, public, pool.records)
    finding, null = (
        predictions.membership_of(PublicView("public", model), p, public, shadows=made)
        for model in (trained(p, records[:60], "target"), trained(p, corpus(77, 60), "target"))
    )
    assert finding.value is not None
    assert null.value is not None
    assert finding.value > null.value
    assert not null.succeeded


def test_outsiders_that_are_asked_about_are_no_candidates():
    p = prior()
    finding = predictions.membership_of(PublicView("public", p.model()), p)
    assert finding.value is None  # 12 of 24 outsiders are left
    assert finding.note


def test_skewed_labels_show_and_common_ones_do_not():
    pool = corpus(5, 400)
    ill = tuple(r for r in pool if isinstance(r, Text) and r.label == "ade")[:80]
    fine = tuple(r for r in pool if isinstance(r, Text) and r.label != "ade")
    p, public = small((*ill, *fine[:4]), corpus(6, 100)), corpus(7, 100)
    view = PublicView("public", trained(p, p.truth["north"].records, "skewed"))
    finding = predictions.labels_of(view, p, public)
    alike = replace(p, truth={"north": Truth("north", corpus(8, 84))})
    null = predictions.labels_of(view, alike, public)  # nobody trained on these
    flat = predictions.labels_of(host(np.full((100, 2), 0.5)), p, public)
    assert finding.succeeded
    assert not null.succeeded
    assert not flat.succeeded
    assert finding.details["truth"] == pytest.approx([4 / 84, 80 / 84])


def codes_of(record: Example) -> tuple[str, ...]:
    assert isinstance(record, Text) and isinstance(record.label, tuple)
    return record.label


def several() -> Prior:
    """A hospital where the rarest code is common, and outsiders with the usual codes."""
    pool = corpus(5, 600, "codes")
    gout = tuple(r for r in pool if "M10" in codes_of(r))[:COUNT]
    task = make_task(TaskSettings(kind="multilabel", labels=LABELS, max_length=48))
    return small((*gout, *pool[: COUNT // 2]), corpus(6, 2 * COUNT, "codes"), task)


def test_shares_of_several_labels_show_and_common_ones_do_not():
    p, public = several(), corpus(7, 100, "codes")
    view = PublicView("public", trained(p, p.truth["north"].records, "skewed"))
    finding = predictions.labels_of(view, p, public)
    alike = replace(p, truth={"north": Truth("north", corpus(8, COUNT, "codes"))})
    null = predictions.labels_of(view, alike, public)
    assert finding.succeeded
    assert not null.succeeded
    assert LABELS[int(np.argmax(finding.details["guess"]))] == "M10"
    assert sum(finding.details["truth"]) > 1  # shares of labels, not of records


def test_members_show_through_predictions_of_several_labels():
    p = several()
    members = p.truth["north"].records
    public = (*members, *p.outsiders)
    pool = predictions.candidates_of(p, ("north",), public)
    made = predictions.shadows_for(p, public, pool.records, MODELS)
    finding, null = (
        predictions.membership_of(PublicView("public", model), p, public, shadows=made)
        for model in (trained(p, members, "members"), trained(p, corpus(77, COUNT, "codes"), "x"))
    )
    assert finding.succeeded
    assert not null.succeeded


def test_labels_drawn_as_public_ones_seldom_pass():
    p = replace(prior(), outsiders=corpus(6, 100))
    known = np.mean([r.label == "ade" for r in p.outsiders if isinstance(r, Text)])
    rng, passed = np.random.default_rng(3), 0
    for _ in range(100):
        drawn = rng.random(60) < known
        records = tuple(Text("x", "x", label="ade" if ill else "no-ade") for ill in drawn)
        y = np.full((10, 2), [1 - drawn.mean(), drawn.mean()])  # the best guess there can be
        truth = {"north": Truth("north", records)}
        passed += predictions.labels_of(host(y), replace(p, truth=truth), records[:10]).succeeded
    assert passed <= 13  # 5 % of 100, and what chance adds once in 1,000


def test_a_hosts_sum_gives_the_mean_back():
    p, y = prior(), np.random.default_rng(1).dirichlet([1, 1], 10)
    public = p.outsiders[:10]
    for weight in (1.0, 0.3, None):
        finding = read(host(y, weight).readings, p, public)
        assert finding.values == pytest.approx(y)
    both = host(y, None, of=("north", "south"), values={"predictions": 2 * (y - 0.5)})
    finding = read(both.readings, p, public)
    assert finding.values == pytest.approx(y)
    assert finding.owners == ("north", "south")


def test_the_last_round_counts():
    p, y = prior(), np.random.default_rng(1).dirichlet([1, 1], 10)
    old, new = host(1 - y).readings[0], host(y, round=2).readings[0]
    complete = replace(p, algorithm=DSFL())
    finding = read((old, new), complete, p.outsiders[:10])
    assert finding.values == pytest.approx(y)


def test_fedids_batches_are_put_back_in_their_places():
    public = prior().outsiders[:9]
    p = replace(prior(), algorithm=FedID(public_batch=2, batches_per_exchange=4))
    silo = Silo("host", public, public=public)
    spec = SiteSpec(p.task, ModelSettings(), p.training, p.seed)
    site = Site(silo, spec, SiteContext(EventLog("host")))
    y = np.random.default_rng(1).dirichlet([1, 1], 9)
    batches = PublicRecords(site, 2).batches(1, 0)  # four of two; one record is left over
    rows = np.concatenate([batch.numpy() for batch in batches])
    finding = read(host(y[rows]).readings, p, public)
    assert finding.values[rows] == pytest.approx(y[rows])
    left_out = sorted(set(range(9)) - set(rows.tolist()))
    assert (finding.values[left_out] == 0.5).all()


def test_what_cannot_be_read_says_so():
    p, y = prior(), np.full((10, 2), 0.5)
    for view, public, ran in (
        (View("host"), p.outsiders, True),
        (host(y), p.outsiders[:9], False),
        (host(y), (), False),
    ):
        finding = predictions.labels_of(view, p, public)
        assert finding.value is None and finding.note
        assert finding.could_run is ran  # false: no verdict
    ner = make_task(TaskSettings(kind="ner", labels=("DRUG",)))
    finding = predictions.membership_of(host(y), replace(p, task=ner), p.outsiders)
    assert finding.value is None and finding.note


NOISE = "[protection.noise]\nepsilon = 1e9\nstd = 1.0\nforce = true"


@pytest.mark.parametrize("noise", ["", NOISE], ids=["plain", "noise"])
def test_parties_that_were_not_drawn_do_not_count(tmp_path: Path, noise: str) -> None:
    """With noise no weight is sent, and the audit draws as the parties did."""
    more = 'epochs = 1\nsample = 0.5\ncounted = "parties"'
    rules = f"min_cohort = 2\nthreshold = 4\n{noise}"
    case: dict[str, Any] = {"parties": 4, "protection": rules, "more": more, "rounds": 2}
    case |= {"algorithm": "dsfl", "mode": "secagg", "data": "public = 24\nlabelled = 8"}
    trials = PublicTrials(AuditedRun(train(tmp_path / "run", **case)))
    view = trials._host()
    assert view is not None
    shown = [one for one in view.readings if "predictions" in one.values]
    assert [one.round for one in shown] == [1, 2]
    for one in shown:
        assert len(one.of) == 4 and one.values["weight"] == 2
    sums = readings.host_sums(trials.audited.run)
    assert [trials.predicting(one) for one in sums if "predictions" in one.values] == [2, 2]
