"""Whether a model can be saved and read again, tried with its shape alone before it is trained."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import nn

from secure_fl.errors import ModelError
from secure_fl.learning.adapter_files import frozen
from secure_fl.learning.anatomy import body_of, unwrapped
from secure_fl.learning.fetching import quiet


def require_savable(model: nn.Module, tokenizer: Any) -> None:
    """Write the configuration and the tokenizer, read them back, and compare all shapes.

    A configuration that a cut left invalid is found here, not after the last round.
    """
    whole = unwrapped(model)
    saved: Any = whole if isinstance(whole, transformers.PreTrainedModel) else body_of(whole)
    attention = saved.config._attn_implementation
    try:
        with TemporaryDirectory() as folder, quiet():
            saved.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            config = transformers.AutoConfig.from_pretrained(folder, attn_implementation=attention)
            transformers.AutoTokenizer.from_pretrained(folder)
            with torch.device("meta"):  # shapes without memory
                again = type(saved)(config)
    except Exception as error:  # each family's own checks of its configuration raise their own
        raise _unsavable(saved, str(error)) from error
    shapes = {name: value.shape for name, value in frozen(saved).items()}
    found = {name: value.shape for name, value in again.state_dict().items()}
    lost = sorted(name for name, shape in shapes.items() if found.get(name) != shape)
    if lost:
        raise _unsavable(saved, f"{lost[0]} would come back in another shape, or not at all")


def _unsavable(model: Any, reason: str) -> ModelError:
    first = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    return ModelError(
        f"the model could not be read again once it is saved: {first}",
        model=type(model).__name__,
        fix="use another depth (model.layers), or another model: docs/models.md names those that "
        "are tested",
    )
