"""Privacy budgets as rows of text: for `secure-fl budget`, and for the refusal of a run."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from secure_fl.crypto.privacy.planning import PredictionBudget, Predictions, TrainingBudget

Rows = list[tuple[str, str]]
PREDICTIONS = "ensemble predictions, per hospital"


def prediction_rows(plan: Predictions, found: PredictionBudget) -> Rows:
    """Say what noised predictions cost, what is left of their signal, and what would help."""
    rows = [
        ("ε", f"{found.epsilon:.3f} at δ = {found.delta:g}"),
        ("exchanges in all", f"{found.releases}, L2 sensitivity {found.sensitivity:.2f} each"),
        ("unanimous signal", f"{found.signal:.2f} on a sum over {plan.parties} parties"),
        ("noise, a trusted centre", f"std {found.std_central:.1f} (Gaussian)"),
        (
            "noise, distributed",
            f"std {found.std:.1f} guaranteed with {_count(plan.dropouts, 'dropout')} and "
            f"{_count(plan.colluders, 'colluder')}; {found.std_all_present:.1f} when all are "
            "present",
        ),
        ("signal to noise", f"{found.signal_to_noise:.2f}"),
        (
            "a unanimous vote is read right",
            f"{found.correct:.1%} (guessing: {1 / plan.classes:.1%})",
        ),
    ]
    if not found.drowned:
        return [*rows, ("useful", "yes")]
    opened = plan.batch * found.releases
    fewer = f"{found.opened_useful} predictions opened in all instead of {opened}"
    advice = [
        f"{found.parties_useful} parties",
        *([fewer] if found.opened_useful else []),
        f"ε = {found.epsilon_useful:.3g}",
        "or DP-SGD at each hospital instead",
    ]
    return [*rows, ("useful (90% right) with", f"one of: {'; '.join(advice)}")]


def training_rows(found: TrainingBudget, unit: str = "record") -> Rows:
    """Say what DP-SGD costs at one silo."""
    return [
        ("ε", f"{found.epsilon:.3f} at δ = {found.delta:g} (adding or removing a {unit})"),
        ("noise multiplier", f"{found.noise_multiplier:.4f}"),
        ("steps", f"{found.steps} at sample rate {found.sample_rate:.5g}"),
    ]


def table(title: str, rows: Sequence[tuple[str, str]], columns: int = 80) -> str:
    """Lay out a title and rows below it; a value that is too long goes on below itself."""
    width = max(len(name) for name, _ in rows)
    below = f"\n{'':{width + 4}}"
    wide = max(columns - width - 4, 20)
    told = ((name, below.join(wrap(value, wide))) for name, value in rows)
    return title + "".join(f"\n  {name:<{width}}  {value}" for name, value in told)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
