"""The benchmarks run, and their documents have the shape that the docs and issues name."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import bert_shapes
from benchmarks.__main__ import main
from benchmarks.clocks import Clocked, CpuRecorder
from benchmarks.federations import (
    adapters,
    audits,
    interactive,
    layers,
    overhead,
    quick_audit,
    wire,
)
from benchmarks.federations import round as round_
from benchmarks.federations.apart import run_apart
from benchmarks.micro import crypto, dp, large, memory, protocol, savings, startup
from benchmarks.report import Report, Target
from secure_fl.errors import SettingsError
from secure_fl.events import EventLog
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ProtectionSettings

ROW = {
    "name",
    "bits",
    "parties",
    "values",
    "up_bytes_per_value",
    "down_bytes_per_value",
    "seal_ns_per_value",
    "add_ns_per_value",
    "open_ns_per_value",
    "relative_error",
}


def document(report: Report) -> dict[str, Any]:
    """What `--json` prints, after a trip through JSON."""
    found: dict[str, Any] = json.loads(json.dumps(report.document()))
    assert {"schema", "benchmark", "machine", "versions", "sizes", "seed", "targets"} <= set(found)
    assert all({"what", "limit", "measured", "met"} <= set(t) for t in found["targets"])
    return found


def test_crypto_compares_ways_side_by_side() -> None:
    found = document(crypto.measure(values=2_000, parties=3, repeats=1))
    assert all(set(row) >= ROW for row in found["rows"])
    first = found["rows"][0]
    assert first["name"].startswith("he+secagg") and first["bits"] == 8
    *_, nvflare, _ = found["rows"]  # one tensor, and the same in fifty
    for name in ("up_bytes", "seal_ns", "open_ns"):
        ratio = nvflare[f"{name}_per_value"] / first[f"{name}_per_value"]
        assert found["ratios"][name.removesuffix("_ns")] == pytest.approx(ratio)
    assert all(row["exact"] for row in found["rows"] if row["bits"])  # integers, to the last one
    assert all(r["relative_error"] < (0.2 if r["bits"] == 4 else 0.05) for r in found["rows"])


def test_wire_compares_sealed_students_with_the_plain_teacher() -> None:
    found = document(wire.measure(8, 1, 3, (2,), model="tiny", scale=16))
    student = found["students"]["2"]
    assert student["reference_bytes_per_party"] > student["bytes_per_party"] > 0
    assert student["ratio"] > 1 and 0 < student["share_of_time"] < 1
    assert set(student["widths"]) and all(0 < share <= 1 for share in student["widths"].values())
    assert student["bert_base"]["ratio"] > 1
    assert len(found["targets"]) == 3


def test_bytes_of_a_teacher_in_the_clear_are_four_each_way() -> None:
    values = sum(shape.numel() for shape in bert_shapes.shapes(12, 16).values())
    sent = bert_shapes.exchange_bytes(12, {}, ProtectionSettings(mode="none"), 3, 16)
    assert 1 <= sent / (8 * values) < 1.05
    half = bert_shapes.exchange_bytes(6, {}, ProtectionSettings(mode="none"), 3, 16)
    assert half / sent == pytest.approx(0.5, abs=0.05)


def test_protocol_fits_growth() -> None:
    found = document(protocol.measure(parties=(3, 6, 40), values=16))
    assert [row["parties"] for row in found["rows"] if row["mode"] == "secagg"] == [3, 6, 40]
    assert all(row["party_up_bytes"] > 0 and row["party_ms"] > 0 for row in found["rows"])
    assert set(found["growth"]) >= {"party_up_bytes", "coordinator_ms"}


@pytest.mark.parametrize("name", list(protocol.GROWTH))
def test_the_fit_finds_the_growth_it_is_given(name: str) -> None:
    sizes = (3, 10, 32, 100, 1000)
    costs = [7 + 2 * protocol.GROWTH[name](n) for n in sizes]
    assert protocol.fit(sizes, costs)["best"] == name


def test_memory_is_measured_in_processes_of_its_own() -> None:
    found = document(memory.measure(values=20_000, parties=(3, 6)))
    assert [(row["mode"], row["parties"]) for row in found["rows"]] == [
        ("none", 3),
        ("none", 6),
        ("he+secagg", 3),
        ("he+secagg", 6),
    ]
    assert all(row["total"] > 0 and row["peak_allocated"] > row["total"] for row in found["rows"])


def test_large_sums_are_measured_in_processes_of_their_own() -> None:
    rows = document(large.measure(calls=(50_000,), blocks=(20_000, 30_000)))["rows"]
    assert [(row["sums"], row["values"]) for row in rows] == [(1, 50_000), (2, 50_000)]
    assert all(row["up"] > 0 and row["party_peak"] != 0 for row in rows)


def test_dp_is_paired_with_plain_training() -> None:
    rows = document(dp.measure(records=32, repeats=1, layers=1))["rows"]
    assert len(rows) == 9 and all(row["over_plain"] > 0 for row in rows)
    assert [row["over_plain"] for row in rows if row["way"] == "plain"] == [1.0, 1.0, 1.0]


def test_overhead_pairs_runs_with_a_bare_loop() -> None:
    found = document(overhead.measure(parties=2, records=8, rounds=1, repeats=1))
    assert [row["name"] for row in found["rows"]] == ["bare loop", "none", "he+secagg"]
    assert all(row["round_cpu_seconds"] > 0 for row in found["rows"])
    assert found["rows"][0]["over_bare"] == 0


def test_layers_are_mixed_alike_and_held_against_training() -> None:
    found = document(layers.measure(scale=32, batch=2, tokens=8))
    h = 768 // 32
    layer, head = 12 * h * h + 13 * h, h * h + 2 * h + 2 * h + 2  # pooling by h queries
    for row in found["rows"]:
        assert row["values"] == row["layers"] * layer + head
        assert row["up"] > row["values"] and row["seal"] > 0 < row["mix"]  # a byte per value, more
        after = row["open"] + row["mix"]
        steps = row["records_for_limit"] / 2
        assert after <= 0.1 * steps * row["training_step"] <= after + 0.1 * row["training_step"]
        assert row["share_of_epoch"] == pytest.approx(after / (2500 * row["training_step"]))
    for one in found["coordinator"]:
        own = [row for row in found["rows"] if row["way"] == one["way"]]
        assert one["equal"] and one["cpu_seconds"] > 0 < one["pipe_cpu_seconds"]
        assert one["bytes_up"] == pytest.approx(sum(row["up"] * row["parties"] for row in own))
    tiers, mixed = (one["bytes_down"] for one in found["coordinator"])
    assert mixed < tiers  # a party opens one sum per layer, not one per tier and layer


def test_a_party_that_fails_ends_a_run_with_the_coordinator_elsewhere() -> None:
    async def program(cohort: Cohort) -> None:
        raise SettingsError("no", party=cohort.me)

    recorders = {name: EventLog(name) for name in ("a", "b")}
    with pytest.raises(SettingsError, match="no"):
        run_apart(ProtectionSettings(mode="none", min_cohort=2), program, recorders)


def spin(seconds: float) -> None:
    """Use so much CPU time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_a_clock_stops_while_its_coroutine_waits() -> None:
    recorder = CpuRecorder("a")

    class Others:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def work() -> str:
        spin(0.02)
        await Others()
        with recorder.phase("open"):
            spin(0.02)
        return "done"

    clocked = Clocked(work())
    turns = clocked.__await__()
    next(turns)
    spin(0.2)
    with pytest.raises(StopIteration) as ended:
        next(turns)
    assert ended.value.value == "done"
    assert 0.04 <= clocked.seconds < 0.2 and 0.02 <= recorder.seconds["open"] <= clocked.seconds


