"""What every task answers, and what a tokenised data set can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.data.examples import Example
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.counts import LOSS, Counts, Rows, add
from secure_fl.learning.intervals import Interval
from secure_fl.learning.rates import loss_rate
from secure_fl.settings import Kind

Batch: TypeAlias = dict[str, Tensor]
Reduction: TypeAlias = Literal["mean", "none"]
Indices: TypeAlias = Tensor | Sequence[int]
Head: TypeAlias = Literal["sequence", "token", "ranking", "causal"]

NEAR = 8  # batches' worth of shuffled examples, among which like lengths are brought together
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Encoded(ABC):
    """A data set as integer tensors, tokenised once."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def subset(self, indices: Indices) -> Encoded:
        """Return the examples at `indices`, in that order."""

    @abstractmethod
    def batch(
        self,
        indices: Indices,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Return the examples at `indices` as one batch, padded to the longest of them.

        A generator means training: whatever a task samples (negatives) comes from it.
        """

    @property
    @abstractmethod
    def labelled(self) -> bool:
        """Whether the examples carry labels."""

    def batches(
        self,
        batch_size: int,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        *,
        alike: bool = False,
    ) -> Iterator[Batch]:
        """All examples once: shuffled by `generator` (on the CPU), or in order without one.

        `alike`: examples of a shuffled batch have like lengths, and batches come in any order.
        """
        for indices in self.orders(batch_size, generator, alike=alike):
            yield self.batch(indices, generator, device)

    def orders(
        self, batch_size: int, generator: torch.Generator | None = None, *, alike: bool = False
    ) -> Iterator[Tensor]:
        """Which examples are in each of the `batches`."""
        if generator is None:
            order = torch.arange(len(self))
        else:
            order = torch.randperm(len(self), generator=generator)
        if generator is not None and alike and len(order):
            window = torch.arange(len(order)) // (NEAR * batch_size)
            sizes = self.sizes()[order]
            order = order[(window * (int(sizes.max()) + 1) + sizes).argsort()]
            starts = torch.randperm(-(-len(order) // batch_size), generator=generator) * batch_size
        else:
            starts = torch.arange(0, len(order), batch_size)
        for start in starts.tolist():
            yield order[start : start + batch_size]

    def sizes(self) -> Tensor:
        """How many tokens each example has."""
        raise SettingsError(
            "examples of this task have no one length by which they could be batched",
            fix="remove training.bucketing",
            field="training.bucketing",
        )


@dataclass(frozen=True)
class Task(ABC):
    """What is learned: how examples become tensors, logits a loss, and logits an answer.

    `labels` are the classes in the order of their ids (NER: "O", then B- and I- of each type;
    regression, ranking and completion: none).
    """

    kind: Kind
    labels: tuple[str, ...] = ()
    max_length: int = 128
    positive: str | None = None

    head: ClassVar[Head] = "sequence"

    @property
    def outputs_per_row(self) -> int:
        """How many numbers the model's head gives."""
        return len(self.labels) or 1

    @property
    @abstractmethod
    def metric(self) -> str:
        """The main metric's name in `evaluate`; higher is better."""

    @abstractmethod
    def encode(
        self, examples: Sequence[Example], tokenizer: Any, *, labelled: bool = True
    ) -> Encoded:
        """Tokenise once. `labelled=False` ignores labels, and allows examples without one."""

    def outputs(self, model: nn.Module, batch: Batch, **options: Any) -> Any:
        """Return the model's full output; options such as `output_hidden_states=True` reach it."""
        return model(**{name: batch[name] for name in MODEL_INPUTS if name in batch}, **options)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the logits: one row per example, ranking: one score per candidate."""
        logits: Tensor = self.outputs(model, batch).logits
        return logits

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """Return the loss against the labels; "none": one value per example, "mean": their mean."""

    def balanced(self, encoded: Encoded) -> Encoded:
        """Give records weights, with a mean of 1, by which all classes count alike in the loss."""
        raise SettingsError(
            f"a {self.kind} task has no one class per record whose share could be balanced",
            fix="remove training.class_weights",
            field="training.class_weights",
        )

    @abstractmethod
    def decode(self, logits: Tensor, batch: Batch) -> list[Any]:
        """One answer per example: label, score, tags of the tokens, scores of the candidates."""

    def kept(self, logits: Tensor, batch: Batch) -> Tensor:
        """What of logits is scored and counted: all, unless a whole split's would fill memory."""
        return logits

    @abstractmethod
    def score(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, float]:
        """Return the metrics over batches and what is kept of their logits, all on the CPU."""

    @abstractmethod
    def added(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> dict[str, Rows]:
        """Say what each record adds to the counts, in the order of the records.

        The names and sizes follow from the task alone; without `by_label`, not even from its
        labels, for hospitals that have their own.
        """

    @abstractmethod
    def rates(self, counts: Counts) -> dict[str, float]:
        """Return the metrics that follow from counts, or from their sum over hospitals.

        Of some of the counts: those that follow from these.
        """

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """Return 95 % intervals of metrics, where counts tell them."""
        return {}

    def closed_slopes(self, counts: Counts) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Say how metrics move with counts, where a quotient of differences would not do."""
        return {}

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """Return what a metric of scores in bins would be at least and at most without bins."""
        return {}

    def pooled(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the metrics over several hospitals' records, from the counts of each."""
        sums = add(*parts)
        return self.rates(sums) | loss_rate(sums)

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """Return a readable prediction for one example out of a batch of one."""
        return {"answer": self.decode(logits, batch)[0]}

    def evaluate(
        self, model: nn.Module, encoded: Encoded, batch_size: int = 64
    ) -> dict[str, float]:
        """Metrics and "loss" in evaluation mode; the model's mode is restored."""
        logits, batches = self.outcomes(model, encoded, batch_size)
        return self.measured(logits, batches, self.counts(logits, batches))

    def measured(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], counts: Counts
    ) -> dict[str, float]:
        """All metrics of one hospital, or of whoever holds the records."""
        return self.rates(counts) | self.score(logits, batches) | loss_rate(counts)

    def outcomes(
        self, model: nn.Module, encoded: Encoded, batch_size: int
    ) -> tuple[list[Tensor], list[Batch]]:
        """Return what is kept of the model's logits, batch by batch, all on the CPU."""
        require_evaluable(encoded)
        logits: list[Tensor] = []
        batches: list[Batch] = []
        with inference(model):
            for batch in encoded.batches(batch_size, device=device_of(model)):
                logits.append(self.kept(self.forward(model, batch).float(), batch).cpu())
                batches.append({name: tensor.cpu() for name, tensor in batch.items()})
        return logits, batches

    def counts(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> Counts:
        """Count what adds up over hospitals; of no batch: zeros."""
        every = self.rows(logits, batches, by_label=by_label)
        return {name: rows.total() for name, rows in every.items()}

    def rows(
        self, logits: Sequence[Tensor], batches: Sequence[Batch], *, by_label: bool = True
    ) -> dict[str, Rows]:
        """Say what each record adds to the counts, its loss among it."""
        losses = self.losses(logits, batches).double().numpy()
        of_loss = Rows.of_values(np.stack([np.ones_like(losses), losses], axis=1))
        return {LOSS: of_loss} | self.added(logits, batches, by_label=by_label)

    def losses(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> Tensor:
        """Return each record's loss."""
        pairs = zip(logits, batches, strict=True)
        found = [self.loss(z, batch, reduction="none") for z, batch in pairs]
        return torch.cat([torch.zeros(0), *found])

    def predict(
        self, model: nn.Module, examples: Sequence[Example], tokenizer: Any, batch_size: int = 64
    ) -> list[dict[str, Any]]:
        """Readable predictions, one per example; they hold record text: never log or send them."""
        encoded = self.encode(examples, tokenizer, labelled=False)
        found: list[dict[str, Any]] = []
        with inference(model):
            for batch in encoded.batches(batch_size, device=device_of(model)):
                logits = self.forward(model, batch).float().cpu()
                rows = {name: tensor.cpu() for name, tensor in batch.items()}
                for i in range(len(logits)):
                    one = {name: tensor[i : i + 1] for name, tensor in rows.items()}
                    example = examples[len(found)]
                    found.append(
                        {"id": example.id} | self.describe(example, logits[i : i + 1], one)
                    )
        return found


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """No gradients and no dropout inside; every module's own mode comes back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def require_evaluable(encoded: Encoded) -> None:
    """Refuse what nothing can be measured on."""
    if len(encoded) == 0:
        raise DataError("there is no example to evaluate on", fix="give a larger split")
    if not encoded.labelled:
        raise DataError(
            "examples without labels cannot be evaluated", fix="encode them with labels"
        )


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    return next(model.parameters()).device


def expect(example: Example, shape: type, row: int, kind: str) -> None:
    """Refuse an example of another task's shape."""
    if not isinstance(example, shape):
        raise DataError(
            f"a {kind} task cannot use an example of shape {type(example).__name__}",
            row=row,
            fix=f"load the data for task kind {kind!r}",
        )


def wrong_label(row: int, field: str, allowed: Sequence[str]) -> DataError:
    """Return the error of a missing or undeclared label; the value may be record text: unsaid."""
    return DataError(
        "the label is missing or is not one of the task's labels",
        row=row,
        field=field,
        fix=f"allowed: {', '.join(allowed)}; or declare it in [task] labels",
    )


def move(batch: Mapping[str, Tensor], device: torch.device | str) -> Batch:
    """Return the batch on its device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}
