"""P10: codebooks tell readers nothing about few patients, and the coordinator nothing at all.

The attacks are those that worked on free questions; each has a control that works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from secure_fl import Codebook, open_codebook
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError
from secure_fl.features.statistics import program
from secure_fl.features.statistics.counting import Tabulation
from secure_fl.features.statistics.note import Note
from secure_fl.features.statistics.program import OwnCounts, exact_sum
from secure_fl.features.statistics.tables import table_of
from secure_fl.federation.federation import Federation
from secure_fl.protocol.frames import Frame, peek
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.testing.harness import LossyEngine
from tests.support.codebooks import JointAttacker, released
from tests.support.raising import raises
from tests.support.tables import hospitals

VALUES = tuple("abcdefghijkl")  # more than eight: they travel packed
CODEBOOK = Codebook(
    variables={"label": {"values": VALUES}, "sex": {"values": ("f", "m")}},
    tables={"labels": ("label",), "both": ("label", "sex")},
)
CLEAR = ProtectionSettings(mode="none")
LEAST = 10


def run(
    tables: dict[str, pd.DataFrame],
    mode: Protection = "none",
    lose: dict[str, int] | None = None,
    tap: Any = lambda party, direction, frame: frame,
) -> dict[str, Any]:
    """Open the codebook, and return its section of the result."""
    silos = [Silo(name, (), table=table_of(table)) for name, table in tables.items()]
    protection = ProtectionSettings(mode=mode, threshold=3 if len(silos) == 4 else None)
    federation = Federation(silos, CODEBOOK, protection=protection, progress=False)
    done = federation.run(lambda sessions: LossyEngine(sessions, lose or {}, tap=tap))
    found: dict[str, Any] = done.document["statistics"]
    return found


def view(tables: dict[str, pd.DataFrame]) -> tuple[str, list[tuple[str, str, str, int, int]]]:
    """Return how a codebook ends, and everything that the coordinator sees, without content."""
    seen: list[tuple[str, str, str, int, int]] = []

    def tap(party: str, direction: str, frame: Frame) -> Frame:
        message = peek(frame.head).message
        kind = type(message).__name__
        seen.append((party, direction, kind, len(frame.head), len(frame.bulk)))
        return frame

    found = run(tables, "he+secagg", tap=tap)
    hidden = [c for one in found.get("tables", ()) for c in np.ravel(one["counts"])]
    return f"{found['status']} {sum(c is not None for c in hidden)}", seen


def test_the_coordinator_sees_the_same_whatever_becomes_of_a_codebook() -> None:
    """Findings 6 and 14: the number of sums told 1 to 9 patients from none, by name if asked so."""
    refused = hospitals()
    refused["hospital-2"] = refused["hospital-2"].drop(columns="sex")
    few = hospitals(size=3)
    ends, views = zip(*map(view, (hospitals(), few, refused)), strict=True)
    assert ends[0].startswith("answered ") and ends[1:] == ("answered 0", "refused 0")
    assert views[0] == views[1] == views[2]
    kinds = {kind for _, _, kind, *_ in views[0]}
    assert "SumInput" in kinds and "Share" not in kinds  # no hospital tells another a number


def test_a_lost_hospital_leaves_no_tables_over_the_others() -> None:
    """The coordinator chooses the moment; counts of all but one would be those of one."""
    tables, ends = hospitals(4), set()
    for lost_at in range(2, 18):
        found = run(tables, "secagg", {"hospital-4": lost_at})
        ends.add((found["status"], found.get("records")))
    assert ends == {("refused", None), ("answered", 240)}


@pytest.mark.parametrize(("mode", "seen"), [("none", True), ("he+secagg", False)])
def test_a_hospitals_counts_are_in_no_message(mode: Protection, seen: bool) -> None:
    tables, bulks = hospitals(3), list[bytes]()

    def tap(party: str, direction: str, frame: Frame) -> Frame:
        if direction == "out":
            bulks.append(bytes(frame.bulk))
        return frame

    assert run(tables, mode, tap=tap)["status"] == "answered"
    counts = tables["hospital-1"].label.value_counts()
    own = np.array([counts.get(value, 0) for value in VALUES], "<f4").tobytes()
    assert any(own in bulk for bulk in bulks) == seen


def laboratory(size: int = 40) -> dict[str, pd.DataFrame]:
    """Make three hospitals with a laboratory value and a rare diagnosis of each patient."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame(
        {
            "pid": [f"p{k}" for k in range(size)],
            "value": rng.gamma(3, 2, size).round(1),
            "born": rng.integers(1930, 2010, size),
            "hiv": rng.choice(["yes", "no"], size, p=[0.2, 0.8]),
        }
    )
    return {f"h{k}": table[k::3].reset_index(drop=True) for k in range(3)}


def notes_of(codebooks: list[Codebook], tables: Any, folder: Path) -> list[Tabulation]:
    """Open codebooks one after the other; return all counts of a note, with the released ones."""
    for one in codebooks:
        open_codebook(one, tables, protection=CLEAR, notes=folder)
    note = Note(folder / "h0").earlier(table_of(tables["h0"]))
    return [Tabulation.from_json(table) for line in note for table in line["tables"]]


def steps(tables: list[Tabulation]) -> int:
    """Count the differences of released running totals that are 1 to 9 patients."""
    below = {0.0: 0}
    for table in tables:
        if table.shown.all():
            edges = table.partitions[0].edges or ()
            below |= dict(zip(edges, np.cumsum(table.counts).tolist(), strict=False))
    totals = sorted(set(below.values()))
    return int((np.diff(totals) < LEAST).sum())


