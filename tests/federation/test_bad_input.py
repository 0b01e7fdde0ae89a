"""What users get wrong, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from secure_fl import (
    FedAvg,
    Local,
    ProtectionSettings,
    Silo,
    TaskSettings,
    TrainingSettings,
    corpora,
)
from secure_fl.algorithms.baselines.centralized import Centralized
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config import load as config
from secure_fl.data.examples import Example, Text
from secure_fl.data.public import without_labels
from secure_fl.data.splits import write
from secure_fl.errors import (
    DataError,
    ModelError,
    SecureFLError,
    SettingsError,
    TooFewParties,
    TrainingError,
)
from secure_fl.federation.ground_rules import rules_of
from secure_fl.settings import ModelSettings, Protection
from tests.support.hospitals import silos, small
from tests.support.raising import raises


def test_an_empty_training_split() -> None:
    with raises(DataError, party="north", field="train"):
        Silo("north", [])


def test_a_label_never_seen_in_training() -> None:
    odd, *others = silos()
    odd = replace(odd, test=(*odd.test, Text("x", "a new thing", label="unheard-of")))
    with pytest.raises(DataError) as caught:
        small(silos=[odd, *others]).run()
    message = str(caught.value)
    assert "hospital-1" in message and "test" in message and "ade, no-ade" in message
    assert "a new thing" not in message  # never record text


def renamed(examples: Sequence[Example]) -> list[Example]:
    names = {"ade": "ade", "no-ade": "nothing"}
    return [replace(e, label=names[str(e.label)]) for e in examples if isinstance(e, Text)]


def test_different_label_sets_where_one_is_needed() -> None:
    odd, *others = silos()
    odd = replace(odd, train=renamed(odd.train), dev=renamed(odd.dev), test=renamed(odd.test))
    with raises(
        DataError, "hospital-1 lacks no-ade", "hospital-2 lacks nothing", field="task.labels"
    ):
        small(silos=[odd, *others], task=TaskSettings())
    small(Local(rounds=1), silos=[odd, *others], task=TaskSettings()).run()  # heads may differ


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_a_diverging_party_is_named_and_nothing_is_half_applied(mode: Protection) -> None:
    diverging = TrainingSettings(
        learning_rate=1e30, optimizer="sgd", max_grad_norm=None, batch_size=8, device="cpu"
    )
    federation = small(training=diverging, protection=ProtectionSettings(mode=mode))
    with pytest.raises(TrainingError) as caught:
        federation.run()
    assert caught.value.where["party"] == "hospital-1" and caught.value.where["round"] == 1
    assert "learning_rate" in str(caught.value)


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        small(model=ModelSettings(name="somebody/no-such-model")).run()


def test_more_layers_than_the_model_has() -> None:
    with raises(ModelError, party="hospital-1", field="model.layers"):
        small(model=ModelSettings(layers=99)).run()


def test_too_few_parties_for_any_sum() -> None:
    with raises(TooFewParties, "min_cohort", "3"):
        small(silos=silos(2))
    small(silos=silos(2), protection=ProtectionSettings(mode="none", min_cohort=2))


def test_thresholds_that_protect_nobody() -> None:
    with raises(SettingsError, "2", "3", field="protection.threshold"):
        small(protection=ProtectionSettings(threshold=1))
    with raises(SettingsError, "2", "3", field="protection.threshold"):
        small(protection=ProtectionSettings(threshold=4))


def test_a_host_where_none_is_needed() -> None:
    one, *others = silos(4)
    with raises(SettingsError, field="role"):
        small(silos=[replace(one, role="host"), *others])


HOSTED = replace(ALGORITHMS["fedavg"], has_host=True)


def members(hosts: int = 1) -> list[Silo]:
    """Three parties and so many hosts, all with the same public records."""
    public = corpora.public("ade", seed=0, size=9)
    found = [replace(silo, public=public) for silo in silos(3 + hosts, 12)]
    return [*found[:3], *(replace(silo, role="host") for silo in found[3:])]


def blind(examples: Sequence[Example], row: int) -> list[Example]:
    """The examples, one of them without its label."""
    return [*examples[:row], *without_labels(examples[row : row + 1]), *examples[row + 1 :]]


def refused(found: Sequence[Silo]) -> SecureFLError:
    with pytest.raises(SecureFLError) as caught:
        rules_of(found, ProtectionSettings(), HOSTED)
    return caught.value


def test_a_host_is_needed_and_there_is_none() -> None:
    assert rules_of(members(), ProtectionSettings(), HOSTED).host == "hospital-4"
    error = refused(members()[:3])
    assert "needs a host" in error.what
    for way in ('role = "host"', "corpus, public = 240", "source, public = 0.5"):
        assert way in error.fix


def test_a_host_in_a_mode_without_masks() -> None:
    with raises(SettingsError, field="protection.mode") as caught:
        small(FedID(rounds=1), silos=members(), mode="he")
    assert caught.value.where["field"] == "protection.mode" and "he+secagg" in caught.value.fix
    small(FedID(rounds=1), silos=members(), mode="secagg")


def test_two_hosts() -> None:
    assert "one host, not 2 (hospital-4, hospital-5)" in refused(members(2)).what


def test_a_host_among_records_that_are_pooled() -> None:
    with raises(SettingsError, field="role"):
        small(Centralized(rounds=1), silos=members())
    small(Centralized(rounds=1), silos=members()[:3])


def test_no_public_records_to_distil_over() -> None:
    one, *others = members()
    some = refused([replace(one, public=()), *others])
    assert "no public records with hospital-1," in some.what and "[data]" in some.fix
    none = refused([replace(silo, public=()) for silo in members()])
    assert "no public records anywhere" in none.what


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_record_without_a_label_at_the_host(split: str) -> None:
    *parties, host = members()
    changed: dict[str, Any] = {split: blind(getattr(host, split), 2)}
    error = refused([*parties, replace(host, **changed)])
    assert isinstance(error, DataError) and "the label is missing" in error.what
    assert error.where == {"party": "hospital-4", "split": split, "row": 2}


FILES = """
[[data.party]]
name = "{}"
train = "train.jsonl"
role = "{}"
"""


def written(folder: Path, public: str) -> Path:
    """Settings of three parties and a host, whose public records are in a file."""
    write(silos(1, 48)[0].train, folder / "train.jsonl")
    roles = {"a": "party", "b": "party", "c": "party", "h": "host"}
    tables = [FILES.format(*each) for each in roles.items()]
    text = f'[data]\npublic = "{public}"\n{"".join(tables)}[algorithm]\nname = "fedavg"\n'
    (folder / "x.toml").write_text(text)
    return folder / "x.toml"


def test_a_public_file_that_is_missing_or_empty(tmp_path: Path) -> None:
    file = written(tmp_path, "public.jsonl")
    with pytest.raises(DataError, match=r"split public.*no such file") as caught:
        config.silos(config.load(file))
    assert caught.value.where["file"] == tmp_path / "public.jsonl"
    (tmp_path / "public.jsonl").write_text("")
    with pytest.raises(DataError, match=r"split public.*holds no record"):
        config.silos(config.load(file))
    (tmp_path / "public.jsonl").write_text('{"text": "a rash"}\n')
    assert len(config.silos(config.load(file))[0].public) == 1


def test_a_host_file_without_labels_names_the_party_and_the_row(tmp_path: Path) -> None:
    file = written(tmp_path, "train.jsonl")
    write(blind(silos(1, 48)[0].train, 0), tmp_path / "own.jsonl")
    options = [f"data.party.h.train={tmp_path / 'own.jsonl'}", "data.party.h.dev=0.0"]
    found = config.load(file, [*options, "data.party.h.test=0.0"])
    error = refused(config.silos(found))
    assert error.where == {"party": "h", "split": "train", "row": 0}


def test_public_shares_that_leave_too_little(tmp_path: Path) -> None:
    write(silos(1, 100)[0].train, tmp_path / "all.jsonl")
    text = '[data]\nsource = "all.jsonl"\n[algorithm]\nname = "fedavg"\n'
    (tmp_path / "x.toml").write_text(text)

    def made(*options: str) -> list[Silo]:
        return config.silos(config.load(tmp_path / "x.toml", options))

    made("data.public=0.5")
    with raises(DataError, "3", "10", field="data.public") as caught:
        made("data.public=0.8")
    assert "lower data.public" in caught.value.fix
    with raises(DataError, field="data.labelled"):
        made("data.public=0.5", "data.labelled=0.001")
    with raises(DataError, party="host", split="dev"):
        made("data.public=0.05")


def test_two_parties_of_one_name() -> None:
    one, *_ = silos()
    with pytest.raises(SettingsError, match="same name"):
        small(silos=[one, one, one])


def test_no_cuda_here() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with raises(ModelError, "CUDA"):
        small(FedAvg(), training=TrainingSettings(device="cuda")).run()


def test_more_than_128_parties_under_protection_are_refused_when_they_federate() -> None:
    entry = ALGORITHMS["fedavg"]
    many = [Silo(f"p{k:03}", [Text("1", "a", label="x")]) for k in range(129)]
    for mode in get_args(Protection):
        protection = ProtectionSettings(mode=mode)
        if mode == "none":
            assert rules_of(many, protection, entry).threshold == 87
            continue
        with pytest.raises(SettingsError, match="at most 128 parties, not 129") as refusal:
            rules_of(many, protection, entry)
        assert "several federations" in refusal.value.fix
        assert rules_of(many[1:], protection, entry).threshold == 86
