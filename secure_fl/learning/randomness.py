"""One party's randomness, whatever else computes in the same process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Randomness:
    """One party's random states: torch's global ones (dropout) and the batch order."""

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
        """Use these states inside, and the process's own outside."""
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
        """The state inside `active`, when it is active."""
        import torch

        states = {"cpu": torch.get_rng_state(), "batches": self.batches.get_state()}
        device = self._get_device()
        return states if device is None else states | {"device": device}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`, when these states are active."""
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
