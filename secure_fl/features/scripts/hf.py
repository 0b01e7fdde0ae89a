"""A callback that federates `transformers.Trainer`: its trainable parameters are averaged."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from accelerate.state import GradientState
from transformers import TrainerCallback

from secure_fl.errors import SettingsError
from secure_fl.features.scripts.cohort import ScriptCohort
from secure_fl.party.rounds import Round


class FederatedCallback(TrainerCallback):  # type: ignore[misc]
    """Average the trainable parameters over all sites, after each epoch or every so many steps.

    The weight of a site is the number of records that it trained on since the last mean. Parameters
    must be equal at all sites when training begins. States of optimiser and schedule stay at the
    site, and continue over the means. Training stops after the last round of the plan.
    """

    def __init__(self, cohort: ScriptCohort, every: Literal["epoch"] | int = "epoch") -> None:
        """`every`: "epoch", or the number of optimiser steps between two means."""
        given: object = every  # a script may pass anything
        if given != "epoch" and not (isinstance(given, int) and given > 0):
            raise SettingsError(
                f"found every = {every!r}", fix='give "epoch", or a number of steps from 1 on'
            )
        self._cohort, self._every = cohort, every
        self._trained: dict[str, torch.nn.Parameter] = {}
        self._base: dict[str, torch.Tensor] = {}
        self._rounds: Iterator[Round] = iter(())

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Agree on the first parameters, or restore those after the last round."""
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        with own_gradient_state():
            self._cohort.agree(self.state_dict(), "the trainable parameters")
            self._rounds = self._cohort.rounds(shared={"parameters": self})
            control.should_training_stop = next(self._rounds, None) is None
        self._base = self.state_dict()

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Average after an epoch."""
        if self._every == "epoch":
            self._average(control, len(train_dataloader.dataset))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Average after so many steps."""
        if self._every != "epoch" and state.global_step % self._every == 0:
            batch = args.train_batch_size * args.gradient_accumulation_steps
            self._average(control, batch * self._every)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copy the trainable parameters."""
        return {name: p.detach().clone() for name, p in self._trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the trainable parameters."""
        for name, parameter in self._trained.items():
            parameter.copy_(state[name])

    def _average(self, control: Any, records: int) -> None:
        with own_gradient_state():
            means = self._cohort.mean(self.state_dict(), weight=records, base=self._base)
            self.load_state_dict(means)
            self._base = means
            control.should_training_stop = next(self._rounds, None) is None


@contextmanager
def own_gradient_state() -> Iterator[None]:
    """Restore accelerate's state of this site's training after a call.

    Sites that are simulated in threads share it, and others train during the call.
    """
    shared = GradientState._shared_state
    own = {name: copy.copy(value) for name, value in shared.items()}
    shared.clear()
    try:
        yield
    finally:
        shared.clear()
        shared.update(own)
