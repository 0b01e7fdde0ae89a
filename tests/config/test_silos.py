"""Records of every member, as settings name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from numpy.random import default_rng

from secure_fl import corpora
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.config import load as config
from secure_fl.config.silos import read
from secure_fl.data.examples import Example, Text
from secure_fl.data.partition import partition
from secure_fl.data.silo import Silo
from secure_fl.data.splits import Columns, load, patient, split
from secure_fl.errors import DataError
from secure_fl.settings import ModelSettings
from tests.support.raising import raises
from tests.support.studies import FILE, of_parties


def csv(file: Path, count: int) -> None:
    rows = [f"{k},note {k} says {'pain' if k % 2 else 'fine'},{k % 2}" for k in range(count)]
    file.write_text("\n".join(["id,note,code", *rows, ""]))


def test_a_corpus_becomes_silos(study: Path) -> None:
    made = config.silos(config.load(study, ["data.size=[20, 24, 28]"]))
    assert [silo.name for silo in made] == ["hospital-1", "hospital-2", "hospital-3"]
    assert [len(silo.train) for silo in made] == [20, 24, 28]


SPREAD = """\
[data]
source = "notes.csv"
partition = "dirichlet_class"
alpha = 5.0
columns = { text = "note", label = "code" }
[algorithm]
name = "fedavg"
"""
HALF = ["data.public=0.5", "data.labelled=0.25"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    csv(tmp_path / "notes.csv", 600)
    (tmp_path / "x.toml").write_text(SPREAD)
    return tmp_path / "x.toml"


@pytest.mark.parametrize("how", ["iid", "dirichlet_class", "dirichlet_client"])
def test_all_records_of_a_patient_go_to_one_party(how: str, tmp_path: Path) -> None:
    rows = [f"{k % 120},note {k} is {'pain' if k % 7 else 'fine'},{k % 2}" for k in range(360)]
    (tmp_path / "notes.csv").write_text("\n".join(["person,note,code", *rows, ""]))
    text = SPREAD.replace("{ text", '{ patient = "person", text').replace("dirichlet_class", how)
    (tmp_path / "x.toml").write_text(text)
    made = config.silos(config.load(tmp_path / "x.toml"))
    records = [[*s.train, *s.dev, *s.test] for s in made]
    patients = [{patient(record) for record in one} for one in records]
    assert sum(map(len, records)) == 360
    assert sum(map(len, patients)) == 120 == len(set.union(*patients))


def test_one_source_is_spread_over_parties(notes: Path) -> None:
    made = config.silos(config.load(notes))
    parts = [set(e.id for e in (*s.train, *s.dev, *s.test)) for s in made]
    assert sum(map(len, parts)) == 600 == len(set.union(*parts))
    assert made == config.silos(config.load(notes))  # by the seed
    assert made != config.silos(config.load(notes, ["run.seed=1"]))


def drawn(file: Path, *overrides: str) -> list[Silo]:
    """Every member's records, also those of a host that the algorithm has no use for."""
    found = config.load(file, overrides)
    return read(found.data, found.task, found.run.seed)


def test_without_public_records_parties_get_what_they_always_got(notes: Path) -> None:
    how = Columns(text="note", label="code")
    examples = load(notes.parent / "notes.csv", "classification", columns=how)
    shares = partition("dirichlet_class", examples, 3, default_rng(0), alpha=5.0, minimum=10)
    parts = [split(share, dev=0.1, test=0.2, seed=0) for share in shares]
    expected = [Silo(f"hospital-{k}", p.train, p.dev, p.test) for k, p in enumerate(parts, 1)]
    assert drawn(notes) == expected
    texts = corpora.make("ade", parties=3, seed=0)
    made = [Silo(f"hospital-{k}", p.train, p.dev, p.test) for k, p in enumerate(texts, 1)]
    assert config.silos(config.loads(FILE)) == made
    more = config.loads(FILE.replace("parties = 3", "parties = 3\npublic = 9\nlabelled = 8"))
    assert [replace(silo, public=()) for silo in config.silos(more)] == made


