"""The pages of results, all of them computed from kept cells: anyone can write them again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence import defaults, defaults_page, paper_page
from benchmarks.evidence.chapters import chapters
from benchmarks.evidence.front import front


def pages(folder: Path, page: Path) -> dict[Path, str]:
    """Lay out the page that sums up, one for each paper beside its cells, and one of defaults."""
    found = chapters(folder)
    beside = {one.paper.table: paper_page.page(one) for one in found}
    beside[defaults.NAME] = defaults_page.page(folder)
    return {page: front(found)} | {folder / f"{name}.md": text for name, text in beside.items()}
