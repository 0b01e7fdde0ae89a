"""Overrides win over a file; paths are relative to where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.config import load as config
from secure_fl.config.data import (
    PartyData,
    SourceData,
)
from secure_fl.settings import TaskSettings
from tests.support.raising import require
from tests.support.studies import refused


def test_overrides_win_and_are_read_as_toml_or_text(study: Path) -> None:
    found = config.load(
        study,
        [
            "algorithm.rounds=5",
            "training.learning_rate = 1e-3",
            'task.labels=["no", "yes"]',
            "task.positive=yes",
            "protection.mode=none",
        ],
    )
    assert found.algorithm.rounds == 5
    assert found.training.learning_rate == 1e-3
    assert found.task == TaskSettings(labels=("no", "yes"), positive="yes")
    assert found.protection.mode == "none"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("algorithm.rounds", "not an assignment"),
        ("=5", "not an assignment"),
        ("algorithm..rounds=5", "not an assignment"),
        ("algorithm.rounds=five", 'found "five"'),
        ("algorithm.rounds.x=5", "is not a table"),
        ("task.labels=[1", "not TOML"),
        ("algorithm.rounds=5\nepochs=2", 'found "5\\nepochs=2"'),
        ("data.party.x.train=a", "found corpus and party together"),
        ("data=3", "allowed: a table"),
    ],
)
def test_wrong_overrides_are_named(study: Path, override: str, text: str) -> None:
    error = refused(study, override)
    assert text in error.what
    assert "line" not in error.where
    if "option" in error.where:
        assert override in str(error.where["option"])


def test_parties_are_overridden_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    tables = [f'[[data.party]]\nname = "{n}"\ntrain = "{n}.csv"\n' for n in ("a", "b", "c")]
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
    found = config.load(file, ["data.party.b.tier=weak"]).data
    assert isinstance(found, PartyData)
    assert [p.tier for p in found.party] == [None, "weak", None]
    require(refused(file, "data.party.z.tier=weak"), "'z'", "a, b, c")


def test_paths_are_relative_to_the_file_and_overrides_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "checkpoint").mkdir()
    file = tmp_path / "conf" / "x.toml"
    file.write_text(
        '[data]\nsource = "../notes.csv"\n[model]\nname = "checkpoint"\n'
        '[algorithm]\nname = "fedavg"\n'
    )
    monkeypatch.chdir(tmp_path)
    found = config.load("conf/x.toml")
    assert isinstance(found.data, SourceData)
    assert Path(found.data.source) == tmp_path / "conf" / ".." / "notes.csv"
    assert found.model.name == str(tmp_path / "conf" / "checkpoint")
    other = config.load("conf/x.toml", ["data.source=mine.csv"]).data
    assert isinstance(other, SourceData)
    assert other.source == str(tmp_path / "mine.csv")
    hub = config.load("conf/x.toml", ["data.source=hub:owner/name:train", "model.name=a/b"])
    assert isinstance(hub.data, SourceData)
    assert (hub.data.source, hub.model.name) == ("hub:owner/name:train", "a/b")


def test_two_parties_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    table = '[[data.party]]\nname = "a"\ntrain = "a.csv"\n'
    file.write_text(table * 3 + '[algorithm]\nname = "fedavg"\n')
    require(refused(file), field="data.party.2.name", line=5)


def test_fields_inside_lists_of_tables_are_found_again(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    table = '[[data.party]]\nname = "{}"\ntrain = "a.csv"\n'
    file.write_text(
        table.format("a") + table.format("b") + "[data.party.model]\nlayer = 2\n"
        '[algorithm]\nname = "fedavg"\n'
    )
    require(refused(file), "did you mean layers?", field="data.party.2.model.layer", line=8)
