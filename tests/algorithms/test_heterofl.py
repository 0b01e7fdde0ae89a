"""HeteroFL: regions by hand, means by numpy, runs, and narrow models as slices of wide ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from secure_fl import FedAvg, Silo, TaskSettings
from secure_fl.algorithms.baselines.heterofl import Regions, head_sizes, mean_by_owners
from secure_fl.algorithms.baselines.narrow_models import (
    at_width,
    encoder_parameters,
    first,
    narrow_model,
    places,
    select,
    shapes,
    size_for_depth,
    wide_config,
)
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.errors import ModelError, SettingsError, TooFewParties
from secure_fl.events import EventLog
from secure_fl.learning import builtin
from secure_fl.learning.anatomy import encoder_layers, trainable
from secure_fl.learning.exporting import load_exported
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.party.cohort import Cohort
from secure_fl.settings import ModelSettings, ProtectionSettings, TrainingSettings
from secure_fl.testing.harness import federate
from secure_fl.testing.hospitals import silos, small
from tests.support.raising import raises
from tests.support.saved_models import WORDS, save_family


def require_slices(wide: nn.Module, narrow: nn.Module, at: Mapping[str, Any]) -> None:
    assert narrow.state_dict().keys() == wide.state_dict().keys()
    for name, parameter in narrow.named_parameters():
        assert torch.equal(parameter, select(wide.get_parameter(name), at[name])), name


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
    return Regions({tier: at[tier] for tier in TIERS[: TIERS.index(own) + 1]}), at


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


@pytest.mark.parametrize("mode", ["none", "he+secagg"])
def test_models_stay_nested_bit_for_bit(
    mode: Any, sent: dict[str, set[str]], tmp_path: Path
) -> None:
    """Parts that two tiers own are equal after every round: narrow models are slices of wide."""
    cfg = HeteroFL(rounds=2, scaler="training")  # else the scaler is folded into saved models
    options: dict[str, Any] = {"silos": tiered(*TIERS), "protection": open_sums(mode)}
    result = small(cfg, folder=tmp_path, **options).run()
    assert set(result.models) == {"model", "model-medium", "model-weak"}
    exported, _, _ = load_exported(tmp_path / "model-weak")
    require_slices(exported, result.models["model-weak"], places(exported, exported))
    for name in ("model-medium", "model-weak"):
        narrow = result.models[name]
        require_slices(result.model, narrow, places(result.model, narrow))
    assert width(result.model) == 64 and width(result.models["model-weak"]) == 32
    ends = {
        party: {n.rpartition("#")[2] for n in names if "#" in n} for party, names in sent.items()
    }
    assert list(ends.values()) == [{"weak"}, {"weak", "medium"}, set(TIERS)]


def test_of_full_width_everywhere_it_is_fedavg() -> None:
    cfg = HeteroFL(rounds=1, widths={"all": 1.0}, weights="samples")
    ours, theirs = (trainable(small(a).run().model) for a in (cfg, FedAvg(rounds=1)))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("tiers", [("weak",) * 3, ("medium", "medium", "strong")])
def test_absent_tiers_leave_no_gap(tiers: tuple[str, ...]) -> None:
    result = small(HeteroFL(rounds=1), silos=tiered(*tiers), protection=open_sums("none")).run()
    assert width(result.model) == {"weak": 32, "strong": 64}[tiers[-1]]
    assert all(torch.isfinite(w).all() for m in result.models.values() for w in m.parameters())


def test_parts_with_too_few_owners_are_refused_or_not_sent(sent: dict[str, set[str]]) -> None:
    with raises(TooFewParties, "2", "3", party="hospital-1", round=1, field="algorithm.mix"):
        small(HeteroFL(rounds=1), silos=tiered(*TIERS)).run()
    assert not any("#" in n for names in sent.values() for n in names)  # before any part was sent
    cfg = HeteroFL(rounds=1, mix="wide", scaler="training")
    result = small(cfg, "he+secagg", silos=tiered(*TIERS)).run()
    assert {n.rpartition("#")[2] for own in sent.values() for n in own if "#" in n} == {"weak"}
    assert set(result.models) == {"model-weak", "hospital-2/model", "hospital-3/model"}
    weak, strong = result.models["model-weak"], result.models["hospital-3/model"]
    require_slices(strong, weak, places(strong, weak))
    only = ProtectionSettings(mode="none", min_cohort=1, threshold=1)
    alone = small(cfg, silos=tiered(*TIERS)[2:], protection=only).run().model
    name = next(n for n in trainable(strong) if n.endswith("output.dense.weight"))
    trained, kept = alone.get_parameter(name), strong.get_parameter(name)
    torch.testing.assert_close(kept[32:], trained[32:], atol=1e-7, rtol=0)  # as it was trained
    assert not torch.allclose(kept[:32, :32], trained[:32, :32], atol=1e-5)


# --- narrow models --------------------------------------------------------------------------------

FAMILIES = ("bert", "roberta", "distilbert", "electra")


def site_of(model: ModelSettings, kind: Any = "classification") -> Site:
    labels = ("no", "yes") if kind in ("classification", "ner") else None
    task = make_task(TaskSettings(kind=kind, labels=labels))
    return Site(silos(1)[0], SiteSpec(task, model, CPU, 3), SiteContext(EventLog("h")))


def test_widths_that_match_depths() -> None:
    """BERT-base's own figures; the paper (arXiv 2202.08036, Sec. 4) has 456 and 624."""
    base = transformers.BertConfig()
    assert encoder_parameters(base, 12) == 85_054_464  # known of BERT-base
    assert 12 * size_for_depth(base, 8, 12) == 624
    assert 12 * size_for_depth(base, 4, 12) == 444
    for depth in range(1, 13):
        size, goal = size_for_depth(base, depth, 12), encoder_parameters(base, depth)
        near = abs(encoder_parameters(at_width(base, size), 12) - goal)
        for other in (size - 1, size + 1):
            if 1 <= other <= 64:
                assert near <= abs(encoder_parameters(at_width(base, other), 12) - goal)
    assert size_for_depth(base, 12, 12) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_they_are(family: str, tmp_path: Path) -> None:
    site = site_of(save_family(tmp_path, family))
    model = shapes(wide_config(site), site.task, site.model_settings)
    held = sum(p.numel() for p in encoder_layers(model).parameters())
    assert encoder_parameters(wide_config(site), 3) == held


