"""The page of results: the rule, what belongs to which cell, and that nobody wrote it by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.datasets import Spread
from benchmarks.evidence import chapters as results
from benchmarks.evidence import finished as evidence
from benchmarks.evidence import paper_page, sealing
from benchmarks.evidence.bounds import told
from benchmarks.evidence.cells import Cell, about, sections
from benchmarks.evidence.claims import Arm, Bench, Better, Cheaper, Shown
from benchmarks.evidence.kept import FILE, Kept, read
from benchmarks.evidence.published import Beside, Paper, Section
from benchmarks.evidence.sketch import SUMS, distance, sketch
from benchmarks.evidence.slim import slim
from benchmarks.evidence.summary import rows
from benchmarks.evidence.tables import TABLES, Table

ROOT = Path(__file__).parents[2]
LEARNT = {"FedAvg": (0.80, 0.82, 0.81), "Local": (0.60, 0.63, 0.59), "FedDropout": (0.7, 0.9, 0.8)}
NAMES = {"FedAvg": "fedavg", "Local": "local", "FedDropout": "feddropout"}
UP = {"FedAvg": 1000, "Local": 1, "FedDropout": 600}


def cell(method: str, seed: int, **changes: Any) -> Cell:
    spread = Spread(("built-in ade",), 3, train=24)
    return Cell("ade", method, seed, spread, {"name": NAMES[method], "rounds": 1}, **changes)


def outcome(one: Cell, score: float, up: int = 100, **changes: Any) -> dict[str, Any]:
    """A made-up outcome of a cell."""
    algorithm, found = sections(one, evidence.ANY)
    parties = {f"hospital-{k}": tier for k, tier in enumerate(one.spread.tiers or (None,) * 3)}
    scores = {"accuracy": score, "loss": 1 / 3}
    at = {
        "round": 1,
        "mean": {"dev": scores, "test": scores},
        "party": {name: {"dev": scores, "test": scores} for name in parties},
    }
    return {
        **about(one),
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
        "settings": {name: part.model_dump(mode="json") for name, part in found.items()},
        "machine": {"processor": "abacus", "torch_threads": 1},
        "versions": {"python": "3.11"},
    } | changes


def table(*methods: str, **changes: Any) -> Table:
    def cells(seed: int) -> Iterator[Cell]:
        yield from (cell(method, seed, **changes) for method in methods)

    return Table("made-up", "made up", cells, reference="FedAvg")


def keep(folder: Path, *outcomes: dict[str, Any]) -> None:
    kept = Kept(folder / "made-up")
    for found in outcomes:
        kept.add(f"{len(kept.cells)}", found)


def learnt(seeds: Sequence[int] = (0, 1, 2)) -> list[dict[str, Any]]:
    return [
        outcome(cell(method, seed), scores[seed], UP[method])
        for method, scores in LEARNT.items()
        for seed in seeds
    ]


def bench(seeds: Sequence[int] = (0, 1, 2)) -> Bench:
    each = [
        (cell(method, seed), outcome(cell(method, seed), scores[seed], UP[method]))
        for method, scores in LEARNT.items()
        for seed in seeds
    ]
    return Bench(rows(each, "FedAvg"), "", "ade")


FEDAVG, LOCAL, DROPOUT = Arm("FedAvg"), Arm("Local"), Arm("FedDropout")


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (Better("", FEDAVG, (LOCAL,)), "holds"),
        (Better("", LOCAL, (FEDAVG,)), "does not hold"),
        (Better("", FEDAVG, (DROPOUT,)), "cannot be told"),
        (Better("", FEDAVG, (LOCAL,), by=30), "does not hold"),
        (Better("", LOCAL, (FEDAVG,), by=-30), "holds"),
        (Better("", LOCAL, (FEDAVG,), figure="loss"), "level"),  # alike: 1/3 everywhere
        (Better("", LOCAL, (FEDAVG,), by=-1, figure="loss"), "holds"),
        (Better("", LOCAL, (FEDAVG,), figure="auroc"), "not run"),  # nobody kept any
        (Better("", FEDAVG, (LOCAL, DROPOUT)), "cannot be told"),  # needs both
        (Better("", LOCAL, (DROPOUT, FEDAVG)), "does not hold"),  # one is enough
        (Better("", FEDAVG, (Arm("DS-FL"),)), "not run"),
        (Better("", FEDAVG, (Arm("FedAvg", group="elsewhere"),)), "not run"),
        (Cheaper("", DROPOUT, FEDAVG, 1.6), "holds"),
        (Cheaper("", DROPOUT, FEDAVG, 1.7), "does not hold"),
        (Cheaper("", DROPOUT, times=3), "holds"),  # 500 values, 4 bytes, both ways: 4000 of 1200
        (Cheaper("", DROPOUT, times=4), "does not hold"),
        (Cheaper("", LOCAL), "not run"),  # it sends nothing: there is nothing to compare
    ],
)
def test_claims_come_out_either_way(claim: Better | Cheaper, verdict: str) -> None:
    assert bench().judge(claim).verdict == verdict


def test_bounds_are_students() -> None:
    paired = (20.0, 19.0, 22.0)
    half = 2.919986 * stdev(paired) / math.sqrt(3)  # 95 % quantile with 2 degrees of freedom
    low, high = fmean(paired) - half, fmean(paired) + half
    assert told(paired, low - 0.01)[0] == "holds"
    assert told(paired, low + 0.01)[0] == told(paired, high - 0.01)[0] == "cannot be told"
    assert told(paired, high + 0.01)[0] == "does not hold"
    assert told(paired[:1], 0) == ("cannot be told", "+20.0, one seed")


def test_level_needs_both_bounds() -> None:
    paired = (0.5, -0.5, 0.2)  # 0.07 ± 0.87
    assert told(paired, 0.0, level=0.9)[0] == "cannot be told"
    assert told(paired, 0.0, level=1.0)[0] == "level"
    assert told((0.5, 0.6, 0.7), 0.0, level=2.0)[0] == "holds"  # little, and still above
    assert told((2.5, -2.5, 0.2), 0.0, level=2.0)[0] == "cannot be told"


def test_only_common_seeds_are_paired() -> None:
    found = learnt()
    odd = outcome(cell("Local", 0), 0.99)  # of Local there is this seed only
    each = [(cell("FedAvg", k), o) for k, o in enumerate(found[:3])] + [(cell("Local", 0), odd)]
    judged = Bench(rows(each, None), "", "ade").judge(Better("", LOCAL, (FEDAVG,)))
    assert judged.figures == ("Local - FedAvg: +19.0, one seed",)


def test_over_several_groups_a_seed_counts_once_with_their_mean() -> None:
    scored = {"one": (0.1, 0.2, 0.4), "other": (0.3, 0.2)}  # ahead of Local's 0 there
    each = [
        (made, outcome(made, score))
        for group, values in scored.items()
        for seed, value in enumerate(values)
        for method, score in (("FedAvg", value), ("Local", 0.0))
        for made in (cell(method, seed, group=group),)
    ]
    found = Bench(rows(each, None), "one", "ade")
    both = found.judge(Better("", FEDAVG, (LOCAL,), groups=("one", "other")))
    assert both.figures == ("FedAvg - Local: +20.0, from +20.0 to +20.0, 2 seeds",)
    assert found.judge(Better("", FEDAVG, (LOCAL,))).figures[0].startswith("FedAvg - Local: +23.3")
    absent = found.judge(Better("", FEDAVG, (LOCAL,), groups=("one", "elsewhere")))
    assert absent.verdict == "not run" and "elsewhere" in absent.figures[0]


def test_a_tier_is_compared_on_the_same_hospitals() -> None:
    def scored(one: Cell, scores: Sequence[float]) -> tuple[Cell, dict[str, Any]]:
        found = outcome(one, fmean(scores))
        for party, score in zip(found["parties"], scores, strict=True):
            found["metrics"]["last"]["party"][party]["test"] = {"accuracy": score}
        return one, found

    tiers = ("weak", "weak", "strong")
    each = []
    for seed in (0, 1):
        mixed = cell("FedAvg", seed)
        mixed = replace(mixed, spread=replace(mixed.spread, tiers=tiers))
        each += [scored(mixed, (0.1, 0.1, 0.9)), scored(cell("Local", seed), (0.9, 0.9, 0.5))]
    here = Bench(rows(each, None), "", "ade")
    strong, same = Arm("FedAvg", tier="strong"), Arm("Local", tier="strong")
    assert here.judge(Better("", strong, (same,))).verdict == "holds"
    assert here.judge(Better("", FEDAVG, (LOCAL,))).verdict == "does not hold"
    assert here.judge(Better("", Arm("FedAvg", tier="medium"), (same,))).verdict == "not run"


def test_outcomes_find_their_cells_without_data(tmp_path: Path) -> None:
    keep(tmp_path, *learnt()[:4])
    found = evidence.gather(table("Local", "FedAvg"), tmp_path)
    assert [c.title for c, _ in found.finished] == [
        "ade · Local · seed 0",
        *(f"ade · FedAvg · seed {seed}" for seed in range(3)),
    ]
    assert [c.title for c in found.missing] == ["ade · Local · seed 1", "ade · Local · seed 2"]
    assert found.stale == 0
    renamed = replace(cell("FedAvg", 0), method="another name", group="another group")
    assert evidence.wanted(renamed).fits(evidence.said(learnt()[0]))
    changed = table("FedAvg", training={"batch_size": 5})
    assert evidence.gather(changed, tmp_path).stale == 4
    larger = replace(cell("FedAvg", 0), spread=Spread(("built-in ade",), 3, train=25))
    assert not evidence.wanted(larger).fits(evidence.said(learnt()[0]))


def test_a_setting_that_came_later_must_be_the_default(tmp_path: Path) -> None:
    said = evidence.said(json.loads(json.dumps(learnt()[0])))
    del said["settings"]["training"]["weight_decay"]
    assert evidence.wanted(cell("FedAvg", 0)).fits(said)
    decayed = cell("FedAvg", 0, training={"weight_decay": 0.5})
    assert not evidence.wanted(decayed).fits(said)


def test_old_lines_are_tidied_and_still_resumed(tmp_path: Path) -> None:
    one = cell("FedAvg", 0)
    fat = {k: v for k, v in outcome(one, 1 / 3).items() if k not in about(one)}
    line = json.dumps({"key": "a", "outcome": fat})
    (tmp_path / FILE).write_text(f'{line}\n{{"key": "b", "o')  # the second was cut short
    kept = Kept(tmp_path)
    kept.tidy({"a": about(one)})
    kept.add("c", outcome(one, 0.5))
    assert list(read(tmp_path / FILE)) == ["a", "c"] == list(kept.cells)
    found = read(tmp_path / FILE)["a"]
    assert found["seed"] == 0
    assert found["spread"] == {
        "sets": ["built-in ade"],
        "parties": 3,
        "train": 24,
    }
    assert found["metrics"]["last"]["mean"]["test"] == {"accuracy": 0.333333, "loss": 0.333333}
    assert found["metrics"]["last"]["party"]["hospital-0"] == {"test": {"accuracy": 0.333333}}
    assert "statement" not in found["protection"] and slim(found) == found
    before = (tmp_path / FILE).read_bytes()
    Kept(tmp_path).tidy({"a": about(one)})
    assert (tmp_path / FILE).read_bytes() == before


def test_sketches_tell_how_far_models_are_apart() -> None:
    places = torch.arange(10_000).view(50, 200)
    values, change = places % 7 - 3.0, 0.1 * torch.sin(places)

    def sketched(weights: torch.Tensor) -> dict[str, Any] | None:
        model = torch.nn.Linear(200, 50, bias=False)
        model.weight.data = weights
        return sketch({"model": model})

    one, two = sketched(values), sketched(values + change)
    assert one is not None and len(one["sums"]) == SUMS
    true = change.norm() / values.norm()
    assert distance(one, two) == pytest.approx(true.item(), rel=0.5)  # four deviations
    assert distance(one, one) == 0 and distance(one, None) is None


def test_pairs_that_differ_in_protection_only() -> None:
    def run(mode: str, bits: int, score: float, **more: Any) -> tuple[Cell, dict[str, Any]]:
        one = cell("FedAvg", 0, protection={"mode": mode, "bits": bits}, **more)
        sums = {"model": "m", "norm": 10.0, "sums": [score] + [0.0] * (SUMS - 1)}
        return one, outcome(one, score, sketch=sums)

    other = run("none", 8, 0.1, training={"batch_size": 5})
    runs = [run("none", 8, 0.8), run("he+secagg", 4, 0.75), other]
    (pair,) = sealing.pairs(evidence.Evidence(table("FedAvg"), runs, (), 0))
    text = "\n".join(sealing.differences([pair]))
    assert "metric: 5.0 points" in text and "-5.0" in text and "0.005 of their norm" in text


CLAIMS = (
    Better("Sums help.", FEDAVG, (LOCAL,), reason="a reason of its own"),
    Better("Solitude helps.", LOCAL, (FEDAVG,), reason="few records"),
)
PAPER = Paper(
    "made-up",
    "Made up",
    (Section("", "Table 9", beside=(Beside("paper: F1", {"FedAvg": "99.9"}),), claims=CLAIMS),),
)


def test_a_page_shows_what_agrees_what_does_not_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAPERS", (PAPER,))
    monkeypatch.setattr(results, "TABLES", {"made-up": table("FedAvg", "Local", "FedDropout")})
    found = learnt()[:6]
    found[0]["leakage"] = {"words": {"coordinator": "everything: F1 1.00", "party": "nothing: "}}
    keep(tmp_path, *found, outcome(cell("FedAvg", 0, max_length=3), 0.1))
    (one,) = results.chapters(tmp_path)
    text = paper_page.page(one)
    assert one.count() == {"holds": 1, "does not hold": 1}
    assert "- cells: 6 of 9 finished" in text
    assert "| method | ade | paper: F1 | MB a party | of fp32 FedAvg | protection |" in text
    assert "| FedAvg | 81.0 ± 1.0 | 99.9 | 0.00 | 1/2.00 | he+secagg, 8 bits |" in text
    assert "ade: missing with seeds 0, 1, 2: FedDropout." in text
    assert "| Sums help. | ✓ |" in text and "| Solitude helps. | ✗ |" in text
    assert "- Sums help.\n    - ✓ ade: FedAvg - Local: +20.3" in text
    assert "*Likely reason:* few records." in text and "of its own" not in text
    assert "1 kept cells were made with other settings" in text
    assert "| FedAvg | words | everything: F1 1.00 | nothing |" in text
    assert "abacus" in text and "--table made-up --work docs/results/made-up" in text


def test_claims_name_rows_that_the_tables_have() -> None:
    for paper in results.PAPERS:
        cells = list(TABLES[paper.table].cells(0))
        for section in paper.sections:
            here = [c for c in cells if section.covers(c.group, c.data)]
            assert here, section
            methods = {c.method for c in here}
            assert {m for column in section.beside for m in column.figures} <= methods, section
            for claim in section.claims:
                others: tuple[Arm | None, ...] = ()
                if not isinstance(claim, Shown):
                    others = claim.others if isinstance(claim, Better) else (claim.other,)
                for arm in (claim.arm, *(other for other in others if other)):
                    group = section.group if arm.group is None else arm.group
                    assert arm.method in {c.method for c in cells if c.group == group}, arm


def test_the_page_is_what_the_kept_cells_say() -> None:
    docs = ROOT / "docs"
    places = ["--from", str(docs / "results"), "--write", str(docs / "results.md")]
    done = CliRunner().invoke(main, ["results", "--check", *places])
    assert done.exit_code == 0, done.stderr


def test_a_reader_finishes_the_page() -> None:
    assert len((ROOT / "docs" / "results.md").read_text().splitlines()) <= 120


def test_a_page_written_by_hand_is_found(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    page = tmp_path / "page.md"
    command = ["results", "--from", str(tmp_path / "cells"), "--write", str(page)]
    assert CliRunner().invoke(main, [*command, "--check"]).exit_code == 1
    assert CliRunner().invoke(main, command).exit_code == 0
    assert CliRunner().invoke(main, [*command, "--check"]).exit_code == 0
    page.write_text(page.read_text().replace("# Results", "# Triumphs"))
    done = CliRunner().invoke(main, [*command, "--check"])
    assert done.exit_code == 1 and "# Triumphs" in done.stderr
    assert CliRunner().invoke(main, [*command[:3], str(tmp_path / "none")]).exit_code == 2
