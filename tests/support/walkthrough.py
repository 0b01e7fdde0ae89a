"""Renders programs in cells as pages: `python -m tests.support.walkthrough` writes the page.

A cell of text becomes text. A cell of code becomes a block of code and a block of its output.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walkthroughs.md"
SCRIPTS = ("first_federation", "reading_an_audit")
CELL = re.compile(r"^# %%(.*)\n", re.M)


def render(script: str) -> str:
    """Run a program of examples/, and return its text, code and output as Markdown."""
    text = (ROOT / "examples" / f"{script}.py").read_text(encoding="utf-8")
    module: dict[str, Any] = {"__name__": script}
    parts = CELL.split(text)[1:]
    cells = zip(parts[::2], parts[1::2], strict=True)
    return "\n\n".join(_cell(kind, body.strip(), module) for kind, body in cells)


def _cell(kind: str, body: str, module: dict[str, Any]) -> str:
    if "markdown" in kind:
        return re.sub(r"^# ?", "", body, flags=re.M).replace("# ", "## ", body.startswith("# # "))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "cell", "exec"), module)  # noqa: S102
    output = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    return f"```python\n{body}\n```" + f"\n\n```text\n{output}\n```" * bool(output)


def section(page: str, script: str) -> str:
    """Return the part of a page that a program writes."""
    return page.split(f"<!-- {script} -->\n")[1].split("\n<!-- end -->")[0]


def main() -> None:
    """Write the programs' parts of the page."""
    page = PAGE.read_text(encoding="utf-8")
    for script in SCRIPTS:
        before = f"<!-- {script} -->\n"
        page = page.replace(before + section(page, script), before + render(script))
        print(f"rendered: {script}", file=sys.stderr)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
