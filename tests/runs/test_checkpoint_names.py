"""What checkpoints call things: names that any file system and any reader can hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_fl import ProtectionSettings
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.data.silo import Silo
from secure_fl.settings import ModelSettings
from secure_fl.testing.hospitals import members, silos, small

SMALL: dict[str, Any] = {
    "student_layers": 1,
    "exchange": "gradient",  # FedKD then keeps its optimisers too
    "steps": 1,
    "tiers": {"weak": 1, "strong": 2},
    "columns": 500,
}


def people(name: str) -> list[Silo]:
    if ALGORITHMS[name].has_host:
        return members(3, size=16, shared=16, labelled=16)
    tiered = ALGORITHMS[name].partial_sums
    tiers = ("weak", "weak", "strong", "strong") if tiered else (None,) * 3
    return [replace(s, tier=t) for s, t in zip(silos(len(tiers), 8), tiers, strict=True)]


def keys(node: Any) -> Iterator[str]:
    """Every key of a nested state, as `state.json` writes it."""
    for key, child in node.get("items", ()):
        yield str(key)  # an optimiser numbers its weights
        yield from keys(child)
    for child in node.get("list", ()):
        yield from keys(child)


@pytest.mark.parametrize("name", [n for n, e in ALGORITHMS.items() if not e.trains_nothing])
def test_files_and_keys_are_ascii(name: str, tmp_path: Path) -> None:
    kind: Any = ALGORITHMS[name].settings
    given = {field: value for field, value in SMALL.items() if field in kind.model_fields}
    protection = ProtectionSettings(mode="none", min_cohort=2)
    folder = tmp_path / "run"
    model = ModelSettings(layers=2)
    options: dict[str, Any] = {"silos": people(name), "model": model, "protection": protection}
    small(kind(rounds=1, **given), folder=folder, **options).run()
    files = [path.relative_to(tmp_path).as_posix() for path in folder.rglob("*")]
    assert all(map(str.isascii, files))
    states = list(folder.rglob("state.json"))
    assert states
    for state in states:
        found = list(keys(json.loads(state.read_text())["state"]))
        assert "keep" in found
        assert [key for key in found if not key.isascii()] == []
