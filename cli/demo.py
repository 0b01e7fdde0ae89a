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
from secure_fl.cli.numbers import Whole

if TYPE_CHECKING:
    from rich.console import Console

INTRO = (  # without line breaks: terminals have many widths
    "Three hospitals want to find adverse drug events in their notes. Each has 240 labelled notes "
    "in a style of its own, and may not show them to anybody. First each learns alone; then they "
    "learn together: in the clear, so that the machine in the middle could read what each hospital "
    "sent; and once more, sealed: encrypted and masked, so that only the sum over all of them can "
    "be opened. FedKD then keeps a teacher at each hospital, and sends a student's update in its "
    "place, sealed as well.\n"
)
WHO_COULD_LOOK = "Who could look? What the coordinator carried was recorded, and is attacked now."


@click.command(
    epilog="""\b
Examples:
  secure-fl demo
  secure-fl demo --seeds 3                    with a spread over seeds
  secure-fl demo --algorithm fedadam --no-audit
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
    type=Whole(min=1),
    default=1,
    show_default=True,
    help="Repeat with so many seeds: other notes, another start.",
)
@click.option(
    "--rounds",
    type=Whole(min=1),
    default=5,
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
@click.option("--open", "open_", is_flag=True, help="Show the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, nothing else.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def demo(
    algorithm: str,
    seeds: int,
    rounds: int,
    out: Path | None,
    audit: bool,
    open_: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Watch three hospitals learn from built-in notes: alone, together in the clear, and sealed."""
    from secure_fl.cli import show

    console = show.err(quiet or as_json)
    out = out or _free_folder(Path("runs"), "demo")
    console.print(INTRO)
    started = time.perf_counter()
    try:
        runs = [_seed(seed, algorithm, rounds, out, console, audit) for seed in range(seeds)]
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; what was finished is in {out}. Again: secure-fl demo")
    from secure_fl.cli.compare import summarise
    from secure_fl.runs.folder import write_json

    summary = summarise(runs, time.perf_counter() - started)
    write_json(out / "result.json", summary)
    if not (as_json or quiet):
        _print(summary, out)
    entries = _page(out, algorithm, console, audit)
    if audit:
        summary["audit"] = entries
    summary["seconds"]["total"] = time.perf_counter() - started
    write_json(out / "result.json", summary)
    page = out / "report.html"
    if as_json:
        show.print_json(summary)
    elif not quiet:
        _conclude(summary, out, page)
    if open_:
        click.launch(str(page))


def _seed(
    seed: int, algorithm: str, rounds: int, out: Path, console: Console, record: bool
) -> dict[str, Mapping[str, Any]]:
    """Run one seed in every way; the first seed's are recorded, to be attacked."""
    with console.status("loading torch ..."):
        from secure_fl.cli.demo_runs import ALONE, together
        from secure_fl.cli.train import run

    documents: dict[str, Mapping[str, Any]] = {}
    for way in (ALONE, *together(algorithm)):
        settings = way.settings(seed, rounds, record=record and seed == 0 and way is not ALONE)
        folder = out / f"seed-{seed}" / way.folder
        documents[way.folder] = run(settings, folder, console, title=f"seed {seed}: {way.title}")
        console.print()
    return documents


def _page(out: Path, algorithm: str, console: Console, audit: bool) -> list[dict[str, Any]]:
    """Attack the first seed's runs, or not, and write one page of them all."""
    from secure_fl.cli.demo_runs import ALONE, attack, summary, titled, together
    from secure_fl.display.comparing import comparison_page
    from secure_fl.files import write_whole

    alone, *folders = (out / "seed-0" / way.folder for way in (ALONE, *together(algorithm)))
    if not audit:
        write_whole(out / "report.html", comparison_page(titled([alone, *folders])))
        return []
    console.print(WHO_COULD_LOOK)
    try:
        with console.status("") as status:
            return summary(attack(folders, out, [alone], status.update))
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; the runs are in {out}, without their audit")


def _print(summary: Mapping[str, Any], out: Path) -> None:
    from secure_fl.cli import show
    from secure_fl.cli.compare import table

    console = show.out()
    console.print(table(summary))
    margin, price = summary["margin"]["mean"], summary["price"]["mean"]
    sent = fmean(entry["up"] for entry in summary["bytes"].values())
    received = fmean(entry["down"] for entry in summary["bytes"].values())
    console.print(
        f"\nTogether and sealed they are {abs(100 * margin):.1f} points of "
        f"{summary['main_metric']} {'better' if margin >= 0 else 'worse'} than alone, on notes "
        "none of them trained on.",
        style="bold green" if margin >= 0 else "bold red",
    )
    console.print(
        f"Sealing changed that score by {100 * price:+.1f} points, and took "
        f"{100 * summary['privacy_share']:.1f} % of the rounds' time. Each hospital sent "
        f"{show.size(sent)} and received {show.size(received)} in {summary['rounds']} rounds.\n"
        f"{summary['protection']['statement']}\n"
    )


def _conclude(summary: Mapping[str, Any], out: Path, page: Path) -> None:
    """What the attacks found, and where everything is."""
    from secure_fl.cli import show

    console = show.out()
    if entries := summary.get("audit"):
        console.print(audit_table(entries))
    console.print(f"\n{show.duration(summary['seconds']['total'])} for everything.")
    note = '"Rash settled after stopping velodorin."'
    again = [
        "Use the model, or repeat with other notes:",
        f"  secure-fl predict {out}/seed-0/sealed {note}",
        "  secure-fl demo --seeds 3\n",
        f"All runs on one page, with pictures: {page}",
    ]
    console.print("\n".join(again), soft_wrap=True)  # to be copied, and clicked on


def _free_folder(parent: Path, name: str) -> Path:
    """Find a folder that no earlier demo has written to."""
    folder, count = parent / name, 1
    while folder.exists():
        count += 1
        folder = parent / f"{name}-{count}"
    return folder


def audit_table(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Lay out what the coordinator got from each federation."""
    from secure_fl.cli import show

    columns = ["", "words of notes", "one update", "the sum", "audit"]
    rows = [
        [
            entry["name"],
            f"{100 * entry['words_recovered']:.0f} %",
            _how_read(entry["update_read"]),
            _how_read(entry["sum_read"]),
            entry["status"],
        ]
        for entry in entries
    ]
    return show.grid("what the coordinator got, with its correlation to the truth", columns, rows)


def _how_read(value: float) -> str:
    return f"{'read' if value >= 0.5 else 'noise'} ({value:.2f})"
