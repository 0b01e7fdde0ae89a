"""The learning rate of a model for which none is named: it follows from the model's width.

Wide models bear small steps alone, and narrow ones learn nothing by them. BERT's 5e-5 belongs to
768 columns; the built-in model's 64 stay with it where they are, at one class for all records.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from secure_fl.learning.anatomy import body_of
from secure_fl.learning.fetching import configured
from secure_fl.learning.models import load_tokenizer
from secure_fl.settings import ModelSettings, TrainingSettings

RATE, WIDTH = 5e-5, 768  # BERT-base's own (arXiv 1810.04805, A.3)
MOST = 2e-3  # of models narrower than any that is pretrained
SGD = 0.1  # its steps are as long as gradients, which are clipped


def rate_of(model: nn.Module, training: TrainingSettings) -> float:
    """The settings' learning rate, or else this model's."""
    return training.learning_rate or _usual(getattr(body_of(model), "config", None), training)


def with_rate(training: TrainingSettings, spec: ModelSettings) -> TrainingSettings:
    """The settings with the rate that this model would have: for who needs it before training."""
    if training.learning_rate is not None:
        return training
    rate = _usual(configured(spec, load_tokenizer(spec), {}), training)
    return training.model_copy(update={"learning_rate": rate})


def _usual(config: Any, training: TrainingSettings) -> float:
    if training.optimizer == "sgd":
        return SGD
    if config is None:  # no transformer: nothing is known of it
        return RATE
    width: int = config.get_text_config().hidden_size
    return float(f"{min(MOST, RATE * (WIDTH / width) ** 2):.3g}")
