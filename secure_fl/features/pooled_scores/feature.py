"""Pooled scores as a feature: the hook, which can also end a run early, and a site's policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from secure_fl.events import EventLog, ExtensionEvent
from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.party.context import Arrays, Members, RoundSums, SumRequest
from secure_fl.party.hooks import RoundHook, Snapshot, States
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation
from secure_fl.protocol.ports import TranscriptLayer
from secure_fl.settings import Section

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.policy.plan import Plan


class Scores(Protocol):
    """A site's counts, and their evaluation once they are summed."""

    def take_counts(self) -> Mapping[str, NDArray[Any]]:
        """Return and clear the counts: a few numbers under each name, the same at all sites."""

    def pooled(self, round: int, sums: Arrays) -> float | None:
        """Record the scores of the summed counts; return the main dev metric, if there is one."""


class ScoresNotPooled(ExtensionEvent, frozen=True, tag="scores_not_pooled"):
    """A round without a sum of scores, because a party of the first sum is lost."""

    round: int
    parties: tuple[str, ...]
    """The parties of the first sum."""


class BestRound(ExtensionEvent, frozen=True, tag="best_round"):
    """The round with the best pooled dev score, whose state the run delivers."""

    round: int


class Pooling(RoundHook):
    """The hook of one party that sums counts at the end of each round."""

    def __init__(self, scores: Scores, recorder: EventLog, patience: int | None) -> None:
        """`patience`: rounds without a better score after which the run stops; None: never."""
        self._scores, self._recorder, self._patience = scores, recorder, patience
        self._over: frozenset[str] = frozenset()  # the members of the first sum
        self._best, self._value, self._waited = 0, -math.inf, 0
        self._snapshots: tuple[Snapshot, ...] = ()

    def watch(
        self, keep: States, shared: States, transcript: TranscriptLayer
    ) -> tuple[States, States]:
        """Receive the states whose best round is kept, if the run can stop early."""
        if self._patience is None:
            return {}, {"pooling": self}
        own, common = self._snapshots = (Snapshot(keep), Snapshot(shared))
        return {"own best": own}, {"pooling": self, "best": common}

    async def end(self, round: int, sums: RoundSums, members: Members) -> None:
        """Sum this round's counts if all members of the first sum are present, and score them."""
        if not (counts := self._scores.take_counts()):
            return
        totals: Arrays = {}
        if not self._over or self._over == set(members.here):
            request = SumRequest(counts, only=self._over or None, ignore_hooks=True)
            totals = await sums.sum(request)
        if not totals:
            self._recorder.event(ScoresNotPooled(round=round, parties=tuple(sorted(self._over))))
            self._waited += 1  # a round without a score is not a better one
            return
        self._over = frozenset(sums.survivors)
        value = self._scores.pooled(round, totals)
        if value is not None and value > self._value:
            self._best, self._value, self._waited = round, value, 0
            for snapshot in self._snapshots:
                snapshot.take()
        else:
            self._waited += 1

    @property
    def stops(self) -> bool:
        """True if the score did not improve for as many rounds as the settings allow."""
        return self._patience is not None and self._waited >= self._patience

    @property
    def delivers(self) -> int | None:
        """The best round if the run could stop early; it is equal at all parties."""
        return self._best if self._snapshots and self._best else None

    def close(self) -> None:
        """Restore the best round, if the run could stop early."""
        for snapshot in self._snapshots:
            snapshot.restore()
        if self.delivers is not None:
            self._recorder.event(BestRound(round=self.delivers))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints and for newcomers; it is equal at all parties."""
        return {
            "over": sorted(self._over),
            "best": self._best,
            "value": self._value,
            "waited": self._waited,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._over = frozenset(state["over"])
        self._best, self._value, self._waited = (state[k] for k in ("best", "value", "waited"))


class PooledScoresFeature(RunFeature):
    """The sum of dev and test counts at the end of each round."""

    def stops_early(self, spec: RunSpec) -> bool:
        """Return true if there are sums of scores to wait for."""
        return pools_scores(spec)

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> RoundHook | None:
        """Make the hook that sums the site's counts."""
        if not pools_scores(spec):
            return None
        return Pooling(site.scores, site.recorder, spec.training.patience)


def pools_scores(spec: RunSpec) -> bool:
    """Return true if the parties' dev and test counts are summed at the end of each round.

    A host measures the central model on its own records and learns nothing from sums for the
    parties. In a run with noise on predictions, every sum carries noise.
    """
    alone = spec.entry.has_host or spec.entry.sums_nothing
    return spec.training.pooled_scores and not alone and spec.protection.noise is None


POOLED_SCORES = PooledScoresFeature()


class ScoreFields(Section):
    """The field of [site] about sums of scores."""

    pooled_scores: bool = True
    """This site's dev and test counts, and curves of losses, may enter sums over all hospitals."""


class ScoreRules(SiteRules[ScoreFields]):
    """The rule of a site about sums of scores."""

    fields = ScoreFields

    def broken(self, policy: ScoreFields, plan: Plan) -> Iterator[Violation]:
        """Check that scores are summed only where the site allows it."""
        if plan.training.pooled_scores and not policy.pooled_scores:
            fix = "set pooled_scores = true in [site]"
            yield Violation("site.pooled_scores", "sums of scores", "scores that stay here", fix)

    def sentences(self, policy: ScoreFields) -> Iterator[str]:
        """Describe whether counts are summed."""
        yield (
            "Counts of right answers on dev and test records may be summed with the others'."
            if policy.pooled_scores
            else "Scores on dev and test records stay here."
        )


SCORE_RULES = ScoreRules()
