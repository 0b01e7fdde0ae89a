"""`secure-fl tune`: short protected trials of a settings file, and the best settings."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.group import INTERRUPTED, stop
from secure_fl.cli.options import FILE, FOLDER, json_option, no_progress_option, set_option

if TYPE_CHECKING:
    from secure_fl.display.grid import Grid
    from secure_fl.features.tuning.tuning import Trial, Tuning

SCHEMA = "secure-fl/tuning/1"
TRIALS, TUNED, PAGE = "trials.json", "tuned.toml", "tuning.html"


@click.command(
    epilog="""\b
Examples:
  secure-fl tune study.toml
  secure-fl tune study.toml --try training.learning_rate=1e-4,3e-4,1e-3 \\
      --try algorithm.epochs=1,2
  secure-fl train study-tuning/tuned.toml

A probe is measured first, which shows what the encoder already separates.
All combinations train for a few rounds. The best third continues for three times as many rounds,
until one remains; ties continue too. The score of a trial is the main metric over all hospitals'
dev records, summed like updates. With differential privacy, the hospitals' ledgers record each
trial: the search has a cost."""
)
@click.argument("config", type=FILE)
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="FIELD=V1,V2",
    help="Values of a field; repeatable for others.  [default: learning rates around the file's]",
)
@set_option
@click.option("--grid", is_flag=True, help="Train every combination for all rounds.")
@click.option("--out", type=FOLDER,
              help="Output folder.  [default: NAME-tuning next to the file]")  # fmt: skip
@json_option
@no_progress_option
def tune(
    config: Path,
    tries: tuple[str, ...],
    overrides: tuple[str, ...],
    grid: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find settings that learn, starting from the settings file CONFIG."""
    from secure_fl.cli import show
    from secure_fl.config.load import load

    console, settings = show.err(quiet or as_json), load(config, overrides)
    from secure_fl.features.tuning import tuning

    show.warn_unprotected(show.err(quiet), settings.protection.mode, settings.algorithm.name)
    show.warn_of_class(show.err(quiet), settings.task, settings.task.labels)
    values = _tried(tries) or None

    def show_trial(trial: Trial) -> None:
        console.print(line(trial))

    try:
        with console.status("training the trials one after the other"):
            result = tuning.tune(
                settings, values, halving=not grid, report=show_trial, progress=False
            )
    except KeyboardInterrupt:
        stop(INTERRUPTED, "interrupted; no files were written. Spent privacy budget stays spent")
    out = out or config.with_name(f"{config.stem}-tuning")
    _write(result, out)
    if as_json:
        show.print_json(document_of(result))
    elif not quiet:
        _print_result(result, out)


def _write(result: Tuning, out: Path) -> None:
    """Write the trials, the settings of the best one, and the page."""
    from secure_fl.config.load import dump
    from secure_fl.runs.folder import write_json

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / TRIALS, document_of(result))
    (out / TUNED).write_text(dump(result.settings))
    (out / PAGE).write_text(page(result))


def _print_result(result: Tuning, out: Path) -> None:
    from secure_fl.cli import show
    from secure_fl.cli.show import number

    console = show.out()
    console.print(table(result))
    if result.undecided:
        rounds = show.counted(result.best.rounds, "round")
        console.print(f"After {rounds} all scores are equal; the lowest loss decided.")
        console.print("  -> use more rounds or more records")
    if result.probe is not None:
        console.print(f"A probe reaches dev {result.metric} {number(result.probe)}: a linear model "
                      "on the fixed encoder, in one sum.")  # fmt: skip
    if result.epsilon is not None:
        console.print(f"the ledgers are at ε = {result.epsilon:.3f}, with this search")
    show.warn(console, result.best.problem)
    console.print(f"\nThe best settings and a chart are in {out}. Train with them:")
    console.print(f"  secure-fl train {out / TUNED}")


def _tried(tries: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Parse all fields with their values; each field once."""
    values: dict[str, Sequence[Any]] = {}
    for name, tried in map(parsed, tries):
        if name in values:
            raise click.UsageError(
                f"--try {name} is given twice: write all its values in one, as in {name}=V1,V2"
            )
        values[name] = tried
    return values


def parsed(text: str) -> tuple[str, Sequence[Any]]:
    """Parse a field and its values."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise click.UsageError(
            f"--try {text}: write FIELD=V1,V2, as in training.learning_rate=1e-4,3e-4"
        )
    return name.strip(), [_value(value.strip()) for value in values.split(",")]


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if isinstance(value, date | time):  # a datetime is a date
        raise click.UsageError(f"--try: {text} is a date or time; no field takes that")
    return value


def line(trial: Trial) -> str:
    """Describe a trial in one line."""
    from secure_fl.cli.show import counted, number

    return f"{trial.label}, {counted(trial.rounds, 'round')}: {number(trial.score)}"


def table(result: Tuning) -> Grid:
    """Return the table of trials, the best of the longest first."""
    from secure_fl.cli.show import duration, grid, number

    names = list(result.trials[0].choice)
    rows = [
        [
            "best" if trial is result.best else "",
            *(str(trial.choice[name]) for name in names),
            str(trial.rounds),
            number(trial.score),
            number(trial.loss),
            duration(trial.seconds),
        ]
        for trial in result.ordered
    ]
    metric = f"dev {result.metric}"
    return grid("trials", ["", *names, "rounds", metric, "loss", "processor"], rows)


def document_of(result: Tuning) -> dict[str, Any]:
    """Return the content of trials.json."""
    names = ("choice", "rounds", "score", "loss", "seconds")
    trials = [{name: getattr(trial, name) for name in names} for trial in result.trials]
    best = {"choice": dict(result.best.choice), "score": result.best.score}
    return {
        "schema": SCHEMA,
        "metric": result.metric,
        "best": best,
        "probe": result.probe,
        "undecided": result.undecided,
        "epsilon": result.epsilon,
        "trials": trials,
    }


def page(result: Tuning) -> str:
    """Return a self-contained HTML page with the chart and table of trials."""
    from secure_fl.display import html
    from secure_fl.display.figures import number

    best = result.best
    lead = html.paragraph(
        f"Best: {best.label}, dev {result.metric} {number(best.score)} over all hospitals' records "
        f"after {best.rounds} rounds.",
        "lead",
    )
    rows = [
        [trial.label, str(trial.rounds), number(trial.score), number(trial.loss)]
        for trial in result.ordered
    ]
    heads = ["trial", "rounds", f"dev {result.metric}", "loss"]
    body = lead + picture(result) + html.table("All trials, the best first", heads, rows)
    return html.page("Tuning", "A search for settings", {}, html.section("trials", "Trials", body))


def picture(result: Tuning) -> str:
    """Draw a line for each combination over its rounds; only the best has a colour."""
    from secure_fl.display.charts import Curve, chart
    from secure_fl.display.figures import number

    points: dict[str, list[tuple[float, float]]] = {}
    for trial in sorted(result.trials, key=lambda trial: trial.rounds):
        if trial.score is not None:
            points.setdefault(trial.label, []).append((trial.rounds, trial.score))
    best, metric = result.best.label, f"dev {result.metric}"
    curves = [Curve(label, line, label != best) for label, line in points.items()]
    return chart("tuning", curves, "rounds", metric, number, many="others", fewest=1)
