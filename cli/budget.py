"""`secure-fl budget`: the privacy cost of a plan, or the noise that a budget needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from secure_fl.cli.options import FILE, MOST_RECORDS, RECORDS, FiniteRange, json_option
from secure_fl.thresholds import default_threshold

if TYPE_CHECKING:
    from secure_fl.config.load import Settings
    from secure_fl.crypto.privacy.planning import PredictionBudget, PredictionPlan
    from secure_fl.crypto.privacy.shared_planning import SharedPlan
    from secure_fl.data.silo import Silo

COUNT, CLASSES = click.IntRange(1, MOST_RECORDS), click.IntRange(2, MOST_RECORDS)
AMOUNT = FiniteRange(0, 1e5, min_open=True)
PROBABILITY = FiniteRange(0, 1, min_open=True, max_open=True)
PLANNED = (200, 600, 2_000, 10_000), (4, 10, 30), (1.0, 3.0, 8.0)  # records, hospitals, ε
Options = Mapping[str, Any]
NOISE_FIELDS = {"epsilon": "epsilon", "noise_std": "std"} | {
    name: name for name in ("delta", "dropouts", "colluders", "scale")
}  # option -> field of [protection.noise]
DP_FIELDS = {
    name: name for name in ("epsilon", "noise_multiplier", "delta", "dropouts", "colluders")
}
RUN_FIELDS = {
    "rounds": "algorithm.rounds",
    "epochs": "algorithm.epochs",
    "batch": "training.batch_size",
}
COMMON = {"rounds", "epsilon", "delta"}
PREDICTION_OPTIONS = COMMON | {
    *("parties", "classes", "examples", "batch", "exchanges"),
    *("noise_std", "dropouts", "colluders", "scale"),
}
LOCAL_OPTIONS = COMMON | {"records", "batch", "epochs", "noise_multiplier"}
SHARED_OPTIONS = COMMON | {"noise_multiplier", "dropouts", "colluders"}


@dataclass(frozen=True, slots=True)
class BudgetAnswer:
    """The cost of a plan: a table, its facts, and the reason if a run would be refused."""

    title: str
    rows: Sequence[tuple[str, str]]
    facts: Mapping[str, Any]
    refused: str = ""


@click.command()
@click.argument("config", type=FILE, required=False)
@click.option("--parties", type=COUNT, help="Number of hospitals: plan sums of predictions.")
@click.option("--classes", type=CLASSES, default=2, show_default=True, help="Number of classes.")
@click.option("--examples", type=COUNT, default=1000, show_default=True, help="Public examples.")
@click.option("--records", type=COUNT, help="Records of a hospital: plan DP-SGD.")
@click.option("--batch", type=COUNT,
              help="Examples per exchange [default: all], or records per step [default: 32].",
              )  # fmt: skip
@click.option("--exchanges", type=COUNT,
              help="Exchanges per round.  [default: one pass over the examples]")  # fmt: skip
@click.option("--epochs", type=COUNT, default=1, show_default=True,
              help="DP-SGD epochs per round.")  # fmt: skip
@click.option("--rounds", type=COUNT, default=1, show_default=True, help="Number of rounds.")
@click.option("--epsilon", type=AMOUNT, help="Budget: compute the noise.")
@click.option("--noise-std", type=AMOUNT, help="Noise on a sum of predictions: compute ε.")
@click.option("--noise-multiplier", type=AMOUNT, help="DP-SGD noise over clip norm: compute ε.")
@click.option("--delta", type=PROBABILITY, default=1e-5, show_default=True, help="δ of ε.")
@click.option("--dropouts", type=RECORDS,
              help="Dropouts that the noise tolerates.  [default: n - threshold]")  # fmt: skip
@click.option("--colluders", type=RECORDS, default=1, show_default=True,
              help="Hospitals that may reveal their noise.")  # fmt: skip
@click.option("--scale", type=AMOUNT, default=64.0, show_default=True, help="Grid steps per unit.")
@click.option("--methods", is_flag=True,
              help="Show which method suits how many records, hospitals and which ε.")  # fmt: skip
@json_option
@click.pass_context
def budget(context: click.Context, /, config: Path | None, as_json: bool, **options: Any) -> None:
    """Show signal, noise and ε of a plan, and how to make it useful.

    \b
    The cost of a settings file; options override the file:
      secure-fl budget federation.toml
      secure-fl budget federation.toml --rounds 3
    Ensemble predictions, protecting a hospital:
      secure-fl budget --parties 5 --classes 2 --examples 1000 --epsilon 8
      secure-fl budget --parties 5 --examples 1000 --noise-std 13.4
    Local training with DP-SGD, protecting a record:
      secure-fl budget --records 5000 --batch 64 --rounds 10 \\
          --noise-multiplier 1.1
      secure-fl budget --records 5000 --batch 64 --rounds 10 --epsilon 8

    Which method suits the records:
      secure-fl budget --methods

    With a file, the exit status is 7 if its run would be refused: the noise hides the signal
    (unless protection.noise.force is set), or the budget is too small.
    """  # noqa: D301
    if options.pop("methods"):
        _print_methods(as_json)
        return
    default, source = ParameterSource.DEFAULT, context.get_parameter_source
    given = {name: value for name, value in options.items() if source(name) != default}
    if config is None:
        answers = [_of_options(options)]
        used = LOCAL_OPTIONS if options["parties"] is None else PREDICTION_OPTIONS
        _require_used(given, used, "this plan")
    else:
        answers = list(_of_file(config, given))
    _print(answers, as_json)
    if config is not None and (reasons := [a.refused for a in answers if a.refused]):
        from secure_fl.errors import BudgetError

        raise BudgetError(
            "; ".join(reasons), fix="change the plan as the table suggests", reason="plan"
        )


def _require_used(given: Options, used: Collection[str], plan: str) -> None:
    """Refuse options that change no number of the answer."""
    if ignored := [f"--{name.replace('_', '-')}" for name in given if name not in used]:
        allowed = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(used))
        raise click.UsageError(
            f"{', '.join(ignored)} would change no number of {plan}; its options are {allowed}"
        )


def _print_methods(as_json: bool) -> None:
    from secure_fl.crypto.privacy.shared_planning import Suited

    sizes = [(records, hospitals) for records in PLANNED[0] for hospitals in PLANNED[1]]
    suited = {size: [Suited.of(*size, epsilon) for epsilon in PLANNED[2]] for size in sizes}
    if as_json:
        every = [asdict(one) | {"method": one.method} for row in suited.values() for one in row]
        click.echo(json.dumps(every, indent=2))
        return
    heads = [f"ε = {epsilon:g}" for epsilon in PLANNED[2]]
    click.echo(f"{'records':>7} {'hospitals':>9}  {heads[0]:19}{heads[1]:19}{heads[2]}")
    for (records, hospitals), (first, second, last) in suited.items():
        row = f"{first.method:19}{second.method:19}{last.method}"
        click.echo(f"{records:>7,} {hospitals:>9}  {row}")


def _of_options(options: Options) -> BudgetAnswer:
    """Answer for a plan without a file."""
    records, parties = options["records"], options["parties"]
    multiplier, std = options["noise_multiplier"], options["noise_std"]
    if (parties is None) == (records is None):
        raise click.UsageError(
            "give a settings file, --parties for predictions, or --records for DP-SGD"
        )
    if (multiplier if records is None else std) is not None:
        raise click.UsageError("--noise-multiplier is for --records, --noise-std for --parties")
    if (options["epsilon"] is None) == (multiplier is None and std is None):
        noise = "--noise-std" if records is None else "--noise-multiplier"
        raise click.UsageError(f"give either --epsilon or {noise}; the other is computed")
    available = options["examples"] if records is None else records
    if (options["batch"] or 1) > available:
        raise click.UsageError(f"--batch {options['batch']} is more than {available}, the total")
    return _training_plan(options) if parties is None else _prediction_plan(options)


def _training_plan(options: Options) -> BudgetAnswer:
    from secure_fl.crypto.privacy.planning import plan_training, training_rows

    records = options["records"]
    training = plan_training(
        records,
        options["batch"] or min(32, records),
        options["epochs"],
        options["rounds"],
        options["delta"],
        noise_multiplier=options["noise_multiplier"],
        epsilon_target=options["epsilon"],
    )
    return BudgetAnswer("DP-SGD, per record", training_rows(training), asdict(training))


def _prediction_plan(options: Options) -> BudgetAnswer:
    from secure_fl.crypto.privacy.planning import PredictionPlan, plan_predictions

    parties, examples, dropouts = options["parties"], options["examples"], options["dropouts"]
    size = options["batch"] or examples
    plan = PredictionPlan(
        parties,
        options["classes"],
        examples,
        size,
        options["rounds"],
        options["exchanges"] or -(-examples // size),
        options["delta"],
        parties - default_threshold(parties) if dropouts is None else dropouts,
        options["colluders"],
        options["scale"],
    )
    cost = plan_predictions(plan, epsilon=options["epsilon"], std=options["noise_std"])
    return _predictions(plan, cost)


def _predictions(plan: PredictionPlan, cost: PredictionBudget) -> BudgetAnswer:
    """Answer for sums of predictions."""
    from secure_fl.crypto.privacy.planning import PREDICTIONS, prediction_rows

    facts = {"plan": asdict(plan), "budget": asdict(cost) | {"drowned": cost.drowned}}
    return BudgetAnswer(PREDICTIONS, prediction_rows(plan, cost), facts)


def _of_file(config: Path, given: Options) -> Iterator[BudgetAnswer]:
    """Answer for a settings file; explicit options override it."""
    from secure_fl.config.load import load, silos
    from secure_fl.errors import SettingsError

    settings = load(config, list(_overrides(load(config), given)))
    members = silos(settings)
    if settings.protection.noise is None and settings.training.dp is None:
        what = "this file uses no differential privacy"
        fix = "add [protection.noise] or [training.dp] with epsilon = ..., or use --epsilon"
        raise SettingsError(what, fix=fix, file=str(config))
    _require_used(given, _used(settings), config.name)
    if settings.protection.noise is not None:
        yield _noise_answer(settings, members, given)
    if settings.training.dp is not None:
        yield _training_answer(settings, members, given)


def _used(settings: Settings) -> set[str]:
    """Return the options that change a number of the answers for a file."""
    dp, used = settings.training.dp, set[str]()
    if settings.protection.noise is not None:
        used |= PREDICTION_OPTIONS
    if dp is not None:
        used |= SHARED_OPTIONS if dp.noise == "shared" else LOCAL_OPTIONS
    steps = settings.algorithm.step_rate is not None  # over a sample of all records
    return used - {"batch"} if steps else used


def _overrides(before: Settings, given: Options) -> Iterator[str]:
    """Return options as overrides, for the sections of the file."""
    from secure_fl.algorithms.registry import ALGORITHMS

    noise, dp = before.protection.noise is not None, before.training.dp is not None
    if not noise and not dp:
        noise = ALGORITHMS[before.algorithm.name].opens_predictions
        dp = not noise
    yield from (
        f"{RUN_FIELDS[name]}={value}" for name, value in given.items() if name in RUN_FIELDS
    )
    if noise:
        yield from _private("protection.noise", NOISE_FIELDS, "noise_std", given)
    if dp:
        yield from _private("training.dp", DP_FIELDS, "noise_multiplier", given)


def _private(place: str, fields: Mapping[str, str], amount: str, given: Options) -> Iterator[str]:
    """Return options as overrides of one section; `amount` is its option of noise."""
    yield from (
        f"{place}.{fields[name]}={value}" for name, value in given.items() if name in fields
    )
    if "epsilon" in given and amount not in given:
        yield f"{place}.{fields[amount]}=none"
    if given.keys() & {"epsilon", amount}:
        yield f"{place}.target_epsilon=none"


def _noise_answer(settings: Settings, members: Sequence[Silo], given: Options) -> BudgetAnswer:
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.crypto.privacy.planning import plan_for_settings, size_for_settings
    from secure_fl.errors import SettingsError
    from secure_fl.federation.validation import tasks_of
    from secure_fl.learning.dp.scope import require_predictions

    noise, algorithm = settings.protection.noise, settings.algorithm
    assert noise is not None  # noqa: S101 - checked by the caller
    public = given.get("examples", max(len(silo.public) for silo in members))
    entry = ALGORITHMS[algorithm.name]
    require_predictions(algorithm.name, noised=entry.opens_predictions)
    released = algorithm.releases(public, settings.training.batch_size) if public else None
    if released is None:
        raise SettingsError("there are no public records", fix="add [data] public, or --examples")
    examples, releases = released
    if "exchanges" in given:
        releases = given["exchanges"] * algorithm.rounds
    tasks = tasks_of(settings.task, members, entry)
    classes = max(len(task.labels) for task in tasks.values())
    parties = given.get("parties", sum(silo.role != "host" for silo in members))
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
        refused = "the noise hides the signal on which the hospitals agree"
    return replace(_predictions(plan, cost), refused=refused)


def _training_answer(settings: Settings, members: Sequence[Silo], given: Options) -> BudgetAnswer:
    """Answer for the hospital with the fewest units: its noise or its cost is the highest."""
    from secure_fl.crypto.privacy.planning import plan_training, training_rows
    from secure_fl.federation.run_feature import rounds_of
    from secure_fl.federation.run_spec import RunSpec
    from secure_fl.learning.dp.scope import sampling_units

    dp = settings.training.dp
    assert dp is not None  # noqa: S101 - checked by the caller
    parties = [silo for silo in members if silo.role != "host"]
    if dp.noise == "shared":
        return _shared_answer(settings, parties)
    counted = {silo.name: len(sampling_units(silo.train, dp, silo.name)) for silo in parties}
    least = min(counted, key=lambda name: counted[name])
    units = given.get("records", counted[least])
    plan = plan_training(
        units,
        min(settings.training.batch_size, units),
        settings.algorithm.epochs,
        rounds_of(RunSpec.of(settings)),
        dp.delta,
        noise_multiplier=dp.noise_multiplier,
        epsilon_target=None if dp.noise_multiplier else dp.target_epsilon or dp.epsilon,
        accountant=dp.accountant,
        step_rate=settings.algorithm.step_rate,
    )
    of = "" if "records" in given else f", at {least} with {units} (the fewest)"
    return BudgetAnswer(
        f"DP-SGD, per {dp.unit}{of}{_repeated(settings)}",
        training_rows(plan, dp.unit),
        asdict(plan),
        _over(plan.epsilon, dp.epsilon, dp.unit),
    )


def _shared_answer(settings: Settings, parties: Sequence[Silo]) -> BudgetAnswer:
    """Answer for steps with shared noise."""
    plan = shared_plan(settings, parties)
    dp = plan.dp
    ledger, model = plan.epsilon(dp.colluders), plan.epsilon(0)
    assert ledger is not None  # noqa: S101 - checked in the plan
    facts = {
        "members": plan.epsilon(max(1, dp.colluders)),  # every hospital knows its own noise
        "model": model,
        "delta": dp.delta,
        "noise_multiplier": plan.multiplier,
        "steps": plan.steps,
        "signal": plan.signal,
        "hospitals": plan.hospitals,
        "dropouts": plan.dropouts,
        "colluders": dp.colluders,
    }
    over = f", over {plan.hospitals} hospitals{_repeated(settings)}"
    title = f"shared noise, per {dp.unit}{over}"
    return BudgetAnswer(title, plan.rows(), facts, _over(ledger, dp.epsilon, dp.unit))


def shared_plan(settings: Settings, parties: Sequence[Silo]) -> SharedPlan:
    """Make the plan of steps with shared noise; refuse settings without enough noise."""
    from secure_fl.federation.run_spec import RunSpec
    from secure_fl.federation.validation import noise_plan
    from secure_fl.learning.dp.scope import sampling_units

    dp, count = settings.training.dp, len(parties)
    assert dp is not None  # noqa: S101 - checked by the caller
    units = sum(len(sampling_units(silo.train, dp, silo.name)) for silo in parties)
    threshold = settings.protection.threshold or default_threshold(count)
    return noise_plan(RunSpec.of(settings), count, units, threshold)


def _repeated(settings: Settings) -> str:
    """Name the rounds that features may add to the plan's."""
    from secure_fl.federation.run_feature import rounds_of
    from secure_fl.federation.run_spec import RunSpec

    extra = rounds_of(RunSpec.of(settings)) - settings.algorithm.rounds
    return f", with {extra} rounds that may be repeated" if extra else ""


def _over(epsilon: float, most: float, unit: str) -> str:
    if epsilon <= most:
        return ""
    return f"the plan costs ε = {epsilon:.4g} per {unit}, the budget is {most:g}"


def _print(answers: Sequence[BudgetAnswer], as_json: bool) -> None:
    if as_json:
        facts = [answer.facts for answer in answers]
        click.echo(json.dumps(facts[0] if len(facts) == 1 else facts, indent=2))
        return
    from secure_fl.crypto.privacy.planning import table

    width = shutil.get_terminal_size().columns
    click.echo("\n".join(table(answer.title, answer.rows, width) for answer in answers))
