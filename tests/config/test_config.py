"""Settings: what a file says, what a person is told about it, and the way there and back."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from secure_fl import corpora
from secure_fl.algorithms.fedadam import FedAdam
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.registry import ALGORITHMS, Entry
from secure_fl.config import load as config
from secure_fl.config import toml as config_toml
from secure_fl.config.data import (
    ColumnSettings,
    CorpusData,
    PartyData,
    PartyFiles,
    SourceData,
    parties,
)
from secure_fl.config.load import Settings
from secure_fl.config.silos import read
from secure_fl.data.examples import Example, Text
from secure_fl.data.partition import partition
from secure_fl.data.silo import Silo
from secure_fl.data.splits import Columns, load, split
from secure_fl.errors import DataError, RunError, SettingsError
from secure_fl.federation.federation import Federation
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings

FILE = """\
# a study
[data]
corpus = "ade"
parties = 3

[training]
batch_size = 8

[algorithm]
name = "fedavg"
rounds = 2
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(FILE)
    return file


def refused(file: Path, *overrides: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        config.load(file, overrides)
    return caught.value


def replaced(file: Path, old: str, new: str) -> Path:
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    return file


def test_a_file_becomes_typed_settings(study: Path) -> None:
    found = config.load(study)
    assert found.data == CorpusData(corpus="ade", parties=3)
    assert found.algorithm == FedAvg(rounds=2)
    assert found.training == TrainingSettings(batch_size=8)
    assert found.protection == ProtectionSettings()
    assert found.run.name == "study"  # the file's name
    assert config.run_folder(found) == Path("runs/study")


def test_settings_are_frozen(study: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        config.load(study).run.seed = 1


def test_a_typo_names_file_line_field_and_the_nearest_name(study: Path) -> None:
    error = refused(replaced(study, "rounds = 2", "ronds = 2"))
    assert error.where == {"file": str(study), "line": 11, "field": "algorithm.ronds"}
    assert "did you mean rounds?" in error.fix
    assert "epochs" in error.fix  # what is allowed


def test_a_typo_in_a_section_names_the_nearest_section(study: Path) -> None:
    error = refused(replaced(study, "[training]", "[trainig]"))
    assert error.where["line"] == 6
    assert "did you mean training?" in error.fix


def test_a_wrong_type_says_what_was_found_and_what_is_allowed(study: Path) -> None:
    error = refused(replaced(study, "batch_size = 8", 'batch_size = "8"'))
    assert error.where["field"] == "training.batch_size"
    assert error.where["line"] == 7
    assert 'found "8"; allowed: a whole number' in error.what


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("batch_size = 0", "a number from 1 on"),
        ("batch_size = true", "a whole number"),
        ("batch_size = 1.5", "a whole number"),
        ("learning_rate = 0", "a number above 0"),
        ("learning_rate = 'x'", "a number"),
        ("optimizer = 'adam'", "'adamw' or 'sgd'"),
        ("optimizer = 3", "'adamw' or 'sgd'"),
        ("learning_rate = inf", "found inf"),
        ("batch_size = 2020-01-01", "found the date or time 2020-01-01"),
    ],
)
def test_wrong_values_are_explained(study: Path, line: str, wanted: str) -> None:
    assert wanted in refused(replaced(study, "batch_size = 8", line)).what


def test_several_faults_are_listed_together(study: Path) -> None:
    error = refused(replaced(study, "batch_size = 8", "batch_sise = 8\nprecision = 'half'"))
    assert "2 faults" in error.what
    assert "line 7, training.batch_sise: there is no such field" in error.what
    assert 'line 8, training.precision: found "half"' in error.what


def test_broken_toml_names_the_line(study: Path) -> None:
    error = refused(replaced(study, "batch_size = 8", "batch_size = = 8"))
    assert error.where["line"] == "7"
    assert "not TOML" in error.what


def test_toml_that_ends_early_names_its_last_line(study: Path) -> None:
    study.write_text("[data]\ncorpus = [1,\n")
    assert refused(study).where["line"] == "3"


