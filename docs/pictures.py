"""Make README.md's pictures from a demo's folder: `python docs/pictures.py runs/demo`.

demo.svg shows the last tables of `secure-fl demo`, report.png the first screen of a run's report in
a headless browser.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console

from secure_fl.audits.document import read
from secure_fl.audits.report.report_tables import reconstructed
from secure_fl.cli.demo import table
from secure_fl.cli.show import grid

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 760


def demo_screen(folder: Path) -> None:
    """Write demo.svg: the tables of scores and of attacks, without fonts from elsewhere."""
    summary = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True)
    console.print(table(summary))
    console.print()
    audits = [read(folder / "seed-0" / run / "audit.json") for run in ("clear", "sealed", "fedkd")]
    found = reconstructed(audits)
    console.print(grid(found.caption, found.header, found.rows))
    picture = console.export_svg(title="secure-fl demo")
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.S)
    (IMAGES / "demo.svg").write_text(picture.replace("Fira Code", "monospace"), encoding="utf-8")


def report_screen(page: Path) -> None:
    """Write report.png: the first screen of a page."""
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}"]
        options += [f"--screenshot={IMAGES / 'report.png'}", page.resolve().as_uri()]
        subprocess.run(["chromium", *options], check=True, capture_output=True)  # noqa: S603, S607
    picture = IMAGES / "report.png"
    Image.open(picture).convert("RGB").quantize(96).save(picture, optimize=True)


if __name__ == "__main__":
    demo_screen(Path(sys.argv[1]))
    report_screen(Path(sys.argv[1]) / "seed-0" / "sealed" / "report.html")
