"""`secure-fl docs`: the pages that were installed with the program."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

DISTRIBUTION, PAGES = "sealed-federation", "share/doc/secure_fl"


@click.command(
    epilog="""\b
Examples:
  secure-fl docs             list the pages, and their folder
  secure-fl docs pilot       read docs/pilot.md here
  secure-fl docs governance/dpia"""
)
@click.argument("page", required=False)
def docs(page: str | None) -> None:
    """Read a PAGE of the documentation, or list the pages."""
    root = installed_root()
    pages = {_name(root / "docs", file): file for file in sorted((root / "docs").rglob("*.md"))}
    if page is None:
        click.echo(f"in {root / 'docs'}:")
        for name, file in pages.items():
            click.echo(f"  {name:<22}{_title(file)}")
        return
    name = page.removeprefix("docs/").removesuffix(".md").removesuffix("/README")
    if name not in pages:
        near = get_close_matches(name, pages, n=1, cutoff=0.5)
        similar = f"did you mean {near[0]}? " if near else ""
        raise click.UsageError(f"there is no page {name!r}: {similar}secure-fl docs lists all")
    click.echo_via_pager(pages[name].read_text(encoding="utf-8"))


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
