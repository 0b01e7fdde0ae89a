"""The comparison with other systems: bytes, jobs, errors and the page."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from benchmarks import checkpoint
from benchmarks.peers import environments, page, tables
from benchmarks.peers.breaking import learnt
from benchmarks.peers.breaking import measure as break_runs
from benchmarks.peers.compare import measure
from benchmarks.peers.inside.job import Job, trained
from benchmarks.peers.prepare import Sizes, config_of, prepare
from benchmarks.peers.stage import Wire
from benchmarks.peers.tables import CALM
from benchmarks.peers.ways import ROOT, WAYS
from benchmarks.report import BLOCK
from secure_fl.errors import DataError, ModelError
from secure_fl.learning.anatomy import freeze_embeddings, trainable

PORT = 8002


def own_network() -> bool:
    """Return True if a process may have a network of its own here, and read its packets."""
    code = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)"
    tried = ["unshare", "--net", "--map-root-user", "python3", "-c", code]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_network = pytest.mark.skipif(not own_network(), reason="no network of one's own here")


def packet(source: int, target: int, *, six: bool, tcp: bool = True) -> memoryview:
    kind, start = 6 if tcp else 17, 40 if six else 20
    head = bytearray(start + 20)
    head[0], head[6 if six else 9] = (0x60 if six else 0x45), kind
    struct.pack_into("!HH", head, start, source, target)
    return memoryview(head)


@pytest.mark.parametrize("six", [False, True])
def test_bytes_to_and_from_the_port_are_told_apart(six: bool) -> None:
    wire = Wire.__new__(Wire)
    wire._port, wire.up, wire.down = PORT, 0, 0
    wire.count(packet(40_000, PORT, six=six), 1_000)
    wire.count(packet(PORT, 40_000, six=six), 70)
    wire.count(packet(40_000, 9_000, six=six), 5)  # inside a site
    wire.count(packet(40_000, PORT, six=six, tcp=False), 5)
    assert (wire.up, wire.down) == (1_000, 70)


def test_a_system_that_is_not_there_is_a_row_with_its_error(tmp_path: Path) -> None:
    report = measure(names=("flower",), environments=tmp_path, turns=1, sites=3, records=4)
    row = report.document()["rows"]["flower"]
    assert row["turns"] == 0
    assert "not installed" in row["error"]


@pytest.mark.parametrize(
    ("size", "values"), [("1M", 927_170), ("10M", 9_720_834), ("100M", 101_821_442)]
)
def test_a_model_has_the_values_of_its_size(size: str, values: int) -> None:
    with torch.device("meta"):
        model = BertForSequenceClassification(config_of(size, 700))
    freeze_embeddings(model)
    assert sum(weight.numel() for weight in trainable(model).values()) == values


def test_a_job_is_made_of_a_larger_model_and_of_real_records(tmp_path: Path) -> None:
    job = Job(prepare(tmp_path / "job", replace(Sizes.of("1M", real=False), records=4, test=8)))
    assert sum(map(np.size, trained(job.model()).values())) == 927_170
    assert all(job.records(site) == 4 for site in job.sites)
    with pytest.raises(DataError):
        prepare(tmp_path / "real", Sizes.of("tiny", real=True), tmp_path)
    assert Sizes.of(str(tmp_path), real=True).label == tmp_path.name
    assert Sizes.of("some/checkpoint", real=True).learning_rate < Sizes().learning_rate


def test_another_model_never_stands_in_for_a_checkpoint_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "installed", lambda: None)
    with pytest.raises(ModelError):
        prepare(tmp_path / "job", Sizes.of(checkpoint.PACKAGE, real=False))


def test_a_system_may_ask_for_an_edition_of_its_own() -> None:
    asked = environments.asked(("torch===1.0", "other==2"))
    assert asked == [environments.TORCH[1], "torch===1.0", "other==2"]


@pytest.mark.slow
@needs_network
def test_a_simulated_job_ends_with_the_weights_of_the_job_by_hand() -> None:
    report = measure(names=("ours-simulated",), turns=1, sites=3, rounds=3, records=16)
    row = report.document()["rows"]["ours-simulated"]
    assert row["error"] is None
    assert row["off"][0] < 1e-4
    assert row["seconds"][0] > 0 < row["cpu"][0]


@pytest.mark.slow
@needs_network
def test_a_pilot_does_the_same_job_to_its_grid() -> None:
    report = measure(names=("ours",), turns=1, sites=3, rounds=3, records=32)
    row = report.document()["rows"]["ours"]
    assert row["error"] is None
    assert row["off"][0] < 1e-2
    assert row["up"][0] > 138_178 < row["down"][0]  # a byte a value at the least


def test_the_counted_files_exist() -> None:
    for way in WAYS.values():
        assert all((ROOT / "benchmarks/peers/inside" / file).exists() for file in way.files), way


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    text = page.PAGE.read_text()
    assert len(BLOCK.findall(text)) == text.count("<!-- table ") > 10
    assert page.write(text) == text, "python -m benchmarks.peers.page"


def test_an_update_is_recognised_and_noise_is_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    got = {"a": rng.normal(size=(40, 50)), "b": rng.normal(size=300)}
    sent = {name: values + 0.01 * rng.normal(size=values.shape) for name, values in got.items()}
    for folder, held in {
        "clear": {name: 60.0 * values for name, values in sent.items()},
        "noise": {name: rng.normal(size=values.shape) for name, values in sent.items()},
        "before": got,
    }.items():
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "1-0.npz", allow_pickle=False, **held)
    truths = [(1, got, sent)]
    assert learnt(truths, tmp_path / "clear") > 0.99
    assert learnt(truths, tmp_path / "noise") < 0.1
    assert learnt(truths, tmp_path / "before") < 0.1
    assert learnt(truths, tmp_path / "nothing was kept") == 0.0


def test_outcomes_follow_from_the_measurements() -> None:
    calm = {"ended": True, "finite": True, "off": 1e-3, "said": [], "why": None}
    row = {
        CALM: calm,
        "nan": calm | {"finite": False},
        "model": calm | {"off": 40.0, "said": ["warning"]},
        "kill": calm | {"off": 1.1e-3},
        "again": calm | {"off": 3e-2, "said": ["warning"]},
        "stop": calm | {"ended": False, "why": "TimeoutExpired: x"},
        "alone": calm | {"ended": False, "learnt_from_model": 0.0},
    }
    assert tables.ending(row, "nan") == "**model ruined**; not reported"
    assert tables.ending(row, "model") == "**model ruined**; reported"
    assert tables.ending(row, "kill") == "ends, the same model; not reported"
    assert tables.ending(row, "again") == "ends, without it; reported"
    assert tables.ending(row, "stop") == "does not end; not reported"
    assert tables.ending(row, "kill-server") == "not run"
    assert tables.known(row, "alone", "learnt_from_model") == "refused"


@pytest.mark.slow
@needs_network
def test_a_site_that_sends_nan_is_left_out_here_and_named(tmp_path: Path) -> None:
    report = break_runs(names=("ours",), mishaps=("nan",), records=32, work=tmp_path / "work")
    row = report.document()["rows"]["ours"]
    assert row[CALM]["ended"]
    assert row["nan"]["ended"] and row["nan"]["finite"]
    assert any(row["nan"]["where"] in line for line in row["nan"]["said"])
