"""`python -m benchmarks results`: write the pages of results from the finished cells."""

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
  python -m benchmarks results                  write the pages
  python -m benchmarks results --check          are they what the cells say?"""
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
    help="The page that sums up.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a page differs.")
def results(folder: Path, page: Path, check: bool) -> None:
    """Write the pages of results: one that sums up, and one for each table beside its cells.

    They are computed from finished cells alone; neither data sets nor checkpoints are read.
    """
    from benchmarks.evidence.pages import pages

    if not folder.is_dir():
        fix = "go to the repository's root, or say where they are"
        raise SettingsError(f"there is no folder {str(folder)!r}", fix=fix, option="--from")
    for file, text in pages(folder, page).items():
        try:
            if check:
                _compare(file.read_text() if file.exists() else "", text, file)
            else:
                file.write_text(text)
        except OSError as error:
            what = f"the page cannot be {'read' if check else 'written'} ({error.strerror})"
            raise RunError(
                what, fix="name another with --write or --from", file=file, reason="malformed"
            ) from error


def _compare(found: str, text: str, page: Path) -> None:
    lines = zip_longest(found.splitlines(), text.splitlines())
    for number, (there, wanted) in enumerate(lines, start=1):
        if there != wanted:
            where = f"{page}, line {number}, is not what the cells say"
            fix = "  -> python -m benchmarks results writes it again"
            stop(STALE, f"{where}:\n  page:  {there}\n  cells: {wanted}\n{fix}")
