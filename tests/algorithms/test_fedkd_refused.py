"""What FedKD refuses and explains, and teachers that differ, which it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl import Silo
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.fedkd.mutual_distillation import make_pair
from secure_fl.algorithms.fedkd.settings import FactorMode
from secure_fl.errors import DataError, ModelError, SettingsError
from secure_fl.learning.anatomy import trainable
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import silos
from tests.support.equality import equal, weights
from tests.support.fedkd_runs import NAMES, WAYS, kd, run, site_of
from tests.support.raising import raises
from tests.support.run_states import kept_state
from tests.support.saved_models import save_tiny

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        ({"max_rank": 0}, "a number of at least 1"),
        ({"student_layers": 0}, "a number of at least 1"),
        ({"energy_start": 0.0}, "energy_start: found 0.0"),
        ({"energy_end": 1.5}, "energy_end: found 1.5"),
        ({"energy_start": 0.99, "energy_end": 0.95}, "precision grows"),
        ({"joint_loss": True, "mutual": False}, "mutual"),
        ({"factors": "shared"}, "joint"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        FedKD(**bad)


def test_a_student_is_no_deeper_than_its_teacher() -> None:
    with raises(SettingsError, "3", "2", "1 to 2", field="algorithm.student_layers"):
        run(kd(student_layers=3)).run()


def own(teacher: ModelSettings) -> list[Silo]:
    """Hospitals, of which the second has a teacher of its own."""
    one, two, three = silos(size=20)
    return [one, Silo(two.name, two.train, two.dev, two.test, model=teacher), three]


Made = Callable[[Path], ModelSettings]
REFUSED: dict[str, tuple[Made, dict[str, Any], str]] = {
    "words": (
        lambda f: ModelSettings(name=save_tiny(f, words=("alpha", "beta"))),
        {},
        "another vocabulary",
    ),
    "heads": (
        lambda f: ModelSettings(name=save_tiny(f, num_attention_heads=2)),
        {},
        "num_attention_heads 2",
    ),
    "width": (
        lambda f: ModelSettings(name=save_tiny(f, hidden_size=32)),
        {"transform": False},
        "hidden_size 32",
    ),
    "depth": (lambda f: ModelSettings(layers=1), {"student_layers": 2}, "teacher 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_no_student_fits_is_explained(case: str, tmp_path: Path) -> None:
    make_teacher, how, found = REFUSED[case]
    with pytest.raises(ModelError, match=found) as caught:
        run(kd(**how), silos=own(make_teacher(tmp_path))).run()
    assert caught.value.where["party"] == NAMES[1]


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        pytest.param({"num_hidden_layers": 6}, {}, marks=SLOW),
        ({"hidden_size": 32}, {}),  # Wʰ maps between the widths
        pytest.param({"num_attention_heads": 2, "hidden_size": 48}, {"hidden": False}, marks=SLOW),
    ],
    ids=str,
)
def test_a_teacher_of_ones_own_may_be_another(
    changes: dict[str, Any], how: dict[str, Any], tmp_path: Path
) -> None:
    teacher = ModelSettings(name=save_tiny(tmp_path / "own", **changes))
    result = run(kd(**how), silos=own(teacher), folder=tmp_path / "run").run()
    found: Any = result.models[f"{NAMES[1]}/model"].config
    assert all(getattr(found, name) == value for name, value in changes.items())
    states = [kept_state(tmp_path / "run", name, 2)["student"] for name in NAMES]
    assert all(equal(states[0], state) for state in states)


def test_texts_with_other_labels_are_explained() -> None:
    one, two, three = silos()
    odd = Silo(two.name, [e for e in two.train if e.label == "ade"])  # type: ignore[union-attr]
    with pytest.raises(DataError, match=f"{two.name} lacks no-ade"):
        run(kd(), silos=[one, odd, three], task=TaskSettings()).run()


@pytest.mark.parametrize("way", ["joint", *(pytest.param(w, marks=SLOW) for w in WAYS[1:])])
def test_no_party_moves_when_nothing_can_be_learnt(way: FactorMode) -> None:
    """An update of next to nothing, from everybody: no NaN, and the student as it was."""
    nothing = TrainingSettings(
        learning_rate=1e-30, weight_decay=0.0, optimizer="sgd", device="cpu", batch_size=16
    )
    start = trainable(make_pair(site_of(silos()[0], ModelSettings(layers=2)), kd()).student)
    result = run(kd(factors=way), "he+secagg", training=nothing).run()
    for name, weight in weights(result, "student").items():
        torch.testing.assert_close(weight, start[name], rtol=0, atol=1e-20)