def test_a_share_of_a_source_becomes_public_and_a_part_of_that_is_the_hosts(notes: Path) -> None:
    *members, host = found = drawn(notes, *HALF)
    assert [silo.role for silo in found] == ["party"] * 3 + ["host"]
    public = found[0].public
    assert all(silo.public == public for silo in found)
    assert all(e.label is None for e in public if isinstance(e, Text))
    assert all(e.label for e in (*host.train, *host.dev, *host.test) if isinstance(e, Text))
    private = [e.id for silo in members for e in (*silo.train, *silo.dev, *silo.test)]
    parts = [private, *([e.id for e in part] for part in (public, *parts_of(host)))]
    assert sorted(id for part in parts for id in part) == sorted(map(str, range(600)))
    # shares hold on average: three standard deviations of so many draws are never left here
    expected = [300, 300 * 0.7 * 0.75, 300 * 0.7 * 0.25, 300 * 0.1, 300 * 0.2]
    for part, size in zip(parts, expected, strict=True):
        assert abs(len(part) - size) < 3 * (size * (1 - size / 600)) ** 0.5
    assert found == drawn(notes, *HALF) != drawn(notes, *HALF, "run.seed=1")


def parts_of(host: Silo) -> tuple[Sequence[Example], ...]:
    return host.train, host.dev, host.test


def test_what_is_private_does_not_depend_on_what_the_host_keeps(notes: Path) -> None:
    few, many, none = (
        drawn(notes, "data.public=0.5", f"data.labelled={share}") for share in (0.1, 0.5, 0.0)
    )
    assert [len(found) for found in (few, many, none)] == [4, 4, 3]
    for silos in zip(few, many, none, strict=False):
        assert len({(silo.name, silo.train, silo.dev, silo.test) for silo in silos}) == 1


def test_a_corpus_writes_public_records_and_a_host(study: Path) -> None:
    options = ("data.size=12", "data.public=30", "data.labelled=8")
    *members, host = found = drawn(study, *options)
    assert [len(part) for part in (host.public, *parts_of(host))] == [30, 8, 8 // 4, 8 // 2]
    texts = [e.text for part in (host.public, *parts_of(host)) for e in part if isinstance(e, Text)]
    own = {e.text for s in members for p in parts_of(s) for e in p if isinstance(e, Text)}
    assert len(set(texts)) == len(texts) == 44 and not own & set(texts)
    assert {silo.public for silo in found} == {host.public}
    larger = drawn(study, *options, "data.public=40")[-1]
    assert parts_of(larger) == parts_of(host) and larger.public[:30] == host.public[:30]


def test_a_made_host_is_left_out_where_it_has_no_use(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load(study, ["data.size=12", "data.public=9", "data.labelled=8"])
    assert [silo.role for silo in config.silos(settings)] == ["party"] * 3
    monkeypatch.setitem(
        cast("dict[str, Entry]", ALGORITHMS), "fedavg", replace(ALGORITHMS["fedavg"], has_host=True)
    )
    assert [silo.role for silo in config.silos(settings)] == ["party"] * 3 + ["host"]


def test_a_public_file_is_read_without_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = of_parties(tmp_path, "abch", host="h")
    data = '[data]\npublic = "public.jsonl"\ncolumns = { text = "note", label = "code" }\n'
    file.write_text(data + file.read_text())
    for name in "abch":
        csv(tmp_path / f"{name}.csv", 40)
    rows = ['{"note": "one"}', '{"note": "two", "code": 0.5, "label": [1]}']  # labels of any kind
    (tmp_path / "public.jsonl").write_text("\n".join(rows))
    found = drawn(file)
    assert {silo.public for silo in found} == {(Text("0", "one"), Text("1", "two"))}
    assert [silo.name for silo in found if silo.role == "host"] == ["h"]
    assert config.silos(config.load(file)) == found  # who is named is not left out
    (tmp_path / "here").mkdir()
    csv(tmp_path / "here" / "other.csv", 7)
    monkeypatch.chdir(tmp_path / "here")
    other = drawn(file, "data.public=other.csv")
    assert {len(silo.public) for silo in other} == {7}


def test_parties_bring_their_own_files(tmp_path: Path) -> None:
    more = 'test = "a.csv"\ntier = "weak"\nmodel = { layers = 2 }\n'
    file = of_parties(tmp_path, "abc", more=more)
    file.write_text('[data.columns]\ntext = "note"\nlabel = "code"\n' + file.read_text())
    for name in "abc":
        csv(tmp_path / f"{name}.csv", 60)
    north, south, _ = config.silos(config.load(file))
    assert len(north.test) == 60
    assert len(north.train) + len(north.dev) == 60
    assert (south.name, south.tier, south.model) == ("b", "weak", ModelSettings(layers=2))


def test_a_missing_file_names_its_party(tmp_path: Path) -> None:
    file = of_parties(tmp_path, "abc")
    with raises(DataError, party="a", file=tmp_path / "a.csv"):
        config.silos(config.load(file))
