"""`secure-fl runs`: what runs there are, and what one came to."""

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
from secure_fl.cli.group import Told

if TYPE_CHECKING:
    from rich.console import Console

DEPTH = 3  # folders below the one that is listed
AsJson = click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its folder tells."""

    folder: str
    status: str  # finished, running, stopped
    algorithm: str
    protection: str
    round: int
    rounds: int
    metric: str | None
    value: float | None  # of the last round, mean over the test records
    bytes: float | None
    changed: str


class _Runs(Told):
    """`secure-fl runs FOLDER` lists, `secure-fl runs show RUN` shows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is no command for the folder to list."""
        if not {"-h", "--help"} & set(args) and not (args and args[0] in self.commands):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Runs,
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
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="runs")
@AsJson
def list_(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (without "list" too: secure-fl runs FOLDER)."""
    from secure_fl.cli import show
    from secure_fl.errors import RunError

    if not folder.is_dir():
        near = get_close_matches(str(folder), runs.commands, n=1)
        fix = "name the folder that holds runs; secure-fl train makes them"
        fix = f"did you mean secure-fl runs {near[0]}? else {fix}" if near else fix
        raise RunError("there is no such folder", fix=fix, file=folder, reason="missing")
    found = [summary(run) for run in find(folder)]
    if as_json:
        show.print_json([asdict(run) for run in found])
        return
    if not found:
        click.echo(f"no run in {folder}; secure-fl demo or secure-fl train makes one")
        return
    columns = ["run", "status", "algorithm", "protection", "round", "metric", "bytes", "changed"]
    this_year = f"{datetime.now().astimezone():%Y-}"
    rows = [
        [
            run.folder,
            run.status,
            run.algorithm,
            show.protection(run.algorithm, run.protection),
            f"{run.round}/{run.rounds}",
            f"{run.metric} {show.number(run.value)}" if run.metric else "-",
            "-" if run.bytes is None else show.size(run.bytes),
            run.changed.removeprefix(this_year),
        ]
        for run in found
    ]
    show.out().print(show.grid("", columns, rows))


@runs.command("show")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@AsJson
def show_(run: Path, as_json: bool) -> None:
    """Show the result of RUN, or how far it is."""
    from secure_fl.cli import show
    from secure_fl.display.result_tables import approved, convicted
    from secure_fl.errors import RunError

    if not (run / "settings.toml").is_file():
        fix = "secure-fl runs FOLDER lists the runs of a folder"
        raise RunError("there is no run in this folder", fix=fix, file=run, reason="missing")
    document = read_json(run / "result.json")
    if as_json:
        show.print_json(document or asdict(summary(run)))
        return
    found = summary(run)
    console = show.out()
    console.print(f"{found.folder}: {found.status}, round {found.round} of {found.rounds}")
    if not document:
        _so_far(run, console)
        console.print(f"go on with: secure-fl train CONFIG --out {run} --resume")
        return
    console.print(show.result_table(document, document["algorithm"]))
    if (entities := show.entity_table(document)) is not None:
        console.print(entities)
    versions = ", ".join(f"{k} {v}" for k, v in document["versions"].items())
    seconds = show.duration(document["seconds"]["total"])
    shielded = show.protection(found.algorithm, found.protection)
    console.print(f"\nprotection {shielded}, seed {document['seed']}, {seconds}")
    if (noise := show.noise_line(document)) is not None:
        console.print(noise)
    if document.get("model_round"):
        console.print(f"what was learned up to round {document['model_round']} is kept")
    for line in (*convicted(document).splitlines(), *approved(document).splitlines()):
        console.print(line)
    console.print(versions, style="dim")


def _so_far(run: Path, console: Console) -> None:
    """The scores of the last round that has any, of a run that is not finished."""
    from secure_fl.cli import show
    from secure_fl.display.run_history import SPLITS, read_run_history

    story = read_run_history(run)
    for split in SPLITS:
        for number, score in (story.curve(split) or story.mean(split))[-1:]:
            said = f"{split} {story.metric} {show.number(score)} after round {number:.0f}"
            console.print(f"{said}, over all hospitals")


@runs.command("rm")
@click.argument(
    "folders", type=click.Path(path_type=Path, file_okay=False), nargs=-1, required=True
)
@click.option("--checkpoints", is_flag=True, help="Remove only what a run could go on from.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(folders: tuple[Path, ...], checkpoints: bool, yes: bool) -> None:
    """Remove the runs in FOLDERS, but none that is under way, and no ledger of privacy.

    Over whom a hospital's sums were opened is kept beside its ledger.
    """
    from secure_fl.cli import show
    from secure_fl.runs.erasing import erase, parts, require_erasable, size

    for folder in folders:
        require_erasable(folder, checkpoints=checkpoints)
    held = [part for folder in folders for part in parts(folder, checkpoints=checkpoints)]
    freed, names = size(held), ", ".join(map(str, folders))
    what = f"remove {'the checkpoints of ' if checkpoints else ''}{names} ({show.size(freed)})?"
    if not yes and not click.confirm(what, err=True):
        return
    erase(held)
    click.echo(f"removed: {show.size(freed)}")


def find(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Find the runs in a folder: those folders that hold settings as a run writes them."""
    if (folder / "settings.toml").is_file():
        yield folder
    elif depth:
        for inner in sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != "."):
            yield from find(inner, depth - 1)


def summary(folder: Path) -> Run:
    """Tell what a run's folder holds, whole or not."""
    from secure_fl.cli import show
    from secure_fl.runs.erasing import in_use

    asked = _settings(folder)
    document = read_json(folder / "result.json")
    reached = max(
        (
            int(p.name[6:])
            for p in folder.glob("parties/*/checkpoints/round-*")
            if p.name[6:].isdigit()
        ),
        default=0,
    )
    changed = max((p.stat().st_mtime for p in folder.iterdir()), default=0.0)
    return Run(
        folder=str(folder),
        status="finished" if document else "running" if in_use(folder) else "stopped",
        algorithm=str(asked.get("algorithm", {}).get("name", "?")),
        protection=str(asked.get("protection", {}).get("mode", "?")),
        round=document.get("metrics", {}).get("last", {}).get("round", reached),
        rounds=int(asked.get("algorithm", {}).get("rounds", 0)),
        metric=document.get("main_metric"),
        value=show.metric_of(document, "last", "test") if document else None,
        bytes=sum(show.traffic(document)) if document else None,
        changed=datetime.fromtimestamp(changed).astimezone().strftime("%Y-%m-%d %H:%M"),
    )


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of a run; a missing or broken one holds nothing."""
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _settings(folder: Path) -> Mapping[str, Any]:
    import tomllib

    try:
        return tomllib.loads((folder / "settings.toml").read_text())
    except (OSError, ValueError):
        return {}  # a run whose settings are broken is still listed
