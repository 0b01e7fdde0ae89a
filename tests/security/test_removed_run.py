"""Who removes a run's folder and begins the run again repeats its inputs, over nobody else."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator import run_steps as steps
from secure_fl.coordinator.resume import Continuation
from secure_fl.errors import CohortError, SecureFLError
from secure_fl.party.context import SumRequest
from secure_fl.party.summing import Summing, _digest
from secure_fl.pilot.site_memory import RunInputs, SiteMemory
from secure_fl.protocol.ports import Group
from secure_fl.runs.party_checkpoints import OpenedSumsLog
from secure_fl.settings import ProtectionSettings
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

VICTIM, CURIOUS = "hospital-4", "hospital-1"
EXACT = ProtectionSettings(mode="secagg", bits=24)


def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """What the victim sends to each sum, and what a curious hospital opens."""
    seen: dict[str, list[dict[str, Any]]] = {VICTIM: [], CURIOUS: []}
    sum = Summing.sum

    async def watching(self: Summing, request: SumRequest) -> Any:
        found, values = await sum(self, request), request.values
        me = self._members.me
        if me in seen and self.round:
            seen[me].append(dict(found if me == CURIOUS else values))
        return found

    monkeypatch.setattr(Summing, "sum", watching)
    return seen


def begun_again(made: LocalPilot, without: str) -> None:
    """Everybody removes the run's folder by hand; one hospital stays away the second time."""
    for name in list(made.members):
        made.kill(name)
        shutil.rmtree(made.folder / name / "run")
        made.start(name)
    made.members = {n: silo for n, silo in made.members.items() if n != without}
    made.processes.pop(without).close()
    made.down.add(without)


@pytest.mark.parametrize("kept", [False, True])
def test_inputs_of_a_run_that_was_removed_are_summed_over_nobody_else(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack, by a coordinator that lies: with notes in the run's folder it succeeds."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1), protection=EXACT), count=4)
    if not kept:
        monkeypatch.setattr(SiteMemory, "opened", lambda *_: None)
    seen = watched(monkeypatch)
    made.lead(patience=0).run()
    first, update = seen[CURIOUS][0], seen[VICTIM][0]
    seen[CURIOUS].clear()
    begun_again(made, without=VICTIM)
    monkeypatch.setattr(steps, "continuation", lambda *_: Continuation(0))
    if kept:
        with pytest.raises(SecureFLError):
            made.lead(patience=0).run()
        (told, *_) = made.seen("refused")
        assert VICTIM in told["why"] and "survivors" in told["why"]
        return
    made.lead(patience=0).run()
    for name, value in update.items():
        sent = np.asarray(value)
        found = np.asarray(first[name]) - np.asarray(seen[CURIOUS][0][name])
        np.testing.assert_allclose(found, sent, atol=1e-3 * np.abs(sent).max())


def test_the_same_hospitals_begin_a_removed_run_again(tmp_path: Path) -> None:
    """The same sum of the same inputs tells nothing new."""
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)), count=3)
    made.lead(patience=0).run()
    first = made.model(CURIOUS)
    for name in made.members:
        made.kill(name)
        shutil.rmtree(tmp_path / name / "run")
        made.start(name)
    made.lead(patience=0).run()
    assert made.model(CURIOUS) == first


ALL, HONEST = ("a", "b", "c", "m"), ("a", "b", "c")
EQUAL = {"x": HONEST, "y": HONEST}


