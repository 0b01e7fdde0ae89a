"""`secure-fl train`: run the federation of a settings file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.group import INTERRUPTED, stop
from secure_fl.cli.options import FILE, FOLDER, json_option, no_progress_option, set_option
from secure_fl.cli.runs import read_json

if TYPE_CHECKING:
    from rich.console import Console

    from secure_fl.config.load import Settings
    from secure_fl.data.silo import Silo
    from secure_fl.events import Event, Listener
    from secure_fl.federation.federation import Federation


@click.command(
    epilog="""\b
Examples:
  secure-fl train study.toml
  secure-fl train study.toml --set algorithm.rounds=20 --set run.seed=3
  secure-fl train study.toml --resume
      continue after a crash or Ctrl-C
  secure-fl train study.toml --json > result.json
  secure-fl train study.toml --sink tensorboard=logs
      also send scores over all records to TensorBoard

The run's folder contains settings.toml, events.jsonl, result.json and the model. For each hospital
it contains the checkpoints and the transcript of all its messages."""
)
@click.argument("config", type=FILE)
@set_option
@click.option("--resume", is_flag=True, help="Continue from the last checkpoint of this run.")
@click.option("--out", type=FOLDER,
              help="The run's folder.  [default: run.folder of the file, or runs/NAME]",
              )  # fmt: skip
@click.option("--sink", "sinks", multiple=True, metavar="KIND=TARGET",
              help="Also send scores to csv=FILE, tensorboard=FOLDER or mlflow=URI. Repeatable.",
              )  # fmt: skip
@click.option("--sink-hospitals", is_flag=True, help="Send each hospital's own scores to sinks.")
@click.option("--record", is_flag=True, help="Record each role's view, for secure-fl audit.")
@json_option
@no_progress_option
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
    """Run the federation of the settings file CONFIG, with all hospitals in this process."""
    from secure_fl.cli import show
    from secure_fl.config.load import load, locate, run_folder
    from secure_fl.display.sinks import sink
    from secure_fl.errors import SecureFLError

    console = show.err(quiet or as_json)
    overrides = (*overrides, "run.record=true") if record else overrides
    settings = load(config, overrides)
    folder = out or run_folder(settings)
    show.warn_unprotected(show.err(quiet), settings.protection.mode, settings.algorithm.name)
    listeners = [sink(target, hospitals=sink_hospitals) for target in sinks]
    try:
        document = run(settings, folder, console, resume=resume, sinks=listeners)
    except SecureFLError as error:
        locate(error, config, overrides)
        raise
    except KeyboardInterrupt:
        stop(INTERRUPTED, _how_to_resume(config, overrides, out, folder))
    if as_json:
        show.print_json(document)
    else:
        _print_result(document, folder)


def _print_result(document: dict[str, Any], folder: Path) -> None:
    from secure_fl.cli import show
    from secure_fl.display.learning_check import not_learned

    seconds = show.duration(document["seconds"]["total"])
    figures: list[Any] = []
    if document.get("model_round"):
        figures = [
            f"The saved model is the one after round {document['model_round']}.",
            f"figures: {folder}/report.html",
        ]
    lines = (
        "",
        show.result_table(document, _title(document)),
        show.score_line(document),
        show.entity_table(document),
        f"\n{seconds}, {protection_line(document)}; the run is in {folder}",
        show.model_line(document),
        show.layers_line(document),
        *figures,
        document["protection"]["statement"],
        show.noise_line(document),
    )
    console = show.out()
    for line in lines:
        if line is not None:
            console.print(line)
    if (model := custom_code(folder)) is not None:
        console.print(
            f"The head of this model is code in {model}: transformers' pipeline needs "
            "trust_remote_code=True for it; its README.md shows how."
        )
    show.warn(console, not_learned(document))


def _title(document: dict[str, Any]) -> str:
    name = f"{document['algorithm']} over the hospitals"
    several = len(document["parties"]) > 1
    return f"{name} (traffic and time in the first row are means)" if several else name


def custom_code(folder: Path) -> Path | None:
    """Return a saved model that transformers loads only with trust_remote_code, if there is one."""
    for file in sorted(folder.glob("*/config.json")):
        if "auto_map" in read_json(file):
            return file.parent
    return None


def run(
    settings: Settings,
    folder: Path,
    console: Console,
    *,
    resume: bool = False,
    title: str = "",
    sinks: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Run a federation in its folder and show progress; return the result's document."""
    from secure_fl.display.watch import Watch

    name = settings.algorithm.name
    with console.status(f"{name}: reading data and loading torch ..."):
        from secure_fl.federation.federation import Federation

        federation = Federation.of(settings, folder, resume=resume)
    _warn_of_copies(federation.hospitals, settings, console)
    _warn_of_class(federation, settings, console)
    _warn_of_noise(federation.silos, settings, console)
    _warn_of_labels(federation, console)
    task, rounds = next(iter(federation.tasks.values())), settings.algorithm.rounds
    shown = Watch(console, title or name, rounds, task.metric, scored_class=task.scored_class)
    with shown as watch:
        listeners: list[Listener] = [watch, *sinks]

        def notify(event: Event) -> None:
            for listener in listeners:
                listener(event)

        federation.listener = notify
        return federation.run().to_json()


