"""FetchSGD: updates as count sketches, momentum and error feedback inside the sketch.

Rothchild, Panda, Ullah, Ivkin, Stoica, Braverman, Gonzalez, Arora: FetchSGD: Communication-
Efficient Federated Learning with Sketching. ICML 2020, arXiv 2007.07682, Algorithm 1. A baseline of
FedKD (arXiv 2108.13323, Tables 2 and 3), whose cost column a sketch of a quarter of the model fits.

Sketches are linear, so the aggregator's part needs nothing but their sum. Every party opens the sum
and repeats that part for itself, so nobody has to be told the k weights that move: the download
is the summed sketch, not the sparse top-k of the paper, and k costs no traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.baselines.sketch import CountSketch, Positions, Reals
from secure_fl.algorithms.updates import Update, add_, agree_on, local_update, weighted_mean
from secure_fl.errors import SettingsError
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, Positive, TrainingSettings

COMPRESSION = 4.0  # 2.05 GB to 0.51 GB in FedKD's Table 2, 1.37 GB to 0.34 GB in its Table 3
SKETCH = "sketch"  # the name under which sketches are summed

Share = Annotated[float, Field(gt=0, le=1)]


class FetchSGD(Algorithm):
    """Count sketches of the parties' updates are summed; the k largest values come out of them."""

    name: Literal["fetchsgd"] = "fetchsgd"
    steps: Positive | None = None
    """Local steps in a round. Default: `epochs` complete passes."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """η."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """ρ."""
    masking: bool = True
    """Clear the momentum of the weights that moved."""
    k: Positive | Share = 0.2
    """Weights that move in a round: a number, or a fraction of all."""
    rows: Positive = 5
    columns: Annotated[int, Field(ge=1, lt=1 << 32)] | None = None
    """Default: computed from compression."""
    compression: Annotated[float, Field(gt=0)] | None = None
    """Number of weights per sketch cell. Default: 4."""

    @model_validator(mode="after")
    def _one_size(self) -> FetchSGD:
        if self.columns is not None and self.compression is not None:
            raise ValueError("one of columns and compression, not both")
        return self

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes or counted steps, and a sketch that could be larger than the model."""
        fit = Demands.of_fit(self, training)
        return replace(fit, steps=self.steps or 0, cells=self.cells(values))

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)

    def cells(self, size: int) -> int:
        """How many cells the sketch of so many weights has; a row has one at least."""
        if self.columns is not None:
            return self.rows * self.columns
        cells = size / (self.compression or COMPRESSION)
        return max(self.rows, math.ceil(min(cells, 2.0**62)))

    def sketch(self, size: int, seed: int) -> CountSketch:
        """The sketch of so many weights."""
        cells = size / (self.compression or COMPRESSION)
        columns = self.columns or max(1, round(cells / self.rows))
        return CountSketch(self.rows, columns, size, seed)

    def moving(self, size: int) -> int:
        """k, as a number of weights."""
        k = self.k if isinstance(self.k, int) else max(1, round(self.k * size))
        if k > size:
            raise SettingsError(
                f"{k} weights are to move in a round, and only {size} are trained",
                fix=f"choose up to {size}, or a share from 0 to 1.0",
                field="algorithm.k",
            )
        return k


class Aggregator:
    """The server's part: deterministic, so that every party can run its own copy of it."""

    def __init__(self, cfg: FetchSGD, sketch: CountSketch) -> None:
        self._cfg, self._sketch, self._k = cfg, sketch, cfg.moving(sketch.size)
        self.S_u = np.zeros((sketch.rows, sketch.columns))  # line 1
        self.S_e = np.zeros((sketch.rows, sketch.columns))

    def step(self, S: Reals) -> tuple[Positions, Reals]:
        """Which weights move, and how far, given the mean sketch of the parties' moves."""
        cfg = self._cfg
        self.S_u = cfg.momentum * self.S_u + S  # line 11
        self.S_e = self.S_e + cfg.server_learning_rate * self.S_u  # line 12
        where, Δ = self._sketch.top(self.S_e, self._k)  # line 13
        # Differs, as in the paper's experiments: line 14 would subtract S(Δ); cells of S(Δ) are
        # zeroed instead, in the momentum too (momentum factor masking, arXiv 1712.01887).
        touched = self._sketch.touched(where)
        self.S_e[touched] = 0.0
        if cfg.masking:
            self.S_u[touched] = 0.0
        return where, Δ

    def fingerprint(self) -> bytes:
        """What must be equal at all parties."""
        return sha256(self.S_u.tobytes() + self.S_e.tobytes()).digest()

    def state_dict(self) -> dict[str, Any]:
        """Momentum and error, for checkpoints."""
        return {"momentum": self.S_u, "error": self.S_e}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.S_u, self.S_e = np.array(state["momentum"]), np.array(state["error"])


async def fetchsgd(cohort: Cohort, site: Site, cfg: FetchSGD) -> None:
    """The party program."""
    model = site.model()  # line 2
    size = sum(weight.numel() for weight in trainable(model).values())
    # One map for the whole run, or momentum and error of different rounds could not be added.
    sketch = cfg.sketch(size, seed_for(site.seed, SKETCH))
    aggregator = Aggregator(cfg, sketch)
    await cohort.agree(site.fingerprint(), "task")
    replicated = {"model": model, "aggregator": aggregator}
    async for round in cohort.rounds(cfg.rounds, shared=replicated):
        # Differs: what is sketched is how the weights moved in local training, which is -g of
        # line 7 times the local learning rate where `steps` is 1 and the optimiser is SGD.
        Δ = local_update(site, model, cfg.epochs, round, cfg.steps)
        S = {SKETCH: torch.from_numpy(sketch.of(flat(Δ)))}  # line 8
        # The sum adds to this sketch what rounding the last one left over. That is right here: a
        # cell means the same in every round, and S is linear, so nothing is lost but time.
        mean = await weighted_mean(cohort, S, site.records)  # line 10, weighted by records
        where, values = aggregator.step(mean[SKETCH].numpy())
        add_(model, unflat(model, where, values))  # line 15: moves, so they are added
        await agree_on(cohort, model)
        await cohort.agree(aggregator.fingerprint(), "momentum and error")
        site.score(model, round.number)
    site.deliver(model)


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """All values as one vector."""
    return torch.cat([value.reshape(-1) for value in values.values()])


def unflat(model: nn.Module, where: Positions, values: Reals) -> Update:
    """A sparse vector in the shapes of the model's weights: the inverse of `flat`."""
    weights = trainable(model)
    first = next(iter(weights.values()))
    vector = torch.zeros(sum(w.numel() for w in weights.values()), dtype=first.dtype)
    vector[torch.from_numpy(where)] = torch.from_numpy(values).to(first.dtype)
    parts = torch.split(vector.to(first.device), [w.numel() for w in weights.values()])
    return {name: part.view_as(w) for (name, w), part in zip(weights.items(), parts, strict=True)}