@pytest.mark.parametrize(
    ("second", "survivors", "convicted", "admitted"),
    [
        (EQUAL, HONEST, "m", True),
        (EQUAL, HONEST, "", False),  # the difference would be an honest member's part
        (EQUAL, HONEST[:2], "m", False),
        ({"x": HONEST, "y": HONEST[:2]}, HONEST, "m", False),
        ({"x": HONEST}, HONEST, "m", False),
        ({"x": HONEST, "y": HONEST, "z": HONEST}, HONEST, "m", False),
        ({"x": HONEST, "y": ALL}, ALL, "", False),
        ({"x": ALL, "y": HONEST, "z": ("m",)}, ALL, "", True),
    ],
)
def test_a_round_of_partial_sums_is_repeated_without_a_convicted_member(
    tmp_path: Path,
    second: dict[str, tuple[str, ...]],
    survivors: tuple[str, ...],
    convicted: str,
    admitted: bool,
) -> None:
    """Two names then have the same owners, which are one group in the repeated sum."""

    def what(sums: dict[str, tuple[str, ...]], alive: tuple[str, ...]) -> str:
        groups: dict[tuple[str, ...], dict[str, NDArray[np.float32]]] = {}
        for name, owners in sums.items():
            groups.setdefault(owners, {})[name] = np.zeros(10, np.float32)
        return _digest([Group(owners, vectors) for owners, vectors in groups.items()], alive)

    notes = OpenedSumsLog(tmp_path / "opened.jsonl")
    first = {"x": ALL, "y": HONEST, "z": ("m",)}
    notes.admit(1, 1, ALL, what(first, ALL))
    notes.without = frozenset({convicted})
    with nullcontext() if admitted else pytest.raises(CohortError):
        notes.admit(1, 1, survivors, what(second, survivors))


def test_notes_of_a_run_that_began_in_its_folder_move_to_the_ledger(tmp_path: Path) -> None:
    before, now = (
        tmp_path / "opened.jsonl",
        SiteMemory(tmp_path).opened(RunInputs("study", "notes", 0)),
    )
    OpenedSumsLog(before).admit(1, 1, ("a", "b", "c"), "x")
    for _ in range(2):  # it is moved once
        notes = OpenedSumsLog.kept(before, now)
        assert notes.rounds() == ((1, 1, ("a", "b", "c")),) and not before.exists()
    assert now.stat().st_mode & 0o777 == 0o600
    assert SiteMemory(tmp_path).opened(RunInputs("study", "notes", 1)) != now  # other inputs


@pytest.mark.parametrize(
    "later", [RunInputs("study", "notes", 0, "b"), RunInputs("study", "renamed", 0, "a")]
)
def test_notes_are_found_again_after_one_record_changed(later: RunInputs, tmp_path: Path) -> None:
    """The difference of the two sums would be one hospital's update, plus one record's share."""
    memory, beside = SiteMemory(tmp_path), tmp_path / "opened.jsonl"
    before = memory.opened(RunInputs("study", "notes", 0, "a"))
    OpenedSumsLog.kept(beside, before).admit(3, 1, ("a", "b", "c", "d"), "x")
    again = OpenedSumsLog.kept(beside, memory.opened(later))
    assert again.rounds() == ((3, 1, ("a", "b", "c", "d")),)
    with raises(CohortError, "a, b, c, d", field="survivors"):
        again.admit(3, 1, ("a", "b", "c"), "x")


def test_notes_of_earlier_versions_are_found(tmp_path: Path) -> None:
    """They named a file by the data set, then by the records; both bind later sums."""
    now = SiteMemory(tmp_path).opened(RunInputs("study", "notes", 0, "b"))
    for name, parties in {"notes-0": "abcd", "d1d1-0": "abc", "notes-10": "ab"}.items():
        OpenedSumsLog(now.with_name(f"{name}.jsonl")).admit(3, 1, tuple(parties), "x")
    for _ in range(2):  # they are moved once
        notes = OpenedSumsLog.kept(tmp_path / "opened.jsonl", now)
        assert set(notes.rounds()) == {(3, 1, ("a", "b", "c", "d")), (3, 1, ("a", "b", "c"))}
        for parties in ("abc", "abcd"):
            with raises(CohortError, field="survivors"):
                notes.admit(3, 1, tuple(parties), "x")
    assert sorted(file.name for file in now.parent.iterdir()) == ["0.jsonl", "notes-10.jsonl"]
