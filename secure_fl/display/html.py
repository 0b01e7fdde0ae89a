"""HTML of self-contained pages: page, sections, tables, paragraphs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

STYLE = Path(__file__).parent / "style.css"
COMMAND = re.compile(r"`([^`]+)`")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, kind: str, links: Mapping[str, str], body: str, again: int = 0) -> str:
    """Render a page; `again`: seconds after which the browser reloads it during a run."""
    refresh = f'<meta http-equiv="refresh" content="{again}">\n' if again else ""
    items = "".join(f'<li><a href="#{at}">{escape(text)}</a></li>' for at, text in links.items())
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
{refresh}<title>{escape(title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header class="page">
<p class="kind">{escape(kind)}</p>
<h1>{escape(title)}</h1>
<nav aria-label="Contents"><ul>{items}</ul></nav>
</header>
<main id="main" tabindex="-1">
{body}
</main>
<footer>
<p>Made by <code>secure-fl report</code> of the run's folder. It loads no external files.</p>
</footer>
</body>
</html>
"""


def section(at: str, title: str, body: str, level: int = 3) -> str:
    """Render a section with an anchor; empty without a body."""
    if not body:
        return ""
    head = f'<h{level} id="{at}-title">{escape(title)}</h{level}>'
    return f'<section id="{at}" aria-labelledby="{at}-title">\n{head}\n{body}\n</section>\n'


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = True
) -> str:
    """Render a table whose first column names the rows; on narrow screens, cells stack under it."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(h)}</th>' if h else "<td></td>" for h in heads)
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(
            f'<td data-head="{escape(head)}">{escape(cell)}</td>'
            for head, cell in zip(heads[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    kind = ' class="figures"' if figures else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">\n'
        f"<table{kind}><caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{lines}\n</tbody></table>\n</div>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Render an escaped paragraph, with `commands` as code; empty without text."""
    mark = f' class="{kind}"' if kind else ""
    marked = COMMAND.sub(r"<code>\1</code>", escape(text))
    return f"<p{mark}>{marked}</p>\n" if text else ""


def folded(title: str, body: str) -> str:
    """Render details that readers can unfold."""
    return f"<details><summary>{escape(title)}</summary>\n{body}</details>\n" if body else ""


def code(text: str, label: str) -> str:
    """Render preformatted text."""
    return f'<pre tabindex="0" aria-label="{escape(label)}"><code>{escape(text)}</code></pre>\n'
