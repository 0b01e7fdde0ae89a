"""A hook of mkdocs: pages of other folders, generated pages, and the links between them."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

from secure_fl.cli.docs import SITE

ROOT = Path(__file__).parent.parent
TOP = ("README.md", "LICENSE", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
OTHER = (
    "examples/*.*",
    "examples/*/*.*",
    "benchmarks/results/*.md",
    "benchmarks/results/*.svg",
    "vectors/*.md",
)
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of other folders, and the generated ones."""
    found = [path.relative_to(ROOT).as_posix() for glob in OTHER for path in ROOT.glob(glob)]
    for path in (*TOP, *sorted(found)):
        files.append(File.generated(config, _in_site(path), abs_src_path=str(ROOT / path)))
    for name, make in SITE.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""
    here = page.file.src_uri
    source = "README.md" if here == "index.md" else here
    if not source.startswith(("examples/", "benchmarks/", "vectors/")) and source not in TOP:
        source = f"docs/{source}"

    def link_in_site(link: re.Match[str]) -> str:
        target = _in_site(normpath(f"{dirname(source)}/{link[2]}".lstrip("/")))
        return f"{link[1]}{relpath(target, dirname(here) or '.')}{link[3] or ''})"

    return LINK.sub(link_in_site, markdown)


def _in_site(path: str) -> str:
    """Return the place of the repository's file in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")
