"""`secure-fl runs`: list, show, compare and remove runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.audit import compare
from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.options import FOLDER, json_option

if TYPE_CHECKING:
    from rich.console import Console

LEADS = "This is the coordinator's record: the coordinator has no scores and no model"
DEPTH = 3  # of the search for runs below a folder


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The state of a run, from its folder."""

    folder: str
    status: str  # finished, running, stopped
    algorithm: str
    protection: str
    round: int
    rounds: int
    metric: str | None
    scored_class: str | None  # of an F1
    value: float | None  # of the last round, mean over the test records
    bytes: float | None
    changed: str


class _ListByDefault(WrappedHelpGroup):
    """A group in which `secure-fl runs FOLDER` means `secure-fl runs list FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Interpret an argument that is not a command as the folder to list."""
        if not {"-h", "--help"} & set(args) and not (args and args[0] in self.commands):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_ListByDefault,
    epilog="""\b
Examples:
  secure-fl runs                       list runs/ of the current folder
  secure-fl runs /data/studies --json
  secure-fl runs show runs/first
  secure-fl runs compare runs/first runs/second""",
)
def runs() -> None:
    """List the runs below a folder, show one, compare several, or remove them."""


runs.add_command(compare)


@runs.command("list")
@click.argument("folder", type=FOLDER, default="runs")
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER. The word "list" is optional: secure-fl runs FOLDER."""
    from secure_fl.cli import show
    from secure_fl.errors import RunError

    if not folder.is_dir():
        near = get_close_matches(str(folder), runs.commands, n=1)
        fix = "name the folder that contains runs; secure-fl train creates them"
        fix = f"did you mean secure-fl runs {near[0]}? Otherwise {fix}" if near else fix
        raise RunError("there is no such folder", fix=fix, file=folder, reason="missing")
    summaries = [summary(run) for run in find(folder)]
    if as_json:
        show.print_json([asdict(run) for run in summaries])
        return
    if not summaries:
        click.echo(f"no run in {folder}; secure-fl demo and secure-fl train create runs")
        return
    columns = ["run", "status", "algorithm", "protection", "round", "metric", "changed"]
    rows = [
        [
            run.folder,
            run.status,
            run.algorithm,
            show.protection(run.algorithm, run.protection),
            f"{run.round}/{run.rounds}",
            _score(run) if run.metric else "-",
            _when(run.changed),
        ]
        for run in summaries
    ]
    show.out().print(show.grid("", columns, rows))


def _when(changed: str) -> str:
    """Shorten a date and time: today to the time, this year to month and day."""
    now, (day, time) = datetime.now().astimezone(), changed.split(" ")
    return time if day == f"{now:%Y-%m-%d}" else day.removeprefix(f"{now:%Y-}")


def _score(run: RunSummary) -> str:
    from secure_fl.cli import show

    return f"{show.metric_name(run.metric or '', run.scored_class)} {show.number(run.value)}"


@runs.command("show")
@click.argument("run", type=FOLDER)
@json_option
def show_(run: Path, as_json: bool) -> None:
    """Show the result of RUN, or its progress."""
    from secure_fl.cli import show
    from secure_fl.errors import RunError

    if not (run / "settings.toml").is_file():
        fix = "secure-fl runs FOLDER lists the runs of a folder"
        raise RunError("there is no run in this folder", fix=fix, file=run, reason="missing")
    document = read_json(run / "result.json")
    if as_json:
        show.print_json(document or asdict(summary(run)))
        return
    console = show.out()
    state = summary(run)
    console.print(f"{state.folder}: {state.status}, round {state.round} of {state.rounds}")
    if leads(document):
        console.print(f"{LEADS}; secure-fl status {run} shows its progress")
    elif document:
        _print_result(document, state, console)
    else:
        _print_latest_scores(run, console)
        console.print(f"continue with: secure-fl train CONFIG --out {run} --resume")


def _print_result(document: Mapping[str, Any], state: RunSummary, console: Console) -> None:
    from secure_fl.cli import show
    from secure_fl.display.learning_check import not_learned
    from secure_fl.display.result_tables import approved, convicted

    console.print(show.result_table(document, document["algorithm"]))
    if (entities := show.entity_table(document)) is not None:
        console.print(entities)
    versions = ", ".join(f"{k} {v}" for k, v in document["versions"].items())
    seconds = show.duration(document["seconds"]["total"])
    mode = show.protection(state.algorithm, state.protection)
    console.print(f"\nprotection {mode}, seed {document['seed']}, {seconds}")
    if (noise := show.noise_line(document)) is not None:
        console.print(noise)
    if document.get("model_round"):
        console.print(f"The saved model is the one after round {document['model_round']}.")
    for line in (*convicted(document).splitlines(), *approved(document).splitlines()):
        console.print(line)
    console.print(versions, style="dim")
    show.warn(console, not_learned(document))


def _print_latest_scores(run: Path, console: Console) -> None:
    """Print the latest scores of an unfinished run."""
    from secure_fl.cli import show
    from secure_fl.display.run_history import SPLITS, read_run_history

    story = read_run_history(run)
    for split in SPLITS:
        for number, score in (story.curve(split) or story.mean(split))[-1:]:
            score_text = f"{split} {story.metric_name} {show.number(score)}"
            console.print(f"{score_text} after round {number:.0f}, over all hospitals")


@runs.command("rm")
@click.argument("folders", type=FOLDER, nargs=-1, required=True)
@click.option("--checkpoints", is_flag=True, help="Remove only checkpoints.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(folders: tuple[Path, ...], checkpoints: bool, yes: bool) -> None:
    """Remove the runs in FOLDERS; running ones and privacy ledgers are kept.

    A hospital's record of the members of opened sums stays next to its ledger.
    """
    from secure_fl.cli import show
    from secure_fl.runs.erasing import erase, parts, require_erasable, size

    for folder in folders:
        require_erasable(folder, checkpoints=checkpoints)
    paths = [part for folder in folders for part in parts(folder, checkpoints=checkpoints)]
    freed, names = size(paths), ", ".join(map(str, folders))
    what = f"remove {'the checkpoints of ' if checkpoints else ''}{names} ({show.size(freed)})?"
    if not yes and not click.confirm(what, err=True):
        return
    erase(paths)
    click.echo(f"removed: {show.size(freed)}")


def find(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Find the runs in a folder: the folders with a settings.toml."""
    if (folder / "settings.toml").is_file():
        yield folder
    elif depth:
        for inner in sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != "."):
            yield from find(inner, depth - 1)


