"""Controls of the distillation tables: a host or its hospitals without distillation.

Both are ordinary runs with the records, seeds and passes of the methods that they control. In
"host alone" the host trains on its labelled records. In "mean prediction" hospitals train alone,
and the mean of their predictions is scored on the host's records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch

from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.federation.result import Result
from secure_fl.learning.site import AT_ONCE

Control: TypeAlias = Literal["", "host alone", "mean prediction"]
Scores: TypeAlias = dict[str, float]


def members_of(control: Control, silos: Sequence[Silo]) -> list[Silo]:
    """Return the members of a control's run; the host is the last of all members."""
    if control == "host alone":
        return [replace(silos[-1], role="party")]
    return list(silos[:-1] if control == "mean prediction" else silos)


def mean_scores(result: Result, host: Silo) -> dict[str, Any]:
    """Score the hospitals' mean prediction on the host's dev and test records, once, at the end."""
    found = {
        split: _scores(result, examples)
        for split, examples in (("dev", host.dev), ("test", host.test))
        if examples
    }
    at = {"round": result.document["rounds"], "mean": found, "party": {host.name: found}}
    return {"last": at, "best": at}


def _scores(result: Result, examples: Sequence[Example]) -> Scores:
    """Score the mean of all models' class probabilities, by the logs of that mean."""
    task, predictions = result.task, []
    for name, model in result.models.items():
        encoded = result.tasks[name].encode(examples, result.tokenizers[name])
        logits, batches = result.tasks[name].outcomes(model, encoded, AT_ONCE)
        predictions.append([z.softmax(-1) for z in logits])
    means = [torch.stack(shares).mean(0).log() for shares in zip(*predictions, strict=True)]
    pairs = zip(means, batches, strict=True)
    losses = [task.loss(z, batch, reduction="none") for z, batch in pairs]
    return task.score(means, batches) | {"loss": float(torch.cat(losses).mean())}
