"""A callback that federates `transformers.Trainer`: its trainable parameters are averaged."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from accelerate.state import GradientState
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from secure_fl.errors import SettingsError
from secure_fl.features.scripts.cohort import ScriptCohort
from secure_fl.party.rounds import Round

TIMES = ("_runtime", "_per_second", "_time", "epoch")  # endings of numbers that are no metrics


class FederatedCallback(TrainerCallback):  # type: ignore[misc]
    """Average the trainable parameters over all sites, after each epoch or every so many steps.

    The weight of a site is the number of records that it trained on since the last mean. Parameters
    must be equal at all sites when training begins. States of optimiser and schedule stay at the
    site, and continue over the means. Training stops after the last round of the plan.
    """

    def __init__(
        self,
        cohort: ScriptCohort,
        every: Literal["epoch"] | int = "epoch",
        *,
        pool_metrics: bool = False,
    ) -> None:
        """Make the callback of one Trainer.

        Args:
            cohort: All sites, from `simulate` or `join`.
            every: "epoch", or the number of optimiser steps between two means.
            pool_metrics: Replace metrics during training by their means over all sites, weighted by
                records. If one site stops early after an evaluation, all sites stop. A round has at
                most one evaluation.

        """
        given: object = every  # a script may pass anything
        if given != "epoch" and not (isinstance(given, int) and given > 0):
            raise SettingsError(
                f"found every = {every!r}", fix='give "epoch", or a number of steps from 1 on'
            )
        self._cohort, self._every, self._pool = cohort, every, pool_metrics
        self._trained: dict[str, torch.nn.Parameter] = {}
        self._base: dict[str, torch.Tensor] = {}
        self._rounds: Iterator[Round] = iter(())
        self._round: Round | None = None  # None: not in training
        self._own: dict[str, Any] = {}  # state of this site: optimiser, schedule, steps
        self._records = 0  # read in training until the last mean
        self._evaluated = 0  # the last round with pooled metrics
        self._averaged = False  # true from a mean to the begin of the next round

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Agree on the first parameters, or restore the state after the last saved round."""
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._own = {"optimizer": optimizer, "schedule": lr_scheduler, "steps": 0}
        with own_gradient_state():
            self._rounds = self._cohort.rounds({"parameters": self}, self._own)
            self._round = next(self._rounds, None)
            if self._round and self._round.number == 1:  # later ones restore the agreed state
                self._cohort.agree(self.state_dict(), "the trainable parameters")
        control.should_training_stop = self._round is None
        self._base = self.state_dict()
        self._records = _records_until(args, state, train_dataloader)
        _require_same_step(args.output_dir, state.global_step, self._own["steps"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the last round, and begin the next."""
        self._advance()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the last round."""
        self._advance()
        self._round = None

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Average after an epoch."""
        if self._every == "epoch":
            self._average(args, state, control, train_dataloader)

    def on_step_end(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Average after so many steps; after the last round, undo a step.

        A Trainer that starts after the last round trains one step before it stops.
        """
        if self._round is None:
            self.load_state_dict(self._base)
        elif self._every != "epoch" and state.global_step % self._every == 0:
            self._average(args, state, control, train_dataloader)

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Any = None,
        eval_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Replace metrics by their means over all sites, and stop if a site stops."""
        if not self._pool or self._round is None:
            return
        if self._round.number == self._evaluated:
            raise SettingsError(
                f"a second evaluation in round {self._evaluated}, whose metrics are pooled already",
                fix="evaluate at most once between two means, without eval_on_start, or omit "
                "pool_metrics",
            )
        own = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not name.endswith(TIMES)
        }
        if unknown := [name for name, value in own.items() if not math.isfinite(value)]:
            raise SettingsError(
                f"{unknown[0]} is {own[unknown[0]]} at this site, so it has no mean",
                fix="omit this metric at all sites, or give it a number",
            )
        self._evaluated = self._round.number
        stop = f"stop after {min(own)}"
        own[stop] = float(control.should_training_stop)
        with own_gradient_state():
            pooled = self._cohort.mean(own, weight=len(eval_dataloader.dataset))
        control.should_training_stop = pooled.pop(stop) > 0
        metrics.update(pooled)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copy the trainable parameters."""
        return {name: p.detach().clone() for name, p in self._trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the trainable parameters."""
        for name, parameter in self._trained.items():
            parameter.copy_(state[name])

    def _average(self, args: Any, state: Any, control: Any, loader: Any) -> None:
        """Set the parameters to their means; after the last round, stop training."""
        self._advance()
        if self._round is None:
            return
        records = _records_until(args, state, loader)
        weight = records - self._records
        with own_gradient_state():
            means = self._cohort.mean(self.state_dict(), weight=weight, base=self._base)
        self.load_state_dict(means)
        self._records = records
        self._base, self._averaged, self._own["steps"] = means, True, state.global_step
        control.should_training_stop |= self._round.number == self._round.total

    def _advance(self) -> None:
        """Save a round whose mean is there, and begin the next."""
        if self._averaged:
            self._averaged = False
            with own_gradient_state():
                self._round = next(self._rounds, None)


def _records_until(args: Any, state: Any, loader: Any) -> int:
    """Count the records read so far; the last batch of an epoch can be smaller."""
    batch = args.train_batch_size * args.world_size
    if not (has_length(loader) and len(loader)):  # a stream
        return int(state.global_step * batch * args.gradient_accumulation_steps)
    epochs, batches = divmod(round((state.epoch or 0) * len(loader)), len(loader))
    size = len(loader.dataset)
    return int(epochs * size + min(batches * batch, size))


def _require_same_step(folder: str, resumed: int, saved: int) -> None:
    """Refuse a checkpoint of the Trainer from another step than the last saved round."""
    if resumed not in (0, saved):
        raise SettingsError(
            f"the Trainer continues after step {resumed}, and the run after step {saved}",
            fix=f'use resume_from_checkpoint="{folder}/checkpoint-{saved}", or none'
            if saved
            else "start the Trainer without resume_from_checkpoint",
        )


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
