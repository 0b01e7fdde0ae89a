"""`secure-fl budget`: what a privacy budget buys, before anything is run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from secure_fl.cli.budget_file import Answer, Options, of_file, predictions
from secure_fl.cli.numbers import MOST_RECORDS, Real, Whole
from secure_fl.thresholds import default_threshold

COUNT, CLASSES = Whole(1, MOST_RECORDS), Whole(2, MOST_RECORDS)
NONE_OR_MORE = Whole(0, MOST_RECORDS)
AMOUNT, SHARE = Real(0, 1e5, min_open=True), Real(0, 1, min_open=True, max_open=True)


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--parties", type=COUNT, help="Hospitals whose predictions are summed.")
@click.option("--classes", type=CLASSES, default=2, show_default=True, help="Of a prediction.")
@click.option("--examples", type=COUNT, default=1000, show_default=True, help="Public examples.")
@click.option("--records", type=COUNT, help="Records of this silo: plan DP-SGD.")
@click.option("--batch", type=COUNT, help="Examples in an exchange [all], records in a step [32].")
@click.option("--exchanges", type=COUNT, help="Exchanges in a round.  [one pass over the examples]")
@click.option(
    "--epochs", type=COUNT, default=1, show_default=True, help="DP-SGD epochs in a round."
)
@click.option("--rounds", type=COUNT, default=1, show_default=True, help="Of the whole run.")
@click.option("--epsilon", type=AMOUNT, help="The budget: find the noise.")
@click.option("--noise-std", type=AMOUNT, help="Noise on a sum of predictions: find ε.")
@click.option("--noise-multiplier", type=AMOUNT, help="DP-SGD noise over clip norm: find ε.")
@click.option("--delta", type=SHARE, default=1e-5, show_default=True, help="That goes with ε.")
@click.option(
    "--dropouts", type=NONE_OR_MORE, help="Dropouts the noise must bear.  [n - threshold]"
)
@click.option(
    "--colluders", type=NONE_OR_MORE, default=1, show_default=True, help="Who know their share."
)
@click.option("--scale", type=AMOUNT, default=64.0, show_default=True, help="Grid steps per unit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def budget(context: click.Context, /, config: Path | None, as_json: bool, **options: Any) -> None:
    """Show signal, noise and ε of a plan, and what would make it useful.

    \b
    What the run of a settings file will cost; options win over the file:
      secure-fl budget federation.toml
      secure-fl budget federation.toml --rounds 3
    Ensemble predictions, protecting a hospital:
      secure-fl budget --parties 5 --classes 2 --examples 1000 --epsilon 8
      secure-fl budget --parties 5 --examples 1000 --noise-std 13.4
    Local training with DP-SGD, protecting a record:
      secure-fl budget --records 5000 --batch 64 --rounds 10 \\
          --noise-multiplier 1.1
      secure-fl budget --records 5000 --batch 64 --rounds 10 --epsilon 8

    With a file, the exit status is 7 where its run would be refused: the noise drowns the signal
    (unless protection.noise.force is set), or the budget is too small.
    """  # noqa: D301
    if config is None:
        answers = [_of_options(options)]
    else:
        default = ParameterSource.DEFAULT
        source = context.get_parameter_source
        answers = list(of_file(config, {n: v for n, v in options.items() if source(n) != default}))
    _print(answers, as_json)
    if config is not None and (reasons := [a.refused for a in answers if a.refused]):
        from secure_fl.errors import BudgetError

        raise BudgetError(
            "; ".join(reasons), fix="change the plan, as the table says", reason="plan"
        )


def _of_options(options: Options) -> Answer:
    """Answer for a plan that no file describes."""
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
        raise click.UsageError(f"give one of --epsilon and {noise}: the other is found")
    every = options["examples"] if records is None else records
    if (options["batch"] or 1) > every:
        raise click.UsageError(f"--batch {options['batch']} is more than all, which are {every}")
    from secure_fl.crypto.privacy.planning import (
        PredictionPlan,
        plan_predictions,
        plan_training,
        training_rows,
    )

    epsilon, delta, rounds = options["epsilon"], options["delta"], options["rounds"]
    if records is not None:
        size = options["batch"] or min(32, records)
        training = plan_training(
            records,
            size,
            options["epochs"],
            rounds,
            delta,
            noise_multiplier=multiplier,
            epsilon_target=epsilon,
        )
        return Answer("DP-SGD, per record", training_rows(training), asdict(training))
    examples, dropouts = options["examples"], options["dropouts"]
    size = options["batch"] or examples
    plan = PredictionPlan(
        parties,
        options["classes"],
        examples,
        size,
        rounds,
        options["exchanges"] or -(-examples // size),
        delta,
        parties - default_threshold(parties) if dropouts is None else dropouts,
        options["colluders"],
        options["scale"],
    )
    return predictions(plan, plan_predictions(plan, epsilon=epsilon, std=std))


def _print(answers: Sequence[Answer], as_json: bool) -> None:
    if as_json:
        facts = [answer.facts for answer in answers]
        click.echo(json.dumps(facts[0] if len(facts) == 1 else facts, indent=2))
        return
    from secure_fl.crypto.privacy.planning import table

    width = shutil.get_terminal_size().columns
    click.echo("\n".join(table(answer.title, answer.rows, width) for answer in answers))
