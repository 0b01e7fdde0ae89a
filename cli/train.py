"""`secure-fl train`: run the federation that a settings file describes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.group import INTERRUPTED, stop

if TYPE_CHECKING:
    from rich.console import Console

    from secure_fl.config.load import Settings
    from secure_fl.data.silo import Silo
    from secure_fl.events import Event, Listener


@click.command(
    epilog="""\b
Examples:
  secure-fl train study.toml
  secure-fl train study.toml --set algorithm.rounds=20 --set run.seed=3
  secure-fl train study.toml --resume
      go on after a crash or Ctrl-C
  secure-fl train study.toml --json > result.json
  secure-fl train study.toml --sink tensorboard=logs
      scores over all records, there too

The run's folder holds settings.toml, events.jsonl, result.json, the model and, for each
hospital, its checkpoints and the transcript of all that crossed its door."""
)
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of the file, such as algorithm.rounds=5. Can be repeated.",
)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint of this run.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The run's folder. [default: run.folder of the file, or runs/NAME]",
)
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="KIND=TARGET",
    help="Also send scores to csv=FILE, tensorboard=FOLDER or mlflow=URI. Can be repeated.",
)
@click.option("--sink-hospitals", is_flag=True, help="There, also each hospital's own scores.")
@click.option("--record", is_flag=True, help="Record what every role sees, for secure-fl audit.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def train(
    config: Path,
    overrides: tuple[str, ...],
    resume: bool,
    out: Path | None,
    sinks: tuple[str, ...],
    sink_hospitals: bool,
    record: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the federation of the settings file CONFIG, all hospitals in this process."""
    from secure_fl.cli import show
    from secure_fl.config.load import load, run_folder
    from secure_fl.display.sinks import sink

    console = show.err(quiet or as_json)
    overrides = (*overrides, "run.record=true") if record else overrides
    settings = load(config, overrides)
    folder = out or run_folder(settings)
    show.warn_unprotected(show.err(quiet), settings.protection.mode, settings.algorithm.name)
    told = [sink(one, hospitals=sink_hospitals) for one in sinks]
    try:
        document = run(settings, folder, console, resume=resume, sinks=told)
    except KeyboardInterrupt:
        stop(INTERRUPTED, _how_to_resume(config, overrides, out, folder))
    if as_json:
        show.print_json(document)
    elif not quiet:
        results = show.out()
        results.print()
        results.print(show.result_table(document, f"{document['algorithm']} over the hospitals"))
        if (sure := show.score_line(document)) is not None:
            results.print(sure)
        if (entities := show.entity_table(document)) is not None:
            results.print(entities)
        seconds = show.duration(document["seconds"]["total"])
        results.print(f"\n{seconds}, {protection_line(document)}; the run is in {folder}")
        if (use := show.model_line(document)) is not None:
            results.print(use)
        if document.get("model_round"):
            results.print(f"what was learned up to round {document['model_round']} is kept")
            results.print(f"pictures: {folder}/report.html")
        results.print(document["protection"]["statement"])
        if (noise := show.noise_line(document)) is not None:
            results.print(noise)


def run(
    settings: Settings,
    folder: Path,
    console: Console,
    *,
    resume: bool = False,
    title: str = "",
    sinks: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Run a federation in its folder while showing it; return the result's document."""
    from secure_fl.display.watch import Watch

    name = settings.algorithm.name
    with console.status(f"{name}: reading data and loading torch ..."):
        from secure_fl.federation.federation import Federation

        made = Federation.of(settings, folder, resume=resume)
    _warn_of_copies(made.hospitals, settings, console)
    metric = next(iter(made.tasks.values())).metric
    with Watch(console, title or name, settings.algorithm.rounds, metric) as watch:
        told: list[Listener] = [watch, *sinks]

        def tell(event: Event) -> None:
            for one in told:
                one(event)

        made.listener = tell
        return made.run().to_json()


def _warn_of_copies(silos: Sequence[Silo], settings: Settings, console: Console) -> None:
    """Say where a file was given to two hospitals: it can be seen only where all are at hand."""
    from secure_fl.config.data import PartyData
    from secure_fl.data.record_problems import alike
    from secure_fl.data.splits import Splits

    if isinstance(settings.data, PartyData):
        splits = {s.name: Splits(tuple(s.train), tuple(s.dev), tuple(s.test)) for s in silos}
        for one in alike(splits):
            console.print(f"warning: {one.party}: {one.what}\n  -> {one.fix}", style="yellow")


def protection_line(document: dict[str, Any]) -> str:
    """Say how a run's sums were protected."""
    from secure_fl.cli import show

    protection = document["protection"]
    mode = show.protection(document["algorithm"], protection["mode"])
    texts = {"-": "nothing was shared", "POOLED": "ALL RECORDS POOLED", "NONE": "UNPROTECTED"}
    otherwise = f"protected by {mode}, no sum over fewer than {protection['min_cohort']}"
    return texts.get(mode, otherwise)


def _how_to_resume(config: Path, overrides: Sequence[str], out: Path | None, folder: Path) -> str:
    if not (folder / "settings.toml").exists():
        return "interrupted before anything was trained"
    options = [part for text in overrides for part in ("--set", text)]
    place = ["--out", str(out)] if out else []
    command = shlex.join(["secure-fl", "train", str(config), *options, *place, "--resume"])
    return f"interrupted; finished rounds are kept. Go on with:\n  {command}"
