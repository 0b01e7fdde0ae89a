"""`secure-fl demo`: three hospitals with built-in data, alone and together, and an audit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.group import INTERRUPTED, stop
from secure_fl.cli.options import FOLDER, Names, json_option, no_progress_option

if TYPE_CHECKING:
    from rich.console import Console

    from secure_fl.audits.document import AuditDocument

INTRO = (  # without line breaks: terminals differ in width
    "Three hospitals want to find adverse drug events in their notes. Each has 240 labelled notes "
    "in its own style, and may not show them to anybody. First, each hospital trains alone. Then "
    "they train together without protection: the coordinator can read the update of each hospital. "
    "The third time, updates are encrypted and masked: only the sum over all hospitals can be "
    "opened. Last, FedKD keeps a teacher model at each hospital and sends the protected update of "
    "a student model instead.\n"
)
ATTACKS = "What could the coordinator see? Its recorded view is attacked now."
EMBEDDINGS = (
    "The demo trains the word embeddings (freeze_embeddings = false). By default they are frozen, "
    "and no update reveals words in this way."
)
SCHEMA = "secure-fl/demo/2"
NAMES = ("alone", "clear", "sealed", "fedkd")


@click.command(
    epilog="""\b
Examples:
  secure-fl demo
  secure-fl demo --seeds 3                    with a spread over seeds
  secure-fl demo --algorithm fedadam --no-audit
  secure-fl demo --json --out /tmp/demo > summary.json"""
)
@click.option("--algorithm", type=Names(["fedavg", "fedadam"]), default="fedavg", show_default=True,
              help="Algorithm of the joint training.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True,
              help="Number of seeds; each has other notes and initial weights.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True,
              help="Rounds of each run.")  # fmt: skip
@click.option("--out", type=FOLDER,
              help="Output folder.  [default: runs/demo, or the next free name]")  # fmt: skip
@click.option("--audit/--no-audit", default=True, show_default=True,
              help="Attack the coordinator's view with and without protection.")  # fmt: skip
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
@json_option
@no_progress_option
def demo(
    algorithm: str, seeds: int, rounds: int, out: Path | None, audit: bool, open_: bool,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Watch three hospitals learn from built-in notes: alone, unprotected, and protected.

    It takes two to four minutes on two cores (about 1 min 40 s of processor time). Each further
    seed trains again, without attacks. It writes about 70 MB into the output folder, by default
    runs/demo below the working directory: four runs with models and recorded messages, the
    attacks' own runs, and one page of everything, report.html.
    """
    from secure_fl.cli import show
    from secure_fl.runs.folder import write_json

    console, out = show.err(quiet or as_json), out or _free_folder(Path("runs"), "demo")
    console.print(INTRO)
    started = time.perf_counter()
    try:
        runs = [_seed(seed, algorithm, rounds, out, console, audit) for seed in range(seeds)]
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; finished runs are in {out}. Start again: secure-fl demo")
    summary = summarise(runs, time.perf_counter() - started)
    write_json(out / "result.json", summary)
    if not (as_json or quiet):
        _print(summary, out)
    documents = _page(out, algorithm, console, audit)
    if audit:
        from secure_fl.cli.demo_runs import summary as audit_summary

        summary["audit"] = audit_summary(documents)
    summary["seconds"]["total"] = time.perf_counter() - started
    write_json(out / "result.json", summary)
    page = out / "report.html"
    if as_json:
        show.print_json(summary)
    elif not quiet:
        _print_end(documents, summary["seconds"]["total"], out, page)
    if open_:
        click.launch(str(page))


def _seed(
    seed: int, algorithm: str, rounds: int, out: Path, console: Console, record: bool
) -> dict[str, Mapping[str, Any]]:
    """Run all four trainings of one seed; those of the first seed are recorded for attacks."""
    with console.status("loading torch ..."):
        from secure_fl.cli.demo_runs import ALONE, together
        from secure_fl.cli.train import run

    documents: dict[str, Mapping[str, Any]] = {}
    for plan in (ALONE, *together(algorithm)):
        settings = plan.settings(seed, rounds, record=record and seed == 0 and plan is not ALONE)
        folder = out / f"seed-{seed}" / plan.folder
        documents[plan.folder] = run(settings, folder, console, title=f"seed {seed}: {plan.title}")
        console.print()
    return documents


def _page(out: Path, algorithm: str, console: Console, audit: bool) -> list[AuditDocument]:
    """Write one page of the first seed's runs, with attacks on them if asked."""
    from secure_fl.cli.demo_runs import ALONE, attack, titled, together
    from secure_fl.display.compare_page import comparison_page
    from secure_fl.files import write_whole

    alone, *folders = (out / "seed-0" / plan.folder for plan in (ALONE, *together(algorithm)))
    if not audit:
        write_whole(out / "report.html", comparison_page(titled([alone, *folders])))
        return []
    console.print(ATTACKS)
    try:
        with console.status("") as status:
            return attack(folders, out, [alone], status.update)
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; the runs are in {out}, without an audit")


