"""A search for settings: short sealed trials, scored on the dev records of all hospitals.

Each trial is a run with its own learning rate schedule. By successive halving (Jamieson, Talwalkar,
arXiv 1502.07943; Hyperband's inner loop), all combinations begin with few rounds, and the best
third continues with three times as many: a third of the rounds of a full grid. A trial whose score
equals that of the last one in this third, and whose loss is close, continues as well, because
chance would decide between them. A combination that remains alone has won: a further trial would
decide nothing and would spend privacy budget. Records are read once, without test records: no trial
sees those.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from secure_fl.algorithms.probe import Probe
from secure_fl.algorithms.registry import entry_of
from secure_fl.config.build import Settings
from secure_fl.config.load import changed, silos
from secure_fl.crypto.privacy.ledger import load_chain, totals
from secure_fl.data.silo import Silo
from secure_fl.display.figures import of_round, overall
from secure_fl.display.learning_check import not_learned
from secure_fl.errors import BudgetError, DataError, SettingsError, TrainingError
from secure_fl.events import metric_name
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.learning.dp.scope import LEDGER

KEEP = 3  # one in three continues, with three times the rounds
NEAR = 0.02  # at equal scores, a smaller relative difference of losses is chance
RATE, PROBE = "training.learning_rate", "training.probe_score"
ROUNDS = "algorithm.rounds"
AROUND = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # default search: these times the settings' rate

Choice: TypeAlias = Mapping[str, Any]  # field -> value


@dataclass(frozen=True, slots=True)
class Trial:
    """One short run and its scores."""

    choice: Choice
    rounds: int
    score: float | None  # over all dev records, after the last round; None: training failed
    loss: float | None
    seconds: float  # of processor time
    epsilon: float | None = None  # the largest of the hospitals' ledgers, after the trial
    problem: str | None = None  # a sentence about a model that has not learned

    @property
    def label(self) -> str:
        """The tried values, as text."""
        return ", ".join(f"{name} = {value}" for name, value in self.choice.items())

    @property
    def rank(self) -> tuple[float, float]:
        """Better trials are larger: by score, then by loss."""
        if self.score is None or self.loss is None:
            return (-math.inf, -math.inf)
        return (self.score, -self.loss)


@dataclass(frozen=True, slots=True)
class Tuning:
    """All trials of a search, and the settings that won."""

    metric: str
    trials: tuple[Trial, ...]
    settings: Settings
    probe: float | None = None  # a probe's score, on the same dev records; None: not measured

    @property
    def best(self) -> Trial:
        """The best of the trials with the most rounds."""
        return self.ordered[0]

    @property
    def ordered(self) -> list[Trial]:
        """The trials with the most rounds first, and of these the best."""
        return sorted(self.trials, key=lambda trial: (trial.rounds, trial.rank), reverse=True)

    @property
    def undecided(self) -> bool:
        """True if the longest trials all have one score, so that losses decided."""
        longest = [trial for trial in self.trials if trial.rounds == self.best.rounds]
        return len(longest) > 1 and len({trial.score for trial in longest}) == 1

    @property
    def epsilon(self) -> float | None:
        """The largest ε of the hospitals' ledgers after the search."""
        return max((t.epsilon for t in self.trials if t.epsilon is not None), default=None)


def tune(
    settings: Settings,
    values: Mapping[str, Sequence[Any]] | None = None,
    *,
    halving: bool = True,
    report: Callable[[Trial], None] = lambda trial: None,
    progress: bool | None = None,
) -> Tuning:
    """Try all combinations of values of these fields, and return the best.

    `values`: None tries learning rates around the settings' own. `halving`: False trains every
    combination for all rounds. `report`: receives each trial when it ends. `progress`: as in
    `Federation`. The hospitals' ledgers record the privacy budget that trials spend.
    """
    require_lasting_ledgers(settings)
    if ROUNDS in (values or {}):
        raise SettingsError(
            "the search itself sets the rounds of a trial, so values of this field cannot be tried",
            fix="set algorithm.rounds in the settings: the best trials train for all of them",
            field=ROUNDS,
        )
    choices = list(combinations(settings, values or around(settings)))
    trials: list[Trial] = []
    done: list[Trial] = []
    records, metric = Records(), ""
    probe = probe_score(settings, records, progress=progress)
    if probe is not None:
        settings = with_choice(settings, {PROBE: probe})
    for count, rounds in rungs(len(choices), settings.algorithm.rounds, halving=halving):
        if done:
            choices = [trial.choice for trial in ahead(done, count)]
            if len(choices) == 1:
                break
        done = []
        for choice in choices:
            trial, metric = attempt(settings, choice, rounds, records, progress=progress)
            report(trial)
            done.append(trial)
        done.sort(key=lambda trial: trial.rank, reverse=True)
        if done[0].score is None:
            raise TrainingError(
                "no combination could be trained", fix="try smaller learning rates, or other values"
            )
        trials += done
    return Tuning(metric, tuple(trials), with_choice(settings, done[0].choice), probe)


def probe_score(
    settings: Settings, records: Records, *, progress: bool | None = None
) -> float | None:
    """Score a probe, in one sealed sum; None: it would spend budget, or cannot serve this study."""
    entry, name = entry_of(settings.algorithm), settings.algorithm.name
    other = entry.has_host or entry.sums_nothing or entry.pools_data or name == "probe"
    private = settings.training.dp is not None or settings.protection.noise is not None
    if private or other or settings.training.probe_score is not None:
        return settings.training.probe_score
    model = settings.model.model_copy(update={"adapter": None, "pooling": None})
    probe = settings.model_copy(update={"algorithm": Probe(), "model": model})
    try:
        federation = Federation.of(probe, hospitals=records.of(probe), progress=progress)
        result = federation.run()
    except (SettingsError, DataError):  # of a task, or a set of labels, that has no probe
        return None
    return dev_scores(result)[next(iter(federation.tasks.values())).metric]


