"""Tables of papers: cells are kept, resumed and recomputed as they should, figures add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks import checkpoint
from benchmarks.__main__ import main
from benchmarks.checkpoint import BUILT_IN, Checkpoint
from benchmarks.datasets import Spread
from benchmarks.evidence import kept, papers, summary
from benchmarks.evidence import papers_command as command
from benchmarks.evidence.cells import Cell, Place, key_of, sections
from benchmarks.evidence.halved import WEIGHTS, halve
from benchmarks.evidence.tables import TABLES, Table
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.errors import RunError, SettingsError
from tests.support.saved_models import save_tiny

HERE = Place(None, Checkpoint(BUILT_IN, BUILT_IN))


def cell(method: str = "FedAvg", seed: int = 0, **changes: Any) -> Cell:
    algorithm = {"name": "local" if method == "Local" else "fedavg", "rounds": 1}
    given: dict[str, Any] = {
        "model": {"layers": 1},
        "training": {"learning_rate": 1e-3, "batch_size": 8, "device": "cpu"},
        "protection": {"mode": "none"},
        "max_length": 16,
    }
    spread = Spread(("built-in ade",), 3, train=24)
    return Cell("built-in ade", method, seed, spread, algorithm, **(given | changes))


def small(*methods: str, **changes: Any) -> Table:
    def cells(seed: int) -> Iterator[Cell]:
        yield from (cell(method, seed, **changes) for method in methods)

    return Table("small", "small", cells, reference="FedAvg", model=BUILT_IN)


def fill(table: Table, work: Path, seeds: int = 1, **options: Any) -> tuple[dict[str, Any], str]:
    told: list[str] = []
    planned = papers.plan(table, seeds=seeds, **options)
    document = papers.measure(planned, work=work, tell=told.append).document()
    return json.loads(json.dumps(document)), "\n".join(told)


@pytest.mark.parametrize("name", list(TABLES))
def test_every_cell_of_every_table_is_well_formed(name: str) -> None:
    found = list(TABLES[name].cells(0))
    assert len({c.title for c in found}) == len(found)
    assert TABLES[name].reference in {c.method for c in found}
    for one in found:
        assert len(one.spread.tiers) in (0, one.spread.parties)
        if one.algorithm["name"] in ALGORITHMS:
            sections(one, HERE.model)


def test_hosts_that_give_feedback_have_a_batch_of_labels() -> None:
    asking = [c for c in TABLES["fedid"].cells(0) if c.algorithm["name"] == "fedid"]
    for one in asking:
        here, batch = one.spread, one.training["batch_size"]
        assert here.train is not None
        labelled = here.labelled_size or round(here.labelled * round(here.public * here.train))
        assert labelled >= (1 if one.algorithm.get("feedback") == "none" else batch), one.title
    assert asking


def test_a_table_is_resumed_and_only_what_changed_is_run_again(tmp_path: Path) -> None:
    table = small("FedAvg", "Local")
    first, told = fill(table, tmp_path, seeds=2)
    assert "0 cells are finished, 4 to run" in told and "[4/4]" in told
    lines = (tmp_path / kept.FILE).read_text().splitlines()
    assert len(lines) == 4
    again, told = fill(table, tmp_path, seeds=2)
    assert "4 cells are finished, 0 to run" in told and again["rows"] == first["rows"]
    (tmp_path / kept.FILE).write_text("\n".join(lines)[:-40])  # cut short by a crash
    _, told = fill(table, tmp_path, seeds=2)
    assert "3 cells are finished, 1 to run" in told
    assert len(kept.Kept(tmp_path).cells) == 4
    _, told = fill(small("FedAvg", max_length=12), tmp_path)
    assert "0 cells are finished, 1 to run" in told


def test_figures_come_from_real_runs(tmp_path: Path) -> None:
    found, _ = fill(small("FedAvg", "Local"), tmp_path, seeds=2)
    assert found["benchmark"] == "papers" and found["sizes"]["seeds"] == [0, 1]
    fedavg, local = found["rows"]
    assert [row["method"] for row in found["rows"]] == ["FedAvg", "Local"]
    for row in found["rows"]:
        assert row["records"] == {"train": 24, "dev": 6, "test": 12}
        assert len(row["best"]["party"]) == 3 and 0 <= row["last"]["test"]["mean"] <= 1
        assert row["last"]["test"]["sd"] is not None
    assert fedavg["bytes"]["both"] > 100 * local["bytes"]["both"] > 0
    assert fedavg["bytes"]["times_less"] > 0 and "times_less" not in local["bytes"]
    assert 0 < fedavg["privacy_share"]["mean"] < 1


def test_a_failing_cell_leaves_the_others(tmp_path: Path) -> None:
    bad = {"learning_rate": 1e30, "batch_size": 8, "optimizer": "sgd", "device": "cpu"}

    def cells(seed: int) -> Iterator[Cell]:
        yield cell("Diverges", seed, training=bad)
        yield cell("Local", seed)

    found, told = fill(Table("t", "t", cells), tmp_path)
    assert [row["method"] for row in found["rows"]] == ["Local"]
    assert "FAILED" in told and list(found["failed"]) == ["built-in ade · Diverges · seed 0"]
    assert "0 to run" not in fill(Table("t", "t", cells), tmp_path)[1]  # it is tried again


CHANGES: dict[str, Any] = {
    "seed": 1,
    "spread": Spread(("built-in ade",), 3, train=25),
    "algorithm": {"name": "fedavg", "rounds": 2},
    "model": {"layers": 2},
    "training": {"learning_rate": 2e-3, "batch_size": 8, "device": "cpu"},
    "protection": {"mode": "none", "bits": 12},
    "max_length": 17,
    "depths": (1, 1, 1),
}


@pytest.mark.parametrize("field", list(CHANGES))
def test_a_key_depends_on_every_setting(field: str) -> None:
    changed = replace(cell(), **{field: CHANGES[field]})
    assert key_of(changed, HERE) != key_of(cell(), HERE)


def test_a_key_depends_on_weights_and_defaults_but_not_on_names_or_folders() -> None:
    before = key_of(cell(), HERE)
    assert key_of(replace(cell(), method="x", group="y", mark="z"), HERE) == before
    spelled = replace(cell(), algorithm={"name": "fedavg", "rounds": 1, "epochs": 1})
    assert key_of(spelled, HERE) == before
    here, there = Checkpoint("m", "/here/m", "12"), Checkpoint("m", "/there/m", "12")
    assert key_of(cell(), Place(None, here)) == key_of(cell(), Place(None, there))
    assert key_of(cell(), Place(None, here)) != key_of(
        cell(), Place(None, replace(here, digest=""))
    )


def outcome(dev: tuple[float, float], test: tuple[float, float], up: int) -> dict[str, Any]:
    def at(k: int) -> dict[str, Any]:
        mean = {"dev": {"f1": dev[k]}, "test": {"f1": test[k]}, "student/test": {"f1": 0.5}}
        return {"round": k + 1, "mean": mean, "party": {"a": mean}}

    return {
        "metric": "f1",
        "metrics": {"best": at(0), "last": at(1)},
        "parties": {"a": None},
        "records": {"train": 3, "dev": 2, "test": 1},
        "values": 100,
        "rounds": 2,
        "bytes": {"a": {"up": up, "down": 60}, "b": {"up": up, "down": 20}},
        "privacy_share": 0.1,
        "seconds": 5.0,
        "cpu_seconds": 4.0,
        "caveat": "",
        "algorithm": {"name": "fedavg"},
        "protection": {"mode": "none", "parties": 2},
        "settings": {},
    }


def test_rows_are_means_and_deviations_over_seeds() -> None:
    finished = [
        (cell(seed=0, mark="opened"), outcome((0.5, 0.4), (0.6, 0.2), 100)),
        (cell(seed=1, mark="opened"), outcome((0.7, 0.4), (0.8, 0.4), 140)),
    ]
    plain, student = summary.rows(finished, reference="FedAvg")
    assert plain["best"]["test"]["mean"] == pytest.approx(0.7)
    assert plain["best"]["test"]["sd"] == pytest.approx(0.02**0.5)
    assert plain["last"]["test"]["values"] == [0.2, 0.4]
    assert plain["best"]["party"]["a"]["mean"] == pytest.approx(0.7)
    assert plain["bytes"]["both"] == 120 + 40
    # 100 values of 4 bytes, there and back, twice.
    assert plain["bytes"]["times_less"] == pytest.approx(100 * 4 * 2 * 2 / 160)
    assert student["model"] == "student" and student["last"]["dev"] is None
    assert summary.shown(plain["best"]["test"]) == "70.0 ± 14.1" and summary.shown(None) == "-"
    (table,) = summary.tables([plain])
    assert table.caption == "* opened"


def test_only_picks_cells_by_their_title() -> None:
    planned = papers.plan(small("FedAvg", "Local"), seeds=2, only="local · SEED 1")
    assert [c.title for _, c in planned.cells] == ["built-in ade · Local · seed 1"]
    with pytest.raises(SettingsError, match="no cell of this table is called 'zzz'"):
        papers.plan(small("FedAvg"), only="zzz")


def test_wrong_settings_are_found_before_anything_runs() -> None:
    unknown = Table("t", "t", lambda seed: [replace(cell(), algorithm={"name": "magic"})])
    with pytest.raises(SettingsError, match="no algorithm 'magic'"):
        papers.plan(unknown)
    wrong = Table("t", "t", lambda seed: [cell(protection={"bits": 7})])
    with pytest.raises(SettingsError, match="bits") as caught:
        papers.plan(wrong)
    assert "FedAvg" in str(caught.value)


def test_a_work_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be kept"):
        kept.Kept(tmp_path / "file" / "work")


def test_the_command_names_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(TABLES) == command.TABLES
    monkeypatch.setitem(cast(dict[str, Table], TABLES), "demo", small("FedAvg", "Local"))
    work, out = tmp_path / "work", tmp_path / "out.json"
    arguments = ["papers", "--table", "demo", "--seeds", "1", "--only", "local"]
    done = CliRunner().invoke(main, [*arguments, "--work", str(work), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "Local" in done.stdout and "1 cells are finished" not in done.stdout
    assert json.loads(out.read_text())["rows"][0]["method"] == "Local"


def test_missing_data_ends_the_command_with_the_documented_status(tmp_path: Path) -> None:
    for data in (tmp_path / "nowhere", tmp_path):
        arguments = ["papers", "--table", "fedkd", "--only", "FedAvg · seed 0"]
        done = CliRunner().invoke(main, [*arguments, "--data", str(data)])
        assert done.exit_code == 2 and "--data" in done.stderr


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
    assert checkpoint.find("owner/name").identity == "owner/name"


@pytest.mark.slow
def test_processes_give_the_same_figures(tmp_path: Path) -> None:
    planned = papers.plan(small("FedAvg", "Local"))
    one = papers.measure(planned, work=tmp_path / "one")
    two = papers.measure(planned, work=tmp_path / "two", jobs=2)
    assert [row["last"] for row in one.results["rows"]] == [
        row["last"] for row in two.results["rows"]
    ]


def test_a_halved_checkpoint_knows_the_words_of_its_texts_alone(tmp_path: Path) -> None:
    full, half = save_tiny(tmp_path / "full", ["fever", "rash", "cough"]), tmp_path / "half"
    halve(Path(full), ["rash", "fever rash"], half)
    tokenizer = AutoTokenizer.from_pretrained(half)
    before, after = (load_file(Path(folder) / WEIGHTS) for folder in (full, half))
    table = next(name for name in before if "word_embeddings" in name)
    kept = {*tokenizer.all_special_ids, *tokenizer("fever rash")["input_ids"]}
    assert set(after[table].any(1).nonzero().flatten().tolist()) == kept - {tokenizer.pad_token_id}
    for name, weight in before.items():
        rows = sorted(kept) if name == table else slice(None)
        assert torch.equal(after[name][rows], weight[rows].half().float())