def test_interactive_pairs_steps_with_steps_in_the_clear() -> None:
    found = document(
        interactive.measure(parties=3, batch=4, together=(1, 2), steps=2, turns=1, federate=False)
    )
    ways = ["none", "he+secagg", "he+secagg, noise"]
    assert [(row["name"], row["examples"]) for row in found["rows"]] == [
        *((way, 4) for way in ways),
        *((way, 8) for way in ways),
    ]
    for row in found["rows"]:
        step, sealed = row["step"], row["name"] != "none"
        assert min(step["party"], step["host"], step["coordinator"]) > 0
        assert 0 <= sum(step["parts"].values()) <= step["party"]  # no part is counted twice
        assert (step["parts"].get("next_keys", 0) > 0) == sealed  # keys are drawn for every sum
        clear = next(r["step"] for r in found["rows"] if r["examples"] == row["examples"])
        assert row["over_party"] == step["party"] - clear["party"]  # of a single turn
    # In the clear 4 bytes a value travel up: 4 records of 2 classes more are 32 bytes more.
    clear = {row["examples"]: row["step"] for row in found["rows"] if row["name"] == "none"}
    assert clear[8]["up"] - clear[4]["up"] == pytest.approx(32, abs=4)  # sizes in the head vary
    assert len(found["targets"]) == 3 and found["rounds"] == []


