"""What `secure-fl budget` answers: for one plan of predictions, and for a settings file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl.thresholds import default_threshold

if TYPE_CHECKING:
    from secure_fl.config.load import Settings
    from secure_fl.crypto.privacy.planning import PredictionBudget, PredictionPlan
    from secure_fl.data.silo import Silo

Options = Mapping[str, Any]
TO_NOISE = {"epsilon": "epsilon", "noise_std": "std"} | {
    name: name for name in ("delta", "dropouts", "colluders", "scale")
}  # option -> field of [protection.noise]
TO_TRAINING = {"epsilon": "epsilon", "noise_multiplier": "noise_multiplier", "delta": "delta"}
TO_RUN = {
    "rounds": "algorithm.rounds",
    "epochs": "algorithm.epochs",
    "batch": "training.batch_size",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One table, as rows and as facts, and why a run of its plan would be refused, if it would."""

    title: str
    rows: Sequence[tuple[str, str]]
    facts: Mapping[str, Any]
    refused: str = ""


def predictions(plan: PredictionPlan, found: PredictionBudget) -> Answer:
    """Answer for sums of predictions."""
    from secure_fl.crypto.privacy.planning import PREDICTIONS, prediction_rows

    facts = {"plan": asdict(plan), "budget": asdict(found) | {"drowned": found.drowned}}
    return Answer(PREDICTIONS, prediction_rows(plan, found), facts)


def of_file(config: Path, given: Options) -> Iterator[Answer]:
    """Answer for what a settings file asks for; options that were given win over it."""
    from secure_fl.config.load import load, silos
    from secure_fl.errors import SettingsError

    settings = load(config, list(_overrides(load(config), given)))
    everybody = silos(settings)
    if settings.protection.noise is None and settings.training.dp is None:
        raise SettingsError(
            "this file asks for no differential privacy",
            fix="add [protection.noise] or [training.dp] with epsilon = ..., or pass --epsilon",
            file=str(config),
        )
    if settings.protection.noise is not None:
        yield _noise_answer(settings, everybody, given)
    if settings.training.dp is not None:
        yield _training_answer(settings, everybody, given)


def _overrides(before: Settings, given: Options) -> Iterator[str]:
    """Write options as settings, for the sections that the file has."""
    from secure_fl.algorithms.registry import ALGORITHMS

    noise, dp = before.protection.noise is not None, before.training.dp is not None
    if not noise and not dp:
        noise = ALGORITHMS[before.algorithm.name].opens_predictions
        dp = not noise
    yield from (f"{TO_RUN[name]}={value}" for name, value in given.items() if name in TO_RUN)
    if noise:
        yield from _private("protection.noise", TO_NOISE, "noise_std", given)
    if dp:
        yield from _private("training.dp", TO_TRAINING, "noise_multiplier", given)


def _private(place: str, fields: Mapping[str, str], amount: str, given: Options) -> Iterator[str]:
    """Write options for one section; `amount` names the one that gives its noise."""
    yield from (
        f"{place}.{fields[name]}={value}" for name, value in given.items() if name in fields
    )
    if "epsilon" in given and amount not in given:
        yield f"{place}.{fields[amount]}=none"
    if given.keys() & {"epsilon", amount}:
        yield f"{place}.target_epsilon=none"


def _noise_answer(settings: Settings, everybody: Sequence[Silo], given: Options) -> Answer:
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.crypto.privacy.planning import plan_for_settings, size_for_settings
    from secure_fl.errors import SettingsError
    from secure_fl.federation.ground_rules import tasks_of
    from secure_fl.learning.dp.scope import require_predictions

    noise, algorithm = settings.protection.noise, settings.algorithm
    assert noise is not None  # noqa: S101 - the caller looked
    public = given.get("examples", max(len(silo.public) for silo in everybody))
    entry = ALGORITHMS[algorithm.name]
    require_predictions(algorithm.name, noised=entry.opens_predictions)
    found = algorithm.releases(public, settings.training.batch_size) if public else None
    if found is None:
        raise SettingsError(
            "there are no public records to predict on", fix="add [data] public, or --examples"
        )
    examples, releases = found
    if "exchanges" in given:
        releases = given["exchanges"] * algorithm.rounds
    tasks = tasks_of(settings.task, everybody, entry)
    classes = max(len(task.labels) for task in tasks.values())
    parties = given.get("parties", sum(silo.role != "host" for silo in everybody))
    plan = plan_for_settings(
        noise,
        examples=examples,
        classes=given.get("classes", classes),
        releases=releases,
        parties=parties,
        threshold=settings.protection.threshold or default_threshold(parties),
    )
    cost = size_for_settings(noise, plan).budget
    refused = _over(cost.epsilon, noise.epsilon, "hospital")
    if not refused and cost.drowned and not noise.force:
        refused = "the noise drowns the signal that the parties agree on"
    return replace(predictions(plan, cost), refused=refused)


def _training_answer(settings: Settings, everybody: Sequence[Silo], given: Options) -> Answer:
    """Answer for the party with the fewest units: it needs the most noise, or spends the most."""
    from secure_fl.crypto.privacy.planning import plan_training, training_rows
    from secure_fl.learning.dp.scope import sampling_units

    dp = settings.training.dp
    assert dp is not None  # noqa: S101 - the caller looked
    parties = [silo for silo in everybody if silo.role != "host"]
    counted = {silo.name: len(sampling_units(silo.train, dp, silo.name)) for silo in parties}
    least = min(counted, key=lambda name: counted[name])
    units = given.get("records", counted[least])
    found = plan_training(
        units,
        min(settings.training.batch_size, units),
        settings.algorithm.epochs,
        settings.algorithm.rounds,
        dp.delta,
        noise_multiplier=dp.noise_multiplier,
        epsilon_target=None if dp.noise_multiplier else dp.target_epsilon or dp.epsilon,
        accountant=dp.accountant,
    )
    of = "" if "records" in given else f", at {least} with {units} (the fewest)"
    return Answer(
        f"DP-SGD, per {dp.unit}{of}",
        training_rows(found, dp.unit),
        asdict(found),
        _over(found.epsilon, dp.epsilon, dp.unit),
    )


def _over(epsilon: float, most: float, unit: str) -> str:
    if epsilon <= most:
        return ""
    return f"the plan costs ε = {epsilon:.4g} per {unit}, the budget is {most:g}"