def test_a_missing_file_a_folder_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.toml").what
    assert "cannot be read" in refused(tmp_path).what
    (tmp_path / "latin.toml").write_bytes(b"[run]\nname = '\xe9'\n")
    assert "byte 15 is not UTF-8" in refused(tmp_path / "latin.toml").what
    (tmp_path / "huge.toml").write_bytes(b"#" * (1 << 20) + b"##")
    assert "too long" in refused(tmp_path / "huge.toml").what


def test_missing_sections_say_what_to_add(study: Path) -> None:
    study.write_text('[data]\ncorpus = "ade"\n')
    error = refused(study)
    assert "[algorithm] is missing" in error.what
    assert 'name = "fedavg"' in error.fix
    study.write_text("[algorithm]\nname = 'fedavg'\n")
    assert "[data] is missing" in refused(study).what


def test_an_unknown_algorithm_lists_all(study: Path) -> None:
    error = refused(replaced(study, "fedavg", "fedavgg"))
    assert error.where["field"] == "algorithm.name"
    assert "did you mean fedavg?" in error.fix
    assert "local" in error.fix
    assert "missing" in refused(replaced(study, 'name = "fedavg"', "")).what


def test_an_algorithm_is_discriminated_by_its_name(study: Path) -> None:
    found = config.load(study, ["algorithm.name=fedadam", "algorithm.tau=0.5"])
    assert found.algorithm == FedAdam(rounds=2, tau=0.5)
    assert "no such field" in refused(study, "algorithm.tau=0.5").what  # FedAvg has none


def test_records_are_named_in_exactly_one_way(study: Path) -> None:
    error = refused(replaced(study, "parties = 3", "source = 'a.csv'"))
    assert "corpus and source together" in error.what
    assert "no records are named" in refused(replaced(study, 'corpus = "ade"', "")).what
    assert "allowed: ade" in refused(study, "data.corpus=add").what


def test_more_than_min_cohort_asks_for_cannot_start(study: Path) -> None:
    error = refused(replaced(study, "parties = 3", "parties = 2"))
    assert error.where["field"] == "protection.min_cohort"
    assert "found 3 with 2 parties (hospital-1, hospital-2)" in error.what
    assert "IS that hospital" in error.fix
    assert config.load(study, ["protection.min_cohort=2"]).protection.min_cohort == 2
    assert config.load(study, ["algorithm.name=local"]).algorithm.name == "local"  # adds nothing
    assert (
        "can never answer"
        in refused(study, "protection.min_cohort=2", "protection.threshold=3").what
    )


