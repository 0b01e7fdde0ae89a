"""`secure-fl docs`: the installed pages, and the generated ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size

import click

DISTRIBUTION, PAGES = "sealed-federation", "share/doc/secure_fl"


@click.command(
    epilog="""\b
Examples:
  secure-fl docs             list the pages
  secure-fl docs pilot       read docs/pilot.md on the terminal
  secure-fl docs settings    a page that is generated from the program
  secure-fl docs governance/dpia | less"""
)
@click.argument("page", required=False)
def docs(page: str | None) -> None:
    """Read a PAGE of the documentation, or list the pages."""
    from secure_fl.cli.reference import PAGES as GENERATED
    from secure_fl.errors import nearest

    folder = installed_root() / "docs"
    files = {_name(folder, file): file for file in sorted(folder.rglob("*.md"))}
    if page is None:
        _list(folder, files, GENERATED)
        return
    name = page.removeprefix("docs/").removesuffix(".md").removesuffix("/README")
    if name in files:
        _show(files[name].read_text(encoding="utf-8"))
    elif name in GENERATED:
        _show(GENERATED[name]())
    else:
        known = sorted({*files, *GENERATED})
        raise click.UsageError(f"there is no page {page!r}; {nearest(name, known)}")


def _list(folder: Path, files: Mapping[str, Path], generated: Iterable[str]) -> None:
    click.echo(f"in {folder}:")
    for name, file in files.items():
        click.echo(f"  {name:<22}{_title(file)}")
    click.echo("generated from the program:")
    for name in generated:
        click.echo(f"  {name}")


def _show(text: str) -> None:
    """Print a page: as Markdown if the output is no terminal, else rendered, through a pager."""
    if not sys.stdout.isatty() or text.startswith("{"):
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    rendered = StringIO()
    Console(file=rendered, force_terminal=True, width=min(get_terminal_size().columns, 100)).print(
        Markdown(text, hyperlinks=False)
    )
    click.echo_via_pager(rendered.getvalue())


def installed_root() -> Path:
    """Return the folder of docs/ and examples/: this checkout, or the wheel's data."""
    import secure_fl
    from secure_fl.errors import RunError

    checkout = Path(secure_fl.__file__).parent.parent
    if (checkout / "docs" / "pilot.md").exists():
        return checkout
    from importlib.metadata import files

    for file in files(DISTRIBUTION) or ():
        if file.as_posix().endswith(f"{PAGES}/README.md"):
            return Path(str(file.locate())).resolve().parent
    fix = "install the complete wheel, or read docs/ in the release"
    raise RunError("no pages are installed", fix=fix, file=checkout, reason="missing")


def _name(docs: Path, file: Path) -> str:
    """Return what a user types for a page; a folder's first page has the folder's name."""
    return file.relative_to(docs).with_suffix("").as_posix().removesuffix("/README")


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as page:
        return page.readline().lstrip("# ").strip()
