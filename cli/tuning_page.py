"""The picture of a search: every combination's score against its rounds, on a page of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TypeAlias

from secure_fl.display.figures import number
from secure_fl.features.tuning.tuning import Trial, Tuning

Place: TypeAlias = Callable[[Trial], tuple[float, float]]

WIDTH, HEIGHT, EDGE = 720, 360, 48
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#1b2a33}
table{border-collapse:collapse;width:100%}td,th{padding:.2em .6em;border-bottom:1px solid #dde3e7}
td{text-align:right}td:first-child,th:first-child{text-align:left}tr.best{font-weight:600}
polyline{fill:none;stroke:#9fb2bd;stroke-width:1.5}circle{fill:#5d7684}
.best polyline{stroke:#0b7a55;stroke-width:3}.best circle{fill:#0b7a55}text{font-size:12px}
"""


def page(found: Tuning) -> str:
    """One HTML file that asks nothing of any other."""
    best = found.best
    rows = "".join(_row(trial, best) for trial in found.ordered)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Tuning</title>"
        f"<style>{STYLE}</style><h1>Trials</h1><p>Best: <strong>{escape(best.label)}</strong>, "
        f"dev {escape(found.metric)} {number(best.score)} over all hospitals' records after "
        f"{best.rounds} rounds.</p>{picture(found)}<table><tr><th>tried<th>rounds"
        f"<th>dev {escape(found.metric)}<th>loss</tr>{rows}</table></html>\n"
    )


def picture(found: Tuning) -> str:
    """Lines from few rounds to many; the best one stands out."""
    scored = [trial for trial in found.trials if trial.score is not None]
    scores = [trial.score or 0.0 for trial in scored]
    low, high = min(scores), max(scores)
    most = max(trial.rounds for trial in scored)

    def place(trial: Trial) -> tuple[float, float]:
        across = trial.rounds / most * (WIDTH - 2 * EDGE) + EDGE
        share = ((trial.score or 0.0) - low) / (high - low or 1.0)
        return round(across, 1), round(HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE), 1)

    lines = "".join(_line(trials, place, found.best) for trials in _by_choice(scored))
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='scores against rounds'>"
        f"{lines}<text x='{EDGE}' y='{HEIGHT - 12}'>rounds, up to {most}</text>"
        f"<text x='4' y='{EDGE - 12}'>{number(high)}</text>"
        f"<text x='4' y='{HEIGHT - EDGE + 4}'>{number(low)}</text></svg>"
    )


def _line(trials: Sequence[Trial], place: Place, best: Trial) -> str:
    points = [place(trial) for trial in trials]
    marks = "".join(
        f"<circle cx='{x}' cy='{y}' r='4'><title>{escape(trial.label)}: "
        f"{number(trial.score)}</title></circle>"
        for trial, (x, y) in zip(trials, points, strict=True)
    )
    path = " ".join(f"{x},{y}" for x, y in points)
    name = "best" if best in trials else ""
    return f"<g class='{name}'><polyline points='{path}'/>{marks}</g>"


def _by_choice(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """The trials of each combination, by rounds; the longest last, so that they lie on top."""
    lines = {trial.label: list[Trial]() for trial in trials}
    for trial in trials:
        lines[trial.label].append(trial)
    for line in sorted(lines.values(), key=len):
        yield sorted(line, key=lambda trial: trial.rounds)


def _row(trial: Trial, best: Trial) -> str:
    mark = " class='best'" if trial is best else ""
    cells = (escape(trial.label), trial.rounds, number(trial.score), number(trial.loss))
    return f"<tr{mark}>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>"
