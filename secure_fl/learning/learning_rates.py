"""Default learning rates, and their schedule over a run.

The default follows from the model's width. BERT's 5e-5 is for 768 columns, and narrower models need
larger steps: with it, the built-in model of 64 columns predicts one class for all records. Adapters
start at zero and are few, so their rate is larger and depends less on the width. Where each token
has a label, records carry more information, and narrow models tolerate steps twice as large. A
model that is never averaged tolerates half of both, because averaging smooths single errors.

The schedule is a function of the progress alone, in rounds and steps within them. So it needs no
state, and a party that resumes, joins late or sits out a round has the same rate as all others. It
is BERT's: linear warm-up, then linear decay to 0 (arXiv 1810.04805, A.2).
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from secure_fl.learning.anatomy import adapted, body_of, unwrapped
from secure_fl.learning.fetching import configured
from secure_fl.learning.models import load_tokenizer
from secure_fl.party.rounds import Round
from secure_fl.settings import Kind, ModelSettings, TrainingSettings

RATE, WIDTH = 5e-5, 768  # BERT-base's (arXiv 1810.04805, A.3)
MOST = 2e-3  # for models narrower than any pretrained one
MOST_OF_ENTITIES = 4e-3  # for such models, where each token has a label
UNAVERAGED = 0.5  # factor of these two for models that are never averaged
ADAPTERS, MOST_OF_ADAPTERS = 2e-3, 1e-2  # RATE and MOST of adapters (docs/models.md)
SGD = 0.1  # SGD's steps are as long as the clipped gradients

WARMUP = 0.1  # share of a run with a linear schedule
ALONE = Round(1, 1)  # the only round: the schedule runs from the first rate to the last


def learning_rate_of(model: nn.Module, training: TrainingSettings, *, alone: bool = False) -> float:
    """The settings' learning rate, or the default of this model; `alone`: it is never averaged."""
    if training.learning_rate is not None:
        return training.learning_rate
    config = getattr(body_of(model), "config", None)
    entities = type(unwrapped(model)).__name__.endswith("ForTokenClassification")
    adapters = bool(adapted(model))
    return _by_width(config, training, adapters=adapters, entities=entities, alone=alone)


def stride_of(model: nn.Module, training: TrainingSettings) -> float:
    """The approximate distance that one step moves a value: the rate of AdamW.

    For SGD it is AdamW's default rate, because the lengths of gradients are unknown here.
    """
    if training.optimizer == "sgd":
        training = training.model_copy(update={"optimizer": "adamw", "learning_rate": None})
    return learning_rate_of(model, training)


def with_rate(training: TrainingSettings, spec: ModelSettings, kind: Kind) -> TrainingSettings:
    """The settings with this model's learning rate, without loading the model."""
    if training.learning_rate is not None:
        return training
    config = configured(spec, load_tokenizer(spec), {})
    adapters, entities = spec.adapter is not None, kind == "ner"
    rate = _by_width(config, training, adapters=adapters, entities=entities)
    return training.model_copy(update={"learning_rate": rate})


def factor(settings: TrainingSettings, progress: float) -> float:
    """The factor of the learning rate at this share of the run, in (0, 1)."""
    linear = settings.schedule == "linear"
    warmup = settings.warmup if settings.warmup is not None else WARMUP * linear
    if progress < warmup:
        return progress / warmup
    return (1 - progress) / (1 - warmup) if linear else 1.0


def pace(optimizer: Optimizer, settings: TrainingSettings, progress: float) -> None:
    """Set the learning rate of every group of weights at this share of the run."""
    scale = factor(settings, progress)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * scale


def _by_width(
    config: Any, training: TrainingSettings, *, adapters: bool, entities: bool, alone: bool = False
) -> float:
    if training.optimizer == "sgd":
        return SGD
    if config is None:  # not a transformer
        return RATE
    width: int = config.get_text_config().hidden_size
    narrower = WIDTH / width
    if adapters:
        return float(f"{min(MOST_OF_ADAPTERS, ADAPTERS * narrower):.3g}")
    most = (MOST_OF_ENTITIES if entities else MOST) * (UNAVERAGED if alone else 1)
    return float(f"{min(most, RATE * narrower**2):.3g}")
