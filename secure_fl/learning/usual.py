"""The learning rate of a model for which none is named: it follows from the model's width.

Wide models bear no larger steps, and narrow ones learn nothing by theirs. BERT's 5e-5 belongs to
768 columns; the built-in model's 64 stay with it where they are, at one class for all records.
Adapters begin at nothing and are few, so their steps are larger, and follow the width less. Where
each token has a label, a record says more, and narrow models bear steps twice as large. Of those
that nobody averages they bear half: an average forgives what one of its parts does.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from secure_fl.learning.adapters import adapted
from secure_fl.learning.anatomy import body_of, unwrapped
from secure_fl.learning.fetching import configured
from secure_fl.learning.models import load_tokenizer
from secure_fl.settings import Kind, ModelSettings, TrainingSettings

RATE, WIDTH = 5e-5, 768  # BERT-base's own (arXiv 1810.04805, A.3)
MOST = 2e-3  # of models narrower than any that is pretrained
MOST_OF_ENTITIES = 4e-3  # of such models, where each token has a label
ALONE = 0.5  # of these two, where nobody averages a model
ADAPTERS, MOST_OF_ADAPTERS = 2e-3, 1e-2  # the same of adapters (docs/adapters.md)
SGD = 0.1  # its steps are as long as gradients, which are clipped


def rate_of(model: nn.Module, training: TrainingSettings, *, alone: bool = False) -> float:
    """The settings' learning rate, or else this model's; `alone`: that nobody averages."""
    config = getattr(body_of(model), "config", None)
    entities = type(unwrapped(model)).__name__.endswith("ForTokenClassification")
    adapters = bool(adapted(model))
    usual = _usual(config, training, adapters=adapters, entities=entities, alone=alone)
    return training.learning_rate or usual


def stride_of(model: nn.Module, training: TrainingSettings) -> float:
    """About how far one step moves a value: AdamW's rate, or what AdamW's would be beside SGD."""
    if training.optimizer == "sgd":  # its steps are gradients, of which nothing is known here
        training = training.model_copy(update={"optimizer": "adamw", "learning_rate": None})
    return rate_of(model, training)


def with_rate(training: TrainingSettings, spec: ModelSettings, kind: Kind) -> TrainingSettings:
    """The settings with the rate that this model would have: for who needs it before training."""
    if training.learning_rate is not None:
        return training
    config = configured(spec, load_tokenizer(spec), {})
    adapters, entities = spec.adapter is not None, kind == "ner"
    rate = _usual(config, training, adapters=adapters, entities=entities)
    return training.model_copy(update={"learning_rate": rate})


def _usual(
    config: Any,
    training: TrainingSettings,
    *,
    adapters: bool,
    entities: bool,
    alone: bool = False,
) -> float:
    if training.optimizer == "sgd":
        return SGD
    if config is None:  # no transformer: nothing is known of it
        return RATE
    width: int = config.get_text_config().hidden_size
    narrower = WIDTH / width
    if adapters:
        return float(f"{min(MOST_OF_ADAPTERS, ADAPTERS * narrower):.3g}")
    most = (MOST_OF_ENTITIES if entities else MOST) * (ALONE if alone else 1)
    return float(f"{min(most, RATE * narrower**2):.3g}")