@pytest.mark.slow
def test_a_round_is_split_into_what_models_compute_and_the_rest() -> None:
    found = document(round_.measure(records=8, batch=4, model="tiny", names=("fedkd", "dsfl")))
    ways = {(row["algorithm"], row["mode"]): row for row in found["rows"]}
    assert set(ways) == {(a, m) for a in ("fedkd", "dsfl") for m in ("none", "he+secagg")}
    parts = ("models", "factors", "protecting", "rest")
    for row in ways.values():
        assert row["seconds"] == pytest.approx(sum(row[part] for part in parts))
        assert row["models"] > 0 and row["over"] > 1
    assert ways["fedkd", "none"]["factors"] > 0 == ways["dsfl", "none"]["factors"]
    for name in ("fedkd", "dsfl"):
        assert ways[name, "he+secagg"]["protecting"] > ways[name, "none"]["protecting"]


@pytest.mark.slow
def test_audits_are_timed_and_the_demo_shows_what_protection_does() -> None:
    found = document(audits.measure(full=False, words=500, turns=1))
    clear, sealed, fedkd = found["demo"]
    assert clear["words_recovered"] > 0.95 > 0.1 > sealed["words_recovered"]
    # The best of 81 readings of noise that no seed decides; the shortest has the deviation 1/√768.
    assert clear["update_read"] > 0.95 and fedkd["update_read"] < 7 / 768**0.5
    assert [entry["status"] for entry in found["demo"]] == ["beyond policy", *["within policy"] * 2]
    assert found["full_seconds"] is None and len(found["targets"]) == 2


@pytest.mark.slow
def test_quick_audits_are_timed_and_the_checkpoint_can_be_left_out() -> None:
    found = document(quick_audit.measure(large=False))
    assert found["large_seconds"] is None
    (target,) = found["targets"]
    assert target["measured"] == found["tiny_seconds"] > 0


def test_startup_is_measured_in_processes_of_its_own() -> None:
    found = document(startup.measure(repeats=1))
    assert [row["name"] for row in found["rows"]] == list(startup.COMMANDS)
    assert all(row["seconds"] > 0 for row in found["rows"])


def test_targets_say_which_way_they_go() -> None:
    assert Target("at most", 4.0, 3.9).met and not Target("at most", 4.0, 4.1).met
    assert Target("at least", 8.0, 8.1, at_least=True).met
    assert not Target("at least", 8.0, 7.9, at_least=True).met


def test_the_command_prints_json_and_saves_it(tmp_path: Path) -> None:
    out = tmp_path / "startup.json"
    arguments = ["startup", "--quick", "--json", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == json.loads(out.read_text())
    assert json.loads(result.output)["benchmark"] == "startup"


def test_layers_computed_again_keep_less_and_every_way_trains() -> None:
    found = document(savings.measure(records=16, repeats=1, prompts=24, model="tiny"))
    rows = {row["way"]: row for row in found["rows"]}
    assert all(row["cpu_seconds"] > 0 for row in rows.values())
    assert rows["checkpointing"]["kept_bytes"] < rows["plain"]["kept_bytes"] / 2
    assert 0 < found["together"] < found["alone"]


def test_adapters_send_less_than_the_model_and_ffa_less_than_lora() -> None:
    found = document(adapters.measure(tokens=8, batch=2, scale=8, dp_records=32, repeats=1))
    rows = {row["kind"]: row for row in found["rows"]}
    assert rows["ffa"]["values"] < rows["lora"]["values"] < rows["exact"]["values"]
    assert rows["exact"]["up_bytes"] < rows["whole model"]["up_bytes"]
    for kind in ("ffa", "lora", "exact"):
        assert 1.5 < rows[kind]["up_bytes"] / rows[kind]["values"] < 4
    assert {row["way"] for row in found["dp"]} == {"plain", "per_sample", "ghost"}
