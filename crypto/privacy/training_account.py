"""The privacy account of DP-SGD at one silo: its limit, its spending, its statement. No torch.

Steps are spent before they are computed, in the silo's ledger (or in memory, for a run without a
folder), and ε is always recomposed from all events of the account.

A silo's ε covers all results of DP-SGD on its training records: models, updates, and everything
computed from them. It does not cover the number of records (which sets the sample rate), losses and
scores in the party's own event log, and dev and test records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

from secure_fl.crypto.privacy.accounting import (
    Accountant,
    DpSgdSteps,
    Event,
    calibrate,
    decode_event,
    encode_event,
    epsilon,
    unsampled,
)
from secure_fl.crypto.privacy.ledger import (
    Account,
    Budget,
    Ledger,
    Reservation,
    events_of,
    load_chain,
    unfinished,
)
from secure_fl.crypto.privacy.planning import TrainingBudget, training_warning
from secure_fl.crypto.privacy.shared_noise import MORE_NOISE, SharedNoise
from secure_fl.errors import BudgetError, SettingsError
from secure_fl.settings import DPSettings

ADJACENCY: Literal["add-remove"] = "add-remove"  # the neighbouring data sets of the accounting

Units = Sequence[Sequence[int]]
BLOCKS = 10  # one of so many parts of the remaining steps is reserved at a time
MOST_NOISE = (
    50.0  # σ with which a nearly spent budget may be used; a pretrained model learns nothing
)


class TrainingStore(Protocol):
    """Store of finished trainings by DP-SGD (`runs.trainings` implements it on disk)."""

    def find(self, round: int, key: str) -> Mapping[str, Any] | None:
        """Return the saved result of this training, or None."""

    def keep(self, round: int, key: str, state: Mapping[str, Any]) -> None:
        """Save the result durably, and delete results of rounds that nobody can repeat."""


@dataclass(frozen=True, slots=True)
class Spending:
    """The reserved steps, their ε, and the ε of all planned steps."""

    event: DpSgdSteps
    epsilon: float
    planned: float | None


class DpAccount:
    """One silo's account: its sampling units, the noise of its steps, and their ε."""

    def __init__(
        self,
        dataset: str,
        settings: DPSettings,
        units: Units,
        batch_size: int,
        *,
        passes: int | None = None,
        sample_rate: float | None = None,
        own_epsilon: float | None = None,
        ledger: Ledger | None = None,
        run: str = "",
    ) -> None:
        """`sample_rate`: a pass is one step with this rate; None: it has a step for each batch.

        `own_epsilon`: a target of this silo below the plan's, for which it adds more noise.
        """
        self.settings, self.units = settings, units
        self._target = min(settings.target_epsilon or settings.epsilon, own_epsilon or math.inf)
        self.account = Account(dataset, settings.unit, ADJACENCY)
        self.budget = Budget(settings.epsilon, settings.delta)
        self.steps_per_pass = 1 if sample_rate else -(-len(units) // batch_size)
        self.sample_rate = sample_rate or 1 / self.steps_per_pass  # q: a unit's chance to be drawn
        self.ledger, self.run = ledger, run
        self.opacus: dict[str, Any] | None = None  # its accountant's state, from round to round
        self.trainings: TrainingStore | None = None  # read when a round is repeated
        self._noises: dict[int, SharedNoise] = {}  # of this run, by n-d; the last one at the end
        self.bound = settings.max_grad_norm  # C of the last step
        self._trained = (0, 0)  # the round of the last training, and its number of trainings
        self._left = 0  # steps of the last block that are not computed; they end with the process
        self._block: Reservation | None = None
        self._passes, self._done = passes, 0  # over the units: planned for the run, finished
        self._given = settings.noise_multiplier if own_epsilon is None else None
        self._noise = self._given  # σ; None: it is calibrated
        if sample_rate is not None:
            self._reuse_unfinished()
        self._planned: float | None = None
        self._composed: dict[tuple[Event, ...], float] = {}
        self._of_run = self._of_run_in_ledger()  # spent by this run, including earlier sessions
        _require_delta(dataset, settings, len(units))

    @property
    def noise_multiplier(self) -> float:
        """σ: as set, or the least that keeps the run within its target, and all in the budget.

        It is never below the plan's, which the sums have anyway.
        """
        if self._noise is None:
            self._noise = max(self._calibrated(), self.settings.noise_multiplier or 0.0)
        return self._noise

    def require_left(self) -> None:
        """Refuse a new run if earlier runs left too little in the ledger for any of its steps.

        With shared noise, a hospital adds at most `MORE_NOISE` times its share.
        """
        if self._of_run or not self._held():
            return
        if self._given is not None:
            self._allowed(DpSgdSteps(self._given, self.sample_rate, 1), 1)
        elif self.settings.noise == "shared":
            most = math.sqrt(MORE_NOISE) * self.planned_multiplier()
            if self.noise_multiplier > most:
                raise self._too_little_left()
        else:
            self._noise = max(self._calibrated(), self.settings.noise_multiplier or 0.0)

    def require_own(self, noise: SharedNoise) -> None:
        """Refuse a step for which this hospital would have to add too much noise of its own."""
        try:
            noise.own(self.noise_multiplier)
        except BudgetError as error:
            raise (self._too_little_left() if self._held() else error) from None

    def spent(self) -> float | None:
        """ε of all reservations of this account; None: there are none, so nothing is promised."""
        held = self._held()
        return self._epsilon(held) if held else None

    def planned(self) -> float | None:
        """ε after all planned passes; None if their number is unknown."""
        ahead = self._ahead(self.noise_multiplier)
        if ahead and self._planned is None:  # does not change during the run
            self._planned = self._epsilon([*self._held(), *ahead])
        return self._planned

    def warning(self) -> str | None:
        """Describe noise that is too large for the units, before the run's first training."""
        if self._done or self._passes is None:
            return None
        steps, epsilon = self._passes * self.steps_per_pass, self.planned() or self.budget.epsilon
        plan = TrainingBudget(
            self.noise_multiplier,
            epsilon,
            self.settings.delta,
            self.sample_rate,
            steps,
            len(self.units),
        )
        return training_warning(plan, self.settings.unit)

    @contextmanager
    def spend(self, passes: int, round: int) -> Iterator[Spending]:
        """Reserve the steps of passes durably, before they are computed inside."""
        spending, reservation = self._reserve(passes * self.steps_per_pass, round)
        yield spending
        if self.ledger is not None and reservation is not None:
            self.ledger.commit(reservation)
        self._done += passes

    def next_step(self, round: int) -> Spending | None:
        """Count one step, of a block of steps that is reserved durably before its first one.

        Return the spending where a block begins. What is left of a block ends with the process: an
        older checkpoint could return it, although its steps are opened. So blocks become smaller,
        and the last ones have one step, which `_reuse_unfinished` gives back.
        """
        spending = None
        if not self._left:
            steps = max(1, -(-((self._passes or 1) - self._done) // BLOCKS))
            spending, self._block = self._reserve(steps, round)
            self._left = steps
        self._left -= 1
        self._done += 1
        return spending

    def finish_step(self) -> None:
        """Note, durably, where a block ends, before the values of its last step are stored."""
        if self.ledger is not None and self._block is not None and not self._left:
            self.ledger.commit(self._block)
            self._block = None

    def _reuse_unfinished(self) -> None:
        """Use the block of this run that ended in a crash, if its only step was not finished.

        Nothing of that step was stored or sent. It keeps its noise, and so do all later steps.
        """
        if self.ledger is None or not self.ledger.path.exists():
            return
        chain = load_chain(self.ledger.path)
        row = unfinished(chain, self.account.dataset, self.account.unit, self.run)
        event = None if row is None else decode_event(row.event)
        if row is not None and isinstance(event, DpSgdSteps) and event.steps == 1:
            self._block, self._left = Reservation(row.sequence, 0.0, 0.0), 1
            self._noise = event.noise_multiplier

    def planned_multiplier(self) -> float:
        """σ of the plan, equal at all hospitals: it depends on settings alone, and on no ledger."""
        dp = self.settings
        if dp.noise_multiplier is not None:
            return dp.noise_multiplier
        return multiplier_for(dp, self.sample_rate, (self._passes or 1) * self.steps_per_pass)

    def trained_in(self, round: int) -> tuple[int, int]:
        """Count a training; return the round and the number of the training in it."""
        before, count = self._trained
        self._trained = (round, count + 1 if round == before else 1)
        return self._trained

    def spent_before(self, state: Mapping[str, Any], passes: int) -> None:
        """Count passes of an earlier session as done; refuse an older copy of the ledger."""
        if self.ledger is not None:
            self.ledger = self.ledger.pinned_to(state, self.account)
        self.opacus = state["opacus"]
        self._done += passes

    def statement(self) -> dict[str, Any]:
        """The steps of this run at this silo, and the ε of this and all earlier runs."""
        steps = [event for event in self._of_run if isinstance(event, DpSgdSteps)]
        return {
            "epsilon": self.spent() if steps else None,
            "epsilon_of_this_run": self._epsilon(steps) if steps else None,
            "noise_multiplier": min((e.noise_multiplier for e in steps), default=None),
            "sample_rate": self.sample_rate,
            "steps": sum(event.steps for event in steps),
            "durable": self.ledger is not None,
        }

    def share(self, noise: SharedNoise) -> None:
        """Note the shared noise of the next steps; it changes with the members of the run."""
        self._noises.pop(noise.parties - noise.dropouts, None)
        self._noises[noise.parties - noise.dropouts] = noise

    def sharing(self) -> dict[str, Any] | None:
        """The shared noise of the last step, and ε by the number of colluders; None: local."""
        if not self._noises or not self._of_run:
            return None
        noise = list(self._noises.values())[-1]
        colluders = sorted({0, 1, 2, noise.colluders, noise.parties - noise.dropouts - 1})
        epsilons = {str(c): self.towards(c) for c in colluders}
        return {
            "hospitals": noise.parties,
            "dropouts": noise.dropouts,
            "colluders": noise.colluders,
            "values": noise.dimension,
            "grid": noise.grid,
            "epsilon_by_colluders": {c: ε for c, ε in epsilons.items() if ε is not None},
        }

    def towards(self, colluders: int) -> float | None:
        """ε of this and all earlier runs for a view with so many colluders; None: none is promised.

        Shared noise of earlier runs counts as noted in the ledger; earlier versions noted σ alone.
        """
        earlier, events = self._held(), list[Event]()
        for event in self._of_run:
            del earlier[len(earlier) - 1 - earlier[::-1].index(event)]
            if isinstance(event, DpSgdSteps) and self._noises:
                left = [n.towards(event.noise_multiplier, colluders) for n in self._noises.values()]
                if not min(left):
                    return None
                event = replace(event, noise_multiplier=min(left), views=())
            events.append(event)
        for event in earlier:
            seen = event.towards(colluders) if isinstance(event, DpSgdSteps) else event
            if seen is None:
                return None
            events.append(seen)
        return self._epsilon(events) if self._of_run else None

    def state_dict(self) -> dict[str, Any]:
        """The state for checkpoints, without the ledger: a rollback returns no spending.

        It contains the ledger's head, so that an older copy of the ledger is detected.
        """
        return {
            "opacus": self.opacus,
            "done": self._done,
            "noises": [list(astuple(noise)) for noise in self._noises.values()],
            "spent": [encode_event(event) for event in self._of_run],
            "head": None if self.ledger is None else self.ledger.pinned_hex,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; noise is calibrated again, because a crash wastes ε."""
        self.opacus, self._done = state["opacus"], state["done"]
        self._planned = None
        if not self._left:
            self._noise = self._given
        for values in state.get("noises", ()):
            self.share(SharedNoise(*values))
        if self.ledger is not None:
            self.ledger = self.ledger.pinned_to(state, self.account)
        saved = [decode_event(text) for text in state["spent"]]
        self._of_run = max(saved, self._of_run, key=len)  # spending is never returned

    def _reserve(self, steps: int, round: int) -> tuple[Spending, Reservation | None]:
        """Enter steps into the ledger, durably, or raise before anything is computed."""
        planned = self.planned()
        σ, noise = self.noise_multiplier, next(reversed(self._noises.values()), None)
        seen = range(0 if noise is None else noise.parties - noise.dropouts)
        views = tuple(noise.towards(σ, c) for c in seen) if noise is not None else ()
        event = DpSgdSteps(σ, self.sample_rate, steps, views)
        spent, reservation = self._allowed(event, round), None
        if self.ledger is not None:
            reservation = self.ledger.reserve(
                event, self.account, self.budget, run=self.run, round=round
            )
            self.ledger = self.ledger.at_head()
        self._of_run.append(event)
        return Spending(event, spent, planned), reservation

    def _allowed(self, event: DpSgdSteps, round: int) -> float:
        """ε with this event; refuse it if it exceeds the budget."""
        held = self._held()
        after = self._epsilon([*held, event])
        if after <= self.budget.epsilon:
            return after
        raise BudgetError(
            f"the privacy budget is ε = {self.budget.epsilon:g} at δ = {self.budget.delta:g} per "
            f"{self.settings.unit}; {self._epsilon(held) if held else 0:.4g} is spent, and "
            f"{event.steps} more steps would make it {after:.4g}",
            fix="stop here, or plan fewer rounds or more noise with `secure-fl budget`; only the "
            "people responsible for the data can decide on a larger budget. Nothing was computed",
            party=self.account.dataset,
            round=round,
            reason="spent",
        )

    def _calibrated(self) -> float:
        """Find the least σ: the run stays within its target, all runs within the budget."""
        if not self._ahead(1.0):
            raise SettingsError(
                "the noise cannot be calibrated: the number of passes over the records is unknown, "
                "or all are done",
                fix="set training.dp.noise_multiplier",
                party=self.account.dataset,
            )
        held, most = self._held(), self.budget.epsilon
        if self._target >= most:
            return self._least(held, most, self._too_little_left)
        σ = self._least(self._of_run, self._target, self._target_spent)
        if held == self._of_run or self._epsilon([*held, *self._ahead(σ)]) <= most:
            return σ
        return max(σ, self._least(held, most, self._too_little_left))

    def _least(
        self, before: Sequence[Event], most: float, refusal: Callable[[str], BudgetError]
    ) -> float:
        """Find the least σ whose steps, after these events, stay within this ε.

        Refuse one above `MOST_NOISE` (and twice the plan's own): such a run would spend the rest
        of the budget on nothing.
        """

        def events(σ: float) -> list[Event]:
            return [*before, *self._ahead(σ)]

        try:
            σ = least_noise(events, most, self.settings.delta, self.settings.accountant)
        except BudgetError as error:
            if before:
                raise refusal("") from None
            raise error.at(party=self.account.dataset) from None
        if before and σ > MOST_NOISE and σ > (limit := max(MOST_NOISE, 2 * self._fresh_noise())):
            raise refusal(f": the noise multiplier would be {σ:.4g}, above {limit:.4g}")
        return σ

    def _fresh_noise(self) -> float:
        """Return σ of the plan where nothing was spent before."""
        try:
            return self.planned_multiplier()
        except BudgetError:  # refused for other reasons
            return 0.0

    def _target_spent(self, why: str) -> BudgetError:
        return BudgetError(
            f"this run has spent ε = {self._epsilon(self._of_run):.4g} of its {self._target:g}, "
            f"which leaves too little for its other steps{why}",
            fix="steps that a crash lost stay spent: start a new run, with fewer rounds or a "
            "larger training.dp.target_epsilon (or own_epsilon in [site.dp]). Nothing was computed",
            party=self.account.dataset,
            reason="spent",
        )

    def _too_little_left(self, why: str = "") -> BudgetError:
        spent = self.spent() or 0.0
        left = max(0.0, self.budget.epsilon - spent)
        return BudgetError(
            f"ε = {spent:.4g} of the {self.budget.epsilon:g} in this hospital's ledger is spent; "
            f"the rest, {left:.2g}, leaves too little for this run{why}",
            fix="train fewer rounds or epochs. `secure-fl ledger show` names the runs that spent "
            "it; only the people responsible for the data can decide on a larger "
            "training.dp.epsilon. Nothing was computed",
            party=self.account.dataset,
            file=None if self.ledger is None else self.ledger.path,
            reason="spent",
        )

    def _ahead(self, σ: float) -> list[Event]:
        left = 0 if self._passes is None else self._passes - self._done
        steps = left * self.steps_per_pass - self._left  # what is left of a block is reserved
        return [DpSgdSteps(σ, self.sample_rate, steps)] if steps > 0 else []

    def _epsilon(self, events: Sequence[Event]) -> float:
        """Compose ε, with a cache: PRV takes seconds for long histories."""
        key = tuple(events)
        if key not in self._composed:
            dp = self.settings
            self._composed[key] = epsilon(events, dp.delta, accountant=dp.accountant)
        return self._composed[key]

    def _held(self) -> list[Event]:
        return list(self._of_run) if self.ledger is None else self.ledger.events(self.account)

    def _of_run_in_ledger(self) -> list[Event]:
        if self.ledger is None or not self.ledger.path.exists():
            return []
        chain = load_chain(self.ledger.path)
        return events_of(chain, self.account.dataset, self.account.unit, self.run)


def _require_delta(dataset: str, settings: DPSettings, units: int) -> None:
    """Refuse a δ that permits the publication of a unit."""
    if settings.delta >= 1 / units:
        raise BudgetError(
            f"δ = {settings.delta:g} allows publishing a {settings.unit} of this silo",
            fix=f"set training.dp.delta well below 1/{units}",
            party=dataset,
            reason="delta",
        )


def least_noise(
    events: Callable[[float], Sequence[Event]], target: float, delta: float, accountant: Accountant
) -> float:
    """Find the least noise multiplier whose events stay within the target."""
    if accountant != "rdp" and unsampled(events(1.0)):
        return calibrate(events, target, delta, accountant=accountant, low=0.2, high=1e4)
    # RDP is fast and never reports less, so PRV searches below its answer
    rough = 1e-4 if accountant == "rdp" else 1e-2
    high = calibrate(events, target, delta, accountant="rdp", low=0.2, high=1e4, precision=rough)
    if accountant == "rdp":
        return high
    return calibrate(
        events, target, delta, accountant="prv", low=high / 2, high=high, precision=2e-3
    )


@lru_cache(maxsize=64)  # parties of one process have equal plans
def multiplier_for(dp: DPSettings, rate: float, steps: int) -> float:
    """Find the least noise multiplier of steps that nothing was spent before."""
    target = dp.target_epsilon or dp.epsilon
    return least_noise(lambda σ: [DpSgdSteps(σ, rate, steps)], target, dp.delta, dp.accountant)


def document(settings: DPSettings, parties: Mapping[str, DpAccount]) -> dict[str, Any]:
    """The privacy section of a result; an ε of None promises nothing."""
    statements = {name: privacy.statement() for name, privacy in parties.items()}
    # Every hospital knows its own noise, so members see as much as one colluder.
    members, model = (
        [account.towards(c) for account in parties.values()]
        for c in (max(1, settings.colluders), 0)
    )
    uncovered = [name for name, statement in statements.items() if statement["epsilon"] is None]
    return {
        "noise": settings.noise,
        "members": _largest(members),
        "model": _largest(model),
        "shared": next(iter(parties.values())).sharing(),
        "unit": settings.unit,
        "adjacency": ADJACENCY,
        "delta": settings.delta,
        "budget": settings.epsilon,
        "accountant": settings.accountant,
        "clipping": settings.clipping,
        "max_grad_norm": min(account.bound for account in parties.values()),
        "overall_epsilon": _largest(members),
        "uncovered": uncovered,
        "assumes": f"no {settings.unit} is at two parties; the numbers of records and the set of "
        "labels are public; losses and scores in the parties' logs, and dev and test records, are "
        "not covered" + _colluding(settings) + _unprotected(uncovered),
    } | {key: {n: s[key] for n, s in statements.items()} for key in next(iter(statements.values()))}


def _largest(epsilons: Sequence[float | None]) -> float | None:
    """The largest ε; None: for one of them, nothing is promised."""
    known = [ε for ε in epsilons if ε is not None]
    return max(known) if len(known) == len(epsilons) else None


def _colluding(settings: DPSettings) -> str:
    """A sentence about the hospitals whose shares of noise do not count."""
    if settings.noise == "local":
        return ""
    most = max(1, settings.colluders)
    if most == 1:
        return "; at most 1 hospital reveals its noise or adds too little"
    return f"; at most {most} hospitals reveal their noise or add too little"


def _unprotected(parties: Sequence[str]) -> str:
    """A sentence about parties without DP-SGD, such as FedID's host."""
    if not parties:
        return ""
    return (
        f"; nothing is promised for the training records of {', '.join(parties)}: no DP-SGD ran on "
        "them, and sent values may reveal them"
    )
