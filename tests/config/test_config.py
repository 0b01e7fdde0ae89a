"""Settings: what a file says, and what a person is told about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.algorithms.fedadam import FedAdam
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.config import load as config
from secure_fl.config.data import (
    CorpusData,
    parties,
)
from secure_fl.settings import ProtectionSettings, TrainingSettings
from tests.support.raising import require
from tests.support.studies import refused, replaced


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


def test_a_typo_in_a_section_names_the_nearest_section(study: Path) -> None:
    require(refused(replaced(study, "[training]", "[trainig]")), "did you mean training?", line=6)


def test_a_wrong_type_says_what_was_found_and_what_is_allowed(study: Path) -> None:
    error = refused(replaced(study, "batch_size = 8", 'batch_size = "8"'))
    require(error, '"8"', "an integer", field="training.batch_size", line=7)


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


def test_broken_toml_names_the_line(study: Path) -> None:
    require(refused(replaced(study, "batch_size = 8", "batch_size = = 8")), "TOML", line="7")


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


def test_an_unknown_algorithm_lists_all(study: Path) -> None:
    error = refused(replaced(study, "fedavg", "fedavgg"))
    require(error, "did you mean fedavg?", "local", field="algorithm.name")
    require(refused(replaced(study, 'name = "fedavg"', "")), "missing")


def test_an_algorithm_is_discriminated_by_its_name(study: Path) -> None:
    found = config.load(study, ["algorithm.name=fedadam", "algorithm.tau=0.5"])
    assert found.algorithm == FedAdam(rounds=2, tau=0.5)
    require(refused(study, "algorithm.tau=0.5"), field="algorithm.tau")  # FedAvg has none


def test_records_are_named_in_exactly_one_way(study: Path) -> None:
    require(refused(replaced(study, "parties = 3", "source = 'a.csv'")), "corpus and source")
    require(refused(replaced(study, 'corpus = "ade"', "")), "no records are named")
    require(refused(study, "data.corpus=add"), "allowed: ade")


def test_more_than_min_cohort_asks_for_cannot_start(study: Path) -> None:
    error = refused(replaced(study, "parties = 3", "parties = 2"))
    found = "found 3 with 2 parties (hospital-1, hospital-2)"
    require(error, found, "is its update", field="protection.min_cohort")
    assert config.load(study, ["protection.min_cohort=2"]).protection.min_cohort == 2
    assert config.load(study, ["algorithm.name=local"]).algorithm.name == "local"  # adds nothing
    more = refused(study, "protection.min_cohort=2", "protection.threshold=3")
    require(more, field="protection.threshold")


def test_the_host_is_not_counted_as_a_party(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    tables = [f'[[data.party]]\nname = "{n}"\ntrain = "{n}.csv"\n' for n in names]
    tables.append('[[data.party]]\nname = "h"\ntrain = "h.csv"\nrole = "host"\n')
    file = tmp_path / "x.toml"
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
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
    file = tmp_path / "x.toml"
    table = '[[data.party]]\nname = "{}"\ntrain = "a.csv"\nrole = "{}"\n'
    roles = {"a": "party", "b": "party", "c": "party", "h": "host", "i": "host"}
    tables = [table.format(*each) for each in roles.items()]
    file.write_text("".join(tables) + '[algorithm]\nname = "fedavg"\n')
    require(refused(file), "h is the host", field="data.party.5.role", line=20)


def test_labelled_records_are_a_part_of_public_ones(study: Path) -> None:
    require(refused(study, "data.labelled=8"), "found 8", field="data.labelled")
    source = replaced(study, 'corpus = "ade"', 'source = "a.csv"\nlabelled = 0.25')
    require(refused(source), "found 0.25", field="data.labelled")
    assert config.names(config.load(source, ["data.public=0.5"]).data)[-1] == "host"
    require(refused(source, "data.public=1"), "below 1", field="data.public")
