"""`secure-fl tune`: short sealed trials of a settings file, and the file that won."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.group import INTERRUPTED, stop

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

All combinations train for few rounds, and the better third goes on to three times as many, until
one is left; who has learned as much as the last of it does, too. Trials are judged by the main
metric over all hospitals' dev records, summed like updates are. Under differential privacy each
trial is entered into the hospitals' ledgers: the search costs, too."""
)
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="FIELD=V1,V2",
    help="Values of a field. Can be repeated. [default: learning rates around the file's]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of the file for all trials. Can be repeated.",
)
@click.option("--grid", is_flag=True, help="Train every combination for all rounds.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where results go. [default: NAME-tuning beside the file]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the trials as JSON, nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
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
    from secure_fl.config.load import dump, load

    console, out = show.err(quiet or as_json), out or config.with_name(f"{config.stem}-tuning")
    settings = load(config, overrides)
    from secure_fl.cli.tuning_page import page
    from secure_fl.features.tuning import tuning
    from secure_fl.runs.folder import write_json

    show.warn_unprotected(show.err(quiet), settings.protection.mode, settings.algorithm.name)
    values = dict(map(parsed, tries)) or None

    def tell(trial: Trial) -> None:
        console.print(line(trial))

    try:
        with console.status("training one trial after the other; each is told as it ends"):
            found = tuning.tune(settings, values, halving=not grid, report=tell, progress=False)
    except KeyboardInterrupt:
        stop(INTERRUPTED, "interrupted; nothing was written, but what trials spent stays spent")
    out.mkdir(parents=True, exist_ok=True)
    document = document_of(found)
    write_json(out / TRIALS, document)
    (out / TUNED).write_text(dump(found.settings))
    (out / PAGE).write_text(page(found))
    if as_json:
        show.print_json(document)
    elif not quiet:
        results = show.out()
        results.print(table(found))
        if found.undecided:
            rounds = show.counted(found.best.rounds, "round")
            results.print(f"After {rounds} all score the same, and losses chose.")
            results.print("  -> more rounds, or more records, would tell them apart")
        if found.epsilon is not None:
            results.print(f"ledgers hold ε = {found.epsilon:.3f} now, this search included")
        results.print(f"\nThe best settings, and a picture: {out}. Train with them:")
        results.print(f"  secure-fl train {out / TUNED}")


def parsed(text: str) -> tuple[str, Sequence[Any]]:
    """A field and its values."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise click.UsageError(
            f"--try {text}: write a field and its values, as in training.learning_rate=1e-4,3e-4"
        )
    return name.strip(), [_value(one.strip()) for one in values.split(",")]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def line(trial: Trial) -> str:
    """A trial in a line."""
    from secure_fl.cli.show import counted, number

    return f"{trial.label}, {counted(trial.rounds, 'round')}: {number(trial.score)}"


def table(found: Tuning) -> Grid:
    """Lay out the trials, the best of the longest first."""
    from secure_fl.cli.show import duration, grid, number

    names = list(found.trials[0].choice)
    rows = [
        [
            "best" if trial is found.best else "",
            *(str(trial.choice[name]) for name in names),
            str(trial.rounds),
            number(trial.score),
            number(trial.loss),
            duration(trial.seconds),
        ]
        for trial in found.ordered
    ]
    metric = f"dev {found.metric}"
    return grid("trials", ["", *names, "rounds", metric, "loss", "processor"], rows)


def document_of(found: Tuning) -> dict[str, Any]:
    """What trials.json holds."""
    trials = [
        {
            "choice": dict(trial.choice),
            "rounds": trial.rounds,
            "score": trial.score,
            "loss": trial.loss,
            "seconds": trial.seconds,
        }
        for trial in found.trials
    ]
    best = {"choice": dict(found.best.choice), "score": found.best.score}
    return {
        "schema": SCHEMA,
        "metric": found.metric,
        "best": best,
        "undecided": found.undecided,
        "epsilon": found.epsilon,
        "trials": trials,
    }
