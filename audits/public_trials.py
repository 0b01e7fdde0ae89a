"""Trials of what a run publishes: its model, and predictions that the host opened.

The control is a model trained on the hospitals' records in one place, which knows them as well as a
model can. The null is trained on a random half of all candidates, so it knows as many outsiders as
members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from secure_fl.algorithms.ensembles import PREDICTIONS, drawn_parties
from secure_fl.audits.attacks import membership, predictions, shadow_models
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior, PublicView, Reading, View
from secure_fl.audits.roles import CODE, HOST, PUBLIC
from secure_fl.audits.selftest import one_run
from secure_fl.capture import readings
from secure_fl.capture.merging import MergedReading
from secure_fl.errors import DataError
from secure_fl.learning.exporting import load_exported
from secure_fl.protocol.sum_names import WEIGHT
from secure_fl.thresholds import default_threshold

ABOUT: Mapping[str, str] = {**membership.ABOUT, **predictions.ABOUT, one_run.NAME: one_run.ABOUT}
RELEASED = ("model", "student")  # folders of models that a run exports for all
Attack: TypeAlias = Callable[[Any], AuditFinding]
Trials: TypeAlias = Callable[[], tuple[AuditTrial, ...]]


def steps(audited: AuditedRun) -> Iterator[tuple[str, Callable[[], Sequence[AuditTrial]]]]:
    """List the trials, by the name of their step."""
    public = PublicTrials(audited)
    for name, attacks, trials in (
        ("membership", (membership.LIRA, membership.RMIA), public.membership),
        ("predictions", (predictions.MEMBERSHIP, predictions.LABELS), public.predictions),
    ):
        yield name, partial(_if_trainable, attacks, trials)
    yield one_run.NAME, public.one_run


@dataclass(frozen=True)
class PublicTrials:
    """The trials of one run's release, with their common candidates, control and null."""

    audited: AuditedRun

    @property
    def prior(self) -> Prior:
        """The attackers' prior knowledge."""
        return self.audited.prior

    @cached_property
    def released(self) -> PublicView | None:
        """The model for all; None: each hospital keeps its own."""
        for name in RELEASED:
            folder = self.audited.folder / name
            if folder.is_dir():
                return PublicView(PUBLIC, _loaded(folder), (name,))
        return None

    @cached_property
    def pool(self) -> shadow_models.Pool:
        """The candidates: members and as many outsiders."""
        return shadow_models.pool_of(self.prior, membership.MOST)

    @cached_property
    def control(self) -> PublicView:
        """A model trained on the members alone."""
        return PublicView(PUBLIC, self._model("control", self.pool.members.tolist()))

    @cached_property
    def null(self) -> PublicView:
        """A model that knows as many outsiders as members."""
        rng = self.prior.rng("null model")
        drawn = shadow_models.halves(2, len(self.pool.records), rng)[0]
        return PublicView(PUBLIC, self._model("null", drawn.tolist()))

    def membership(self) -> tuple[AuditTrial, ...]:
        """Run LiRA and RMIA on the released model."""
        prior = self.prior
        if self.released is None or membership.unsupported(prior):
            why = (
                membership.unsupported(prior) or "no model is released: each hospital keeps its own"
            )
            return tuple(_untested(name, why) for name in (membership.LIRA, membership.RMIA))
        many = membership.shadows_for(prior, self.pool, membership.SHADOWS, membership.LIRA)
        few = membership.shadows_for(prior, self.pool, membership.REFERENCES, membership.RMIA)
        attacks: tuple[Attack, ...] = (
            partial(membership.lira, prior=prior, shadows=many),
            partial(membership.rmia, prior=prior, shadows=few),
        )
        return tuple(self._trial(attack, self.released) for attack in attacks)

    def predictions(self) -> tuple[AuditTrial, ...]:
        """Attack predictions: those of the host, where there is one, and the released model's."""
        public = self.audited.silos[0].public or None
        views = [view for view in (self._host(), self.released) if view is not None]
        return tuple(
            self._trial(partial(attack, prior=self.prior, public=public), view)
            for attack in (predictions.membership_of, predictions.labels_of)
            for view in views
        )

    def one_run(self) -> tuple[AuditTrial, ...]:
        """Audit the run's own DP-SGD with canaries."""
        prior = self.prior
        if prior.training.dp is None:
            return ()
        view = PublicView(CODE, nn.Identity())
        attack = partial(one_run.one_run, view, prior)
        control, null = attack(one_run.LITTLE_NOISE), attack(one_run.BLIND)
        return (AuditTrial(control, attack(one_run.SOUND), null),)

    def _trial(self, attack: Attack, view: View | PublicView) -> AuditTrial:
        return AuditTrial(attack(self.control), attack(view), attack(self.null))

    def _host(self) -> View | None:
        """Make the host's view of every sum of predictions."""
        if self.audited.run.host is None:
            return None
        classes = len(self.prior.task.labels)
        opened = []
        for read in readings.host_sums(self.audited.run):
            values = {n: _rows(n, v, classes) for n, v in read.values.items()}
            if PREDICTIONS in values and WEIGHT not in values:  # under noise
                values[WEIGHT] = np.array([self.predicting(read)])
            opened.append(Reading(read.of, read.round, values, read.evidence))
        return View(HOST, tuple(opened))

    def predicting(self, read: MergedReading) -> int:
        """Count the parties of a host sum that were drawn for its round; the others sent zeros."""
        settings, prior = self.audited.settings, self.prior
        rules, members = settings.protection, len(self.audited.run.parties)
        share = prior.algorithm.demands(prior.training, 0).drawn
        limits = rules.min_cohort, rules.threshold or default_threshold(members)
        drawn = drawn_parties(prior.seed, read.round, read.expected, share, *limits)
        return len(drawn & set(read.of))

    def _model(self, purpose: str, inside: Sequence[bool]) -> nn.Module:
        chosen = [r for r, put in zip(self.pool.records, inside, strict=True) if put]
        records = self.prior.task.encode(chosen, self.prior.tokenizer)
        site = shadow_models.site_of(self.prior, records, purpose)
        return shadow_models.imitate(self.prior, site)


def _rows(name: str, values: NDArray[Any], classes: int) -> NDArray[Any]:
    return values.reshape(-1, classes) if name == PREDICTIONS else values


def _if_trainable(attacks: Sequence[str], trials: Trials) -> tuple[AuditTrial, ...]:
    """Run trials; without verdict if half of the candidates cannot train a comparison model."""
    try:
        return trials()
    except DataError as error:
        why = f"not tested: a comparison model cannot be trained: {error.what}"
        return tuple(_untested(name, why) for name in attacks)


def _untested(name: str, why: str) -> AuditTrial:
    target, measure = "the released model", membership.MEASURE
    finding = AuditFinding(name, PUBLIC, target, measure, None, 0.5, 1.0, 0, note=why)
    return AuditTrial(None, finding, None, why)


def _loaded(folder: Path) -> nn.Module:
    model, _, _ = load_exported(folder)
    return model
