"""Model weights between the parties and the host: their mean move goes up, the model comes down."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secure_fl.algorithms.updates import Update
from secure_fl.learning.anatomy import trainable
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience

REACH, WEIGHT = "reach", "weight"
SLACK = 1.001  # for what fixed point takes away from a sum


async def send_update(cohort: Cohort, Δ: Mapping[str, Tensor], weight: float) -> None:
    """Put this party's move into the sum, weighted by its share of the whole.

    A host sum needs a bound that all know: the host opens the sum of the largest values first.
    """
    weighted = {name: (weight * δ).cpu().numpy() for name, δ in Δ.items()}
    reach = max(float(abs(values).max(initial=0)) for values in weighted.values())
    await cohort.sum({REACH: [reach]}, reveal=Audience.HOST)
    bound = float((await cohort.broadcast())[REACH][0])
    # Clipped, and never refused: who refuses tells a host that names too low a bound its own reach.
    within = {name: values.clip(-bound, bound) for name, values in weighted.items()}
    given = {**within, WEIGHT: [weight * bound]}
    await cohort.sum(given, reveal=Audience.HOST, bound=bound)


async def mean_at_host(cohort: Cohort, model: nn.Module) -> Update:
    """The parties' mean move, which the host alone sees."""
    reach = float((await cohort.sum({REACH: [0.0]}, reveal=Audience.HOST))[REACH][0])
    bound = max(SLACK * reach, 1e-8)
    await cohort.broadcast({REACH: [bound]})
    weights = trainable(model)
    nothing = {name: torch.zeros(w.shape).numpy() for name, w in weights.items()}
    sums = await cohort.sum({**nothing, WEIGHT: [0.0]}, reveal=Audience.HOST, bound=bound)
    total = float(sums.pop(WEIGHT)[0]) / bound
    return {
        name: torch.as_tensor(sums[name] / total, dtype=w.dtype, device=w.device)
        for name, w in weights.items()
    }


async def send_weights(cohort: Cohort, model: nn.Module) -> None:
    """The central model, from the host to all parties."""
    await cohort.broadcast({n: w.detach().cpu().numpy() for n, w in trainable(model).items()})


async def take_weights(cohort: Cohort, model: nn.Module) -> None:
    """Go on with the central model."""
    told = await cohort.broadcast()
    with torch.no_grad():
        for name, weight in trainable(model).items():
            weight.copy_(torch.as_tensor(told[name]))
