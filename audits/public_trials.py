"""Attacks on what a run publishes, its model, and on predictions that the host was told.

The control is a model that was trained on the hospitals' records in one place: it knows them as
well as a model can. The null is one that was trained on half of all candidates, drawn by coins, so
that it knows as many outsiders as members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray
from torch import nn

from secure_fl.audits.attacks import membership, predictions, shadow_models
from secure_fl.audits.findings import AuditFinding, AuditTrial, HostView, Prior, PublicView, Reading
from secure_fl.audits.roles import CODE, HOST, PUBLIC
from secure_fl.audits.selftest import one_run
from secure_fl.capture import readings
from secure_fl.learning.exporting import load_exported

if TYPE_CHECKING:
    from secure_fl.audits.session import Audit

ABOUT: Mapping[str, str] = {
    **membership.ABOUT,
    **predictions.ABOUT,
    one_run.NAME: one_run.ABOUT,
}
RELEASED = ("model", "student")  # what a run exports for all to use
Attack: TypeAlias = Callable[[PublicView], AuditFinding]


def steps(audit: Audit) -> Iterator[tuple[str, Callable[[], Sequence[AuditTrial]]]]:
    """Each attack, by what it is called while it runs."""
    public = Public(audit)
    yield "membership", public.membership
    yield "predictions", public.predictions
    yield one_run.NAME, public.one_run


@dataclass(frozen=True)
class Public:
    """What the attacks on one run's release share: candidates, shadows, control and null."""

    audit: Audit

    @property
    def prior(self) -> Prior:
        """What attackers know."""
        return self.audit.prior

    @cached_property
    def released(self) -> PublicView | None:
        """The model that all may use; None: each hospital keeps its own."""
        for name in RELEASED:
            folder = self.audit.folder / name
            if folder.is_dir():
                return PublicView(PUBLIC, _loaded(folder), (name,))
        return None

    @cached_property
    def pool(self) -> shadow_models.Pool:
        """Members and as many outsiders."""
        return shadow_models.pool_of(self.prior, membership.MOST)

    @cached_property
    def control(self) -> PublicView:
        """A model that was trained on the members and nothing else."""
        return PublicView(PUBLIC, self._model("control", self.pool.members.tolist()))

    @cached_property
    def null(self) -> PublicView:
        """A model that knows as many outsiders as members."""
        drawn = shadow_models.halves(2, len(self.pool.records), self.prior.rng("null model"))[0]
        return PublicView(PUBLIC, self._model("null", drawn.tolist()))

    def membership(self) -> tuple[AuditTrial, ...]:
        """LiRA and RMIA on the released model."""
        prior = self.prior
        if self.released is None or membership.unsupported(prior):
            why = (
                membership.unsupported(prior) or "no model is released: each hospital keeps its own"
            )
            return tuple(_untested(name, why) for name in (membership.LIRA, membership.RMIA))
        many = membership.shadows_for(prior, self.pool, membership.SHADOWS, membership.LIRA)
        few = membership.shadows_for(prior, self.pool, membership.REFERENCES, membership.RMIA)
        attacks: tuple[Attack, ...] = (
            lambda view: membership.lira(view, prior, shadows=many),
            lambda view: membership.rmia(view, prior, shadows=few),
        )
        return tuple(self._trial(attack, self.released) for attack in attacks)

    def predictions(self) -> tuple[AuditTrial, ...]:
        """The same through predictions alone: of the host, where there is one, or of anybody."""
        prior, host = self.prior, self._host()
        public = self.audit.silos[0].public or None
        found = []
        for attack in (predictions.membership_of, predictions.labels_of):
            by = partial(attack, prior=prior, public=public)
            if host is not None:
                found.append(AuditTrial(by(self.control), by(host), by(self.null)))
            if self.released is not None:
                found.append(self._trial(by, self.released))
        return tuple(found)

    def one_run(self) -> tuple[AuditTrial, ...]:
        """Canaries in the run's own DP-SGD."""
        prior = self.prior
        if prior.training.dp is None:
            return ()
        view = PublicView(CODE, nn.Identity())
        attack = partial(one_run.one_run, view, prior)
        control, null = attack(one_run.LITTLE_NOISE), attack(one_run.BLIND)
        return (AuditTrial(control, attack(one_run.SOUND), null),)

    def _trial(self, attack: Attack, released: PublicView) -> AuditTrial:
        return AuditTrial(attack(self.control), attack(released), attack(self.null))

    def _host(self) -> HostView | None:
        """Every sum of predictions, as the host was told."""
        if self.audit.run.host is None:
            return None
        classes = len(self.prior.task.labels)
        told = [
            Reading(
                read.of,
                read.round,
                {n: _rows(n, v, classes) for n, v in read.values.items()},
                read.evidence,
            )
            for read in readings.host_sums(self.audit.run)
        ]
        return HostView(HOST, tuple(told))

    def _model(self, purpose: str, inside: Sequence[bool]) -> nn.Module:
        chosen = [r for r, put in zip(self.pool.records, inside, strict=True) if put]
        records = self.prior.task.encode(chosen, self.prior.tokenizer)
        return shadow_models.imitate(
            self.prior, shadow_models.site_of(self.prior, records, purpose)
        )


def _rows(name: str, values: NDArray[Any], classes: int) -> NDArray[Any]:
    return values.reshape(-1, classes) if name == "predictions" else values


def _untested(name: str, why: str) -> AuditTrial:
    return AuditTrial(
        None,
        AuditFinding(
            name, PUBLIC, "the released model", membership.MEASURE, None, 0.5, 1.0, 0, note=why
        ),
        None,
        why,
    )


def _loaded(folder: Path) -> nn.Module:
    model, _, _ = load_exported(folder)
    return model
