"""In a Jupyter kernel: an event loop that runs, no terminal, and progress that is seen."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

NEEDED = ("nbclient", "nbformat", "ipykernel")
CODE = """
from secure_fl import FedAvg
from secure_fl.testing.hospitals import small
result = small(FedAvg(rounds=2)).run()
result
"""


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"not all of {', '.join(NEEDED)} are installed",
)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_a_run_shows_itself_in_a_cell() -> None:
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    NotebookClient(made, timeout=240, kernel_name="python3").execute()
    outputs: list[Any] = made.cells[0].outputs
    assert not [one for one in outputs if one.output_type == "error"]
    shown = [str(one.data.get("text/html", "")) for one in outputs if "data" in one]
    (progress,) = [html for html in shown if "2 rounds done" in html]  # drawn in one place
    assert "hospital-3" in progress and "\x1b" not in progress
    assert not [html for html in shown if "ipywidgets" in html]
    assert "over 3 hospitals" in shown[-1] and "<table>" in shown[-1]
