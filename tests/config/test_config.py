"""Settings: what a file says, and what a person is told about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.settings import FedAdam
from secure_fl.config import load as config
from secure_fl.config.data import CorpusData, PartyData, SourceData, parties
from secure_fl.errors import SettingsError
from secure_fl.settings import ProtectionSettings, TaskSettings, TrainingSettings
from tests.support.raising import require
from tests.support.studies import ALGORITHM, of_parties, refused, replaced

BATCH_SIZE = {"field": "training.batch_size", "line": 7}


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
    require(error, "did you mean rounds?", "epochs")  # and what else is allowed


@pytest.mark.parametrize(
    ("old", "new", "named", "where"),
    [
        ("[training]", "[trainig]", ["did you mean training?"], {"line": 6}),
        ("batch_size = 8", 'batch_size = "8"', ['"8"', "an integer"], BATCH_SIZE),
        ("batch_size = 8", "batch_size = = 8", ["TOML"], {"line": "7"}),
        ("fedavg", "fedavgg", ["did you mean fedavg?", "local"], {"field": "algorithm.name"}),
        ('name = "fedavg"', "", ["missing"], {}),
        ("parties = 3", "source = 'a.csv'", ["corpus and source"], {}),
        ('corpus = "ade"', "", ["no records are named"], {}),
        ('corpus = "ade"', 'corpus = "add"', ["allowed: ade"], {}),
    ],
)
def test_a_wrong_line_is_named_with_what_is_allowed(
    study: Path, old: str, new: str, named: list[str], where: dict[str, object]
) -> None:
    require(refused(replaced(study, old, new)), *named, **where)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("batch_size = 0", "a number of at least 1"),
        ("batch_size = true", "an integer"),
        ("batch_size = 1.5", "an integer"),
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
    require(error, "line 7, training.batch_sise", "line 8, training.precision", '"half"')
    error = refused(replaced(study, "batch_size = 8", "batch_size = nan\noptimizer = 'adamv'"))
    require(error, "line 7, training.batch_size: found nan", "did you mean adamw?")


def test_an_error_found_after_reading_names_its_line_or_option(study: Path) -> None:
    late = SettingsError("found 3", field="algorithm.rounds")
    config.locate(late, study)
    assert late.where == {"file": str(study), "line": 11, "field": "algorithm.rounds"}
    option = SettingsError("found 3", field="algorithm.rounds")
    config.locate(option, study, ["algorithm.rounds=3"])
    assert option.where["option"] == "--set algorithm.rounds=3" and "line" not in option.where
    of_party = SettingsError("found 3", party="north", field="model")
    config.locate(of_party, study)
    assert of_party.where == {"party": "north", "field": "model"}  # not the shared [model]


def test_toml_that_ends_early_names_its_last_line(study: Path) -> None:
    study.write_text("[data]\ncorpus = [1,\n")
    assert refused(study).where["line"] == "3"


def test_a_missing_file_a_folder_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    require(refused(tmp_path / "none.toml"), "no such file")
    require(refused(tmp_path), "cannot be read")
    (tmp_path / "latin.toml").write_bytes(b"[run]\nname = '\xe9'\n")
    require(refused(tmp_path / "latin.toml"), "byte 15", "UTF-8")
    (tmp_path / "huge.toml").write_bytes(b"#" * (1 << 20) + b"##")
    require(refused(tmp_path / "huge.toml"), "too long")


def test_missing_sections_say_what_to_add(study: Path) -> None:
    study.write_text('[data]\ncorpus = "ade"\n')
    require(refused(study), "[algorithm]", 'name = "fedavg"')
    study.write_text("[algorithm]\nname = 'fedavg'\n")
    require(refused(study), "[data]")


def test_an_algorithm_is_discriminated_by_its_name(study: Path) -> None:
    found = config.load(study, ["algorithm.name=fedadam", "algorithm.tau=0.5"])
    assert found.algorithm == FedAdam(rounds=2, tau=0.5)
    require(refused(study, "algorithm.tau=0.5"), field="algorithm.tau")  # FedAvg has none


def test_more_than_min_cohort_asks_for_cannot_start(study: Path) -> None:
    error = refused(replaced(study, "parties = 3", "parties = 2"))
    found = "found 3 with 2 parties (hospital-1, hospital-2)"
    require(error, found, "is its update", field="protection.min_cohort")
    assert config.load(study, ["protection.min_cohort=2"]).protection.min_cohort == 2
    assert config.load(study, ["algorithm.name=local"]).algorithm.name == "local"  # adds nothing
    more = refused(study, "protection.min_cohort=2", "protection.threshold=3")
    require(more, field="protection.threshold")


def test_the_host_is_not_counted_as_a_party(tmp_path: Path) -> None:
    file = of_parties(tmp_path, "abch", host="h")
    assert config.names(config.load(file).data) == ("a", "b", "c", "h")
    require(refused(file, "protection.min_cohort=4"), "found 4 with 3 parties (a, b, c)")


def test_a_made_host_is_a_member_and_not_counted_as_a_party(study: Path) -> None:
    sizes = ["data.public=9", "data.labelled=8"]
    found = config.load(study, sizes)
    assert parties(found.data) == ("hospital-1", "hospital-2", "hospital-3")
    assert config.names(found.data) == (*parties(found.data), "host")
    assert config.names(config.load(study, sizes[:1]).data) == parties(found.data)
    error = refused(study, *sizes, "protection.min_cohort=4")
    require(error, "found 4 with 3 parties (hospital-1, hospital-2, hospital-3)")


def test_two_hosts_are_one_too_many(tmp_path: Path) -> None:
    file = of_parties(tmp_path, "abchi", host="hi")
    require(refused(file), "h is the host", field="data.party.5.role", line=20)


def test_labelled_records_are_a_part_of_public_ones(study: Path) -> None:
    require(refused(study, "data.labelled=8"), "found 8", field="data.labelled")
    source = replaced(study, 'corpus = "ade"', 'source = "a.csv"\nlabelled = 0.25')
    require(refused(source), "found 0.25", field="data.labelled")
    assert config.names(config.load(source, ["data.public=0.5"]).data)[-1] == "host"
    require(refused(source, "data.public=1"), "below 1", field="data.public")


# --- overrides win over a file; paths are relative to where they are written --------------------


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
        ("algorithm.rounds", "not an assignment"),
        ("=5", "not an assignment"),
        ("algorithm..rounds=5", "not an assignment"),
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
    file = of_parties(tmp_path, "abc")
    found = config.load(file, ["data.party.b.tier=weak"]).data
    assert isinstance(found, PartyData)
    assert [p.tier for p in found.party] == [None, "weak", None]
    require(refused(file, "data.party.z.tier=weak"), "'z'", "a, b, c")


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
    private = ["training.dp.epsilon=8.0", "training.dp.ledger=budget"]
    (dp,) = filter(None, [config.load("conf/x.toml", private).training.dp])
    assert dp.ledger == str(tmp_path / "budget")
    hub = config.load("conf/x.toml", ["data.source=hub:owner/name:train", "model.name=a/b"])
    assert isinstance(hub.data, SourceData)
    assert (hub.data.source, hub.model.name) == ("hub:owner/name:train", "a/b")


def test_two_parties_of_one_name_are_refused(tmp_path: Path) -> None:
    file = of_parties(tmp_path, "aaa")
    require(refused(file), field="data.party.2.name", line=6)


def test_columns_of_one_party_name_their_section_and_nothing_else_is_wrong(tmp_path: Path) -> None:
    lines = '[[data.party]]\nname = "{}"\ntrain = "x"\ncolumns = {{text = "note"}}\n'
    file = tmp_path / "study.toml"
    file.write_text(ALGORITHM + lines.format("a") + lines.format("b"))
    error = refused(file)
    require(error, "2 errors", "data.columns")
    assert "at least" not in error.what


def test_fields_inside_lists_of_tables_are_found_again(tmp_path: Path) -> None:
    file = of_parties(tmp_path, "ab")
    of_b = f"[data.party.model]\nlayer = 2\n{ALGORITHM}"
    file.write_text(file.read_text().replace(ALGORITHM, of_b))
    require(refused(file), "did you mean layers?", field="data.party.2.model.layer", line=10)
