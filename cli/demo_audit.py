"""What the demo shows of its audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INTRO = """\
Who could look? Three small federations of the same hospitals are recorded and attacked: averaging
of all weights in the clear; FedKD, whose embeddings stay frozen and of whose updates only factors
travel; and the same, encrypted and masked, as secure-fl ships it."""


def table(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Lay out what the coordinator got from each federation."""
    from secure_fl.cli import show

    columns = [
        "what the coordinator got",
        "words of the notes",
        "a hospital's update",
        "the sum",
        "test accuracy",
        "audit",
    ]
    rows = [
        [
            entry["name"],
            f"{100 * entry['words_recovered']:.0f} %",
            _read(entry["update_read"]),
            _read(entry["sum_read"]),
            show.number(entry["accuracy"]),
            entry["status"],
        ]
        for entry in entries
    ]
    return show.grid("", columns, rows)


def _read(value: float) -> str:
    return f"read (correlation {value:.2f})" if value >= 0.5 else f"noise (correlation {value:.2f})"
