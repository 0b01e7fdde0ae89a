"""Every algorithm, audited: what the coordinator reads unprotected, nobody within the bound must.

Losses of parties, resumed runs, and what is missing from a recording: "nothing" is never said of
bytes that were not looked at.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.audits import code_trials
from secure_fl.audits.audited_run import prior_of
from secure_fl.audits.document import AuditDocument
from secure_fl.audits.metadata_trials import metadata_trials, probe_settings
from secure_fl.audits.run import audit
from secure_fl.cli.main import main
from secure_fl.config.load import loads, silos
from secure_fl.errors import RunError
from secure_fl.federation.federation import Federation
from secure_fl.testing.harness import LossyEngine
from tests.support.audited_runs import settings_text, train
from tests.support.matrices import cells
from tests.support.raising import raises
from tests.support.sampling import mostly_slow

HOST = {"data": "public = 24\nlabelled = 8"}
TIERS = {"parties": 6, "layers": 3, "more": "tiers = {small = 1, large = 3}"}
KD = {"algorithm": "fedkd"}

SUMMING: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedadam": {"algorithm": "fedadam"},
    "scaffold": {"algorithm": "scaffold"},
    "fedexp": {"algorithm": "fedexp"},
    "feddropout": {"algorithm": "feddropout"},
    "fetchsgd": {"algorithm": "fetchsgd"},
    "fedkd": KD | {"more": "student_layers = 1"},
    "fedkd whole": KD | {"more": 'student_layers = 1\nfactors = "none"'},
    "fedkd gradient": KD | {"more": 'student_layers = 1\nexchange = "gradient"\nsteps = 2'},
    "fedkd shared": KD
    | {"more": 'student_layers = 1\nteachers = "shared"', "tail": "[model.adapter]\nrank = 2"},
    "inclusivefl": {"algorithm": "inclusivefl"} | TIERS,
    "own layers": {"algorithm": "inclusivefl", "parties": 4, "layers": 3}
    | {"more": "tiers = {small = 2, large = 3}\nshares = {small = 2, large = 1}"},
    "heterofl": {"algorithm": "heterofl"} | TIERS | {"more": "widths = {s = 0.5, l = 1.0}"},
    "alllarge": {"algorithm": "alllarge"} | TIERS | {"parties": 3},
    "allsmall": {"algorithm": "allsmall"} | TIERS | {"parties": 3},
    "exclusivefl": {"algorithm": "exclusivefl"} | TIERS,
    **{
        n: {"algorithm": n, "more": "epochs = 1"} | HOST
        for n in ("fedid", "feddf", "feded", "gong", "dsfl", "mhat")
    },
    "ner": {"kind": "ner", "corpus": "ner"},
    "regression": {"kind": "regression", "corpus": "similarity"},
    "ranking": {"kind": "ranking", "corpus": "news"},
    "pair": {"kind": "pair", "corpus": "pairs"},
}
QUICK = ("fetchsgd", "fedkd shared", "inclusivefl", "feddf")

ONE, SUM = "one hospital's update", "a sum of updates"
COUNTS = "the number of records that a hospital sends along"
COORDINATOR, HOSPITAL, WITH_ONE = "coordinator", "one hospital", "coordinator + 1 hospital"


def looked(folder: Path, **options: Any) -> AuditDocument:
    return audit(folder, quick=True, code=False, **options)


@pytest.mark.parametrize("name", mostly_slow(SUMMING, *QUICK))
def test_what_is_read_unprotected_is_hidden_by_protection(name, tmp_path):
    case = SUMMING[name]
    controls = tmp_path / "controls"
    clear = looked(train(tmp_path / "clear", **case), controls=controls)
    assert cells(clear, ONE)[COORDINATOR] == "everything"
    assert cells(clear, ONE)[WITH_ONE] == "everything"
    assert cells(clear, SUM)[WITH_ONE] == "of a sum"  # also of what only a host opens
    assert clear.status == "beyond policy"
    sealed = looked(train(tmp_path / "sealed", **case | {"mode": "he+secagg"}), controls=controls)
    seen = cells(sealed, ONE)
    assert {seen[COORDINATOR], seen[HOSPITAL], seen[WITH_ONE]} == {"nothing"}
    assert cells(sealed, SUM)[COORDINATOR] == "nothing"
    hosted = ALGORITHMS[sealed.run.algorithm].has_host
    assert cells(sealed, SUM)["host" if hosted else HOSPITAL] == "of a sum"
    assert not any("update" in reason for reason in sealed.reasons)


@pytest.mark.parametrize("algorithm", ["local", "centralized"])
def test_where_nothing_is_sent_nothing_is_claimed(algorithm, tmp_path):
    finding = looked(train(tmp_path / "run", algorithm=algorithm, mode="he+secagg"))
    assert finding.status == "inconclusive"
    assert len(finding.reasons) == 1
    assert set(cells(finding, ONE).values()) == {"not tested"}


def test_factors_of_each_party_are_seen_by_every_other(tmp_path):
    case: dict[str, Any] = KD | {"more": 'student_layers = 1\nfactors = "per_party"'}
    finding = looked(train(tmp_path / "run", mode="he+secagg", **case))
    readers = (HOSPITAL, WITH_ONE, "coordinator + 2 hospitals")
    assert cells(finding, ONE) == {COORDINATOR: "nothing"} | dict.fromkeys(readers, "everything")
    assert cells(finding, COUNTS)[HOSPITAL] == "everything"  # as the result's statement says
    assert finding.status == "beyond policy"


def test_record_counts_are_read_where_weights_are_readable(tmp_path):
    for mode, access in (("none", "everything"), ("secagg", "nothing"), ("he+secagg", "nothing")):
        finding = looked(train(tmp_path / mode, mode=mode), controls=tmp_path / "controls")
        assert cells(finding, COUNTS)[COORDINATOR] == access, mode


@pytest.mark.parametrize(
    ("parties", "protection", "roles"),
    [
        (2, "min_cohort = 2", {1: False}),
        (4, "", {1: True, 2: True, 3: False}),
        # 3 of 5 shares remove every mask, so nothing is claimed of 3 colluders.
        (5, "threshold = 3", {1: True, 2: True, 4: False}),
    ],
)
def test_colluders_are_tried_up_to_the_bound_and_when_all_but_one(
    parties, protection, roles, tmp_path
):
    case = {"parties": parties, "protection": protection, "mode": "he+secagg"}
    finding = looked(train(tmp_path / "run", **case))
    seen = {r: access for r, access in cells(finding, ONE).items() if r.startswith("coordinator +")}
    names = {c: f"coordinator + {c} hospital{'s' if c > 1 else ''}" for c in roles}
    assert seen == {names[c]: "nothing" if held else "everything" for c, held in roles.items()}
    statement = " ".join(finding.untested)
    assert ("more than 2 hospitals that collude" in statement) == (parties == 5)
    # In a sum over two, each sees the other: said, and not passed over.
    assert cells(finding, ONE)[HOSPITAL] == ("everything" if parties == 2 else "nothing")
    assert finding.status == ("beyond policy" if parties == 2 else "within policy")


# Before its input, at it, and when masks are removed.
@pytest.mark.parametrize("exchange", mostly_slow([5, 6, 7], 7))
def test_a_party_is_lost(exchange, tmp_path):
    case = {"parties": 5, "mode": "he+secagg"}
    lossy = lambda sessions: LossyEngine(sessions, {"hospital-1": exchange})  # noqa: E731
    finding = looked(train(tmp_path / "run", lossy, **case))
    assert cells(finding, ONE)[COORDINATOR] == "nothing"
    assert cells(finding, SUM)[HOSPITAL] == "of a sum"  # by one that was not lost
    assert cells(finding, ONE)["coordinator + 4 hospitals"] == "everything"
    assert finding.status == "within policy"


class CrashError(Exception):
    """What stops a run in the middle."""


class Crashing(LossyEngine):
    """Stops everything at an exchange, when a party has answered."""

    def exchange(self, frames, deadline):
        for party, frame in super().exchange(frames, deadline):
            yield party, frame
            if self.exchanges == 5:
                raise CrashError


def test_a_run_that_crashed_in_a_sum_and_was_resumed(tmp_path):
    with pytest.raises(CrashError):
        train(tmp_path / "run", Crashing, mode="none")
    text = settings_text(mode="none")
    Federation.of(loads(text), tmp_path / "run", resume=True).run()
    finding = looked(tmp_path / "run")
    assert cells(finding, ONE)[WITH_ONE] == "everything"
    assert cells(finding, SUM)[HOSPITAL] == "of a sum"


def test_rounds_that_were_not_recorded_are_not_judged(tmp_path):
    case = {"rounds": 2, "mode": "none"}
    plain = settings_text(**case)
    made = Federation.of(loads(plain.replace("record = true", "")), tmp_path / "run")
    made.until = 1
    made.run()
    (tmp_path / "run" / "result.json").unlink()
    assert not (tmp_path / "run" / "views").exists()
    assert not list((tmp_path / "run").glob("parties/*/view"))
    (tmp_path / "run" / "settings.toml").write_text(plain)
    Federation.of(loads(plain), tmp_path / "run", resume=True).run()
    finding = looked(tmp_path / "run")
    assert cells(finding, ONE)[WITH_ONE] == "everything"  # in round 2, which is there
    assert any("before round 2" in statement for statement in finding.untested)


# --- what is missing from a recording ----------------------------------------------------------


@pytest.fixture(scope="module")
def sealed(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("missing") / "run", mode="secagg")


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("parties/hospital-2/view/notes.jsonl", "missing"),
        ("parties/hospital-1/view/sums-1.keys", "missing"),
        ("views/wire.jsonl", "missing"),
        ("views/wire.bin", "malformed"),
        ("parties/hospital-3/view/notes.bin", "malformed"),
        ("views/run.jsonl", "missing"),
        ("result.json", "unfinished"),
    ],
)
def test_what_is_missing_is_an_error_and_no_protection(lost, reason, sealed, tmp_path):
    shutil.copytree(sealed, tmp_path / "run")
    (tmp_path / "run" / lost).unlink()
    with raises(RunError, reason=reason):
        looked(tmp_path / "run")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": "secure-fl/result/0"}'])
def test_another_result_is_told(text, sealed, tmp_path):
    shutil.copytree(sealed, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(text)
    with raises(RunError, reason="malformed"):
        looked(tmp_path / "run")


def test_a_run_that_was_moved_is_audited_and_missing_data_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(code_trials, "steps", lambda audited: iter(()))  # they look at no run
    rows = [f"note {n} about a rash,{'ade' if n % 2 else 'no-ade'}" for n in range(120)]
    (tmp_path / "notes.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    text = settings_text(corpus="@")
    text = text.replace('corpus = "@"', 'source = "notes.csv"').replace("size = 12\n", "")
    (tmp_path / "study.toml").write_text(text)
    runner = CliRunner()
    run = ["train", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run"), "-q"]
    done = runner.invoke(main, run)
    assert done.exit_code == 0, done.output
    moved = (tmp_path / "run").rename(tmp_path / "elsewhere")
    done = runner.invoke(main, ["audit", str(moved), "--quick", "--json"])
    assert done.exit_code == 3, done.output
    assert done.stdout.startswith("{") and done.stdout.endswith("}\n") and not done.stderr
    (tmp_path / "notes.csv").unlink()
    done = runner.invoke(main, ["audit", str(moved), "--quick"])
    assert done.exit_code == 2 and "notes.csv" in done.output + done.stderr


# --- what attackers know, and the probe --------------------------------------------------------


def test_all_labels_are_known_where_hospitals_have_their_own():
    settings = loads(settings_text(kind="ner", corpus="ner"))
    members = tuple(silos(settings))
    made = Federation.of(settings)
    assert made.local_heads
    prior = prior_of(settings, members)
    assert set(prior.task.labels) == {tag for task in made.tasks.values() for tag in task.labels}
    prior.task.encode(prior.outsiders, prior.tokenizer)  # no record has an unknown label


@pytest.mark.slow
def test_a_probe_that_is_impossible_claims_nothing(tmp_path):
    """FedAdam's tiers of two hospitals have no sum of their own; one party is no rank."""
    fedadam = 'server_optimizer = "fedadam"'
    tiers = loads(settings_text(algorithm="inclusivefl", layers=3, more=fedadam))
    alone = loads(settings_text(algorithm="centralized"))
    for settings in (tiers, alone):
        for trial in metadata_trials(settings, tmp_path / settings.algorithm.name):
            assert trial.verdict.value == "not tested" and trial.reason


def test_a_probe_has_as_many_layers_as_the_run():
    deep = loads(settings_text(**KD, layers=4, more="student_layers = 3"))
    assert probe_settings(deep).model.layers == 4