def test_the_host_is_not_counted_as_a_party(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    tables = [f'[[data.party]]\nname = "{n}"\ntrain = "{n}.csv"\n' for n in names]
    tables.append('[[data.party]]\nname = "h"\ntrain = "h.csv"\nrole = "host"\n')
    file = tmp_path / "x.toml"
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
    assert config.names(config.load(file).data) == ("a", "b", "c", "h")
    assert "found 4 with 3 parties (a, b, c)" in refused(file, "protection.min_cohort=4").what


def test_a_made_host_is_a_member_and_not_counted_as_a_party(study: Path) -> None:
    sizes = ["data.public=9", "data.labelled=8"]
    found = config.load(study, sizes)
    assert parties(found.data) == ("hospital-1", "hospital-2", "hospital-3")
    assert config.names(found.data) == (*parties(found.data), "host")
    assert config.names(config.load(study, sizes[:1]).data) == parties(found.data)
    error = refused(study, *sizes, "protection.min_cohort=4")
    assert "found 4 with 3 parties (hospital-1, hospital-2, hospital-3)" in error.what


def test_two_hosts_are_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    table = '[[data.party]]\nname = "{}"\ntrain = "a.csv"\nrole = "{}"\n'
    roles = {"a": "party", "b": "party", "c": "party", "h": "host", "i": "host"}
    tables = [table.format(*each) for each in roles.items()]
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
    error = refused(file)
    assert error.where["field"] == "data.party.5.role" and error.where["line"] == 20
    assert "found a second host; h is one already" in error.what


def test_labelled_records_are_a_part_of_public_ones(study: Path) -> None:
    error = refused(study, "data.labelled=8")
    assert error.where["field"] == "data.labelled"
    assert "found 8 without public records" in error.what
    source = replaced(study, 'corpus = "ade"', 'source = "a.csv"\nlabelled = 0.25')
    assert "found 0.25 without public records" in refused(source).what
    assert config.names(config.load(source, ["data.public=0.5"]).data)[-1] == "host"
    assert "a number below 1" in refused(source, "data.public=1").what


# --- overrides ---------------------------------------------------------------


def test_overrides_win_and_are_read_as_toml_or_text(study: Path) -> None:
    found = config.load(
        study,
        [
            "algorithm.rounds=5",
            "training.learning_rate = 1e-3",
            'task.labels=["no", "yes"]',
            "task.positive=yes",
            "protection.mode=none",
        ],
    )
    assert found.algorithm.rounds == 5
    assert found.training.learning_rate == 1e-3
    assert found.task == TaskSettings(labels=("no", "yes"), positive="yes")
    assert found.protection.mode == "none"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("algorithm.rounds", "sets nothing"),
        ("=5", "sets nothing"),
        ("algorithm..rounds=5", "sets nothing"),
        ("algorithm.rounds=five", 'found "five"'),
        ("algorithm.rounds.x=5", "is not a table"),
        ("task.labels=[1", "not TOML"),
        ("algorithm.rounds=5\nepochs=2", 'found "5\\nepochs=2"'),
        ("data.party.x.train=a", "found corpus and party together"),
        ("data=3", "allowed: a table"),
    ],
)
def test_wrong_overrides_are_named(study: Path, override: str, text: str) -> None:
    error = refused(study, override)
    assert text in error.what
    assert "line" not in error.where
    if "option" in error.where:
        assert override in str(error.where["option"])


def test_parties_are_overridden_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    tables = [f'[[data.party]]\nname = "{n}"\ntrain = "{n}.csv"\n' for n in ("a", "b", "c")]
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
    found = config.load(file, ["data.party.b.tier=weak"]).data
    assert isinstance(found, PartyData)
    assert [p.tier for p in found.party] == [None, "weak", None]
    assert "has no table named 'z'; found: a, b, c" in refused(file, "data.party.z.tier=weak").what


# --- paths -------------------------------------------------------------------


def test_paths_are_relative_to_the_file_and_overrides_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "checkpoint").mkdir()
    file = tmp_path / "conf" / "x.toml"
    file.write_text(
        '[data]\nsource = "../notes.csv"\n[model]\nname = "checkpoint"\n'
        '[algorithm]\nname = "fedavg"\n'
    )
    monkeypatch.chdir(tmp_path)
    found = config.load("conf/x.toml")
    assert isinstance(found.data, SourceData)
    assert Path(found.data.source) == tmp_path / "conf" / ".." / "notes.csv"
    assert found.model.name == str(tmp_path / "conf" / "checkpoint")
    other = config.load("conf/x.toml", ["data.source=mine.csv"]).data
    assert isinstance(other, SourceData)
    assert other.source == str(tmp_path / "mine.csv")
    hub = config.load("conf/x.toml", ["data.source=hub:owner/name:train", "model.name=a/b"])
    assert isinstance(hub.data, SourceData)
    assert (hub.data.source, hub.model.name) == ("hub:owner/name:train", "a/b")


def test_two_parties_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    table = '[[data.party]]\nname = "a"\ntrain = "a.csv"\n'
    file.write_text(table * 3 + '[algorithm]\nname = "fedavg"\n')
    error = refused(file)
    assert error.where["field"] == "data.party.2.name"
    assert error.where["line"] == 5
    assert "a second time" in error.what


