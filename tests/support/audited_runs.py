"""Tiny recorded runs to audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from secure_fl.config.load import loads
from secure_fl.federation.federation import Federation

SETTINGS = """
[run]
record = true
[task]
kind = "{kind}"
max_length = 32
[data]
corpus = "{corpus}"
parties = {parties}
size = {size}
{data}
[model]
layers = {layers}
freeze_embeddings = {frozen}
[training]
learning_rate = 1e-3
batch_size = 8
device = "cpu"
[protection]
mode = "{mode}"
{protection}
[algorithm]
name = "{algorithm}"
rounds = {rounds}
{more}
{tail}
"""
DEFAULTS: dict[str, Any] = {
    "kind": "classification", "corpus": "ade", "parties": 3, "size": 12, "data": "",
    "layers": 1, "frozen": "true", "mode": "none", "protection": "",
    "algorithm": "fedavg", "rounds": 1, "more": "", "tail": "",
}  # fmt: skip


def settings_text(**options: Any) -> str:
    """The settings of a tiny run, as TOML."""
    return SETTINGS.format(**DEFAULTS | options)


def train(folder: Path, engine: Callable[..., Any] | None = None, **options: Any) -> Path:
    """Train a tiny run with these settings, and return its folder."""
    federation = Federation.of(loads(settings_text(**options)), folder)
    federation.run(engine) if engine else federation.run()
    return folder
