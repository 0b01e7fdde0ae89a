"""How many records are in memory at once: a hospital's limit holds for whatever looks at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from secure_fl.algorithms.baselines.settings import DSFL
from secure_fl.algorithms.public_distillation import PublicRecords, logits
from secure_fl.corpora import make, public
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.learning_rates import ALONE
from secure_fl.learning.site import AT_ONCE, Site
from secure_fl.learning.site_context import SiteContext, SiteSpec
from secure_fl.learning.tasks import make_task
from secure_fl.learning.tasks.task import Task
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings
from secure_fl.testing.hospitals import LABELS
from tests.support.clinic import Clinic
from tests.support.local_pilot import plan_of
from tests.support.private import make_site

MOST = 4


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records every model was given at once."""
    found: list[int] = []
    whole = Task.outputs

    def outputs(self: Task, model: Any, batch: Any, **options: Any) -> Any:
        found.append(len(batch["input_ids"]))
        return whole(self, model, batch, **options)

    monkeypatch.setattr(Task, "outputs", outputs)
    return found


def site(max_batch: int | None) -> Site:
    (records,) = make("ade", parties=1, seed=0, size=400)
    texts = public("ade", seed=0, size=2 * AT_ONCE + 3)
    silo = Silo("north", records.train, records.dev, public=texts)
    task = make_task(TaskSettings(labels=LABELS, max_length=32), silo.train)
    training, recorder = TrainingSettings(batch_size=8, device="cpu"), EventLog("north")
    return Site(
        silo,
        SiteSpec(task, ModelSettings(layers=1), training, 0),
        SiteContext(recorder, max_batch=max_batch),
    )


def looked_at(place: Site) -> tuple[dict[str, Any], torch.Tensor]:
    """The metrics of a fresh model, and what it predicts on all public records."""
    model, records = place.model(), PublicRecords(place)
    place.score(model, 1)
    return place.recorder.history[-1], logits(place, model, records, records.every())


def test_models_are_looked_at_in_batches_that_the_site_allows(batches: list[int]) -> None:
    metrics, z = looked_at(site(None))
    assert max(batches) == AT_ONCE == 64
    batches.clear()
    fewer, same = looked_at(site(MOST))
    assert max(batches) == MOST
    counts, counted = (one.pop("counts") for one in (fewer, metrics))
    assert fewer.pop("split") == metrics.pop("split")
    for some, all_ in ((fewer, metrics), (counts, counted)):
        assert some.keys() == all_.keys()
        for name, value in some.items():
            assert value == pytest.approx(all_[name], rel=1e-5), name
    torch.testing.assert_close(same, z, atol=1e-6, rtol=1e-5)


def test_what_dp_sgd_draws_at_random_is_held_in_parts(batches: list[int]) -> None:
    place = make_site(batch_size=10)
    place.fit(place.model(), 3, ALONE)
    assert max(batches) > 10  # a Poisson batch has ten records on average
    place.max_batch = MOST
    batches.clear()
    place.fit(place.model(), 3, ALONE)
    assert max(batches) <= MOST and sum(batches) > 60


@pytest.mark.parametrize("allowed", [MOST, 256])
def test_a_site_s_file_holds_for_a_run(tmp_path: Path, batches: list[int], allowed: int) -> None:
    training = TrainingSettings(learning_rate=2e-3, batch_size=MOST, device="cpu")
    asked = plan_of(DSFL(rounds=1), training=training, protection=ProtectionSettings())
    clinic = Clinic(tmp_path, asked, rules=f"max_batch = {allowed}")
    clinic.run()
    clinic.close()
    assert (max(batches) <= MOST) == (allowed == MOST)