def test_fields_inside_lists_of_tables_are_found_again(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    table = '[[data.party]]\nname = "{}"\ntrain = "a.csv"\n'
    file.write_text(
        table.format("a") + table.format("b") + "[data.party.model]\nlayer = 2\n"
        '[algorithm]\nname = "fedavg"\n'
    )
    error = refused(file)
    assert error.where["field"] == "data.party.2.model.layer"
    assert error.where["line"] == 8
    assert "did you mean layers?" in error.fix


# --- there and back ----------------------------------------------------------

texts = st.text(max_size=8)
filled = st.text(min_size=1, max_size=8)
fractions = st.floats(0, 0.49)
rates = st.floats(0, 1e6, exclude_min=True)
counts = st.integers(1, 2**40)
models = st.builds(
    ModelSettings,
    name=filled,
    layers=st.none() | counts,
    pretrained=st.booleans(),
    freeze_embeddings=st.booleans(),
)
columns = st.builds(ColumnSettings, text=st.none() | texts, label=st.none() | texts)
party_files = st.builds(
    PartyFiles,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
    train=filled,
    dev=filled | fractions,
    test=filled | fractions,
    tier=st.none() | texts,
    model=st.none() | models,
)
data = (
    st.builds(
        CorpusData,
        corpus=st.just("ade"),
        parties=st.just(3),
        size=st.none() | counts | st.tuples(counts, counts, counts),
        shift=st.none() | st.floats(0, 1),
        public=counts,
        labelled=st.just(0) | counts,
    )
    | st.builds(
        SourceData,
        source=filled,
        columns=columns,
        partition=st.sampled_from(["iid", "dirichlet_class", "dirichlet_client"]),
        parties=st.integers(3, 9),
        alpha=rates,
        dev=fractions,
        test=fractions,
        public=st.floats(0, 0.9, exclude_min=True),
        labelled=st.none() | fractions,
    )
    | st.builds(
        PartyData,
        party=st.lists(party_files, min_size=3, max_size=4, unique_by=lambda p: p.name).map(tuple),
        public=st.none() | filled,
        columns=columns,
    )
)
trees = st.builds(
    Settings,
    run=st.builds(
        config.RunSettings, name=texts, seed=st.integers(-(2**60), 2**60), folder=st.none() | texts
    ),
    task=st.builds(
        TaskSettings, labels=st.none() | st.lists(texts).map(tuple), positive=st.none() | texts
    ),
    data=data,
    model=models,
    training=st.builds(TrainingSettings, learning_rate=rates, max_grad_norm=st.none() | rates),
    protection=st.builds(ProtectionSettings, mode=st.sampled_from(["none", "he"])),
    algorithm=st.builds(FedAvg, rounds=counts) | st.builds(FedAdam, tau=rates),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(trees)
def test_what_is_dumped_loads_back_equal(tree: Settings) -> None:
    text = config.dump(tree)
    tomllib.loads(text)
    assert config.loads(text) == tree
    assert config.dump(config.loads(text)) == text


@settings(max_examples=50, deadline=None)
@given(trees, trees)
def test_differences_are_empty_only_for_equal_settings(a: Settings, b: Settings) -> None:
    moved = a.model_copy(update={"run": b.run.model_copy(update={"seed": a.run.seed})})
    assert config.differences(a, moved) == []  # a run may be moved and renamed
    unmoved = b.model_copy(update={"run": a.run.model_copy(update={"seed": b.run.seed})})
    assert (config.differences(a, b) == []) == (a == unmoved)


def test_differences_name_fields_with_both_values(study: Path) -> None:
    a = config.load(study)
    b = config.load(study, ["algorithm.rounds=9", "data.size=40"])
    assert config.differences(a, b) == [
        "algorithm.rounds: 2 -> 9",
        "data.size: nothing -> 40",
    ]


def test_none_can_be_written_where_it_is_not_the_default(study: Path) -> None:
    found = config.load(study, ["training.max_grad_norm=none"])
    assert found.training.max_grad_norm is None
    assert config.loads(config.dump(found)) == found
    # but it stays a name where text is allowed
    assert config.load(study, ["task.positive=none"]).task.positive == "none"


plain = st.recursive(
    st.booleans() | st.integers() | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(texts, plain, max_size=4))
def test_the_writer_writes_what_tomllib_reads(tree: dict[str, object]) -> None:
    text = config_toml.write(tree)
    assert tomllib.loads(text) == tree
    assert set(config_toml.lines(text).values()) <= set(range(1, text.count("\n") + 2))


def test_lines_are_found_in_every_spelling() -> None:
    text = "\ufeff"[1:] + (
        "a.b = 1\r\n[c]\nd = [\n  1,\n  2, # x\n]\ns = '''\n[no]\n'''\n[[e.f]]\ng = {h = 2}\n"
        '[[e.f]]\n"k.l" = 3\n'
    )
    found = config_toml.lines(text)
    assert found[("a", "b")] == 1
    assert found[("c", "d")] == 3
    assert found[("c", "s")] == 7
    assert found[("e", "f", 0, "g", "h")] == 11
    assert found[("e", "f", 1, "k.l")] == 13
    assert not any("no" in key for key in found)


# --- records -----------------------------------------------------------------


def csv(file: Path, count: int) -> None:
    rows = [f"{k},note {k} says {'pain' if k % 2 else 'fine'},{k % 2}" for k in range(count)]
    file.write_text("\n".join(["id,note,code", *rows, ""]))


def test_a_corpus_becomes_silos(study: Path) -> None:
    made = config.silos(config.load(study, ["data.size=[20, 24, 28]"]))
    assert [silo.name for silo in made] == ["hospital-1", "hospital-2", "hospital-3"]
    assert [len(silo.train) for silo in made] == [20, 24, 28]


def test_one_source_is_spread_over_parties(tmp_path: Path) -> None:
    csv(tmp_path / "notes.csv", 240)
    file = tmp_path / "x.toml"
    file.write_text(
        '[data]\nsource = "notes.csv"\npartition = "dirichlet_class"\nalpha = 5.0\n'
        'columns = { text = "note", label = "code" }\n[algorithm]\nname = "fedavg"\n'
    )
    made = config.silos(config.load(file))
    parts = [set(e.id for e in (*s.train, *s.dev, *s.test)) for s in made]
    assert sum(map(len, parts)) == 240 == len(set.union(*parts))
    assert made == config.silos(config.load(file))  # by the seed
    assert made != config.silos(config.load(file, ["run.seed=1"]))


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


def drawn(file: Path, *overrides: str) -> list[Silo]:
    """Every member's records, also those of a host that the algorithm has no use for."""
    found = config.load(file, overrides)
    return read(found.data, found.task, found.run.seed)


def test_without_public_records_parties_get_what_they_always_got(notes: Path) -> None:
    how = Columns(text="note", label="code")
    examples = load(notes.parent / "notes.csv", "classification", columns=how)
    shares = partition("dirichlet_class", [examples], 3, default_rng(0), alpha=5.0, minimum=10)
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
    parts = [private, *([e.id for e in part] for part in (public, *kept(host)))]
    assert sorted(id for part in parts for id in part) == sorted(map(str, range(600)))
    # shares hold on average: three standard deviations of so many draws are never left here
    expected = [300, 300 * 0.7 * 0.75, 300 * 0.7 * 0.25, 300 * 0.1, 300 * 0.2]
    for part, size in zip(parts, expected, strict=True):
        assert abs(len(part) - size) < 3 * (size * (1 - size / 600)) ** 0.5
    assert found == drawn(notes, *HALF) != drawn(notes, *HALF, "run.seed=1")


def kept(host: Silo) -> tuple[Sequence[Example], ...]:
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
    assert [len(part) for part in (host.public, *kept(host))] == [30, 8, 8 // 4, 8 // 2]
    texts = [e.text for part in (host.public, *kept(host)) for e in part if isinstance(e, Text)]
    own = {e.text for s in members for p in kept(s) for e in p if isinstance(e, Text)}
    assert len(set(texts)) == len(texts) == 44 and not own & set(texts)
    assert {silo.public for silo in found} == {host.public}
    larger = drawn(study, *options, "data.public=40")[-1]
    assert kept(larger) == kept(host) and larger.public[:30] == host.public[:30]


def test_a_made_host_is_left_out_where_it_has_no_use(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load(study, ["data.size=12", "data.public=9", "data.labelled=8"])
    assert [silo.role for silo in config.silos(settings)] == ["party"] * 3
    monkeypatch.setitem(
        cast("dict[str, Entry]", ALGORITHMS), "fedavg", replace(ALGORITHMS["fedavg"], has_host=True)
    )
    assert [silo.role for silo in config.silos(settings)] == ["party"] * 3 + ["host"]


MEMBERS = '[data]\npublic = "public.jsonl"\n' + "".join(
    f'[[data.party]]\nname = "{name}"\ntrain = "{name}.csv"\nrole = "{role}"\n'
    for name, role in {"a": "party", "b": "party", "c": "party", "h": "host"}.items()
)


def test_a_public_file_is_read_without_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = '[data.columns]\ntext = "note"\nlabel = "code"\n[algorithm]\nname = "fedavg"\n'
    (tmp_path / "x.toml").write_text(MEMBERS + columns)
    for name in "abch":
        csv(tmp_path / f"{name}.csv", 40)
    rows = ['{"note": "one"}', '{"note": "two", "code": 0.5, "label": [1]}']  # labels of any kind
    (tmp_path / "public.jsonl").write_text("\n".join(rows))
    found = drawn(tmp_path / "x.toml")
    assert {silo.public for silo in found} == {(Text("0", "one"), Text("1", "two"))}
    assert [silo.name for silo in found if silo.role == "host"] == ["h"]
    assert config.silos(config.load(tmp_path / "x.toml")) == found  # who is named is not left out
    (tmp_path / "here").mkdir()
    csv(tmp_path / "here" / "other.csv", 7)
    monkeypatch.chdir(tmp_path / "here")
    other = drawn(tmp_path / "x.toml", "data.public=other.csv")
    assert {len(silo.public) for silo in other} == {7}


def test_parties_bring_their_own_files(tmp_path: Path) -> None:
    tables = []
    for name in ("north", "south", "east"):
        csv(tmp_path / f"{name}.csv", 60)
        tables.append(
            f'[[data.party]]\nname = "{name}"\ntrain = "{name}.csv"\ntest = "north.csv"\n'
            'tier = "weak"\nmodel = { layers = 2 }\n'
        )
    file = tmp_path / "x.toml"
    file.write_text(
        '[data.columns]\ntext = "note"\nlabel = "code"\n'
        + "".join(tables)
        + '[algorithm]\nname = "fedavg"\n'
    )
    north, south, _ = config.silos(config.load(file))
    assert len(north.test) == 60
    assert len(north.train) + len(north.dev) == 60
    assert (south.name, south.tier, south.model) == ("south", "weak", ModelSettings(layers=2))


def test_a_missing_file_names_its_party(tmp_path: Path) -> None:
    tables = [f'[[data.party]]\nname = "{n}"\ntrain = "{n}.csv"\n' for n in ("a", "b", "c")]
    file = tmp_path / "x.toml"
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
    with pytest.raises(DataError) as caught:
        config.silos(config.load(file))
    assert caught.value.where["party"] == "a"
    assert str(tmp_path / "a.csv") in str(caught.value)


def test_resuming_with_other_settings_lists_them(study: Path, tmp_path: Path) -> None:
    found = config.load(study)
    run = tmp_path / "run"
    with pytest.raises(RunError, match="no run to resume"):
        Federation.of(found, run, resume=True)
    run.mkdir()
    (run / "settings.toml").write_text(config.dump(found))
    other = config.load(study, ["algorithm.rounds=9", "run.name=renamed"])
    with pytest.raises(RunError) as caught:
        Federation.of(other, run, resume=True)
    assert "algorithm.rounds: 2 -> 9" in caught.value.what
    assert "run.name" not in caught.value.what
