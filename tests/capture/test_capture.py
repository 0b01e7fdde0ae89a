"""What is recorded is what crossed the wires, and each role reads of it what privacy.md says."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.audits import roles
from secure_fl.audits.attacks import reading
from secure_fl.audits.audited_run import sent_in
from secure_fl.audits.findings import Reading
from secure_fl.capture import readings
from secure_fl.capture.blobs import Journal, lines
from secure_fl.capture.opening import RecordedRun
from secure_fl.capture.recording import SessionLine, sessions
from secure_fl.errors import RunError, TooFewParties
from secure_fl.party import summing
from secure_fl.protocol.frames import digest
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.testing.hospitals import hosted, silos, small
from tests.support.raising import raises
from tests.support.unmasked import without_masks

MODES: tuple[Protection, ...] = ("none", "secagg", "he+secagg")
UNMASKED = "he+secagg without its masks"  # a planted defect
COORDINATOR, ONE = "coordinator", "one hospital"
WITH_ONE, WITH_TWO = "coordinator + 1 hospital", "coordinator + 2 hospitals"
Recorded = tuple[RecordedRun, roles.Shapes, reading.Sent]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Recorded]:
    """The same federation under every protection."""
    finding: dict[str, Recorded] = {}
    protected: list[tuple[str, Protection]] = [(mode, mode) for mode in MODES]
    for mode, sealed in (*protected, (UNMASKED, "he+secagg")):
        folder = tmp_path_factory.mktemp("runs") / "run"
        with without_masks() if mode == UNMASKED else nullcontext():
            made = small(FedAvg(rounds=1), sealed, silos=silos(size=16), folder=folder, record=True)
            model = made.run().model
        finding[mode] = _loaded(folder, {n: tuple(w.shape) for n, w in model.named_parameters()})
    return finding


def _loaded(folder: Path, shapes: roles.Shapes) -> Recorded:
    run = RecordedRun(folder)
    return run, shapes, sent_in(run)


def _sees(recorded: Recorded) -> dict[str, set[str]]:
    """Of each role: whose values it read, a sum's contributors joined by "+"."""
    run, shapes, sent = recorded
    finding = {}
    for view in roles.views(run, shapes, 1, bound=1):
        seen = set()
        for one in view.readings:
            close = reading.similarities(one, sent)
            if any(value >= reading.threshold(size) for value, size in close):
                seen.add("+".join(name.removeprefix("hospital-") for name in one.of))
        finding[view.role] = seen
    return finding


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", {COORDINATOR: {"1", "2", "3", "1+2+3"}, ONE: {"2+3"}}),
        ("secagg", {COORDINATOR: set(), ONE: {"2+3"}, WITH_ONE: {"2+3"}, WITH_TWO: {"3"}}),
        (UNMASKED, {COORDINATOR: set(), WITH_ONE: {"2", "3", "2+3"}}),
        # Two colluders of three subtract their own values, which nothing can hide.
        ("he+secagg", {COORDINATOR: set(), ONE: {"2+3"}, WITH_ONE: {"2+3"}, WITH_TWO: {"3"}}),
    ],
)
def test_each_role_reads_what_its_protection_leaves(runs, mode, expected):
    sees = _sees(runs[mode])
    assert {role: sees[role] for role in expected} == expected


def test_a_reading_is_the_update_up_to_rounding(runs):
    run, shapes, sent = runs[UNMASKED]
    view = next(
        v for v in roles.views(run, shapes, 1, bound=1) if v.role == "coordinator + 1 hospital"
    )
    one = next(r for r in view.readings if r.of == ("hospital-2",))
    name = "classifier.weight"
    (session, number, _) = one.sources[name]
    given = sent["hospital-2"]
    true = given[session, number, name] / given[session, number, "records"]
    true = true.reshape(shapes[name])
    assert one.values[name].shape == shapes[name]
    assert np.abs(one.values[name] - true).max() < 1e-3 * np.abs(true).max()  # of 16 bits
    assert one.evidence and all(place.startswith("wire/") for place in one.evidence)


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_pieces_of_long_vectors_are_joined(tmp_path, monkeypatch, mode, runs):
    """Whoever reads all pieces of a weight is tested with the weight."""
    monkeypatch.setattr(summing, "PART", 1500)
    made = small(FedAvg(rounds=1), mode, silos=silos(size=16), folder=tmp_path / "run", record=True)
    made.run()
    cut, shapes, _ = _loaded(tmp_path / "run", runs[mode][1])
    views = roles.views(cut, shapes, 1, bound=1)
    complete = {one.role: one for one in roles.views(runs[mode][0], shapes, 1, bound=1)}
    compared = 0
    for view in views:
        expected = {one.of: one.values for one in complete[view.role].readings}
        for finding in view.readings:
            long = [name for name in finding.values if name.endswith("#0")]
            for name in {name.removesuffix("#0") for name in long} & set(shapes):
                same = expected[finding.of][name]
                assert finding.values[name].shape == same.shape == shapes[name]
                if view.role == "one hospital":  # which opens the sum, on a grid of its own
                    size = np.abs(same).max()
                    np.testing.assert_allclose(finding.values[name], same, atol=0.02 * size)
                    compared += 1
    assert compared > 3


