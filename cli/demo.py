"""`secure-fl demo`: three hospitals on built-in data, alone and together, and who could look."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.choices import Names
from secure_fl.cli.group import INTERRUPTED, stop

if TYPE_CHECKING:
    from rich.console import Console

LOCAL = "local"
SETTINGS = """\
[run]
seed = {seed}
[task]
max_length = 64
[data]
corpus = "ade"
parties = 3
size = 240
[model]
layers = 2
[training]
learning_rate = 1.5e-3
schedule = "constant"
batch_size = 16
device = "cpu"
[protection]
mode = "he+secagg"
[algorithm]
name = "{algorithm}"
rounds = {rounds}
epochs = 3
"""
INTRO = """\
Three hospitals want to find adverse drug events in their notes. Each has 240 labelled notes
in a style of its own, and may not show them to anybody. First each learns alone; then they learn
together: what they send is encrypted and masked, and only the sum over all of them can be opened.
"""


@click.command(
    epilog="""\b
Examples:
  secure-fl demo
  secure-fl demo --seeds 1 --algorithm fedadam --no-audit
  secure-fl demo --json --out /tmp/demo > summary.json"""
)
@click.option(
    "--algorithm",
    type=Names(["fedavg", "fedadam"]),
    default="fedavg",
    show_default=True,
    help="How the hospitals learn together.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Repeat with so many seeds: other notes, another start.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Rounds of each run.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where results go.  [default: runs/demo, or the next free name]",
)
@click.option(
    "--audit/--no-audit",
    default=True,
    show_default=True,
    help="In the end, attack what a coordinator sees, with and without protection.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def demo(
    algorithm: str,
    seeds: int,
    rounds: int,
    out: Path | None,
    audit: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Watch three hospitals learn from built-in notes, alone and together."""
    from secure_fl.cli import show

    console = show.err(quiet or as_json)
    out = out or _free_folder(Path("runs"), "demo")
    console.print(INTRO)
    started = time.perf_counter()
    try:
        runs = [_pair(seed, algorithm, rounds, out, console) for seed in range(seeds)]
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; what was finished is in {out}. Again: secure-fl demo")
    from secure_fl.cli.compare import summarise

    summary = summarise(runs, time.perf_counter() - started)
    from secure_fl.runs.folder import write_json

    write_json(out / "result.json", summary)
    if not (as_json or quiet):
        _print(summary, out)
    if audit:
        summary["audit"] = _audit(out, console, shown=not (as_json or quiet))
        write_json(out / "result.json", summary)
    if as_json:
        show.print_json(summary)


def _audit(out: Path, console: Console, *, shown: bool) -> list[dict[str, Any]]:
    """Attack three small federations, and show what came of it."""
    from secure_fl.audits.demonstration import demonstrate, summary
    from secure_fl.audits.report import PAGE
    from secure_fl.cli import show

    console.print(WHO_COULD_LOOK)
    started = time.perf_counter()
    try:
        with console.status("") as status:
            entries = summary(demonstrate(0, out / "audit", status.update))
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; the runs are in {out}, without their audit")
    if shown:
        results = show.out()
        results.print()
        results.print(audit_table(entries))
        spent = show.duration(time.perf_counter() - started)
        results.print(f"\n{spent}. Who can see what, and how it was tried: {out}/audit/{PAGE}")
    return entries


def _pair(
    seed: int, algorithm: str, rounds: int, out: Path, console: Console
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one seed alone and together."""
    with console.status("loading torch ..."):
        import torch

        from secure_fl.cli.train import run
        from secure_fl.config.load import loads

    # One thread: the built-in model is too small for more, and sums then round alike everywhere.
    torch.set_num_threads(1)
    documents = []
    for name, title in ((LOCAL, "alone"), (algorithm, f"together, with {algorithm}")):
        settings = loads(SETTINGS.format(seed=seed, algorithm=name, rounds=rounds))
        folder = out / f"seed-{seed}" / name
        documents.append(run(settings, folder, console, title=f"seed {seed}: {title}"))
        console.print()
    return documents[0], documents[1]


def _print(summary: Mapping[str, Any], out: Path) -> None:
    from secure_fl.cli import show
    from secure_fl.cli.compare import table

    console = show.out()
    console.print(table(summary))
    margin = summary["margin"]["mean"]
    sent = fmean(entry["up"] for entry in summary["bytes"].values())
    received = fmean(entry["down"] for entry in summary["bytes"].values())
    console.print(
        f"\nTogether they are {abs(100 * margin):.1f} points of {summary['main_metric']} "
        f"{'better' if margin >= 0 else 'worse'} than alone, on notes none of them trained on.",
        style="bold green" if margin >= 0 else "bold red",
    )
    console.print(
        f"Each sent {show.size(sent)} and received {show.size(received)} in {summary['rounds']} "
        f"rounds; {show.duration(summary['seconds']['total'])} for everything. "
        f"Keeping updates secret took {100 * summary['privacy_share']:.1f} % of the rounds' time.\n"
        f"{summary['protection']['statement']}\n\n"
        f"All results are in {out}. Look at them, and use the model:\n"
        f"  secure-fl runs {out}\n"
        f"  secure-fl predict {out}/seed-0/{summary['algorithm']} "
        '"Rash settled after stopping velodorin."'
    )


def _free_folder(parent: Path, name: str) -> Path:
    """Find a folder that no earlier demo has written to."""
    folder, count = parent / name, 1
    while folder.exists():
        count += 1
        folder = parent / f"{name}-{count}"
    return folder


WHO_COULD_LOOK = """\
Who could look? Three small federations of the same hospitals are recorded and attacked: averaging
of all weights in the clear; FedKD, whose embeddings stay frozen and of whose updates only factors
travel; and the same, encrypted and masked, as secure-fl ships it."""


def audit_table(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Lay out what the coordinator got from each federation."""
    from secure_fl.cli import show

    columns = [
        "what the coordinator got",
        "words of the notes",
        "a hospital's update",
        "the sum",
        "test accuracy",
        "audit",
    ]
    rows = [
        [
            entry["name"],
            f"{100 * entry['words_recovered']:.0f} %",
            _how_read(entry["update_read"]),
            _how_read(entry["sum_read"]),
            show.number(entry["accuracy"]),
            entry["status"],
        ]
        for entry in entries
    ]
    return show.grid("", columns, rows)


def _how_read(value: float) -> str:
    return f"read (correlation {value:.2f})" if value >= 0.5 else f"noise (correlation {value:.2f})"
