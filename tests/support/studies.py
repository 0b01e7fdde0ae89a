"""A small settings file, and what is said of it when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.config import load as config
from secure_fl.errors import SettingsError

FILE = """\
# a study
[data]
corpus = "ade"
parties = 3

[training]
batch_size = 8

[algorithm]
name = "fedavg"
rounds = 2
"""


ALGORITHM = '[algorithm]\nname = "fedavg"\n'


def of_parties(folder: Path, names: str, *, host: str = "", more: str = "") -> Path:
    """Write a study of parties, which are letters, each with a file of its own."""
    tables = [
        f'[[data.party]]\nname = "{name}"\ntrain = "{name}.csv"\n'
        f'role = "{"host" if name in host else "party"}"\n{more}'
        for name in names
    ]
    file = folder / "x.toml"
    file.write_text("".join(tables) + ALGORITHM)
    return file


def refused(file: Path, *overrides: str) -> SettingsError:
    """Why a file, with these overrides, is no settings."""
    with pytest.raises(SettingsError) as caught:
        config.load(file, overrides)
    return caught.value


def replaced(file: Path, old: str, new: str) -> Path:
    """The study with another line."""
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    return file
