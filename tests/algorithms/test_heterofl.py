"""HeteroFL: regions by hand, means by numpy, whole runs of parties with models of their widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from secure_fl import FedAvg, Silo
from secure_fl.algorithms.baselines.heterofl import Regions, mean_by_owners
from secure_fl.algorithms.baselines.narrow_models import first, places, select
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.corpora import make
from secure_fl.errors import SettingsError, TooFewParties
from secure_fl.events import Event, Scored
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.exporting import load_exported
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ProtectionSettings, TrainingSettings
from secure_fl.testing.harness import federate
from secure_fl.testing.hospitals import silos, small
from tests.support.raising import raises
from tests.support.slices import require_slices
from tests.support.token_hospitals import HEAD, NAMES, ner

TIERS = ("weak", "medium", "strong")
CPU = TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu")


def test_slices_by_hand() -> None:
    assert first(6, 4, 1).tolist() == [0, 1, 2, 3]
    assert first(8, 4, 2).tolist() == [0, 1, 4, 5]  # two heads of four, two places of each
    matrix = torch.arange(16).reshape(4, 4)
    assert select(matrix, (first(4, 2, 2), first(4, 3, 1))).tolist() == [[0, 1, 2], [8, 9, 10]]


def nested(own: str) -> tuple[Regions, Mapping[str, Any]]:
    """A 4x3 matrix in two heads of two rows: 2x1, 4x2 and 4x3 for the tiers; a vector of 3."""
    at = {
        "weak": {"W": (first(4, 2, 2), first(3, 1, 1)), "b": (first(3, 1, 1),)},
        "medium": {"W": (first(4, 4, 2), first(3, 2, 1)), "b": (first(3, 2, 1),)},
        "strong": {"W": (first(4, 4, 2), first(3, 3, 1)), "b": (first(3, 3, 1),)},
    }
    return Regions.of(own, at), at


def test_regions_by_hand() -> None:
    W = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [10.0, 11.0, 12.0]])
    regions, at = nested("strong")
    parts = regions.cut({"W": W})
    assert parts["weak"]["W#weak"].tolist() == [1.0, 7.0]  # the first row of each head
    assert sorted(parts["medium"]["W#medium"].tolist()) == [2.0, 4.0, 5.0, 8.0, 10.0, 11.0]
    assert sorted(parts["strong"]["W#strong"].tolist()) == [3.0, 6.0, 9.0, 12.0]
    medium, _ = nested("medium")
    own = medium.cut({"W": select(W, at["medium"]["W"])})
    assert set(own) == {"weak", "medium"}
    for tier in own:  # the same values, cut from the narrower matrix
        assert own[tier][f"W#{tier}"].tolist() == parts[tier][f"W#{tier}"].tolist()
    moved = torch.zeros(4, 3)
    regions.add_({"W": moved}, {name: v for part in parts.values() for name, v in part.items()})
    assert torch.equal(moved, W)


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_every_element_is_the_mean_of_those_who_have_it(mode: Any) -> None:
    tiers = {"a": "weak", "b": "medium", "c": "strong", "d": "strong"}
    rng = np.random.default_rng(0)
    whole = {p: {"W": rng.normal(size=(4, 3)), "b": rng.normal(size=3)} for p in tiers}
    rows = {"weak": [0, 2], "medium": [0, 1, 2, 3], "strong": [0, 1, 2, 3]}
    columns = {"weak": 1, "medium": 2, "strong": 3}
    total = {"W": np.zeros((4, 3)), "b": np.zeros(3)}
    count = {"W": np.zeros((4, 3)), "b": np.zeros(3)}
    for name, tier in tiers.items():
        owned: dict[str, Any] = {
            "W": np.ix_(rows[tier], range(columns[tier])),
            "b": slice(columns[tier]),
        }
        for key, at in owned.items():
            total[key][at] += whole[name][key][at]
            count[key][at] += 1

    def party(name: str) -> Any:
        async def run(cohort: Cohort) -> dict[str, Tensor]:
            regions, at = nested(tiers[name])
            mine = {
                key: select(torch.tensor(value, dtype=torch.float32), at[tiers[name]][key])
                for key, value in whole[name].items()
            }
            means = await mean_by_owners(cohort, regions.cut(mine), 1.0)
            out = {key: torch.zeros_like(value) for key, value in mine.items()}
            regions.add_(out, means)
            return out

        return run

    found = federate({name: party(name) for name in tiers}, mode=mode, min_cohort=1, bits=24)
    for name, tier in tiers.items():
        _, at = nested(tier)
        for key in ("W", "b"):
            mean = torch.tensor(total[key] / count[key], dtype=torch.float32)
            torch.testing.assert_close(
                found.results[name][key], select(mean, at[tier][key]), atol=1e-4, rtol=1e-4
            )


def tiered(*tiers: str) -> list[Silo]:
    return [replace(s, tier=t) for s, t in zip(silos(len(tiers)), tiers, strict=True)]


def width(model: Any) -> int:
    return int(model.config.hidden_size)


def open_sums(mode: Any) -> ProtectionSettings:
    return ProtectionSettings(mode=mode, bits=16, min_cohort=1)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, set[str]]]:
    """Collect, by party, the names given to partial sums."""
    names: dict[str, set[str]] = {}
    add = Cohort.sum

    async def listening(self: Cohort, values: Mapping[str, Any], **options: Any) -> Any:
        if options.get("partial"):
            names.setdefault(self.me, set()).update(values)
        return await add(self, values, **options)

    monkeypatch.setattr(Cohort, "sum", listening)
    yield names


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_models_stay_nested_bit_for_bit(
    mode: Any, sent: dict[str, set[str]], tmp_path: Path
) -> None:
    """Whatever two tiers both own is equal after every round: narrow models are slices of wide."""
    options: dict[str, Any] = {
        "silos": tiered(*TIERS),
        "protection": open_sums(mode),
        "folder": tmp_path / "run",
    }
    # The scaler is folded into what is delivered, unless it is for training alone.
    result = small(HeteroFL(rounds=2, scaler="training"), **options).run()
    assert set(result.models) == {"model", "model-medium", "model-weak"}
    exported, _, _ = load_exported(tmp_path / "run" / "model-weak")
    require_slices(exported, result.models["model-weak"], places(exported, exported))
    wide = result.model
    for name in ("model-medium", "model-weak"):
        narrow = result.models[name]
        require_slices(wide, narrow, places(wide, narrow))
    assert width(result.model) == 64
    assert width(result.models["model-weak"]) == 32
    ends = {party: {n.rpartition("#")[2] for n in names} for party, names in sent.items()}
    assert ends == {
        "hospital-1": {"weak"},
        "hospital-2": {"weak", "medium"},
        "hospital-3": set(TIERS),
    }


def test_a_round_is_the_mean_by_count_of_what_parties_trained() -> None:
    """One round of the real models against numpy, with one party in each tier."""
    alone = {}
    for name, tier in zip(NAMES, TIERS, strict=True):
        one = [s for s in tiered(*TIERS) if s.name == name]
        protection = ProtectionSettings(mode="none", min_cohort=1, threshold=1)
        alone[tier] = (
            small(HeteroFL(rounds=1, scaler="training"), silos=one, protection=protection)
            .run()
            .model
        )
    cfg = HeteroFL(rounds=1, scaler="training")  # what is delivered is as it was averaged
    together = small(cfg, silos=tiered(*TIERS), protection=open_sums("none")).run()
    wide, last = together.model, "encoder.layer.0.output.dense.weight"
    name = next(n for n, _ in wide.named_parameters() if n.endswith(last))
    total, count = np.zeros((64, 128)), np.zeros((64, 128))
    for model in alone.values():
        d, f = model.get_parameter(name).shape
        total[:d, :f] += model.get_parameter(name).detach().numpy()
        count[:d, :f] += 1
    assert sorted(np.unique(count).tolist()) == [1, 2, 3]
    found = wide.get_parameter(name).detach().numpy()
    np.testing.assert_allclose(found, total / count, atol=1e-6)


def test_of_full_width_everywhere_it_is_fedavg() -> None:
    cfg = HeteroFL(rounds=1, widths={"all": 1.0}, weights="samples")
    ours, theirs = (trainable(small(a).run().model) for a in (cfg, FedAvg(rounds=1)))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=1e-6, rtol=1e-5)


def test_one_round_lowers_the_loss() -> None:
    def loss(training: TrainingSettings) -> float:
        run = small(
            HeteroFL(rounds=1, epochs=3),
            silos=tiered(*TIERS),
            training=training,
            protection=open_sums("none"),
        ).run()
        return run.mean("test")["loss"]

    still = TrainingSettings(learning_rate=1e-30, weight_decay=0.0, device="cpu")
    assert loss(CPU) < loss(still)


@pytest.mark.parametrize(
    "tiers", [("weak",) * 3, ("medium", "medium", "strong"), ("weak",) * 2 + ("strong",)]
)
def test_absent_tiers_leave_no_gap(tiers: tuple[str, ...]) -> None:
    result = small(HeteroFL(rounds=1), silos=tiered(*tiers), protection=open_sums("none")).run()
    widest = max(tiers, key=TIERS.index)
    sizes = {"weak": 32, "medium": 48, "strong": 64}
    assert width(result.model) == sizes[widest]
    assert all(torch.isfinite(w).all() for m in result.models.values() for w in m.parameters())


def test_parts_of_too_few_are_refused_or_stay_at_home(sent: dict[str, set[str]]) -> None:
    with raises(TooFewParties, "2", "3", party="hospital-1", round=1, field="algorithm.mix"):
        small(HeteroFL(rounds=1), silos=tiered(*TIERS)).run()
    assert not sent  # before anything of the model was offered
    result = small(
        HeteroFL(rounds=1, mix="wide", scaler="training"), "he+secagg", silos=tiered(*TIERS)
    ).run()
    assert {n.rpartition("#")[2] for names in sent.values() for n in names} == {"weak"}
    assert set(result.models) == {"model-weak", "hospital-2/model", "hospital-3/model"}
    weak, strong = result.models["model-weak"], result.models["hospital-3/model"]
    require_slices(strong, weak, places(strong, weak))
    only = ProtectionSettings(mode="none", min_cohort=1, threshold=1)
    cfg = HeteroFL(rounds=1, scaler="training")
    alone = small(cfg, silos=tiered(*TIERS)[2:], protection=only).run().model
    name = next(n for n in trainable(strong) if n.endswith("output.dense.weight"))
    trained, kept = alone.get_parameter(name), strong.get_parameter(name)
    torch.testing.assert_close(kept[32:], trained[32:], atol=1e-7, rtol=0)  # as it was trained
    assert not torch.allclose(kept[:32, :32], trained[:32, :32], atol=1e-5)


def test_heads_of_different_labels_stay_at_home(sent: dict[str, set[str]]) -> None:
    splits = make("ner", parties=3, seed=1, size=40)
    parties = [
        Silo(n, s.train, s.dev, s.test, tier=t)
        for n, s, t in zip(NAMES, splits, TIERS, strict=True)
    ]
    result = ner(
        HeteroFL(rounds=1, mix="wide", scaler="training"), "he+secagg", silos=parties
    ).run()
    assert set(result.models) == {f"{name}/model" for name in NAMES}
    assert not {n for names in sent.values() for n in names if n.partition("#")[0] in HEAD}


def test_an_unknown_tier_is_refused() -> None:
    with raises(SettingsError, "'huge'", party="hospital-3", field="tier"):
        small(HeteroFL(), silos=tiered("weak", "weak", "huge")).run()


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    cfg = HeteroFL(rounds=2, mix="wide")
    whole = small(cfg, "he+secagg", folder=tmp_path / "whole").run()
    broken = small(cfg, "he+secagg", folder=tmp_path / "again")

    def fail(event: Event) -> None:
        if isinstance(event, Scored) and event.round == 2:
            raise RuntimeError("the power fails")

    broken.listener = fail
    with pytest.raises(Exception, match="the power fails"):
        broken.run()
    resumed = small(cfg, "he+secagg", folder=tmp_path / "again", resume=True).run()
    assert whole.document["metrics"] == resumed.document["metrics"]
    for name, model in whole.models.items():
        require_slices(model, resumed.models[name], places(model, model))
