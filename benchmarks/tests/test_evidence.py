"""Tables of papers: cells are stored and resumed, figures add up, claims are judged both ways."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks import checkpoint
from benchmarks.__main__ import main
from benchmarks.checkpoint import BUILT_IN, Checkpoint
from benchmarks.collection import SETS
from benchmarks.datasets import Spread, silos
from benchmarks.evidence import claims, pages, papers
from benchmarks.evidence.cells import (
    Cell,
    Inputs,
    mean_scores,
    members_of,
    request,
    run,
    scores_of,
    sections,
)
from benchmarks.evidence.claims import PLAIN_FEDAVG, Arm, Claim, judge
from benchmarks.evidence.commands import WEIGHTS, halve
from benchmarks.evidence.rows import Row, rows, shown, spread
from benchmarks.evidence.store import FILE, Evidence, Store, gather
from benchmarks.evidence.tables import NAMES, table_of
from benchmarks.evidence.tables.base import Section, Table
from secure_fl.algorithms.baselines.reference_points import Local
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config.data import HOST
from secure_fl.data.examples import Text
from secure_fl.errors import RunError, SettingsError
from secure_fl.federation.federation import Federation
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from tests.support.saved_models import save_tiny

ROOT = Path(__file__).parents[2]
HERE = Inputs(None, Checkpoint(BUILT_IN, BUILT_IN))
TRAINING: dict[str, Any] = {"learning_rate": 2e-3, "batch_size": 8, "device": "cpu"}
LEARNT = {"FedAvg": (0.80, 0.82, 0.81), "Local": (0.60, 0.63, 0.59), "FedDropout": (0.7, 0.9, 0.8)}
UP = {"FedAvg": 1000, "Local": 1, "FedDropout": 600}


def cell(method: str = "FedAvg", seed: int = 0, **changes: Any) -> Cell:
    given: dict[str, Any] = {
        "algorithm": {"name": method.lower(), "rounds": 1},
        "model": {"layers": 1},
        "training": TRAINING,
        "protection": {"mode": "none"},
        "max_length": 16,
        "spread": Spread(("built-in ade",), 3, train=24),
    }
    return Cell("ade", method, seed, **(given | changes))


def outcome(one: Cell, score: float, up: int = 100, **changes: Any) -> dict[str, Any]:
    """Make up an outcome of a cell."""
    algorithm, checked = sections(one, HERE.model)
    parties = {f"hospital-{k}": tier for k, tier in enumerate(one.spread.tiers or (None,) * 3)}
    scores = {"accuracy": score, "loss": 1 / 3}
    at = {
        "round": 1,
        "mean": {"dev": scores, "test": scores},
        "party": {name: {"dev": scores, "test": scores} for name in parties},
    }
    identity: dict[str, Any] = json.loads(json.dumps(request(one).named))
    return {
        **{name: identity[name] for name in ("seed", "spread", "depths", "control")},
        "title": one.title,
        "metric": "accuracy",
        "parties": parties,
        "records": {"train": 24, "dev": 6, "test": 12},
        "values": 500,
        "rounds": 1,
        "metrics": {"last": at, "best": at},
        "bytes": {name: {"up": up, "down": up} for name in parties},
        "privacy_share": 0.1,
        "seconds": 5.0,
        "cpu_seconds": 4.0,
        "caveat": "",
        "algorithm": algorithm.model_dump(mode="json"),
        "protection": {"mode": "none", "statement": "very long"},
        "settings": {name: part.model_dump(mode="json") for name, part in checked.items()},
        "machine": {"processor": "abacus", "torch_threads": 1},
        "versions": {"python": "3.11"},
    } | changes


def table(*methods: str, **changes: Any) -> Table:
    def cells(seed: int) -> Iterator[Cell]:
        yield from (cell(method, seed, **changes) for method in methods)

    return Table("small", "Small", cells, reference="FedAvg", model=BUILT_IN)


def fill(made: Table, work: Path, seeds: int = 1, **options: Any) -> tuple[dict[str, Any], str]:
    lines: list[str] = []
    planned = papers.plan(made, seeds=seeds, **options)
    document = papers.measure(planned, work=work, tell=lines.append).document()
    return json.loads(json.dumps(document)), "\n".join(lines)


def learnt(seeds: Sequence[int] = (0, 1, 2)) -> list[tuple[Cell, dict[str, Any]]]:
    return [
        (one, outcome(one, scores[seed], UP[method]))
        for method, scores in LEARNT.items()
        for seed in seeds
        for one in (cell(method, seed),)
    ]


# Cells, and the store


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_of_every_table_is_well_formed(name: str) -> None:
    made = table_of(name)
    found = list(made.cells(0))
    assert len({c.title for c in found}) == len(found)
    assert made.reference in {c.method for c in found}
    for one in found:
        assert len(one.spread.tiers) in (0, one.spread.parties)
        if one.algorithm["name"] in ALGORITHMS:
            sections(one, HERE.model)


def test_a_table_is_resumed_and_changed_cells_are_run_again(tmp_path: Path) -> None:
    first, told = fill(table("FedAvg", "Local"), tmp_path, seeds=2)
    assert "0 cells are finished, 4 to run" in told and "[4/4]" in told
    fedavg, local = first["rows"]
    assert first["sizes"]["seeds"] == fedavg["seeds"] == [0, 1]
    assert fedavg["records"] == {"train": 24, "dev": 6, "test": 12}
    assert fedavg["last"]["test"]["sd"] is not None and fedavg["bytes"]["times_less"] > 0
    assert fedavg["bytes"]["both"] > 100 * local["bytes"]["both"] > 0
    again, told = fill(table("FedAvg", "Local"), tmp_path, seeds=2)
    assert "4 cells are finished, 0 to run" in told and again["rows"] == first["rows"]
    lines = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(lines[:-40])  # cut short by a crash
    assert "3 cells are finished, 1 to run" in fill(table("FedAvg", "Local"), tmp_path, 2)[1]
    assert len(Store(tmp_path).outcomes) == 4
    assert "1 to run" in fill(table("FedAvg", max_length=12), tmp_path)[1]


def test_own_models_of_hospitals_have_rows_of_their_own(tmp_path: Path) -> None:
    own = {"personal": {"method": "head", "epochs": 1}}
    dealt = Spread(("built-in ade",), 3, train=60)
    found, _ = fill(table("FedAvg", features=own, spread=dealt), tmp_path)
    assert [row["model"] for row in found["rows"]] == ["", "personal", "alone", "served"]
    (stored,) = Store(tmp_path).outcomes.values()
    party = stored["metrics"]["last"]["party"]
    for scores in party.values():
        used = {scores[f"{m}test"]["accuracy"] for m in ("", "personal/", "alone/")}
        assert scores["served/test"]["accuracy"] in used
    assert stored["metrics"]["last"]["mean"]["alone/test"]["below"] == 0.0
    mean = fmean(scores["personal/test"]["accuracy"] for scores in party.values())
    assert stored["metrics"]["last"]["mean"]["personal/test"]["accuracy"] == pytest.approx(
        mean, abs=1e-5
    )
    again, told = fill(table("FedAvg", features=own, spread=dealt), tmp_path)
    assert "0 to run" in told and again["rows"] == found["rows"]
    other = {"personal": {"method": "finetune", "epochs": 1}}
    assert not request(cell(features=other, spread=dealt)).fits(stored)


def test_a_model_below_training_alone_counts_where_its_interval_says_so() -> None:
    def own(use: str, high: float) -> dict[str, Any]:
        apart = {"difference": -0.1, "interval": [-0.2, high]}
        scores = {"model": 0.7, "personal": 0.75, "alone": 0.8}
        pairs = {"test": {"shared - alone": apart, "personal - alone": apart}}
        return {"use": use, "metric": "f1", "dev": scores, "test": scores, "differences": pairs}

    low, unsure = scores_of(own("model", -0.05)), scores_of(own("alone", 0.05))
    assert [low[f"{m}test"]["below"] for m in ("", "personal/", "served/", "alone/")] == [
        1,
        1,
        1,
        0,
    ]
    assert {one["below"] for one in unsure.values()} == {0.0}
    assert unsure["served/test"]["f1"] == 0.8 and low["served/test"]["f1"] == 0.7


def test_a_failing_cell_leaves_the_others(tmp_path: Path) -> None:
    def cells(seed: int) -> Iterator[Cell]:
        yield cell("FedAvg", seed, training=TRAINING | {"learning_rate": 1e30, "optimizer": "sgd"})
        yield cell("Local", seed)

    found, told = fill(Table("t", "t", cells, model=BUILT_IN), tmp_path)
    assert [row["method"] for row in found["rows"]] == ["Local"]
    assert "FAILED" in told and list(found["failed"]) == ["ade · FedAvg · seed 0"]
    assert "1 to run" in fill(Table("t", "t", cells, model=BUILT_IN), tmp_path)[1]


CHANGES: dict[str, Any] = {
    "seed": 1,
    "spread": Spread(("built-in ade",), 3, train=25),
    "algorithm": {"name": "fedavg", "rounds": 2},
    "model": {"layers": 2},
    "training": TRAINING | {"learning_rate": 1e-3},
    "protection": {"mode": "none", "bits": 12},
    "max_length": 17,
    "depths": (1, 1, 1),
    "control": "host alone",
}


@pytest.mark.parametrize("field", list(CHANGES))
def test_an_outcome_fits_its_own_settings_only(field: str) -> None:
    made = outcome(cell(), 0.5)
    renamed = replace(cell(), method="another name", group="another group", note="a note")
    spelled = replace(cell(), algorithm={"name": "fedavg", "rounds": 1, "epochs": 1})
    assert all(request(one).fits(made) for one in (cell(), renamed, spelled))
    assert not request(replace(cell(), **{field: CHANGES[field]})).fits(made)
    del made["settings"]["training"]["weight_decay"]  # a setting that came later
    assert request(cell()).fits(made)
    assert not request(cell(training=TRAINING | {"weight_decay": 0.5})).fits(made)


def test_outcomes_find_their_cells_without_data(tmp_path: Path) -> None:
    store = Store(tmp_path / "small")
    for _, found in learnt()[:4]:
        store.add(found)
    store.add(outcome(cell("Local", 1), 0.3) | {"title": "again"})
    store.add(outcome(cell("Local", 1), 0.4) | {"title": "again"})
    evidence = gather(table("Local", "FedAvg"), tmp_path)
    assert [c.title for c, _ in evidence.finished] == [
        *(f"ade · Local · seed {seed}" for seed in range(2)),
        *(f"ade · FedAvg · seed {seed}" for seed in range(3)),
    ]
    assert evidence.finished[1][1]["metrics"]["last"]["mean"]["test"]["accuracy"] == 0.4
    assert [c.title for c in evidence.missing] == ["ade · Local · seed 2"]
    assert gather(table("FedAvg", max_length=9), tmp_path).unused == 5
    kept = Store(tmp_path / "small").outcomes.values()
    assert all("statement" not in o["protection"] for o in kept)
    assert all(set(o["metrics"]["last"]["party"]["hospital-0"]) == {"test"} for o in kept)


def test_plans_are_checked_before_anything_runs(tmp_path: Path) -> None:
    planned = papers.plan(table("FedAvg", "Local"), seeds=2, only="local · SEED 1")
    assert [c.title for c in planned.cells] == ["ade · Local · seed 1"]
    unknown = Table("t", "t", lambda seed: [replace(cell(), algorithm={"name": "magic"})])
    wrong = Table("t", "t", lambda seed: [cell(protection={"bits": 7})])
    for made, only in ((table("FedAvg"), "zzz"), (unknown, ""), (wrong, "")):
        with pytest.raises(SettingsError):
            papers.plan(made, only=only)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError):
        papers.measure(planned, work=tmp_path / "file" / "work")


def test_the_command_names_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "table_of", lambda name: table("FedAvg", "Local"))
    work, out = tmp_path / "work", tmp_path / "out.json"
    arguments = ["papers", "--table", "whole", "--seeds", "1", "--only", "local"]
    done = CliRunner().invoke(main, [*arguments, "--work", str(work), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["rows"][0]["method"] == "Local"
    monkeypatch.undo()
    for data in (tmp_path / "nowhere", tmp_path):
        arguments = ["papers", "--table", "fedkd", "--only", "FedAvg · seed 0"]
        done = CliRunner().invoke(main, [*arguments, "--data", str(data)])
        assert done.exit_code == 2 and "--data" in done.stderr


# Rows, claims and pages


def test_rows_are_means_and_deviations_over_seeds() -> None:
    def measured(dev: float, test: float, up: int) -> dict[str, Any]:
        mean = {"dev": {"f1": dev}, "test": {"f1": test}, "student/test": {"f1": 0.5}}
        at = {"round": 2, "mean": mean, "party": {"a": mean}}
        sent = {"a": {"up": up, "down": 60}, "b": {"up": up, "down": 20}}
        given: dict[str, Any] = {"metric": "f1", "values": 100, "rounds": 2, "bytes": sent}
        return outcome(cell(), 0.5) | given | {"metrics": {"best": at, "last": at}}

    finished = [
        (cell(seed=0, note="opened"), measured(0.6, 0.4, 100)),
        (cell(seed=1, note="opened"), measured(0.8, 0.2, 140)),
    ]
    plain, student = rows(finished, "FedAvg")
    assert plain.values() == {0: 0.4, 1: 0.2} and plain.values("dev") == {0: 0.6, 1: 0.8}
    assert student.model == "student" and student.values("dev") == {}
    assert plain.bytes == 120 + 40
    assert plain.times_less == pytest.approx(100 * 4 * 2 * 2 / 160)  # 4 bytes, both ways, twice
    assert shown(plain.values()) == "30.0 ± 14.1" and shown({}) == ""
    assert (spread(plain.values()) or {})["sd"] == pytest.approx(0.02**0.5)
    (grid,) = pages.tables([plain])
    assert grid.lines[0][0] == "FedAvg†" and grid.notes[-1] == "† opened"


def verdict(ours: str, *others: str, **changes: Any) -> str:
    arms = tuple(PLAIN_FEDAVG if name == "fp32" else Arm(name) for name in others)
    claim = Claim("", "", Arm(ours), arms, ("ade",), **changes)
    (judged,) = judge(rows(learnt(), "FedAvg"), claim)
    return judged.verdict


def test_claims_come_out_either_way() -> None:
    assert verdict("FedAvg", "Local") == "holds"
    assert verdict("Local", "FedAvg") == "fails"
    assert verdict("FedAvg", "FedDropout") == "undecided"
    assert verdict("FedAvg", "Local", more_than=30) == "fails"
    assert verdict("Local", "FedAvg", more_than=-30) == "holds"
    assert verdict("Local", "FedAvg", more_than=None) == ""
    assert verdict("Local", "FedAvg", figure="loss") == "level"  # 1/3 everywhere
    assert verdict("Local", "FedAvg", figure="auroc") == "not run"
    assert verdict("FedAvg", "Local", "FedDropout") == "undecided"  # needs both
    assert verdict("Local", "FedDropout", "FedAvg") == "fails"
    assert verdict("FedAvg", "DS-FL") == "not run"
    bytes_: dict[str, Any] = {"figure": "bytes"}
    assert verdict("FedDropout", "FedAvg", more_than=1.6, **bytes_) == "holds"
    assert verdict("FedDropout", "FedAvg", more_than=1.7, **bytes_) == "fails"
    # 500 values of 4 bytes, both ways: 4000 of 1200.
    assert verdict("FedDropout", "fp32", more_than=3, **bytes_) == "holds"
    assert verdict("FedDropout", "fp32", more_than=4, **bytes_) == "fails"
    assert verdict("Local", "fp32", **bytes_) == "not run"  # it sends nothing


def test_bounds_are_students() -> None:
    paired = (20.0, 19.0, 22.0)
    half = 2.919986 * stdev(paired) / math.sqrt(3)  # 95 % quantile with 2 degrees of freedom
    low, high = fmean(paired) - half, fmean(paired) + half
    limits = (low - 0.01, low + 0.01, high - 0.01, high + 0.01)
    judged = [claims.bounds(paired, limit)[0] for limit in limits]
    assert judged == ["holds", "undecided", "undecided", "fails"]
    assert claims.bounds(paired[:1], 0)[0] == "undecided"
    assert claims.bounds((0.5, -0.5, 0.2), 0)[0] == "level"
    assert claims.bounds((0.5, 0.6, 0.7), 0)[0] == "holds"  # little, and still above
    assert claims.bounds((2.5, -2.5, 0.2), 0)[0] == "undecided"


def test_over_several_groups_a_seed_counts_once_with_their_mean() -> None:
    scored = {"one": (0.1, 0.2, 0.4), "other": (0.3, 0.2)}  # better than Local's 0 there
    finished = [
        (made, outcome(made, score))
        for group, values in scored.items()
        for seed, value in enumerate(values)
        for method, score in (("FedAvg", value), ("Local", 0.0))
        for made in (cell(method, seed, group=group),)
    ]
    listed, claim = rows(finished, None), Claim("", "one", Arm("FedAvg"), (Arm("Local"),))
    (both,) = judge(listed, replace(claim, mean_over=("one", "other")))
    assert both.figures == ("Local: +20.0 (+20.0 to +20.0; 2 seeds)",)
    assert judge(listed, claim)[0].figures[0].startswith("Local: +23.3")
    assert judge(listed, replace(claim, mean_over=("one", "absent")))[0].verdict == "not run"


def test_a_tier_is_compared_on_the_same_hospitals() -> None:
    def scored(one: Cell, scores: Sequence[float]) -> tuple[Cell, dict[str, Any]]:
        found = outcome(one, fmean(scores))
        for party, score in zip(found["parties"], scores, strict=True):
            found["metrics"]["last"]["party"][party] = {"test": {"accuracy": score}}
        return one, found

    finished = []
    for seed in (0, 1):
        tiers = Spread(("built-in ade",), 3, train=24, tiers=("weak", "weak", "strong"))
        finished += [
            scored(replace(cell("FedAvg", seed), spread=tiers), (0.1, 0.1, 0.9)),
            scored(cell("Local", seed), (0.9, 0.9, 0.5)),
        ]
    listed = rows(finished, None)

    def compared(tier: str) -> str:
        ours, other = Arm("FedAvg", tier=tier), Arm("Local", tier="strong" if tier else "")
        return judge(listed, Claim("", "", ours, (other,)))[0].verdict

    assert [compared(tier) for tier in ("strong", "", "medium")] == ["holds", "fails", "not run"]


def test_pairs_differ_in_protection_only() -> None:
    def made(mode: str, bits: int, score: float, **more: Any) -> tuple[Cell, dict[str, Any]]:
        one = cell(protection={"mode": mode, "bits": bits}, **more)
        return one, outcome(one, score)

    other = made("none", 8, 0.1, training=TRAINING | {"batch_size": 5})
    runs = [made("none", 8, 0.8), made("he+secagg", 4, 0.75), other]
    (change,) = pages.changes(Evidence(table("FedAvg"), runs, (), 0))
    assert change == pytest.approx(-5.0)


def test_claims_and_printed_figures_name_rows_of_the_tables() -> None:
    for made in map(table_of, NAMES):
        cells = list(made.cells(0))
        for section in made.sections:
            methods = {c.method for c in cells if section.covers(c.group, c.data)}
            assert methods, section
            assert {m for column in section.printed.values() for m in column} <= methods, section
        for claim in made.claims:
            arms = (claim.ours, *(other for other in claim.others if other != PLAIN_FEDAVG))
            methods = {c.method for c in cells if c.group == claim.group}
            assert {arm.method for arm in arms} <= methods, claim


def test_pages_show_figures_claims_and_missing_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(
        table("FedAvg", "Local", "FedDropout"),
        sections=(Section("", "Table 9", printed={"paper: F1": {"FedAvg": "99.9"}}),),
        claims=(
            Claim("Sums help.", "", Arm("FedAvg"), (Arm("Local"),)),
            Claim("Solitude helps.", "", Arm("Local"), (Arm("FedAvg"),), reason="few records"),
        ),
    )
    monkeypatch.setattr(pages, "PAPERS", ("small",))
    monkeypatch.setattr(pages, "table_of", lambda name: made)
    store = Store(tmp_path / "small")
    for _, found in learnt()[:6]:
        store.add(found)
    store.add(outcome(cell(max_length=3), 0.1))
    page = tmp_path / "results.md"
    page.write_text("Before.\n<!-- table claims -->\n<!-- end -->\nAfter.\n")
    written = pages.pages(tmp_path, page)
    paper, results = written[tmp_path / "small.md"], written[tmp_path / "claims.md"]
    assert "- cells: 6 of 9 finished" in paper and "not shown: 1" in paper
    assert "| FedAvg | 81.0 ± 1.0 | 99.9 | 81.0 ± 1.0 | 0.00 | 1/2.00 | none | 4 | 3 |" in paper
    assert "- ade · FedDropout · seed 2" in paper and "abacus" in paper
    assert "| Sums help. | ade | Local: +20.3 (" in results and "| Solitude helps. |" in results
    assert "| [Small](small.md) | 6 of 9 | 1 | 0 | 1 | 0 |" in results
    assert "few records" in results
    link = "[small](../benchmarks/results/small.md)"
    claims = f"| {link} | Sums help. | ade: holds |\n| {link} | Solitude helps. | ade: fails |\n"
    assert written[page].startswith("Before.\n<!-- table claims -->\n| table | claim |")
    assert written[page].endswith(f"{claims}<!-- end -->\nAfter.\n")


def test_the_pages_are_those_of_the_stored_cells() -> None:
    results = ROOT / "benchmarks" / "results"
    places = ["--from", str(results), "--write", str(ROOT / "docs" / "results.md")]
    done = CliRunner().invoke(main, ["results", "--check", *places])
    assert done.exit_code == 0, done.stderr


# Controls and checkpoints


HOSTED = Spread(
    ("built-in ade",), 3, train=64, dev=8, test=24, public=0.5, labelled=0.25, alpha=0.5
)


def test_a_host_alone_learns_from_its_own_labels_only() -> None:
    members = silos(HOSTED, None, 0)
    (alone,) = members_of("host alone", members)
    assert (alone.name, alone.role) == (HOST, "party")
    assert [e.id for e in alone.train] == [e.id for e in members[-1].train]
    algorithm = {"name": "centralized", "rounds": 2}
    found = run(cell(algorithm=algorithm, spread=HOSTED, control="host alone"), HERE)
    assert found["metrics"]["last"]["party"][HOST]["test"]["accuracy"] > 0


def test_the_mean_prediction_is_that_of_hospitals_that_trained_alone() -> None:
    members = silos(HOSTED, None, 0)
    parties, host = members_of("mean prediction", members), members[-1]
    result = Federation(
        parties,
        Local(rounds=2),
        task=TaskSettings(labels=("ade", "no-ade"), max_length=16),
        model=ModelSettings(layers=1),
        training=TrainingSettings(**TRAINING),
    ).run()
    asked = [e for e in host.test if isinstance(e, Text)]
    shares = []
    for name, model in result.models.items():
        x = result.tasks[name].encode(asked, result.tokenizers[name]).batch(range(len(asked)))
        with torch.no_grad():
            shares.append(result.tasks[name].forward(model.eval(), x).softmax(-1))
    gold = torch.tensor([result.task.labels.index(str(e.label)) for e in asked])
    right = torch.stack(shares).mean(0).argmax(-1) == gold
    expected = pytest.approx(float(right.float().mean()))
    assert mean_scores(result, host)["last"]["mean"]["test"]["accuracy"] == expected
    algorithm = {"name": "local", "rounds": 2}
    found = run(cell(algorithm=algorithm, spread=HOSTED, control="mean prediction"), HERE)
    assert Row("", "", "", "", "", {0: found}, None).values() == {0: expected}
    assert asdict(HOSTED)["public"] == found["spread"]["public"]


def test_the_checkpoint_is_found_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "made_up_checkpoint" / "inside"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(checkpoint, "PACKAGE", "made_up_checkpoint")
    found = checkpoint.find(None)
    assert found.label == "made_up_checkpoint" and found.name == str(model)
    (model / "model.safetensors").write_bytes(b"others")
    assert checkpoint.find(str(model)).digest != found.digest
    monkeypatch.setattr(checkpoint, "PACKAGE", "no_such_checkpoint")
    assert checkpoint.find(None) == Checkpoint(BUILT_IN, BUILT_IN) == checkpoint.find("tiny")


def test_a_table_is_not_filled_with_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PACKAGE", "no_such_checkpoint")
    for name in ("ade_cls", "sst2"):
        for path in SETS[name].paths(name, tmp_path):
            path.parent.mkdir(exist_ok=True)
            path.touch()
    work = tmp_path / "work"
    command = ["papers", "--table", "fedkd", "--data", str(tmp_path), "--work", str(work)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2 and "--model" in done.stderr and not work.exists()


def test_a_halved_checkpoint_keeps_the_tokens_of_its_texts_only(tmp_path: Path) -> None:
    full, half = save_tiny(tmp_path / "full", ["fever", "rash", "cough"]), tmp_path / "half"
    halve(Path(full), ["rash", "fever rash"], half)
    tokenizer = AutoTokenizer.from_pretrained(half)
    before, after = (load_file(Path(folder) / WEIGHTS) for folder in (full, half))
    embeddings = next(name for name in before if "word_embeddings" in name)
    kept = {*tokenizer.all_special_ids, *tokenizer("fever rash")["input_ids"]}
    nonzero = set(after[embeddings].any(1).nonzero().flatten().tolist())
    assert nonzero == kept - {tokenizer.pad_token_id}
    for name, weight in before.items():
        some = sorted(kept) if name == embeddings else slice(None)
        assert torch.equal(after[name][some], weight[some].half().float())
