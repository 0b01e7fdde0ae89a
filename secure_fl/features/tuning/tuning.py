"""Finding settings that learn: short sealed trials, judged by dev scores over all records.

Each trial is a run of its own, with its own schedule from the first rate to the last. By successive
halving (Jamieson, Talwalkar, arXiv 1502.07943; Hyperband's inner loop) all combinations begin with
few rounds, and the better third goes on to three times as many: a third of a grid's rounds. Where
scores are equal and losses near, chance would choose, so who is like the last that goes on does,
too. Who is left alone has won: a trial beside nobody would decide nothing, and spend what the run
itself is to spend. Records are read once, and those to test by are left out: no trial sees them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from secure_fl.config.build import Settings
from secure_fl.config.load import changed, silos
from secure_fl.data.silo import Silo
from secure_fl.errors import BudgetError, SettingsError, TrainingError
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result

KEEP = 3  # one in so many goes on, to so many times the rounds
NEAR = 0.02  # losses that differ by less, at equal scores, say nothing
RATE = "training.learning_rate"
AROUND = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # times the file's rate, where nothing is said to be tried

Choice: TypeAlias = Mapping[str, Any]  # field -> value


@dataclass(frozen=True, slots=True)
class Trial:
    """One short run, and what it came to."""

    choice: Choice
    rounds: int
    score: float | None  # over all dev records, after the last round; None: training failed
    loss: float | None
    seconds: float  # of processor time
    epsilon: float | None = None  # of the ledgers, after it: the most of any hospital

    @property
    def label(self) -> str:
        """What it tried."""
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
        """Whether the trials with the most rounds all have one score, so that losses chose."""
        longest = [trial for trial in self.trials if trial.rounds == self.best.rounds]
        return len(longest) > 1 and len({trial.score for trial in longest}) == 1

    @property
    def epsilon(self) -> float | None:
        """What ledgers hold after the search, the search included: the most of any hospital."""
        return max((t.epsilon for t in self.trials if t.epsilon is not None), default=None)


def tune(
    settings: Settings,
    values: Mapping[str, Sequence[Any]] | None = None,
    *,
    halving: bool = True,
    tell: Callable[[Trial], None] = lambda trial: None,
    progress: bool | None = None,
) -> Tuning:
    """Try all combinations of values of these fields, and keep the best.

    `values`: None tries learning rates around the settings' own. `halving`: False trains every
    combination for all rounds. `tell` hears of each trial as it ends, and `progress` shows each as
    `Federation` does. Whatever a trial spends of a
    privacy budget is entered into the hospitals' ledgers, like any run's.
    """
    require_lasting_ledgers(settings)
    choices = list(combinations(settings, values or around(settings)))
    trials: list[Trial] = []
    done: list[Trial] = []
    records, metric = Records(), ""
    for count, rounds in rungs(len(choices), settings.algorithm.rounds, halving=halving):
        if done:
            choices = [trial.choice for trial in ahead(done, count)]
            if len(choices) == 1:
                break
        done = []
        for choice in choices:
            trial, metric = attempt(settings, choice, rounds, records, progress=progress)
            tell(trial)
            done.append(trial)
        done.sort(key=lambda trial: trial.rank, reverse=True)
        if done[0].score is None:
            raise TrainingError(
                "no combination could be trained", fix="try smaller learning rates, or other values"
            )
        trials += done
    return Tuning(metric, tuple(trials), with_choice(settings, done[0].choice))


def ahead(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The first of ordered trials, and who is like the last of these; none that failed."""
    first = [trial for trial in trials[:count] if trial.score is not None]
    return [*first, *(trial for trial in trials[count:] if _alike(first[-1], trial))]


def _alike(better: Trial, worse: Trial) -> bool:
    """Whether there is nothing to choose between them."""
    if better.score != worse.score or better.loss is None or worse.loss is None:
        return False
    return worse.loss <= better.loss * (1 + NEAR)


def rungs(points: int, rounds: int, *, halving: bool = True) -> Iterator[tuple[int, int]]:
    """How many trials of how many rounds, one after the other; the last has all rounds."""
    if halving and points > 1:
        for rung in range(int(math.log(points, KEEP)), 0, -1):
            if (few := round(rounds / KEEP**rung)) >= 1 or rung == 1:
                yield points, max(1, few)
                points = max(1, points // KEEP)
    yield points, rounds


class Records:
    """The members with their records, read again only for a trial that asks for others."""

    def __init__(self) -> None:
        self._asked: Any = None
        self._members: list[Silo] = []

    def of(self, settings: Settings) -> list[Silo]:
        """Everybody's, but for those to test by."""
        asked = (settings.data, settings.task, settings.run.seed, settings.algorithm.name)
        if asked != self._asked:
            self._asked = asked
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
    """Train one combination for so many rounds; also the name of the score."""
    began = time.process_time()
    chosen = with_choice(settings, {**choice, "algorithm.rounds": rounds})
    federation = Federation.of(chosen, hospitals=records.of(chosen), progress=progress)
    metric = next(iter(federation.tasks.values())).metric
    try:
        result = federation.run()
    except BudgetError:
        raise
    except TrainingError:  # it diverged: another will do better
        return Trial(choice, rounds, None, None, time.process_time() - began), metric
    dev = dev_scores(result)
    seconds, spent = time.process_time() - began, spent_by(result)
    return Trial(choice, rounds, dev[metric], dev["loss"], seconds, spent), metric


def spent_by(result: Result) -> float | None:
    """ε of the hospitals' ledgers after a run: the most of any; None: nothing was entered."""
    privacy, noise = (result.document[name] or {} for name in ("privacy", "noise"))
    found = [privacy.get("overall_epsilon"), noise.get("epsilon")]
    return max((ε for ε in found if ε is not None), default=None)


def dev_scores(result: Result) -> Mapping[str, float]:
    """The scores over all dev records: of the host's model, or else of the parties'."""
    pooled = result.document["metrics"]["last"]["pooled"]
    found: Mapping[str, float] | None = pooled.get("dev", pooled.get("local/dev"))
    if found is None:
        raise SettingsError(
            "nobody has dev records, and trials are judged by them",
            fix="give hospitals dev records: a file, or a share of the training records",
            field="data",
        )
    return found


def around(settings: Settings) -> dict[str, list[Any]]:
    """Learning rates around the settings' own."""
    from secure_fl.learning.learning_rates import with_rate

    rate = with_rate(settings.training, settings.model, settings.task.kind).learning_rate or 0.0
    return {RATE: [float(f"{rate * times:.3g}") for times in AROUND]}


def combinations(settings: Settings, values: Mapping[str, Sequence[Any]]) -> Iterator[Choice]:
    """Every combination, once it is known to be one that settings allow."""
    for point in product(*values.values()):
        choice = dict(zip(values, point, strict=True))
        with_choice(settings, choice)
        yield choice


def with_choice(settings: Settings, choice: Choice) -> Settings:
    """The settings with these fields changed, validated as a file's are."""
    return changed(settings, [f"{name}={json.dumps(value)}" for name, value in choice.items()])


def require_lasting_ledgers(settings: Settings) -> None:
    """Refuse a search whose spending nothing would remember."""
    asked = {"training.dp": settings.training.dp, "protection.noise": settings.protection.noise}
    for name, section in asked.items():
        if section is not None and section.ledger is None:
            raise SettingsError(
                "every trial spends of the privacy budget, and no ledger outlives it",
                fix=f"set {name}.ledger to a folder, which the run that follows uses, too",
                field=f"{name}.ledger",
            )
