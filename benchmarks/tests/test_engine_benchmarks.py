"""What `bench engine` measures: rounds and a start over FLARE, and frames that nobody sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.micro.engine import compare as engine
from benchmarks.micro.engine import rounds as engine_round
from benchmarks.micro.engine.rounds import FLARE, IN_PROCESS, PIPES, Round
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.identity import PublicIdentity
from tests.support.fuzzing import Fuzzer, FuzzFinding
from tests.support.local_pilot import local_pilot, plan_of
from tests.support.mutants import MUTATORS


def test_mutants_are_counted_by_the_command() -> None:
    said = CliRunner().invoke(main, ["fuzz", "--mutants", "3000", "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.output)
    assert found["thrown"] == sum(found["at"].values()) >= 3000
    assert found["kinds"] == len(MUTATORS)
    assert (found["accepted"], found["crashes"], found["unfinished_seats"]) == (0, 0, 0)
    assert found["peak_bytes"] >= found["peak_bytes_calm"] > 0
    assert all(target["met"] for target in found["targets"])


@pytest.mark.parametrize(("kind", "crashes"), [("accepted", 0), ("ZeroDivisionError", 1)])
def test_accepted_and_crashed_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, crashes: int
) -> None:
    """The fuzzer sees both, where a check is off and where it breaks."""

    def verify(self: PublicIdentity, digest: bytes, signature: bytes) -> None:
        if crashes and len(fuzzer.found) == 0 and fuzzer.thrown:
            raise ZeroDivisionError

    monkeypatch.setattr(PublicIdentity, "verify", verify)
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    fuzzer = Fuzzer(pilot, 100, eager=True)
    with pytest.raises(FuzzFinding, match=kind):
        fuzzer.lead().run()
    assert (len(fuzzer.found), fuzzer.crashes) == (1, crashes)


def test_what_is_beyond_is_counted_in_rounds_of_the_third() -> None:
    mine, other, unit = Round(3.0, 5.0), Round(2.0, 4.0), Round(4.0, 2.0)
    assert engine_round._beyond([mine], [other], [unit]) == [Round(0.25, 0.5)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rounds_of_fedkd_and_a_start() -> None:
    """Small: figures are not looked at, but that three engines end with the same bits is."""
    report = engine.measure(repeats=2, large_repeats=1, records=16, epochs=1, turns=1)
    found = json.loads(json.dumps(report.document()))
    cores = sorted({row["cores"] for row in found["fedkd_rounds"]})
    assert [(row["way"], row["cores"]) for row in found["fedkd_rounds"]] == [
        (way, count) for count in cores for way in (IN_PROCESS, PIPES, FLARE)
    ]
    for row in found["fedkd_rounds"]:
        assert row["rounds"] == engine.ROUNDS - 1
        assert row["median"]["seconds"] > 0 < row["median"]["cpu_seconds"]
        if row["way"] == IN_PROCESS:
            assert row["beyond_in_process"] == {"seconds": 0, "cpu_seconds": 0}
    pilot = found["pilot_seconds"]
    assert 0 < pilot["first_exchange"] < pilot["one_round_and_end"]
    assert len(found["targets"]) == 5


def test_frames_are_exchanged_in_process_and_over_flare() -> None:
    report = engine.measure(parties=2, repeats=3, large_repeats=1, whole=False)
    rows = report.document()["rows"]
    assert [(row["engine"], row["bytes_each_way"]) for row in rows] == [
        (name, size)
        for name in ("in process", "FLARE, mutual TLS")
        for size in (engine.SMALL, engine.LARGE)
    ]
    assert all(0 < row["median_seconds"] <= row["slowest_seconds"] for row in rows)
    assert rows[1]["median_seconds"] < rows[3]["median_seconds"]  # what is carried takes time