def summary(folder: Path) -> RunSummary:
    """Summarise a run's folder, finished or not."""
    from secure_fl.cli import show
    from secure_fl.runs.erasing import in_use

    settings = settings_of(folder)
    rounds = int(settings.get("algorithm", {}).get("rounds", 0))
    document = read_json(folder / "result.json")
    if leads(document):
        document = document | {"metrics": {"last": {"round": document.get("rounds", rounds)}}}
    reached = max(
        (
            int(p.name[6:])
            for p in folder.glob("parties/*/checkpoints/round-*")
            if p.name[6:].isdigit()
        ),
        default=0,
    )
    changed = max((p.stat().st_mtime for p in folder.iterdir()), default=0.0)
    return RunSummary(
        folder=str(folder),
        status="finished" if document else "running" if in_use(folder) else "stopped",
        algorithm=str(settings.get("algorithm", {}).get("name", "?")),
        protection=str(settings.get("protection", {}).get("mode", "?")),
        round=document.get("metrics", {}).get("last", {}).get("round", reached),
        rounds=rounds,
        metric=document.get("main_metric"),
        scored_class=document.get("scored_class"),
        value=show.metric_of(document, "delivered", "test") if document else None,
        bytes=sum(show.traffic(document)) if document else None,
        changed=datetime.fromtimestamp(changed).astimezone().strftime("%Y-%m-%d %H:%M"),
    )


def leads(document: Mapping[str, Any]) -> bool:
    """Check if a result is a coordinator's record of a pilot."""
    from secure_fl.display.run_history import LEAD

    return document.get("schema") == LEAD


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of a run; return {} for a missing or invalid one."""
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def settings_of(folder: Path) -> Mapping[str, Any]:
    """Read a run's settings; return {} if they are missing or invalid."""
    import tomllib

    try:
        return tomllib.loads((folder / "settings.toml").read_text())
    except (OSError, ValueError):
        return {}  # a run with invalid settings is still listed