def test_bins_that_move_tell_no_value(tmp_path: Path) -> None:
    """Finding 5: questions that differ in their bins alone told single patients' values."""
    tables = laboratory()
    codebooks = [
        Codebook(variables={"value": {"edges": (edge,)}}, tables={"t": ("value",)})
        for edge in (4.0, 4.5, 5.0, 5.5, 6.0, 6.5)
    ]
    found = notes_of(codebooks, tables, tmp_path)
    assert steps(released(found)) >= 4  # the control
    assert steps(found) == 0
    widths = [high - low for _, low, high in JointAttacker(found, 40).intervals()]
    assert widths and min(widths) > LEAST - 1e-4


def test_a_patient_who_is_unique_by_two_fields_is_hidden(tmp_path: Path) -> None:
    """Findings 6 and 7: "0" or "withheld" was the diagnosis."""
    tables = laboratory(90)
    variables = {"born": {"low": 1930, "high": 2010, "bins": 16}, "hiv": {"values": ("yes", "no")}}
    asked = Codebook(variables=variables, tables={"t": ("born", "hiv"), "born": ("born",)})
    found = notes_of([asked], tables, tmp_path)
    assert any((table.counts < LEAST).any() for table in found)
    assert all((table.counts[table.shown] >= LEAST).all() for table in found)
    attacker = JointAttacker(found, 90)
    assert min(high - low for _, low, high in attacker.intervals()) > LEAST - 1e-4


def test_a_named_patient_is_in_no_table(tmp_path: Path) -> None:
    """Finding 7: the column that data.columns maps to the patient stayed under its own name."""
    tables = laboratory()
    for table in tables.values():
        table["patient"] = table["pid"]
    for column in ("pid", "patient"):
        variables = {column: {"values": ("p1", "p2")}, "hiv": {"values": ("yes", "no")}}
        asked = Codebook(variables=variables, tables={"t": (column, "hiv")}, min_patients=1)
        found = open_codebook(asked, tables, protection=CLEAR)
        assert found.to_json()["status"] == "refused" and len(found.refusals) == 3
        assert "p1" not in "".join(found.refusals)


def test_records_of_one_patient_do_not_count_as_many(tmp_path: Path) -> None:
    """Finding 12: the threshold counted records, so 12 notes of one patient were released."""
    tables = hospitals()
    for name, table in tables.items():
        table["patient"] = [f"{name} {k}" for k in range(len(table))]
    tables["hospital-1"].loc[:11, ["patient", "label"]] = ["north 1", "c"]
    asked = {"variables": {"label": {"values": ("a", "b", "c")}}, "tables": {"t": ("label",)}}
    pooled = pd.concat(list(tables.values()))
    assert (pooled.label == "c").sum() >= LEAST  # the control: enough records
    for records in (1, 12):
        found = open_codebook(
            Codebook(**asked, records_per_patient=records), tables, protection=CLEAR
        )
        assert "c" not in found.tables["t"]["labels"][0]


def test_no_member_cancels_the_refusals_of_others(monkeypatch: Any, tmp_path: Path) -> None:
    """Two tables differ by one new patient at each hospital; a liar sends a negative number."""
    tables = laboratory()
    asked = Codebook(variables={"hiv": {"values": ("yes", "no")}}, tables={"t": ("hiv",)})
    open_codebook(asked, tables, protection=CLEAR, notes=tmp_path)
    for name in tables:
        tables[name] = pd.concat([tables[name], tables[name][:1].assign(pid=f"new {name}")])
    sums: list[Any] = []

    async def add(*args: Any, **options: Any) -> Any:
        sums.append(await exact_sum(*args, **options))
        return sums[-1]

    class LyingCounts(OwnCounts):
        def __init__(self, site: Any, *args: Any) -> None:
            super().__init__(site, *args)
            self.refused = -2 if site.name == "h1" else self.refused  # type: ignore[assignment]

    monkeypatch.setattr(program, "exact_sum", add)
    monkeypatch.setattr(program, "OwnCounts", LyingCounts)
    with raises(CohortError, "another hospital sent a wrong number"):
        open_codebook(asked, tables, protection=CLEAR, notes=tmp_path)
    assert sums and not np.any(sums)  # the control: the sum tells of no refusal


def test_another_column_does_not_make_other_patients(tmp_path: Path) -> None:
    """Records without ids are known by all their columns, so one more column changes all keys."""
    asked = Codebook(variables={"sex": {"values": ("f", "m")}}, tables={"t": ("sex",)})
    for how, ids in (("without", False), ("with", True)):
        tables = {n: t.assign(id=t.text) if ids else t for n, t in hospitals().items()}
        folder = tmp_path / how
        open_codebook(asked, tables, protection=CLEAR, notes=folder)
        new = {name: table.assign(ward="x") for name, table in tables.items()}
        before, after = (set(table_of(t["hospital-1"]).patients) for t in (tables, new))
        assert len(before & after) == (60 if ids else 0)  # the control
        found = open_codebook(asked, new, protection=CLEAR, notes=folder)
        assert found.to_json()["status"] == "refused" and len(found.refusals) == 3
        assert ("60 of 60 patients" if ids else "without ids") in found.refusals[0]