def test_tiers_from_depths_or_widths() -> None:
    config = builtin.tiny_config(100)
    assert head_sizes(HeteroFL(), config, 4) == {"weak": 8, "medium": 12, "strong": 16}
    named = HeteroFL(widths={"big": 1.0, "small": 0.25})
    assert list(head_sizes(named, config, 4).items()) == [("small", 4), ("big", 16)]
    deep = head_sizes(HeteroFL(tiers={"weak": 1, "strong": 4}), config, 4)
    assert deep == {"weak": size_for_depth(config, 1, 4), "strong": 16}
    with raises(SettingsError, "5", "4", field="algorithm.tiers"):
        head_sizes(HeteroFL(tiers={"weak": 1, "strong": 5}), config, 4)
    wrong: list[dict[str, Any]] = [{"widths": {}}, {"widths": {"a": 2}}]
    for fields in (*wrong, {"widths": {"a": 1.0}, "tiers": {"a": 1}}):
        with pytest.raises(SettingsError):
            HeteroFL(**fields)


def pair(site: Site, size: int) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    wide, (narrow, _) = site.model(), narrow_model(site, size, "training")
    return wide, narrow, places(wide, narrow)


@pytest.mark.parametrize("kind", ["classification", "ner", "regression", "ranking"])
def test_the_built_in_model_narrow_is_a_slice_of_it_wide(kind: Any) -> None:
    wide, narrow, at = pair(site_of(ModelSettings(layers=2), kind), 8)
    require_slices(wide, narrow, at)
    assert not narrow.training
    assert trainable(narrow).keys() == trainable(wide).keys()


