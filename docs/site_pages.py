"""Gives the site the pages that stand at the repository's top, and mends links between the two."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the top, and the examples."""
    for path in (*TOP, *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("examples/*"))):
        files.append(File.generated(config, _in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    here = page.file.src_uri
    source = "README.md" if here == "index.md" else here
    if not source.startswith("examples/") and source not in TOP:
        source = f"docs/{source}"

    def mended(link: re.Match[str]) -> str:
        target = _in_site(normpath(f"{dirname(source)}/{link[2]}".lstrip("/")))
        return f"{link[1]}{relpath(target, dirname(here) or '.')}{link[3] or ''})"

    return LINK.sub(mended, markdown)


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")
