"""`secure-fl budget`: what a privacy budget buys, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from secure_fl.thresholds import default_threshold

if TYPE_CHECKING:
    from secure_fl.crypto.planning import PredictionBudget, Predictions, TrainingBudget

Rows = list[tuple[str, str]]


@click.command()
@click.option("--parties", type=int, help="Hospitals whose predictions are summed.")
@click.option("--classes", type=int, default=2, show_default=True)
@click.option("--examples", type=int, default=1000, show_default=True, help="Public examples.")
@click.option("--records", type=int, help="Records of this silo: plan DP-SGD.")
@click.option("--batch", type=int, help="Examples in an exchange [all], records in a step [32].")
@click.option("--exchanges", type=int, help="Exchanges in a round.  [one pass over the examples]")
@click.option("--epochs", type=int, default=1, show_default=True, help="DP-SGD epochs in a round.")
@click.option("--rounds", type=int, default=1, show_default=True)
@click.option("--epsilon", type=float, help="The budget: find the noise.")
@click.option("--noise-std", type=float, help="Noise on a sum of predictions: find ε.")
@click.option("--noise-multiplier", type=float, help="DP-SGD noise over clip norm: find ε.")
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--dropouts", type=int, help="Dropouts the noise must bear.  [n - threshold]")
@click.option("--colluders", type=int, default=1, show_default=True, help="Who know their share.")
@click.option("--scale", type=float, default=64.0, show_default=True, help="Grid steps per unit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def budget(
    parties: int | None,
    classes: int,
    examples: int,
    records: int | None,
    batch: int | None,
    exchanges: int | None,
    epochs: int,
    rounds: int,
    epsilon: float | None,
    noise_std: float | None,
    noise_multiplier: float | None,
    delta: float,
    dropouts: int | None,
    colluders: int,
    scale: float,
    as_json: bool,
) -> None:
    """Show signal, noise and ε of a plan, and what would make it useful.

    \b
    Ensemble predictions, protecting a hospital:
      secure-fl budget --parties 5 --classes 2 --examples 1000 --epsilon 8
      secure-fl budget --parties 5 --examples 1000 --noise-std 13.4
    Local training with DP-SGD, protecting a record:
      secure-fl budget --records 5000 --batch 64 --rounds 10 --noise-multiplier 1.1
      secure-fl budget --records 5000 --batch 64 --rounds 10 --epsilon 8
    """  # noqa: D301
    if (parties is None) == (records is None):
        raise click.UsageError("give --parties for predictions, or --records for DP-SGD")
    if (noise_multiplier if records is None else noise_std) is not None:
        raise click.UsageError("--noise-multiplier is for --records, --noise-std for --parties")
    from secure_fl.crypto.planning import Predictions, plan_predictions, plan_training

    if records is not None:
        size = batch or min(32, records)
        σ = noise_multiplier
        training = plan_training(
            records, size, epochs, rounds, delta, noise_multiplier=σ, epsilon_target=epsilon
        )
        _print("DP-SGD, per record", _training_rows(training), asdict(training), as_json)
    if parties is not None:
        size = batch or examples
        times = exchanges or -(-examples // size)
        missing = parties - default_threshold(parties) if dropouts is None else dropouts
        plan = Predictions(
            parties, classes, examples, size, rounds, times, delta, missing, colluders, scale
        )
        found = plan_predictions(plan, epsilon=epsilon, std=noise_std)
        facts = {"plan": asdict(plan), "budget": asdict(found)}
        _print("ensemble predictions, per hospital", _prediction_rows(plan, found), facts, as_json)


def _prediction_rows(plan: Predictions, found: PredictionBudget) -> Rows:
    rows = [
        ("ε", f"{found.epsilon:.3f} at δ = {found.delta:g}"),
        ("exchanges in all", f"{found.releases}, L2 sensitivity {found.sensitivity:.2f} each"),
        ("unanimous signal", f"{found.signal:.2f} on a sum over {plan.parties} parties"),
        ("noise, a trusted centre", f"std {found.std_central:.1f} (Gaussian)"),
        (
            "noise, distributed",
            f"std {found.std:.1f} guaranteed with {plan.dropouts} dropouts and {plan.colluders} "
            f"colluders; {found.std_all_present:.1f} when all are present",
        ),
        ("signal to noise", f"{found.signal_to_noise:.2f}"),
        (
            "a unanimous vote is read right",
            f"{found.correct:.1%} (guessing: {1 / plan.classes:.1%})",
        ),
    ]
    if found.std_all_present <= found.std_useful:
        return [*rows, ("useful", "yes")]
    advice = (
        f"one of: {found.parties_useful} parties; {found.examples_useful} public examples; "
        f"ε = {found.epsilon_useful:.3g}; or DP-SGD at each hospital instead"
    )
    return [*rows, ("useful (90% right) with", advice)]


def _training_rows(found: TrainingBudget) -> Rows:
    return [
        ("ε", f"{found.epsilon:.3f} at δ = {found.delta:g} (adding or removing a record)"),
        ("noise multiplier", f"{found.noise_multiplier:.4f}"),
        ("steps", f"{found.steps} at sample rate {found.sample_rate:.5f}"),
    ]


def _print(title: str, rows: Rows, facts: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(len(name) for name, _ in rows)
    click.echo(title + "".join(f"\n  {name:<{width}}  {value}" for name, value in rows))
