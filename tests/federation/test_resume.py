"""Killed at any moment, a run goes on bit for bit; settings must be the same; disks may be full."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import FedAdam, FedAvg
from secure_fl.errors import CohortError, PartyFailed, RunError
from secure_fl.events import Event
from secure_fl.federation.assembly import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.runs import checkpoint
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import ModelSettings
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal, weights
from tests.support.killing import Killed, after, at_event, kill_when
from tests.support.limits import lifted_after, limit_files
from tests.support.raising import raises
from tests.support.saved_models import dropping
from tests.support.stateless import Stateless

__all__ = ["dropping"]  # a fixture


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_resume_is_bit_for_bit(tmp_path: Path, mode: Any, dropping: str) -> None:
    """A model with dropout draws numbers of its own, which must go on where they were, too."""
    run = partial(small, FedAdam(rounds=3), mode, model=ModelSettings(name=dropping, layers=1))
    whole = run().run()
    folder = tmp_path / "killed"
    for moment in (3, 40, 75, 45, 60):  # events after each start: one round has about 40
        with pytest.raises(Killed):
            started = (folder / "settings.toml").exists()
            run(folder=folder, listener=kill_when(at_event(moment)), resume=started).run()
    resumed = run(folder=folder, resume=True).run()
    assert equal(weights(whole), weights(resumed))
    assert whole.document["metrics"] == resumed.document["metrics"]
    assert whole.document["history"] == resumed.document["history"]


CHILD = """
import sys
from secure_fl.testing.hospitals import silos, small
from secure_fl import FedAdam
small(FedAdam(rounds=6), "he+secagg", folder=sys.argv[1], resume=sys.argv[2] == "resume").run()
"""


@pytest.mark.slow
def test_resume_after_kill_9(tmp_path: Path) -> None:
    whole = small(FedAdam(rounds=6), "he+secagg").run()
    folder, attempts = tmp_path / "run", 0
    for delay in (0.3, 0.7, 1.1, 1.6, 60):
        how = "resume" if (folder / "settings.toml").exists() else "start"
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder), how])
        deadline = time.monotonic() + 60
        while how == "start" and not (folder / "settings.toml").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        try:
            child.wait(timeout=delay + 2)
        except subprocess.TimeoutExpired:
            if delay < 60:
                child.send_signal(signal.SIGKILL)
            child.wait(timeout=120)
        attempts += 1
        if (folder / "result.json").exists():
            break
    result = json.loads((folder / "result.json").read_text())
    assert result["metrics"] == whole.document["metrics"]


def test_changed_settings_are_refused_and_listed(tmp_path: Path) -> None:
    small(folder=tmp_path).run()
    with raises(RunError, "run.seed", "0", "3"):
        small(folder=tmp_path, seed=3, resume=True).run()


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    small(folder=tmp_path).run()
    with raises(RunError, reason="exists"):
        small(folder=tmp_path).run()
    with raises(RunError, reason="missing"):
        small(folder=tmp_path / "none", resume=True).run()


def test_a_resumed_run_tells_the_bytes_and_seconds_of_all_its_sessions(tmp_path: Path) -> None:
    hospitals = silos(size=16)
    whole = small(FedAvg(rounds=3), silos=hospitals).run().document["bytes"]

    with pytest.raises(Killed):
        stop = kill_when(after(2))
        small(FedAvg(rounds=3), silos=hospitals, folder=tmp_path, listener=stop).run()
    found = small(FedAvg(rounds=3), silos=hospitals, folder=tmp_path, resume=True).run().document
    for name, sent in whole.items():
        assert sent["up"] <= found["bytes"][name]["up"] < 1.2 * sent["up"]
        assert found["seconds"]["party"][name]["train"] > 0
    assert 0 < found["seconds"]["privacy_share"] < 1
    assert found["seconds"]["coordinator"]["run"] <= found["seconds"]["total"]


def test_a_finished_run_can_be_resumed_without_effect(tmp_path: Path) -> None:
    first = small(folder=tmp_path).run()
    again = small(folder=tmp_path, resume=True).run()
    assert equal(weights(first), weights(again))


def test_a_file_size_limit_stops_the_run_but_not_the_resume(tmp_path: Path) -> None:
    """The same through a whole run, by a limit on file sizes, which every machine allows."""
    folder = tmp_path / "run"
    whole = small(FedAdam(rounds=2), folder=tmp_path / "whole").run()

    def fill(event: Event) -> None:
        if after(1)(event):
            limit_files(60_000)

    with lifted_after(), raises(RunError, reason="unwritable") as caught:
        small(FedAdam(rounds=2), folder=folder, listener=fill).run()
    assert "--resume" in caught.value.fix
    resumed = small(FedAdam(rounds=2), folder=folder, resume=True).run()
    assert equal(weights(whole), weights(resumed))


def test_an_unreadable_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"w": torch.ones(3)})
    (tmp_path / "c").write_bytes(b"garbage")
    with pytest.raises(RunError, match="or delete it"):
        checkpoint.load(tmp_path / "c")


def test_two_processes_cannot_work_in_one_run(tmp_path: Path) -> None:
    from secure_fl.runs.folder import RunFolder

    first = RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=False)
    with raises(RunError, reason="in-use"):
        RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=True)
    first.close()
    RunFolder.open(tmp_path, "[run]\nseed = 0\n", resume=True).close()


def test_a_repeated_round_is_not_opened_over_other_parties(tmp_path: Path) -> None:
    party = PartyCheckpoints(tmp_path, Stateless())
    party.admit(3, 1, ("a", "b", "c"), "x")
    again = PartyCheckpoints(tmp_path, Stateless())
    again.admit(3, 1, ("a", "b", "c"), "x")
    with raises(CohortError, "a, b, c", round=3, field="survivors"):
        again.admit(3, 1, ("a", "b"), "x")
    again.save(3, {}, {})
    again.admit(4, 1, ("a", "b"), "x")


class Full(PartyCheckpoints):
    """A disk on which one round has no space."""

    def save(self, round: int, keep: Any, sums: Any) -> None:
        """Fail, where it is this disk."""
        if (self._folder.name, round) == FULL.get("now"):
            raise RunError("no space left on device", file=self._folder, reason="unwritable")
        super().save(round, keep, sums)


FULL: dict[str, tuple[str, int]] = {}


@pytest.mark.parametrize("host", [None, "hub"])
def test_a_round_that_only_some_saved_before_a_crash_repeats(
    tmp_path: Path, host: str | None
) -> None:
    """Masks are bound to what was seen in a session: two halves of the cohort would not fit."""
    names = [*"abcd", *([host] if host else [])]
    keys = make_keys("he+secagg", names, host)

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            async for _ in cohort.rounds(4, keep={"still": Stateless()}):
                opened = await cohort.sum({} if cohort.is_host else {"u": [1.0] * 20}, bound=2.0)
            return opened

        return run

    def go(full: str, order: Callable[[Sequence[str]], Sequence[str]]) -> Federated:
        FULL["now"] = full, 2
        return federate(
            {name: program(name) for name in names},
            mode="he+secagg",
            keys=keys,
            host=host,
            kept={name: Full(tmp_path / name, Stateless()) for name in names},
            engine=lambda sessions: LossyEngine(sessions, order=order),
            catch=True,
        )

    assert isinstance(go("a", lambda n: sorted(n, reverse=True)).error, PartyFailed)
    assert isinstance(go("b", sorted).error, PartyFailed)  # a saves it now; b has let go of its own
    last = go("", sorted)
    assert last.error is None and last.results["a"]["u"].round(2).tolist() == [4.0] * 20
