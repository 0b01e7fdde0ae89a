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
from secure_fl.algorithms.baselines.reference_points import Centralized
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.config import load as config
from secure_fl.data.examples import Example, Text, without_labels
from secure_fl.data.splits import write
from secure_fl.errors import (
    DataError,
    ModelError,
    SecureFLError,
    SettingsError,
    TooFewParties,
    TrainingError,
)
from secure_fl.features.tuning.tuning import dev_scores
from secure_fl.federation.validation import rules_of
from secure_fl.settings import DPSettings, Kind, ModelSettings, Protection
from secure_fl.testing.hospitals import silos, small
from tests.support.raising import raises, require


def test_an_empty_training_split() -> None:
    with raises(DataError, party="north", field="train"):
        Silo("north", [])


def test_a_label_never_seen_in_training() -> None:
    odd, *others = silos()
    odd = replace(odd, test=(*odd.test, Text("x", "a new thing", label="unheard-of")))
    with raises(DataError, "ade, no-ade", party="hospital-1", split="test") as caught:
        small(silos=[odd, *others])
    assert "a new thing" not in str(caught.value)  # never record text


STEPS = sorted(
    name
    for name, entry in ALGORITHMS.items()
    if entry.dp_covers_all
    and "steps" in (fields := entry.settings.model_fields)
    and fields["steps"].get_default() is None
)


@pytest.mark.parametrize("name", STEPS)
def test_counted_steps_under_dp_are_refused_with_the_settings(name: str) -> None:
    private = TrainingSettings(dp=DPSettings(epsilon=1.0))
    given: Any = {"steps": 5}
    with raises(SettingsError, "whole passes", field="algorithm.steps"):
        small(ALGORITHMS[name].settings(**given), training=private)


@pytest.mark.parametrize(
    ("kind", "label"),
    [("classification", None), ("multilabel", None), ("multilabel", ("F99",)), ("regression", "")],
)
def test_labels_are_checked_before_anything_is_computed(kind: Kind, label: Any) -> None:
    known: Any = {"classification": "a", "multilabel": ("a", "b"), "regression": 1.0}[kind]
    right = [Text(f"{k}", f"note {k}", label=known) for k in range(4)]
    wrong = [*right[:2], Text("x", "a note", label=label)]
    parties = [Silo(name, right) for name in ("east", "north")] + [Silo("south", right, wrong)]
    labels = None if kind == "regression" else ("a", "b")
    with raises(DataError, party="south", split="dev", record=3, field="label"):
        small(silos=parties, task=TaskSettings(kind=kind, labels=labels))


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
    local, split = Local(rounds=1), [odd, *others]  # its heads may differ
    unlike = small(local, silos=split, task=TaskSettings()).run()
    assert "accuracy" in unlike.mean() and "f1" not in unlike.mean()  # of different classes
    of_one = small(local, silos=split, task=TaskSettings(positive="ade")).run()
    assert "f1" not in of_one.pooled() and f"f1 (ade) {of_one.mean()['f1']:.3f}" in repr(of_one)
    assert dev_scores(of_one) == of_one.mean("dev")


def test_labels_that_differ_by_spelling_are_to_be_written_alike() -> None:
    sets = (("True", "False"), ("1", "0.0"), ("TRUE", "FALSE"))
    hospitals = [
        Silo(f"h{k}", [Text(str(n), "a rash", label=label) for n, label in enumerate(labels)])
        for k, labels in enumerate(sets)
    ]
    with raises(DataError, "different label sets", "by their spelling only: write them alike"):
        small(silos=hospitals, task=TaskSettings())


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_a_diverging_party_is_named_and_nothing_is_half_applied(mode: Protection) -> None:
    diverging = TrainingSettings(
        learning_rate=1e30, optimizer="sgd", max_grad_norm=None, batch_size=8, device="cpu"
    )
    federation = small(training=diverging, protection=ProtectionSettings(mode=mode))
    with raises(TrainingError, "learning_rate", party="hospital-1", round=1):
        federation.run()


def test_a_model_that_is_not_there() -> None:
    with raises(ModelError, model="somebody/no-such-model"):
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


def refusal(found: Sequence[Silo]) -> SecureFLError:
    with pytest.raises(SecureFLError) as caught:
        rules_of(found, ProtectionSettings(), HOSTED)
    return caught.value


def test_a_host_is_needed_and_there_is_none() -> None:
    assert rules_of(members(), ProtectionSettings(), HOSTED).host == "hospital-4"
    ways = ('role = "host"', "corpus, public = 240", "source, public = 0.5")
    require(refusal(members()[:3]), *ways, field="data")


def test_two_hosts() -> None:
    require(refusal(members(2)), "2 (hospital-4, hospital-5)")


def test_a_host_among_records_that_are_pooled() -> None:
    with raises(SettingsError, field="role"):
        small(Centralized(rounds=1), silos=members())
    small(Centralized(rounds=1), silos=members()[:3])


def test_no_public_records_to_distil_over() -> None:
    one, *others = members()
    require(refusal([replace(one, public=()), *others]), "hospital-1,", "[data]")
    none = refusal([replace(silo, public=()) for silo in members()])
    require(none, "anywhere", field="data.public")


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_record_without_a_label_at_the_host(split: str) -> None:
    *parties, host = members()
    changed: dict[str, Any] = {split: blind(getattr(host, split), 2)}
    error = refusal([*parties, replace(host, **changed)])
    assert isinstance(error, DataError)
    assert error.where == {"party": "hospital-4", "split": split, "record": 3}


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
    place = {"split": "public", "file": tmp_path / "public.jsonl"}
    with raises(DataError, "no such file", **place):
        config.silos(config.load(file))
    (tmp_path / "public.jsonl").write_text("")
    with raises(DataError, "no record", split="public"):
        config.silos(config.load(file))
    (tmp_path / "public.jsonl").write_text('{"text": "a rash"}\n')
    assert len(config.silos(config.load(file))[0].public) == 1


def test_a_host_file_without_labels_names_the_party_and_the_row(tmp_path: Path) -> None:
    file = written(tmp_path, "train.jsonl")
    write(blind(silos(1, 48)[0].train, 0), tmp_path / "own.jsonl")
    options = [f"data.party.h.train={tmp_path / 'own.jsonl'}", "data.party.h.dev=0.0"]
    found = config.load(file, [*options, "data.party.h.test=0.0"])
    error = refusal(config.silos(found))
    assert error.where == {"party": "h", "split": "train", "record": 1}


def test_public_shares_that_leave_too_little(tmp_path: Path) -> None:
    write(silos(1, 100)[0].train, tmp_path / "all.jsonl")
    text = '[data]\nsource = "all.jsonl"\n[algorithm]\nname = "fedavg"\n'
    (tmp_path / "x.toml").write_text(text)

    def made(*options: str) -> list[Silo]:
        return config.silos(config.load(tmp_path / "x.toml", options))

    made("data.public=0.5")
    with raises(DataError, "3 parties", "10", "lower data.public", field="data.public"):
        made("data.public=0.8")
    with raises(DataError, field="data.labelled"):
        made("data.public=0.5", "data.labelled=0.001")
    with raises(DataError, party="host", split="dev"):
        made("data.public=0.05")


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
        with raises(SettingsError, "at most 128 parties, not 129", "several federations"):
            rules_of(many, protection, entry)
        assert rules_of(many[1:], protection, entry).threshold == 86