def _warn_of_copies(silos: Sequence[Silo], settings: Settings, console: Console) -> None:
    """Warn if two hospitals have the same file, which only a run on one machine can detect."""
    from secure_fl.config.data import PartyData
    from secure_fl.data.record_problems import alike
    from secure_fl.data.splits import Splits

    if isinstance(settings.data, PartyData):
        splits = {s.name: Splits(tuple(s.train), tuple(s.dev), tuple(s.test)) for s in silos}
        for copy in alike(splits):
            console.print(f"warning: {copy.party}: {copy.what}\n  -> {copy.fix}", style="yellow")


def _warn_of_noise(silos: Sequence[Silo], settings: Settings, console: Console) -> None:
    """Warn if shared noise is too large for the hospitals and their records."""
    from secure_fl.cli.budget import shared_plan

    dp = settings.training.dp
    if dp is not None and dp.noise == "shared":
        if (text := shared_plan(settings, silos).warning()) is not None:
            console.print(f"warning: {text}", style="yellow")


def _warn_of_labels(federation: Federation, console: Console) -> None:
    """Warn if a round is slow because of the number of labels."""
    from secure_fl.data.record_problems import many_labels

    count = max(len(task.labels) for task in federation.tasks.values())
    if (found := many_labels(count)) is not None:
        console.print(f"warning: {found[0]}\n  -> {found[1]}", style="yellow")


def _warn_of_class(federation: Federation, settings: Settings, console: Console) -> None:
    """Warn if scores are of the negative class; the order of a corpus' own labels is no choice."""
    from secure_fl.cli import show
    from secure_fl.config.data import CorpusData
    from secure_fl.data.record_problems import counted_labels

    if settings.task.labels is None and isinstance(settings.data, CorpusData):
        return
    labels = next(iter(federation.tasks.values())).labels
    counts = counted_labels(record for silo in federation.hospitals for record in silo.train)
    show.warn_of_class(console, settings.task, labels, counts)


def protection_line(document: dict[str, Any]) -> str:
    """Describe the protection of a run's sums."""
    from secure_fl.cli import show

    protection = document["protection"]
    mode = show.protection(document["algorithm"], protection["mode"])
    texts = {"-": "nothing was shared", "POOLED": "ALL RECORDS POOLED", "NONE": "UNPROTECTED"}
    protected = f"protected by {mode}, no sum over fewer than {protection['min_cohort']}"
    return texts.get(mode, protected)


def _how_to_resume(config: Path, overrides: Sequence[str], out: Path | None, folder: Path) -> str:
    if not (folder / "settings.toml").exists():
        return "interrupted before the first round"
    options = [part for text in overrides for part in ("--set", text)]
    place = ["--out", str(out)] if out else []
    command = shlex.join(["secure-fl", "train", str(config), *options, *place, "--resume"])
    return f"interrupted; finished rounds are saved. Continue with:\n  {command}"
