"""Inputs of a `Site`, and the narrow interface that training and batched simulation need of one.

`SiteSpec` is what a run fixes, `SiteContext` what the machine provides. Nothing here imports torch
before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.learning.scores import Metric
from secure_fl.party.rounds import Round
from secure_fl.settings import ModelSettings, TrainingSettings

if TYPE_CHECKING:
    import torch

    from secure_fl.crypto.privacy.ledger import Ledger
    from secure_fl.crypto.privacy.training_account import DpAccount
    from secure_fl.learning.tasks import Encoded, Task

T = TypeVar("T")


class TrainingContext(Protocol):
    """The part of a site that training uses."""

    name: str
    task: Task
    training: TrainingSettings
    model_settings: ModelSettings
    recorder: EventLog
    device: torch.device
    bfloat16: bool
    max_batch: int | None
    privacy: DpAccount | None

    @property
    def train(self) -> Encoded:
        """The tokenised training records."""

    @property
    def batches_rng(self) -> torch.Generator:
        """The generator that orders training batches."""

    def at_once(self, wanted: int) -> int:
        """The number of records that may be in memory together, at most `wanted`."""


class BatchedTrainer(Protocol):
    """Trains several sites of one process as one batch."""

    def join(self, site: TrainingContext) -> None:
        """Add a site."""

    def fit(
        self,
        site: TrainingContext,
        model: torch.nn.Module,
        epochs: int,
        round: Round,
        steps: int | None,
    ) -> float | None:
        """Train a site's model and return its mean loss; None: the site must train by itself."""


class ModelCache:
    """Models and tokenizers that several sites of one process begin with, each made once.

    The last of `sites` gets the original, so that no unused copy stays in memory.
    """

    def __init__(self, sites: int = 1) -> None:
        self._sites = sites
        self._made: dict[Hashable, tuple[object, int]] = {}  # with the number of sites served

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, equal for equal keys; no two callers share an object."""
        made, served = self._made.pop(key) if key in self._made else (make(), 0)
        if served + 1 < self._sites:
            self._made[key] = (made, served + 1)
            made = deepcopy(made)
        return made  # type: ignore[return-value] # the key determines the type


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """The settings of a run that a site follows."""

    task: Task
    model: ModelSettings
    training: TrainingSettings
    seed: int
    local_head: bool = False  # label sets differ between parties, so heads are never sent
    balances: bool = False  # classes count alike where the settings do not say
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # a program's additional metrics
    measured: tuple[Silo, ...] | None = None  # silos with the dev and test records; None: its own


@dataclass(frozen=True, slots=True)
class SiteContext:
    """The machine around a site: its log, its limits, and objects shared within the process."""

    recorder: EventLog
    privacy: DpAccount | None = None  # the DP-SGD budget; None: no training by DP-SGD
    max_batch: int | None = None  # records in memory at once, by the site's policy; None: any
    options: Mapping[str, Any] = field(default_factory=dict)  # limits of optional features
    ledger: Callable[[], Ledger] | None = None  # of the site, for all its runs
    cache: ModelCache = field(default_factory=ModelCache)
    trainer: BatchedTrainer | None = None  # None: the site trains by itself


class Findings:
    """A site's findings, equal at all members, as the checkpoints of a run without training."""

    def __init__(self, findings: dict[str, Any]) -> None:
        self._findings = findings

    def state_dict(self) -> dict[str, Any]:
        """Return the findings."""
        return dict(self._findings)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the findings."""
        self._findings |= state


class RandomStates:
    """One party's random states: torch's global ones (dropout) and the order of batches."""

    def __init__(self, seed: int, device: torch.device) -> None:
        import torch

        self._device = device
        self.batches = torch.Generator().manual_seed(seed)
        self._cpu = torch.Generator().manual_seed(seed + 1).get_state()
        self._device_state: torch.Tensor | None = None
        if device.type != "cpu":
            self._device_state = torch.Generator(device).manual_seed(seed + 2).get_state()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use these states inside, and the process's states outside."""
        import torch

        outside = torch.get_rng_state()
        outside_device = self._get_device()
        torch.set_rng_state(self._cpu)
        if self._device_state is not None:
            self._set_device(self._device_state)
        try:
            yield
        finally:
            self._cpu = torch.get_rng_state()
            torch.set_rng_state(outside)
            if outside_device is not None:
                self._device_state = self._get_device()
                self._set_device(outside_device)

    def state(self) -> dict[str, Any]:
        """The current states; call it inside `active`."""
        import torch

        states = {"cpu": torch.get_rng_state(), "batches": self.batches.get_state()}
        device = self._get_device()
        return states if device is None else states | {"device": device}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`; call it inside `active`."""
        import torch

        torch.set_rng_state(state["cpu"])
        self.batches.set_state(state["batches"])
        if "device" in state:
            self._set_device(state["device"])

    def _get_device(self) -> torch.Tensor | None:
        import torch

        if self._device.type == "cuda":
            return torch.cuda.get_rng_state(self._device)
        return torch.mps.get_rng_state() if self._device.type == "mps" else None

    def _set_device(self, state: torch.Tensor) -> None:
        import torch

        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state, self._device)
        elif self._device.type == "mps":
            torch.mps.set_rng_state(state)