@pytest.mark.parametrize("pooling", ["cls", "attentive", "mean"])
def test_a_narrow_model_pools_as_the_wide_one_does(pooling: Any) -> None:
    wide, narrow, at = pair(site_of(ModelSettings(layers=1, pooling=pooling)), 8)
    assert type(narrow) is type(wide)
    require_slices(wide, narrow, at)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pretrained", [True, False])
def test_a_checkpoint_narrow_is_a_slice_of_it_wide(
    family: str, pretrained: bool, tmp_path: Path
) -> None:
    spec = save_family(tmp_path, family).model_copy(update={"layers": 2, "pretrained": pretrained})
    wide, narrow, at = pair(site_of(spec), 5)  # 5 of 8 in each of two heads
    require_slices(wide, narrow, at)


@pytest.mark.parametrize("family", ["tiny", *FAMILIES])
def test_the_narrow_model_computes_what_the_wide_one_does_in_its_slice(
    family: str, tmp_path: Path
) -> None:
    """Without norms, a wide model that is zero outside of the slice gives the same logits."""
    spec = ModelSettings(layers=2) if family == "tiny" else save_family(tmp_path, family)
    site = site_of(spec)
    wide, narrow, at = pair(site, 6)
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            inside = torch.zeros_like(parameter)
            inside[np.ix_(*(kept.numpy() for kept in at[name]))] = 1.0
            parameter.mul_(20 * inside)  # large enough for attention to matter
        for parameter in narrow.parameters():
            parameter.mul_(20)
    for model in (wide, narrow):
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.LayerNorm):
                    setattr(module, name, nn.Identity())
            if hasattr(module, "scaling"):  # of attention scores, by the head's size
                setattr(module, "scaling", 1.0)  # noqa: B010 - a module declares no such field
    batch = {"input_ids": torch.tensor([[2, 7, 9, 3, 0]]), "attention_mask": torch.ones(1, 5)}
    with torch.no_grad():
        expected, found = wide(**batch).logits, narrow(**batch).logits
        shorter = narrow(**{k: v[:, :3] for k, v in batch.items()}).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, shorter, rtol=1e-2)


@pytest.mark.parametrize("scaled", ["always", "training"])
def test_activations_are_divided_and_in_the_end_the_weights(scaled: Any) -> None:
    site = site_of(ModelSettings(layers=1))
    model, scaler = narrow_model(site, 8, scaled)
    x = torch.ones(1, 32)
    query: Any = model.get_submodule("bert.encoder.layer.0.attention.self.query")
    straight = nn.functional.linear(x, query.weight, query.bias)
    assert torch.equal(query(x), straight / (0.5 if scaled == "always" else 1.0))
    model.train()
    assert torch.equal(query(x), straight / 0.5)
    last: Any = model.get_submodule("classifier")
    assert torch.equal(last(x), nn.functional.linear(x, last.weight, last.bias))
    tokens = {"input_ids": torch.tensor([[2, 7, 9, 3]])}
    measured = model.eval()(**tokens).logits
    scaler.fold()
    torch.testing.assert_close(model(**tokens).logits, measured)
    assert not query._forward_hooks


def test_shapes_that_cannot_be_narrowed_are_refused(tmp_path: Path) -> None:
    builtin.tiny_tokenizer(WORDS).save_pretrained(tmp_path)
    config = transformers.ElectraConfig(vocab_size=230, embedding_size=8, hidden_size=16)
    config.save_pretrained(tmp_path)
    with raises(ModelError, "embeddings are narrower"):
        wide_config(site_of(ModelSettings(name=str(tmp_path))))
