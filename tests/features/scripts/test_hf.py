"""The callback of transformers.Trainer: means after epochs and steps, and models that differ."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from secure_fl import ScriptCohort, simulate
from secure_fl.errors import CohortError, Disagreement, SecureFLError, SettingsError
from secure_fl.features.scripts.hf import FederatedCallback
from tests.support.raising import raises

PLAIN = {"mode": "none", "bits": 24}


class Line(torch.nn.Module):
    """A linear model, as Trainer calls one."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((2,), first))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x @ self.w - labels).square().mean()}


def records_of(cohort: ScriptCohort) -> list[dict[str, torch.Tensor]]:
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(cohort.index))
    return [{"x": one, "labels": one.sum()} for one in x]


def trainer_of(folder: Path, cohort: ScriptCohort, model: torch.nn.Module, **options: Any) -> Any:
    """A Trainer with plain gradient descent."""
    records = records_of(cohort)
    plain: dict[str, Any] = {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.05,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    arguments = TrainingArguments(output_dir=str(folder / cohort.name), **{**plain, **options})
    return Trainer(model, arguments, train_dataset=records, eval_dataset=records)


def training(folder: Path, every: Any, first: Callable[[int], float] = lambda k: 0.0) -> Any:
    """A script that trains, and returns the weights and the number of steps."""

    def main(cohort: ScriptCohort) -> list[float]:
        model = Line(first(cohort.index))
        trainer = trainer_of(folder, cohort, model)
        trainer.add_callback(FederatedCallback(cohort, every=every))
        trainer.train()
        return [*model.w.tolist(), float(trainer.state.global_step)]

    return main


@pytest.mark.parametrize(("every", "rounds", "steps"), [("epoch", 3, 6), (2, 4, 8), (1, 5, 5)])
def test_sites_end_with_one_model(tmp_path: Path, every: Any, rounds: int, steps: int) -> None:
    """Training stops after the last round; more steps bring the weights closer to (1, 1)."""
    done = simulate(training(tmp_path, every), rounds=rounds, protection=PLAIN)
    one, two, three = done.results.values()
    assert one == two == three and one[2] == steps
    assert 0.2 < one[0] < 1.1 and 0.2 < one[1] < 1.1
    assert "w = [2]" in done.plan


def test_models_that_differ_and_other_intervals_are_refused(tmp_path: Path) -> None:
    with raises(Disagreement, party="site-3"):
        simulate(training(tmp_path, "epoch", lambda k: float(k == 2)), protection=PLAIN)
    with raises(SettingsError, "every = 0", party="site-1"):
        simulate(training(tmp_path, 0), protection=PLAIN)


@pytest.mark.parametrize("every", ["epoch", 1, 2, 5])
def test_a_site_weighs_what_it_trained_on(tmp_path: Path, every: Any) -> None:
    """The last batch of an epoch is smaller, and the whole epoch of site-1 is one small batch."""

    def main(cohort: ScriptCohort) -> list[float]:
        weights, mean, sizes, read = list[float](), cohort.mean, list[int](), Line.forward

        def weighed(values: Any, weight: float, **more: Any) -> Any:
            weights.append(weight)
            return mean(values, weight=weight, **more)

        class Counting(Line):
            def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
                sizes.append(len(x))
                return read(self, x, labels)

        watched: Any = weighed
        cohort.mean = watched  # type: ignore[method-assign]
        model, options = Counting(0.0), {"num_train_epochs": 20}
        trainer = trainer_of(tmp_path, cohort, model, **options)
        trainer.train_dataset = trainer.train_dataset[: 2 + 4 * cohort.index]
        trainer.add_callback(FederatedCallback(cohort, every=every))
        trainer.train()
        step = len(sizes) // len(weights)
        assert weights == [sum(sizes[k : k + step]) for k in range(0, len(sizes), step)]
        return weights

    found = simulate(main, rounds=3, protection=PLAIN).results
    assert found["site-1"][0] == 2 * (1 if every == "epoch" else every)


class Stubborn(TrainerCallback):  # type: ignore[misc]
    """It stops after the second evaluation, and keeps all metrics."""

    def __init__(self, stops: bool) -> None:
        self.stops, self.seen = stops, list[float]()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        self.seen.append(metrics["eval_loss"])
        control.should_training_stop = self.stops and len(self.seen) == 2


@pytest.mark.parametrize("first", [True, False])
def test_metrics_are_pooled_and_one_stop_stops_all(tmp_path: Path, first: bool) -> None:
    """A callback before ours sees its site's metric, one after ours the mean of all."""

    def main(cohort: ScriptCohort) -> Any:
        stubborn = Stubborn(cohort.index == 1)
        trainer = trainer_of(tmp_path, cohort, Line(0.0), eval_strategy="epoch")
        ours = FederatedCallback(cohort, pool_metrics=True)
        for callback in (stubborn, ours) if first else (ours, stubborn):
            trainer.add_callback(callback)
        trainer.train()
        return stubborn.seen, trainer.state.global_step, trainer.evaluate()["eval_loss"]

    if not first:  # a stop after ours is for metrics that are alike at all sites
        with raises(CohortError):
            simulate(main, rounds=4, protection=PLAIN)
        return
    own = simulate(main, rounds=4, protection=PLAIN).results.values()
    assert len({seen[0] for seen, _, _ in own}) == 3  # each site's own
    assert [steps for _, steps, _ in own] == [4, 4, 4]  # two epochs of two steps
    assert len({last for _, _, last in own}) == 3  # after training, metrics are not pooled


def test_early_stopping_by_the_pooled_metric_is_the_same_everywhere(tmp_path: Path) -> None:
    def main(cohort: ScriptCohort) -> Any:
        options = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 30}
        best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
        trainer = trainer_of(tmp_path, cohort, Line(0.0), **options, **best, learning_rate=0.9)
        trainer.add_callback(FederatedCallback(cohort, pool_metrics=True))
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=2))
        trainer.train()
        return trainer.state.best_metric, trainer.state.global_step, trainer.model.w.tolist()

    one, two, three = simulate(main, rounds=30, protection=PLAIN).results.values()
    assert one == two == three and one[1] < 60


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_of_peft_travel_alone(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import BertConfig, BertForSequenceClassification

    def main(cohort: ScriptCohort) -> Any:
        torch.manual_seed(0)
        small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = BertConfig(vocab_size=20, hidden_size=8, **small)
        lora = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
        model = peft.get_peft_model(BertForSequenceClassification(config), lora)
        trainer = trainer_of(tmp_path, cohort, model)
        words = torch.randint(0, 20, (8, 4), generator=torch.Generator().manual_seed(cohort.index))
        trainer.train_dataset = [{"input_ids": w, "labels": w[0] % 2} for w in words]
        trainer.add_callback(FederatedCallback(cohort, every=1))
        trainer.train()
        return {n: p.tolist() for n, p in model.named_parameters() if p.requires_grad}

    done = simulate(main, rounds=2, protection=PLAIN)
    one, two, three = done.results.values()
    assert one == two == three
    assert sorted(n.split(".")[-2] for n in one) == ["default"] * 2 + ["default"] * 2
    assert "encoder.layer.0.output" not in done.plan and "lora_A" in done.plan


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"eval_strategy": "steps", "eval_steps": 1}, "a second evaluation in round 1"),
        ({"eval_strategy": "epoch", "eval_on_start": True}, "a second evaluation in round 1"),
        ({"eval_strategy": "epoch"}, "eval_auc is nan"),
    ],
)
def test_metrics_that_cannot_be_pooled_are_refused(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    class Auc(TrainerCallback):  # type: ignore[misc]
        def on_evaluate(self, *_: Any, metrics: Any, **__: Any) -> None:
            metrics |= {"eval_auc": float("nan")} if "auc" in text else {}

    def main(cohort: ScriptCohort) -> None:
        trainer = trainer_of(tmp_path, cohort, Line(0.0), **options)
        trainer.add_callback(Auc())
        trainer.add_callback(FederatedCallback(cohort, pool_metrics=True))
        trainer.train()

    with raises(SettingsError, text):
        simulate(main, rounds=2, protection=PLAIN)


class CrashError(Exception):
    """A crash of a site."""


def test_a_restart_gives_the_same_bits(tmp_path: Path) -> None:
    """With the Trainer's checkpoint of the last saved round, and not with a later one."""

    def main(folder: Path, crash: int, resume: dict[int, str]) -> Any:
        def script(cohort: ScriptCohort) -> Any:
            model = Line(0.0)
            adam = {"optim": "adamw_torch", "lr_scheduler_type": "linear", "save_strategy": "epoch"}
            trainer = trainer_of(folder, cohort, model, **adam)
            callback = FederatedCallback(cohort)
            trainer.add_callback(callback)
            trainer.add_callback(Crash(crash if cohort.index == 1 else 0))
            step = resume.get(cohort.index, "")
            path = str(folder / cohort.name / step)
            trainer.train(resume_from_checkpoint=path if step else None)
            return model.w.tolist(), trainer.state.global_step

        return script

    whole = simulate(main(tmp_path / "a", 0, {}), rounds=4, protection=PLAIN).results
    kept: dict[str, Any] = {"rounds": 4, "protection": PLAIN, "folder": tmp_path / "run"}
    with raises(SecureFLError, "CrashError"):
        simulate(main(tmp_path / "b", 5, {}), **kept)
    with raises(SettingsError, "checkpoint-4", party="site-2"):
        simulate(main(tmp_path / "b", 0, {1: "checkpoint-2"}), **kept, resume=True)
    again = dict.fromkeys(range(3), "checkpoint-4")
    assert simulate(main(tmp_path / "b", 0, again), **kept, resume=True).results == whole


@pytest.mark.parametrize("every", ["epoch", 2])
def test_a_restart_after_the_last_round_keeps_the_last_mean(tmp_path: Path, every: Any) -> None:
    """Trainer trains one step before it stops, and saves a checkpoint after this step."""

    def main(cohort: ScriptCohort, crash: bool) -> Any:
        model = Line(0.0)
        trainer = trainer_of(tmp_path, cohort, model, save_strategy="steps", save_steps=1)
        trainer.add_callback(FederatedCallback(cohort, every=every))
        trainer.train()
        if crash and cohort.index == 1:
            raise CrashError
        saved = get_last_checkpoint(str(tmp_path / cohort.name))
        return model.w.tolist(), load_file(f"{saved}/model.safetensors")["w"].tolist()

    kept: dict[str, Any] = {"rounds": 1, "protection": PLAIN}
    whole = simulate(partial(main, crash=False), **kept).results
    kept |= {"folder": tmp_path / "run"}
    with raises(SecureFLError, "CrashError"):
        simulate(partial(main, crash=True), **kept)
    for site in tmp_path.glob("site-*"):
        shutil.rmtree(site)
    again = simulate(partial(main, crash=False), **kept, resume=True).results
    assert again == dict.fromkeys(again, (whole["site-1"][0],) * 2)


def test_a_second_training_is_refused(tmp_path: Path) -> None:
    """Its first round would be lost, and after a restart both would begin at the first."""

    def main(cohort: ScriptCohort) -> None:
        model = Line(0.0)
        for _ in range(2):
            trainer = trainer_of(tmp_path, cohort, model, num_train_epochs=1)
            trainer.add_callback(FederatedCallback(cohort))
            trainer.train()

    with raises(SettingsError, "a second loop over rounds"):
        simulate(main, rounds=4, protection=PLAIN)


class Crash(TrainerCallback):  # type: ignore[misc]
    """It stops the site before a step; 0: never."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise CrashError