@pytest.mark.parametrize("mode", MODES)
def test_frames_are_those_of_the_parties_transcripts(runs, mode):
    run, *_ = runs[mode]
    for party in run.parties:
        transcript = (run.folder / "parties" / party / "transcript.jsonl").read_text()
        noted = [json.loads(line)["digest"] for line in transcript.splitlines()]
        heads = [frame for frame in run.frames if frame.party == party]
        seen = [digest(frame._blobs[frame.line.head]).hex() for frame in heads]
        assert seen == noted
        assert all(frame.envelope.digest == digest(frame.bulk) for frame in heads)


def test_views_are_for_their_owner_alone(runs):
    run, *_ = runs["he+secagg"]
    files = [*run.folder.glob("views/*"), *run.folder.glob("parties/*/view/*")]
    assert len(files) > 10
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_factors_are_put_together(tmp_path):
    algorithm = FedKD(rounds=1, student_layers=1, max_rank=4)
    made = small(algorithm, silos=silos(size=16), folder=tmp_path / "run", record=True)
    student = made.run().models["student"]
    shapes = {n: tuple(w.shape) for n, w in student.named_parameters()}
    run, _, _ = _loaded(tmp_path / "run", shapes)
    (one, *_) = readings.of_coordinator(run, shapes, 1)
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    assert len(one.of) == 1 and one.values[name].shape == shapes[name]
    assert np.linalg.matrix_rank(one.values[name]) == 4  # U·B, and neither Y nor B alone


def test_the_host_reads_sums_of_predictions_only(tmp_path):
    hosted(mode="he+secagg", folder=tmp_path / "run", record=True).run()
    run = RecordedRun(tmp_path / "run")
    reads = readings.of_member(run, "host", {}, 1)
    assert reads and all(len(read.of) == 3 for read in reads)
    alone = [r for r in readings.of_coordinator(run, {}, 1) if "predictions" in r.values]
    finding = [
        pair
        for r in alone
        if len(r.of) == 1
        for pair in reading.similarities(
            Reading(r.of, r.round, r.values, r.evidence, r.sources), sent_in(run)
        )
    ]
    assert finding and all(value < reading.threshold(size) for value, size in finding)


def test_a_resumed_run_is_recorded_on(tmp_path):
    folder = tmp_path / "run"
    options = {"silos": silos(size=16), "folder": folder, "record": True}
    first = small(FedAvg(rounds=2), "he+secagg", **options)
    first.until = 1
    first.run()
    (folder / "result.json").unlink()
    small(FedAvg(rounds=2), "he+secagg", resume=True, **options).run()
    run = RecordedRun(folder)
    assert [line.session for line in sessions(folder)] == [1, 2]
    assert {part.frame.line.session for part in run.parts} == {1, 2}
    assert {part.round for part in run.parts} == {1, 2}


def test_without_views_it_says_what_to_do(tmp_path):
    small(FedAvg(rounds=1), silos=silos(size=16), folder=tmp_path / "run").run()
    with raises(RunError, "only digests", "--record"):
        RecordedRun(tmp_path / "run")


def test_a_failed_run_leaves_readable_views(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(TooFewParties):
        small(FedAvg(rounds=1), silos=silos(parties=2, size=16), folder=folder, record=True).run()
    made = small(
        FedAvg(rounds=1),
        silos=silos(parties=2, size=16),
        folder=folder,
        record=True,
        protection=ProtectionSettings(mode="none", min_cohort=2),
    )
    made.run()
    assert len(RecordedRun(folder).parties) == 2


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    journal = Journal(tmp_path / "run")
    line = SessionLine(1, "none", None, ("a", "b"), "00", {})
    journal.line(line)
    journal.close()
    with (tmp_path / "run.jsonl").open("a") as handle:
        handle.write('{"session": 2, "mode"')
    assert list(lines(tmp_path / "run", SessionLine)) == [line]
    with (tmp_path / "run.jsonl").open("a") as handle:
        handle.write('\n{"session": 3}\n')
    with raises(RunError, "line 2", reason="malformed"):
        list(lines(tmp_path / "run", SessionLine))


# --- what counts as having read an update ------------------------------------------------------


def _reading(**values: np.ndarray) -> Reading:
    return Reading(("a",), 1, values, sources={name: (1, 1, name) for name in values})


def _found(read: Reading, **sent: np.ndarray) -> bool:
    truth = {"a": {(1, 1, name): value for name, value in sent.items()}}
    return any(v >= reading.threshold(size) for v, size in reading.similarities(read, truth))


def test_one_tensor_in_the_clear_is_enough():
    rng = np.random.default_rng(0)
    sent = {"large": rng.normal(size=9000), "small": 1e-6 * rng.normal(size=300)}
    noise = {name: rng.normal(size=value.size) for name, value in sent.items()}
    assert not _found(_reading(**noise), **sent)
    assert _found(_reading(large=noise["large"], small=7 * sent["small"]), **sent)


def test_neither_a_count_nor_a_common_offset_is_an_update():
    rng = np.random.default_rng(0)
    weight, move = np.array([1e6]), 5 + rng.normal(size=1000)
    masked = _reading(weight=weight, move=rng.permutation(move))
    assert not _found(masked, weight=weight, move=move)
    assert _found(_reading(weight=weight, move=move), weight=weight, move=move)


def test_values_of_another_sum_are_not_compared():
    rng = np.random.default_rng(0)
    move = rng.normal(size=1000)
    read = Reading(("a",), 1, {"move": move}, sources={"move": (1, 2, "move")})
    assert not _found(read, move=move)
