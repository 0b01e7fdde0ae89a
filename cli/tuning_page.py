"""The page of a search: every trial's score against its rounds."""

from __future__ import annotations

from secure_fl.display import html
from secure_fl.display.charts import Curve, chart
from secure_fl.display.figures import number
from secure_fl.federation.tuning import Tuning


def page(found: Tuning) -> str:
    """Write one HTML file that loads nothing."""
    best = found.best
    lead = html.paragraph(
        f"Best: {best.label}, dev {found.metric} {number(best.score)} over all hospitals' records "
        f"after {best.rounds} rounds.",
        "lead",
    )
    rows = [
        [trial.label, str(trial.rounds), number(trial.score), number(trial.loss)]
        for trial in found.ordered
    ]
    heads = ["trial", "rounds", f"dev {found.metric}", "loss"]
    body = lead + picture(found) + html.table("All trials, the best first", heads, rows)
    return html.page("Tuning", "A search for settings", {}, html.section("trials", "Trials", body))


def picture(found: Tuning) -> str:
    """Draw a line for each combination, from few rounds to many; only the best has a colour."""
    points: dict[str, list[tuple[float, float]]] = {}
    for trial in sorted(found.trials, key=lambda trial: trial.rounds):
        if trial.score is not None:
            points.setdefault(trial.label, []).append((trial.rounds, trial.score))
    curves = [Curve(label, line, label != found.best.label) for label, line in points.items()]
    return chart("tuning", curves, "rounds", f"dev {found.metric}", number, many="others", fewest=1)
