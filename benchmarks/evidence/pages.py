"""The pages of results, all of them computed from kept cells: anyone can write them again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence import paper_page
from benchmarks.evidence.chapters import chapters
from benchmarks.evidence.front import front


def pages(folder: Path, page: Path) -> dict[Path, str]:
    """Lay out the page that sums up, and one for each paper beside its cells."""
    found = chapters(folder)
    return {page: front(found)} | {
        folder / f"{one.paper.table}.md": paper_page.page(one) for one in found
    }
