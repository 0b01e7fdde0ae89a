"""Who joins a run late, or lost its disk, goes on with everybody else; who leaves is not missed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import FedAdam, FedAvg, Scaffold, Silo
from secure_fl.algorithms.base import Algorithm
from secure_fl.config import load as config
from secure_fl.coordinator.resume import Unfinished
from secure_fl.data.examples import Text
from secure_fl.errors import CohortError, Disagreement, RunError, TooFewParties
from secure_fl.federation.federation import Federation
from secure_fl.files import OPENED
from secure_fl.protocol.messages import HandedOver, Handover, SumInput
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.testing.hospitals import silos, small
from tests.support.attacker import Wiretap
from tests.support.command_line import ran
from tests.support.equality import equal, kept_model, weights
from tests.support.joining import FOUR, LATE, THREE, stopped, stopped_after_3, tampered
from tests.support.killing import Killed, after, kill_when, within
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

MODES = ("none", "secagg", "he+secagg")


def resumed(
    folder: Path,
    who: Sequence[Silo],
    mode: Any = "none",
    algorithm: Algorithm | None = None,
    engine: Any = None,
    **options: Any,
) -> Any:
    run = small(
        algorithm or FedAvg(rounds=4), mode, folder=folder, silos=list(who), resume=True, **options
    )
    return run.run(engine) if engine else run.run()


def events(folder: Path, kind: str, party: str = "coordinator") -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if (e["event"], e["party"]) == (kind, party)]


@pytest.mark.parametrize("mode", mostly_slow(MODES, "none", "he+secagg"))
def test_a_hospital_that_joins_late_gets_the_model_and_goes_on(tmp_path: Path, mode: Any) -> None:
    adam = FedAdam(rounds=4)
    stopped_after_3(tmp_path, mode=mode, algorithm=adam)
    before = kept_model(tmp_path, THREE[0].name, 3)
    result = resumed(tmp_path, FOUR, mode, adam)
    assert equal(kept_model(tmp_path, LATE, 3), before)  # what it was given
    models = [kept_model(tmp_path, silo.name, 4) for silo in FOUR]
    assert all(equal(models[0], model) for model in models)
    assert not equal(models[0], before)
    assert [(e["round"], e["parties"]) for e in events(tmp_path, "joined")] == [(4, [LATE])]
    assert [e["joined"] for e in events(tmp_path, "membership")] == [[LATE]]
    history = [(h["party"], h["round"]) for h in result.document["history"]]
    assert {r for p, r in history if p == LATE} == {4}
    assert {r for p, r in history if p == THREE[0].name} == {1, 2, 3, 4}


@pytest.mark.parametrize("mode", mostly_slow(["none", "he+secagg"], "he+secagg"))
def test_a_lost_disk_costs_nobody_a_round(tmp_path: Path, mode: Any) -> None:
    stopped_after_3(tmp_path, mode=mode)
    lost = THREE[1].name
    before = kept_model(tmp_path, lost, 3)
    shutil.rmtree(tmp_path / "parties" / lost)
    resumed(tmp_path, THREE, mode)
    assert [(e["round"], e["parties"]) for e in events(tmp_path, "joined")] == [(4, [lost])]
    assert equal(kept_model(tmp_path, lost, 3), before)
    models = [kept_model(tmp_path, silo.name, 4) for silo in THREE]
    assert all(equal(models[0], model) for model in models)


def test_a_newcomer_s_model_goes_into_the_sum(tmp_path: Path) -> None:
    stopped_after_3(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    with_it, without = resumed(tmp_path / "run", FOUR), resumed(tmp_path / "alone", THREE)
    assert not equal(weights(with_it), weights(without))


@pytest.mark.parametrize("algorithm", [FedAdam(rounds=5), Scaffold(rounds=5, average=0.5)])
def test_a_joined_run_crashes_and_resumes_bit_for_bit(tmp_path: Path, algorithm: Algorithm) -> None:
    """The newcomer saves what it is given, so it joins once; from then on it has its own state."""
    mode = "he+secagg"
    stopped_after_3(tmp_path / "a", mode=mode, algorithm=algorithm)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    whole = resumed(tmp_path / "a", FOUR, mode, algorithm)

    with pytest.raises(Killed):
        resumed(tmp_path / "b", FOUR, mode, algorithm, listener=kill_when(within(4, THREE[0].name)))
    again = resumed(tmp_path / "b", FOUR, mode, algorithm)
    assert equal(weights(whole), weights(again))
    assert whole.document["metrics"] == again.document["metrics"]
    assert len(events(tmp_path / "b", "joined")) == 1


def test_who_left_is_not_missed_and_keeps_its_folder(tmp_path: Path) -> None:
    stopped_after_3(tmp_path, FOUR, "he+secagg")
    resumed(tmp_path, THREE, "he+secagg")
    assert [e["left"] for e in events(tmp_path, "membership")] == [[LATE]]
    assert not events(tmp_path, "joined")
    assert (tmp_path / "parties" / LATE / "checkpoints").is_dir()
    assert equal(kept_model(tmp_path, THREE[0].name, 4), kept_model(tmp_path, THREE[2].name, 4))


def test_too_few_that_stay_are_refused(tmp_path: Path) -> None:
    stopped_after_3(tmp_path, FOUR)
    with pytest.raises(TooFewParties):
        resumed(tmp_path, FOUR[:2])


def test_two_can_join_but_not_three_of_six(tmp_path: Path) -> None:
    """The threshold of six is five: three could not vouch for what three others are given."""
    six = silos(6)
    stopped_after_3(tmp_path, six[:3])
    with pytest.raises(CohortError, match="join"):
        resumed(tmp_path, six)
    stopped_after_3(tmp_path / "b", six[:4])
    assert resumed(tmp_path / "b", six[:5]).document["status"] == "finished"


def test_a_round_that_was_begun_is_not_opened_again_over_others(tmp_path: Path) -> None:
    """The difference of the two sums would be the newcomer's update, or the leaver's."""
    stopped(tmp_path, within(3, THREE[0].name), FOUR)
    with raises(Unfinished, round=3):
        resumed(tmp_path, THREE)
    assert resumed(tmp_path, FOUR).document["status"] == "finished"


@pytest.mark.parametrize("mode", mostly_slow(["none", "he+secagg"], "none"))
def test_a_begun_round_is_finished_first_by_those_who_began_it(tmp_path: Path, mode: Any) -> None:
    stopped_after_3(tmp_path / "whole", mode=mode)
    stopped(tmp_path / "begun", within(3, THREE[0].name), mode=mode)
    whole, begun = (resumed(tmp_path / name, FOUR, mode) for name in ("whole", "begun"))
    joined = events(tmp_path / "begun", "joined")
    assert [(e["round"], e["parties"]) for e in joined] == [(4, [LATE])]
    assert equal(weights(whole), weights(begun))
    assert whole.document["history"] == begun.document["history"]


def test_a_lost_disk_in_a_begun_round_repeats_the_run_from_the_start(tmp_path: Path) -> None:
    """A fresh start in the middle would show the difference of two inputs of one hospital."""
    whole = small(FedAvg(rounds=4), silos=THREE).run()
    stopped(tmp_path, within(3, THREE[0].name))
    shutil.rmtree(tmp_path / "parties" / THREE[1].name)
    again = resumed(tmp_path, THREE)
    assert not events(tmp_path, "joined")
    assert equal(weights(whole), weights(again))


def test_after_somebody_joined_nothing_before_is_repeated(tmp_path: Path) -> None:
    """Its inputs of later rounds would not be those it sent: it began afresh."""
    lost = THREE[1].name
    stopped_after_3(tmp_path, algorithm=FedAvg(rounds=6))
    shutil.rmtree(tmp_path / "parties" / lost)
    resumed(tmp_path, THREE, algorithm=FedAvg(rounds=6))
    for silo in THREE[:2]:
        shutil.rmtree(tmp_path / "parties" / silo.name)
    with pytest.raises(CohortError):  # one is left, which cannot vouch alone
        resumed(tmp_path, THREE, algorithm=FedAvg(rounds=6))
    site = PartyCheckpoints(tmp_path / "parties" / THREE[2].name / "checkpoints", torch.nn.Module())
    with raises(CohortError, field="round"):
        site.admit(2, 1, tuple(s.name for s in THREE), "x")


def test_the_coordinator_cannot_read_what_is_handed_over(tmp_path: Path) -> None:
    heard: dict[str, Wiretap] = {}
    for mode in ("none", "secagg"):
        folder = tmp_path / mode
        stopped_after_3(folder, mode=mode)
        heard[mode] = Wiretap()
        resumed(folder, FOUR, mode, engine=heard[mode])
    model = kept_model(tmp_path / "secagg", LATE, 3)
    largest = max(model.values(), key=lambda w: w.numel()).contiguous().view(torch.uint8)
    needle = largest.reshape(-1)[:64].numpy().tobytes()
    plain = max(h.bulk for h in heard["none"].of(Handover))
    assert max(model.values(), key=lambda w: w.numel()).shape and b"model" in plain
    given = [h for h in heard["secagg"].of(Handover) if h.bulk]
    assert [h.party for h in given] == [THREE[0].name]  # one sends it
    told = [h for h in heard["secagg"].of(HandedOver) if h.bulk]
    assert [h.party for h in told] == [LATE] and told[0].bulk == given[0].bulk
    assert all(needle not in h.bulk and b"weight" not in h.bulk for h in heard["secagg"].heard)
    assert any(b"weight" in h.bulk for h in heard["none"].heard)  # the same search finds it there
    assert len(heard["secagg"].of(SumInput, LATE)) > 0


@pytest.mark.parametrize(("bad", "mode"), [(0, "he+secagg"), (1, "none")])
def test_a_holder_with_a_wrong_state_is_named(tmp_path: Path, mode: Any, bad: int) -> None:
    stopped_after_3(tmp_path, mode=mode)
    tampered(tmp_path, THREE[bad].name)
    with raises(Disagreement, party=THREE[bad].name):
        resumed(tmp_path, FOUR, mode)


def test_sums_that_were_opened_are_noted_with_who_joined(tmp_path: Path) -> None:
    stopped_after_3(tmp_path)
    resumed(tmp_path, FOUR)
    for silo in FOUR:
        file = tmp_path / "parties" / silo.name / "checkpoints" / OPENED
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        joined = [e for e in entries if e["sum"] == 0]
        expected = {"round": 3, "sum": 0, "survivors": [s.name for s in THREE], "what": ""}
        assert joined == [expected]


def test_a_run_that_is_over_can_be_joined_for_its_model(tmp_path: Path) -> None:
    whole = small(FedAvg(rounds=3), silos=THREE, folder=tmp_path).run()
    late = resumed(tmp_path, FOUR, algorithm=FedAvg(rounds=3))
    assert equal(weights(whole), weights(late))


PARTY = """
[[data.party]]
name = "{name}"
train = "{name}.csv"
"""
REST = """
[task]
kind = "classification"
labels = ["ade", "no-ade"]
max_length = 16
[model]
layers = 1
[training]
device = "cpu"
[algorithm]
name = "fedavg"
rounds = 3
"""


def study(place: Path, who: Sequence[Silo]) -> Path:
    for silo in who:
        texts = [example for example in silo.train if isinstance(example, Text)]
        rows = [f"{json.dumps(example.text)},{example.label}" for example in texts]
        (place / f"{silo.name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    file = place / "study.toml"
    file.write_text("".join(PARTY.format(name=silo.name) for silo in who) + REST)
    return file


def test_a_settings_file_that_gained_and_lost_a_party_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = config.load(study(tmp_path, THREE))
    with pytest.raises(Killed):
        Federation.of(settings, out, listener=kill_when(after(2))).run()
    now = [THREE[0], *FOUR[2:]]  # one left, one joined
    command = ["train", str(study(tmp_path, now)), "--out", str(out), "--resume"]
    found = ran(*command)
    assert f"joining with round 3: {LATE}" in found.stderr
    assert f"left: {THREE[1].name}" in found.stderr
    written = config.load(out / "settings.toml")
    assert config.names(written.data) == tuple(silo.name for silo in now)
    assert json.loads((out / "result.json").read_text())["parties"] == [s.name for s in now]
    again = ran(*command)
    assert "joining" not in again.stderr


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("rounds = 3", "rounds = 4", "algorithm.rounds"),
        (f'{THREE[0].name}.csv"', f'{LATE}.csv"', "train"),
        (f'train = "{LATE}.csv"', f'train = "{LATE}.csv"\nrole = "host"', "role"),
    ],
)
def test_any_other_change_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    out = tmp_path / "run"
    settings = config.load(study(tmp_path, THREE))
    (out / "parties").mkdir(parents=True)
    (out / "settings.toml").write_text(config.dump(settings))
    file = study(tmp_path, FOUR)
    file.write_text(file.read_text().replace(old, new))
    with raises(RunError, named):
        Federation.of(config.load(file), out, resume=True)