def _print(summary: Mapping[str, Any], out: Path) -> None:
    from secure_fl.cli import show

    console = show.out()
    console.print(table(summary))
    margin, price = summary["margin"]["mean"], summary["price"]["mean"]
    sent = fmean(entry["up"] for entry in summary["bytes"].values())
    received = fmean(entry["down"] for entry in summary["bytes"].values())
    console.print(
        f"\nTogether with protection, {summary['main_metric']} on unseen notes is "
        f"{abs(100 * margin):.1f} points {'higher' if margin >= 0 else 'lower'} than alone.",
        style="bold green" if margin >= 0 else "bold red",
    )
    console.print(
        f"Protection changed the score by {100 * price:+.1f} points, and took "
        f"{100 * summary['privacy_share']:.1f} % of the rounds' time. Each hospital sent "
        f"{show.size(sent)} and received {show.size(received)} in {summary['rounds']} rounds.\n"
        f"{summary['protection']['statement']}\n"
    )


def _print_end(documents: Sequence[AuditDocument], seconds: float, out: Path, page: Path) -> None:
    """Print the results of the attacks, and the places of all files."""
    from secure_fl.cli import show

    console = show.out()
    if documents:
        from secure_fl.audits.report.leaks import grouped
        from secure_fl.audits.report.report_tables import reconstructed

        found = reconstructed(documents)
        console.print(show.grid(found.caption, found.header, found.rows))
        for leak in grouped(documents):
            console.print(f"\n{leak.runs[:1].upper()}{leak.runs[1:]}: {leak.text}")
        console.print(f"\n{EMBEDDINGS}")
    console.print(f"\nTotal time: {show.duration(seconds)}.")
    note = '"Rash settled after stopping velodorin."'
    again = [
        "Use the model, or repeat with other notes:",
        f"  secure-fl predict {out}/seed-0/sealed {note}",
        "  secure-fl demo --seeds 3\n",
        f"All runs on one page, with charts: {page}",
    ]
    console.print("\n".join(again), soft_wrap=True)  # for copying and clicking


def _free_folder(parent: Path, name: str) -> Path:
    """Return a folder name that does not exist yet."""
    folder, count = parent / name, 1
    while folder.exists():
        count += 1
        folder = parent / f"{name}-{count}"
    return folder


def summarise(runs: Sequence[Mapping[str, Mapping[str, Any]]], seconds: float) -> dict[str, Any]:
    """Compare the runs of each seed by the test metric of the last round.

    "margin": protected minus alone; "price": protected minus unprotected.
    """
    by_name = {name: [run[name] for run in runs] for name in NAMES}
    first = by_name["sealed"][0]
    scores = {name: _scores(documents) for name, documents in by_name.items()}
    best = scores["sealed"]["best"]["mean"] - scores["alone"]["best"]["mean"]
    margin = _difference(scores["sealed"], scores["alone"])
    spent = {
        name: fmean(document["seconds"]["total"] for document in documents)
        for name, documents in by_name.items()
    }
    shares = [document["seconds"]["privacy_share"] for document in by_name["sealed"]]
    return {
        "schema": SCHEMA,
        "algorithm": first["algorithm"],
        "main_metric": first["main_metric"],
        "protection": first["protection"],
        "parties": first["parties"],
        "rounds": first["rounds"],
        "seeds": [document["seed"] for document in by_name["sealed"]],
        **scores,
        "margin": margin | {"min": min(margin["seed"]), "best": best},
        "price": _difference(scores["sealed"], scores["clear"]),
        "bytes": first["bytes"],
        "privacy_share": fmean(shares),
        "seconds": {"total": seconds, **spent},
    }


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences of two ways for each seed."""
    values = [a - b for a, b in zip(ours["seed"], theirs["seed"], strict=True)]
    return _spread(values) | {"seed": values}


def _scores(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the main metric on all test records in the last round, over seeds and per hospital.

    "best" is the round with the best dev metric, as in a run's result.json.
    """
    from secure_fl.cli.show import metric_of

    means = [metric_of(document, "last", "test") or 0.0 for document in documents]
    best = [metric_of(document, "best", "test") or 0.0 for document in documents]
    party = {
        name: _spread([metric_of(document, "last", "test", name) or 0.0 for document in documents])
        for name in documents[0]["parties"]
    }
    return _spread(means) | {"seed": means, "party": party, "best": _spread(best)}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}


def table(summary: Mapping[str, Any]) -> Any:
    """Return the table of a summary: all hospitals, and each of them, in every way."""
    from secure_fl.cli.show import grid
    from secure_fl.display.grid import TOGETHER

    scores = [summary[name] for name in NAMES]
    lines = [(TOGETHER, scores)]
    lines += [(name, [score["party"][name] for score in scores]) for name in summary["parties"]]
    rows = [[name, *map(_shown, of_ways)] for name, of_ways in lines]
    seeds = len(summary["seeds"])
    title = f"test {summary['main_metric']} in %, {seeds} seed{'s' * (seeds > 1)}, last round"
    heads = ["hospital", "alone", "unprotected", "sealed", "FedKD, sealed"]
    return grid(title, heads, rows)


def _shown(score: Mapping[str, Any]) -> str:
    spread = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    return f"{100 * score['mean']:.1f}{spread}"