def ahead(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the first of ordered trials, with those that equal the last; none that failed."""
    first = [trial for trial in trials[:count] if trial.score is not None]
    return [*first, *(trial for trial in trials[count:] if _alike(first[-1], trial))]


def _alike(better: Trial, worse: Trial) -> bool:
    """Return true if only chance would decide between two trials."""
    if better.score != worse.score or better.loss is None or worse.loss is None:
        return False
    return worse.loss <= better.loss * (1 + NEAR)


def rungs(points: int, rounds: int, *, halving: bool = True) -> Iterator[tuple[int, int]]:
    """Yield the number of trials and their rounds for each stage; the last has all rounds."""
    stages = 0
    while halving and KEEP ** (stages + 1) <= points:
        stages += 1
    for rung in range(stages, 0, -1):
        few = max(round(rounds / KEEP**rung), int(rung == 1))
        if 1 <= few < rounds:  # a stage with all rounds is the last
            yield points, few
            points //= KEEP
    yield points, rounds


class Records:
    """A cache of the members with their records, for trials with equal settings of data."""

    def __init__(self) -> None:
        self._key: Any = None
        self._members: list[Silo] = []

    def of(self, settings: Settings) -> list[Silo]:
        """Return the members without their test records."""
        key = (settings.data, settings.task, settings.run.seed, settings.algorithm.name)
        if key != self._key:
            self._key = key
            self._members = [replace(silo, test=()) for silo in silos(settings)]
        return self._members


def attempt(
    settings: Settings,
    choice: Choice,
    rounds: int,
    records: Records,
    *,
    progress: bool | None = None,
) -> tuple[Trial, str]:
    """Train one combination for some rounds; return the trial and the name of its score."""
    began = time.process_time()
    chosen = with_choice(settings, {**choice, ROUNDS: rounds})
    federation = Federation.of(chosen, hospitals=records.of(chosen), progress=progress)
    task = next(iter(federation.tasks.values()))
    metric = metric_name(task.metric, task.scored_class)
    try:
        result = federation.run()
    except BudgetError:
        raise
    except TrainingError:  # it diverged: other combinations are better
        seconds, spent = time.process_time() - began, in_ledgers(chosen)
        return Trial(choice, rounds, None, None, seconds, spent), metric
    dev = dev_scores(result)
    seconds, spent = time.process_time() - began, spent_by(result)
    problem = not_learned(result.document)
    score, loss = dev[task.metric], dev["loss"]
    return Trial(choice, rounds, score, loss, seconds, spent, problem), metric


def spent_by(result: Result) -> float | None:
    """Return the largest ε of the hospitals' ledgers after a run, or None without budget."""
    privacy, noise = (result.document[name] or {} for name in ("privacy", "noise"))
    epsilons = [privacy.get("overall_epsilon"), noise.get("epsilon")]
    return max((ε for ε in epsilons if ε is not None), default=None)


def in_ledgers(settings: Settings) -> float | None:
    """Return the largest ε of the accounts that the ledgers' last reservations belong to.

    A trial that failed has no result to read it from.
    """
    spent = []
    for section in (settings.training.dp, settings.protection.noise):
        folder = None if section is None or section.ledger is None else Path(section.ledger)
        for file in [] if folder is None else folder.glob(f"*/{LEDGER}"):
            chain = load_chain(file)
            last = next((e for e in reversed(chain.entries) if e.state == "reserved"), None)
            spent += [
                total.spent
                for total in totals(chain)
                if last is not None and (total.dataset, total.unit) == (last.dataset, last.unit)
            ]
    return max(spent, default=None)


def dev_scores(result: Result) -> Mapping[str, float]:
    """Return the delivered round's scores over all dev records.

    They are those of the host's model, or else of the parties'.
    """
    found = overall(of_round(result.document, "delivered"), result.document["main_metric"])
    scores: Mapping[str, float] | None = found.get("dev", found.get("local/dev"))
    if scores is None:
        raise SettingsError(
            "no hospital has dev records, which score the trials",
            fix="give hospitals dev records: a file, or a share of the training records",
            field="data",
        )
    return scores


def around(settings: Settings) -> dict[str, list[Any]]:
    """Return learning rates around the settings' own."""
    from secure_fl.learning.learning_rates import with_rate

    rate = with_rate(settings.training, settings.model, settings.task.kind).learning_rate or 0.0
    return {RATE: [float(f"{rate * times:.3g}") for times in AROUND]}


def combinations(settings: Settings, values: Mapping[str, Sequence[Any]]) -> Iterator[Choice]:
    """Yield every combination, after validating it."""
    for point in product(*values.values()):
        choice = dict(zip(values, point, strict=True))
        with_choice(settings, choice)
        yield choice


def with_choice(settings: Settings, choice: Choice) -> Settings:
    """Return the settings with these fields changed, validated like a file."""
    return changed(settings, [f"{name}={json.dumps(value)}" for name, value in choice.items()])


def require_lasting_ledgers(settings: Settings) -> None:
    """Refuse a search whose privacy spending no ledger would keep."""
    budgets = {"training.dp": settings.training.dp, "protection.noise": settings.protection.noise}
    for name, section in budgets.items():
        if section is not None and section.ledger is None:
            raise SettingsError(
                "every trial spends privacy budget, and no ledger keeps it",
                fix=f"set {name}.ledger to a folder that the later run uses as well",
                field=f"{name}.ledger",
            )
