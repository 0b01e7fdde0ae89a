"""`python -m benchmarks results`: write the page of results from the finished cells."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import click

from secure_fl.cli.group import stop
from secure_fl.errors import RunError, SettingsError

STALE = 1
FOLDER, PAGE = Path("docs") / "results", Path("docs") / "results.md"


@click.command(
    epilog="""\b
Examples:
  python -m benchmarks papers --table fedkd --work docs/results/fedkd   finish cells
  python -m benchmarks results                  write the page
  python -m benchmarks results --check          is it what the cells say?"""
)
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Where the work folders of the tables lie, each under its table's name.",
)
@click.option(
    "--write",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    default=PAGE,
    show_default=True,
    help="The page.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the page differs.")
def results(folder: Path, page: Path, check: bool) -> None:
    """Write the page of results: our figures, the papers' beside them, and what agrees.

    It is computed from finished cells alone; neither data sets nor checkpoints are read.
    """
    from benchmarks.evidence.page import page as laid_out

    if not folder.is_dir():
        fix = "go to the repository's root, or say where they are"
        raise SettingsError(f"there is no folder {str(folder)!r}", fix=fix, option="--from")
    text = laid_out(folder)
    try:
        if check:
            _compare(page.read_text() if page.exists() else "", text, page)
        else:
            page.write_text(text)
    except OSError as error:
        what = f"the page cannot be {'read' if check else 'written'} ({error.strerror})"
        raise RunError(what, fix="name another with --write", file=page) from error


def _compare(found: str, text: str, page: Path) -> None:
    lines = zip_longest(found.splitlines(), text.splitlines())
    for number, (there, wanted) in enumerate(lines, start=1):
        if there != wanted:
            where = f"{page}, line {number}, is not what the cells say"
            fix = "  -> python -m benchmarks results writes it again"
            stop(STALE, f"{where}:\n  page:  {there}\n  cells: {wanted}\n{fix}")
