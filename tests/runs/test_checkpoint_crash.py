"""A crash at any step of writing or removing a checkpoint leaves the old one or the new one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from secure_fl import ProtectionSettings
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.algorithms.settings import Teaching
from secure_fl.data.silo import Silo
from secure_fl.errors import RunError
from secure_fl.runs import checkpoint
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import ModelSettings
from secure_fl.testing.hospitals import members, silos, small
from tests.support.raising import raises
from tests.support.sampling import mostly_slow
from tests.support.stateless import Stateless


class Crash(BaseException):
    """The process ends here: nothing that comes after is done."""


class Steps:
    """Counts what touches the disk, and crashes at one of these steps, before it or within it."""

    def __init__(self, at: int | None, error: type[BaseException] = Crash) -> None:
        self.at, self.count, self.error = at, 0, error
        self.names: list[str] = []

    def watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self.names.append(name)
            if self.count == self.at:
                self.count += 1
                raise self.error(28, name)
            self.count += 1
            return real(*args, **kwargs)

        return step


@contextmanager
def watching(steps: Steps) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (os, "fsync"),
            (Path, "mkdir"),
            (Path, "replace"),
            (Path, "unlink"),
            (checkpoint, "save_file"),
        ):
            patch.setattr(owner, name, steps.watched(name, getattr(owner, name)))
        yield


def state(number: int) -> dict[str, Any]:
    return {"w": torch.full((9,), float(number)), "number": number}


def test_a_nested_state_comes_back_as_it_was(tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "none": None,
        "counts": [1.0, 2.0],
        "pair": (1, "a"),
        "empty": [(), {}, []],
    }
    nested: dict[Any, Any] = {
        "history": [plain, {"round": 1, "on": True, "large": 2**127 + 1}],
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1}]},
        "half": [torch.ones(2, dtype=torch.bfloat16)],
        3: {4: 5},
        "mixed": [1, (2, {"x": []})],
    }
    checkpoint.save(tmp_path / "c", nested)
    for back in (
        checkpoint.from_bytes(checkpoint.to_bytes(nested)),
        checkpoint.load(tmp_path / "c"),
    ):
        assert repr(back) == repr(nested)


def everywhere(folder: Path, do: Callable[[Path], None]) -> Iterator[tuple[Path, str]]:
    """Do it in a copy of the folder, once for each step that it could end at."""
    whole = Steps(None)
    shutil.copytree(folder, copy := folder.with_name("whole"))
    with watching(whole):
        do(copy)
    for at, name in enumerate(whole.names):
        shutil.copytree(folder, copy := folder.with_name(f"crash-{at}"))
        with pytest.raises(Crash), watching(Steps(at)):
            do(copy)
        yield copy, f"{at}: {name}"


def test_a_round_that_is_written_again_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run" / "round-00001", state(1))
    seen = set()
    for folder, step in everywhere(
        tmp_path / "run", lambda at: checkpoint.save(at / "round-00001", state(2))
    ):
        seen.add(checkpoint.load(folder / "round-00001")["number"])
        checkpoint.save(folder / "round-00001", state(3))  # and what was left is in nobody's way
        assert checkpoint.load(folder / "round-00001")["number"] == 3
        assert [path.name for path in folder.iterdir()] == ["round-00001"], step
    assert seen == {1, 2}


def test_every_round_that_is_listed_can_be_restored(tmp_path: Path) -> None:
    """Older rounds are removed, and later ones of a run that was rolled back."""
    kept = PartyCheckpoints(tmp_path / "run", Stateless())
    for number in (1, 2, 3):
        kept.save(number, {}, {"number": number})
    checkpoint.save(tmp_path / "run" / "round-00009", {"of": "a run that was rolled back"})
    for folder, step in everywhere(
        tmp_path / "run", lambda at: PartyCheckpoints(at, Stateless()).save(4, {}, {"number": 4})
    ):
        found = PartyCheckpoints(folder, Stateless())
        rounds = found.available()
        assert {3, 4} & set(rounds), step
        for number in rounds:
            loaded = checkpoint.load(folder / f"round-{number:05d}")
            assert number == 9 or loaded["sums"]["number"] == number, step


def test_an_error_at_any_step_leaves_a_whole_round_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "run" / "round-00001"
    checkpoint.save(file, state(1))
    whole = Steps(None)
    with watching(whole):
        checkpoint.save(file, state(1))
    for at in range(len(whole.names)):
        with raises(RunError, reason="unwritable"), watching(Steps(at, OSError)):
            checkpoint.save(file, state(2))
        assert checkpoint.load(file)["number"] == (1 if at < len(whole.names) - 1 else 2)
        assert [path.name for path in file.parent.iterdir()] == ["round-00001"]


# --- what checkpoints call things: names that any file system and any reader can hold -----------


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
    """Every key of a nested state, as its metadata has it."""
    yield from (str(key) for key, _ in node.get("scalars", ()))
    for key, child in node.get("items", ()):
        yield str(key)  # an optimiser numbers its weights
        yield from keys(child)
    for child in node.get("list", ()):
        yield from keys(child)


STATES = ("fedadam", "fedavg", "fedid", "fedkd", "fetchsgd", "heterofl", "inclusivefl", "probe")


@pytest.mark.parametrize(
    "name",
    mostly_slow([n for n, e in ALGORITHMS.items() if not (e.trains_nothing or e.records)], *STATES),
)
def test_files_and_keys_are_ascii(name: str, tmp_path: Path) -> None:
    kind: Any = ALGORITHMS[name].settings
    given = {field: value for field, value in SMALL.items() if field in kind.model_fields}
    if issubclass(kind, Teaching):
        del given["student_layers"]  # its student reads public texts, which are not here
    protection = ProtectionSettings(mode="none", min_cohort=2)
    folder = tmp_path / "run"
    model = ModelSettings(layers=2)
    options: dict[str, Any] = {"silos": people(name), "model": model, "protection": protection}
    small(kind(rounds=1, **given), folder=folder, **options).run()
    files = [path.relative_to(tmp_path).as_posix() for path in folder.rglob("*")]
    assert all(map(str.isascii, files))
    states = list(folder.rglob("checkpoints/round-*"))
    assert states
    for state in states:
        with safe_open(state, framework="pt") as stored:
            found = list(keys(json.loads(stored.metadata()[checkpoint.FORMAT])))
        assert "keep" in found
        assert [key for key in found if not key.isascii()] == []
