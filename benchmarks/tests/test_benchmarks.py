"""The figures of the benchmarks, measured at small sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.federations import adapters, audits
from benchmarks.federations import round as round_
from benchmarks.federations import statistics as statistics_
from benchmarks.federations.leakage import audited
from benchmarks.micro import crypto, dp, engine, large, protocol, savings, startup
from benchmarks.report import Grid, Report, Target
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.audits.attacks.membership import LIRA, RMIA
from secure_fl.audits.report import trade_off
from secure_fl.audits.report.page import render
from secure_fl.crypto.keys.identity import PublicIdentity
from tests.support.fuzzing import Fuzzer, FuzzFinding
from tests.support.local_pilot import local_pilot, plan_of
from tests.support.mutants import MUTATORS


def document(report: Report) -> dict[str, Any]:
    """Return the document of `--json`, after a trip through JSON."""
    found: dict[str, Any] = json.loads(json.dumps(report.document()))
    assert {"schema", "benchmark", "machine", "versions", "sizes", "seed", "targets"} <= set(found)
    return found


def test_sums_are_exact_in_every_mode() -> None:
    rows = document(crypto.measure(values=2_000, parties=3, repeats=1))["rows"]
    assert rows[0]["name"].startswith("he+secagg") and rows[0]["bits"] == 8
    assert all(row["exact"] and row["seal_ns_per_value"] > 0 for row in rows)
    assert all(r["relative_error"] < (0.2 if r["bits"] == 4 else 0.05) for r in rows)


def test_protocol_measures_every_cohort() -> None:
    found = document(protocol.measure(parties=(3, 6, 40), values=16))
    assert [row["parties"] for row in found["rows"] if row["mode"] == "secagg"] == [3, 6, 40]
    assert all(row["party_up_bytes"] > 0 and row["party_ms"] > 0 for row in found["rows"])


def test_large_sums_are_measured_in_processes() -> None:
    rows = document(large.measure(calls=(50_000,), blocks=(20_000, 30_000)))["rows"]
    assert [(row["sums"], row["values"]) for row in rows] == [(1, 50_000), (2, 50_000)]
    assert all(row["up"] > 0 and row["party_peak"] != 0 for row in rows)


def test_dp_is_paired_with_plain_training() -> None:
    rows = document(dp.measure(records=32, repeats=1, layers=1))["rows"]
    assert len(rows) == 9 and all(row["over_plain"] > 0 for row in rows)
    assert [row["over_plain"] for row in rows if row["way"] == "plain"] == [1.0, 1.0, 1.0]


def test_checkpointing_keeps_less_and_every_way_trains() -> None:
    found = document(savings.measure(records=16, repeats=1, prompts=24, model="tiny"))
    rows = {row["way"]: row for row in found["rows"]}
    assert all(row["cpu_seconds"] > 0 for row in rows.values())
    assert rows["checkpointing"]["kept_bytes"] < rows["plain"]["kept_bytes"] / 2
    alone, together = found["answers"].values()
    assert 0 < together < alone


def test_adapters_send_less_than_the_model_and_ffa_less_than_lora() -> None:
    found = document(adapters.measure(tokens=8, batch=2, scale=8, dp_records=32, repeats=1))
    rows = {row["kind"]: row for row in found["rows"]}
    assert rows["ffa"]["values"] < rows["lora"]["values"] < rows["exact"]["values"]
    assert rows["exact"]["up_bytes"] < rows["whole model"]["up_bytes"]
    for kind in ("ffa", "lora", "exact"):
        assert 1.5 < rows[kind]["up_bytes"] / rows[kind]["values"] < 4


def test_frames_are_exchanged_in_process_and_over_flare() -> None:
    report = engine.measure(parties=2, repeats=3, large_repeats=1)
    rows = document(report)["rows"]
    assert [row["bytes_each_way"] for row in rows] == [engine.SMALL, engine.LARGE] * 2
    assert all(0 < row["median_seconds"] <= row["slowest_seconds"] for row in rows)
    assert rows[1]["median_seconds"] < rows[3]["median_seconds"]


def test_random_codebooks_are_attacked_with_the_rule_on_and_off() -> None:
    on, off = statistics_.attacked(6, 0)
    assert on.codebooks >= 6 and on.bounded > 0 and on.narrow == on.wrong == off.wrong == 0
    assert off.narrow > 0 and off.single > 0


def test_parts_of_a_codebook_add_up_and_more_patients_hide_less() -> None:
    _, spent, parts = statistics_.timed(3, 60, 0)
    seconds = {row.part: row.seconds for row in parts}
    assert spent > 0 and all(found > 0 for found in seconds.values())
    few, many = (statistics_.released("and 2 of two variables", n, 0) for n in (100, 3_000))
    assert 0 < few.released < many.released == many.records == 1


@pytest.mark.slow
def test_the_parts_of_a_round_add_up() -> None:
    found = document(round_.measure(records=8, batch=4, model="tiny", names=("fedkd", "dsfl")))
    rows = {(row["algorithm"], row["mode"]): row for row in found["rows"]}
    assert set(rows) == {(a, m) for a in ("fedkd", "dsfl") for m in ("none", "he+secagg")}
    for row in rows.values():
        parts = ("models", "factors", "protecting", "rest")
        assert row["seconds"] == pytest.approx(sum(row[part] for part in parts))
        assert row["models"] > 0 and row["over"] > 1
    for name in ("fedkd", "dsfl"):
        assert rows[name, "he+secagg"]["protecting"] > rows[name, "none"]["protecting"]


@pytest.mark.slow
def test_audits_are_timed_and_the_demo_shows_the_effect_of_protection() -> None:
    found = document(audits.measure(full=False, words=500, turns=1))
    clear, sealed, fedkd = found["demo"]
    assert clear["words_recovered"] > 0.95 > 0.1 > sealed["words_recovered"]
    # The best of 81 readings of noise; the shortest has the deviation 1/√768.
    assert clear["update_read"] > 0.95 and fedkd["update_read"] < 7 / 768**0.5
    assert found["seconds"]["full"] is None and len(found["targets"]) == 3


def test_audited_runs_become_a_curve(tmp_path: Path) -> None:
    documents = audited(tmp_path, (2.0, None), size=16, rounds=1, epochs=1, models=(4, 2))
    found = trade_off.successes(documents)
    assert [one.attack for one in found] == [LIRA, RMIA] * 2
    assert [one.epsilon is None for one in found] == [False, False, True, True]
    assert all(one.value is not None and one.interval is not None for one in found)
    assert "all-epsilon-title" in render(documents)


def test_mutants_are_counted_by_the_command() -> None:
    done = CliRunner().invoke(main, ["fuzz-run", "--mutants", "3000", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["thrown"] == sum(found["at"].values()) >= 3000
    assert found["kinds"] == len(MUTATORS)
    assert (found["accepted"], found["crashes"], found["unfinished_seats"]) == (0, 0, 0)
    assert all(target["met"] for target in found["targets"])


@pytest.mark.parametrize(("kind", "crashes"), [("accepted", 0), ("ZeroDivisionError", 1)])
def test_the_fuzzer_sees_accepted_mutants_and_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, crashes: int
) -> None:
    def verify(self: PublicIdentity, digest: bytes, signature: bytes) -> None:
        if crashes and len(fuzzer.found) == 0 and fuzzer.thrown:
            raise ZeroDivisionError

    monkeypatch.setattr(PublicIdentity, "verify", verify)
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=1)))
    fuzzer = Fuzzer(pilot, 100, eager=True)
    with pytest.raises(FuzzFinding, match=kind):
        fuzzer.lead().run()
    assert (len(fuzzer.found), fuzzer.crashes) == (1, crashes)


def test_startup_is_measured_and_the_command_saves_json(tmp_path: Path) -> None:
    out = tmp_path / "startup.json"
    done = CliRunner().invoke(main, ["startup", "--quick", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert json.loads(done.output) == found and found["benchmark"] == "startup"
    assert [row["name"] for row in found["rows"]] == list(startup.COMMANDS)


def test_targets_have_a_direction() -> None:
    assert Target("at most", 4.0, 3.9).met and not Target("at most", 4.0, 4.1).met
    assert Target("at least", 8.0, 8.1, at_least=True).met
    assert not Target("at least", 8.0, 7.9, at_least=True).met


def test_a_grid_is_laid_out_by_formats_and_functions() -> None:
    grid = Grid.of("", [1.0, 2.0], {"half": lambda r: f"{r / 2:.1f}", "value": "{r:.0f}"})
    assert list(grid.markdown())[2:] == ["| 0.5 | 1 |", "| 1.0 | 2 |"]
