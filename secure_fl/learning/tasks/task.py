"""Base classes of tasks and of tokenised data sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.rows import named
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.metric_counts import LOSS, Contributions, Counts, add
from secure_fl.learning.metrics import Interval, Slopes, loss_rate, slopes
from secure_fl.learning.tasks.batches import WINDOWS, Batch, by_record, in_parts, packed
from secure_fl.settings import Kind

Shape = TypeVar("Shape", Text, Tagged, Impression)
Reduction: TypeAlias = Literal["mean", "none"]
Examples: TypeAlias = Sequence[Example]
Logits: TypeAlias = Sequence[Tensor]  # of each batch
Batches: TypeAlias = Sequence[Batch]
Rows: TypeAlias = dict[str, Contributions]  # of each record, by the name of the counts
Rng: TypeAlias = torch.Generator | None
Device: TypeAlias = torch.device | str
Indices: TypeAlias = Tensor | Sequence[int]
Head: TypeAlias = Literal["sequence", "token", "ranking", "causal", "prompt"]

READING = ("max_length", "windows", "overlap")  # fields of how texts are read
SORTED = 8  # batches' worth of shuffled examples that are sorted by length


class Encoded(ABC):
    """A data set as integer tensors, tokenised once."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def subset(self, indices: Indices) -> Encoded:
        """The examples at `indices`, in that order."""

    @abstractmethod
    def batch(self, indices: Indices, generator: Rng = None, device: Device = "cpu") -> Batch:
        """The examples at `indices` as one batch, padded to the longest of them.

        A generator means training: a task samples negatives with it.
        """

    @property
    @abstractmethod
    def labelled(self) -> bool:
        """True if the examples have labels."""

    def batches(
        self, batch_size: int, generator: Rng = None, device: Device = "cpu", *, alike: bool = False
    ) -> Iterator[Batch]:
        """All examples once: shuffled by `generator` (on the CPU), or in order without one.

        `alike`: examples of a shuffled batch have similar lengths.
        """
        for indices in self.orders(batch_size, generator, alike=alike):
            yield self.batch(indices, generator, device)

    def orders(
        self, batch_size: int, generator: Rng = None, *, alike: bool = False
    ) -> Iterator[Tensor]:
        """The indices of the examples in each of the `batches`."""
        if generator is None:
            order, alike = torch.arange(len(self)), False
        else:
            order = torch.randperm(len(self), generator=generator)
        if alike and len(order):
            window = torch.arange(len(order)) // (SORTED * batch_size)
            sizes = self.sizes()[order]
            order = order[(window * (int(sizes.max()) + 1) + sizes).argsort()]
            starts = torch.randperm(-(-len(order) // batch_size), generator=generator) * batch_size
        else:
            starts = torch.arange(0, len(order), batch_size)
        for start in starts.tolist():
            yield order[start : start + batch_size]

    def sizes(self) -> Tensor:
        """The number of tokens of each example."""
        raise SettingsError(
            "examples of this task have several lengths, so they cannot be batched by length",
            fix="remove training.bucketing",
            field="training.bucketing",
        )


@dataclass(frozen=True)
class Task(ABC):
    """A learning task: conversions of examples to tensors, and of logits to losses and answers.

    `labels` are the classes in the order of their ids (NER: "O", then B- and I- of each type;
    regression, ranking and completion: none).
    """

    kind: Kind
    labels: tuple[str, ...] = ()
    max_length: int = 128
    positive: str | None = None
    windows: int = 1  # of `max_length` tokens, in which longer texts are read
    overlap: int | None = None  # of neighbouring windows; None: a quarter of their tokens
    temperature: float = 1.0  # divides the logits of `describe`
    threshold: float | None = None  # smallest probability of a label that `describe` gives

    head: ClassVar[Head] = "sequence"
    exclusive: ClassVar[bool] = True  # a record has one class at most: probabilities add up to 1

    @property
    def outputs_per_row(self) -> int:
        """The number of outputs of the model's head."""
        return len(self.labels) or 1

    @property
    @abstractmethod
    def metric(self) -> str:
        """The main metric's name in `evaluate`; higher is better."""

    @property
    def decisions(self) -> int:
        """The number of terms in a record's loss."""
        return 1

    @property
    def scored_class(self) -> str | None:
        """The class of precision, recall and F1; None if they are not scores of one class."""
        return None

    @abstractmethod
    def encode(self, examples: Examples, tokenizer: Any, *, labelled: bool = True) -> Encoded:
        """Tokenise once. `labelled=False` ignores labels, and allows examples without one."""

    def check_labels(self, examples: Examples) -> None:
        """Refuse records whose labels are missing or are not the task's; default: accept all."""
        return None

    def check_tokenizer(self, load: Callable[[], Any]) -> None:
        """Refuse settings that do not fit the model's tokenizer; default: accept, and do not load.

        Called before anything is computed or sent.
        """
        return None

    def reading(self) -> dict[str, Any]:
        """The settings of how texts are read, which all members must have alike."""
        return {name: getattr(self, name) for name in READING}

    def run(self, model: nn.Module, inputs: Batch, batch: Batch, **options: Any) -> Any:
        """The model's full output for rows of tokens: a batch's records, or some windows."""
        return model(**inputs, **options)

    def outputs(self, model: nn.Module, batch: Batch, **options: Any) -> Any:
        """The model's full output; options such as `output_hidden_states=True` are passed on.

        Logits are by record, and hidden states and attentions by window.
        """
        out = self.run(model, packed(batch), batch, **options)
        if WINDOWS in batch:
            out.logits = by_record(out.logits, batch, words=self.head == "token")
        return out

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """The logits: one row per example; ranking: one score per candidate."""
        if WINDOWS not in batch or torch.is_grad_enabled():
            logits: Tensor = self.outputs(model, batch).logits
            return logits
        parts = [self.run(model, part, batch).logits for part in in_parts(packed(batch))]
        return by_record(torch.cat(parts), batch, words=self.head == "token")

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch, *, reduction: Reduction = "mean") -> Tensor:
        """The loss against the labels; "none": one value per example, "mean": their mean."""

    def balanced(self, encoded: Encoded) -> Encoded:
        """Add weights with a mean of 1, so that all classes count alike in the loss."""
        raise SettingsError(
            f"a {self.kind} task does not have one class per record to balance",
            fix="remove training.class_weights",
            field="training.class_weights",
        )

    @abstractmethod
    def decode(self, logits: Tensor, batch: Batch) -> list[Any]:
        """One answer per example: label, score, tags of the tokens, scores of the candidates."""

    def kept(self, logits: Tensor, batch: Batch) -> Tensor:
        """The part of the logits that metrics need; default: all."""
        return logits

    @abstractmethod
    def contributions(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Each record's contribution to the counts, except its loss, in the order of the records.

        Names and sizes depend on the task alone. Without `by_label` they do not depend on its
        labels either, which may differ between hospitals.
        """

    @abstractmethod
    def rates(self, counts: Counts) -> dict[str, float]:
        """The metrics that follow from counts, or from their sum over hospitals.

        If some counts are missing, the metrics that follow from the others.
        """

    def exact(self, logits: Logits, batches: Batches) -> dict[str, float]:
        """The exact values of metrics that `rates` approximates, for one holder of records."""
        return {}

    def intervals(self, counts: Counts) -> dict[str, Interval]:
        """The 95 % intervals of metrics that follow from counts."""
        return {}

    def closed_slopes(self, counts: Counts) -> dict[str, dict[str, NDArray[np.float64]]]:
        """The derivatives of metrics by counts, where quotients of differences are inaccurate."""
        return {}

    def slopes(self, counts: Counts) -> Slopes:
        """The derivative of each metric over all records by each count that is not zero."""

        def rates(given: Counts) -> Mapping[str, float]:
            return self.pooled([given])

        return slopes(rates, counts, list(rates(counts))) | self.closed_slopes(counts)

    def bounds(self, counts: Counts) -> dict[str, Interval]:
        """The bounds of the exact values of metrics that follow from scores in bins."""
        return {}

    def pooled(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics over several hospitals' records, from the counts of each."""
        sums = add(*parts)
        return self.rates(sums) | loss_rate(sums)

    def describe(self, example: Example, logits: Tensor, batch: Batch) -> dict[str, Any]:
        """A readable prediction for one example, from a batch of one."""
        return {"answer": self.decode(logits, batch)[0]}

    def evaluate(
        self, model: nn.Module, encoded: Encoded, batch_size: int = 64
    ) -> dict[str, float]:
        """Metrics and "loss" in evaluation mode; the model's mode is restored."""
        return self.score(*self.outcomes(model, encoded, batch_size))

    def score(
        self, logits: Logits, batches: Batches, counts: Counts | None = None
    ) -> dict[str, float]:
        """All metrics for one holder of records; `counts`: their counts by label, if known."""
        counts = self.counts(logits, batches) if counts is None else counts
        return self.rates(counts) | self.exact(logits, batches) | loss_rate(counts)

    def outcomes(
        self, model: nn.Module, encoded: Encoded, batch_size: int
    ) -> tuple[list[Tensor], list[Batch]]:
        """The model's logits (as `kept`) and the batches, all on the CPU."""
        require_evaluable(encoded)
        logits: list[Tensor] = []
        batches: list[Batch] = []
        with inference(model):
            for batch in encoded.batches(batch_size, device=device_of(model)):
                logits.append(self.kept(self.forward(model, batch).float(), batch).cpu())
                batches.append({name: tensor.cpu() for name, tensor in batch.items()})
        return logits, batches

    def counts(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Counts:
        """Counts that add up over hospitals; zeros without a batch."""
        every = self.rows(logits, batches, by_label=by_label)
        return {name: rows.total() for name, rows in every.items()}

    def rows(self, logits: Logits, batches: Batches, *, by_label: bool = True) -> Rows:
        """Each record's contribution to the counts, including its loss."""
        losses = self.losses(logits, batches).double().numpy()
        of_loss = Contributions.of_values(np.stack([np.ones_like(losses), losses], axis=1))
        return {LOSS: of_loss} | self.contributions(logits, batches, by_label=by_label)

    def losses(self, logits: Logits, batches: Batches) -> Tensor:
        """Each record's loss."""
        pairs = zip(logits, batches, strict=True)
        losses = [self.loss(z, batch, reduction="none") for z, batch in pairs]
        return torch.cat([torch.zeros(0), *losses])

    def predict(
        self, model: nn.Module, examples: Examples, tokenizer: Any, batch_size: int = 64
    ) -> list[dict[str, Any]]:
        """Readable predictions, one per example. Never log or send them: they contain records."""
        encoded = self.encode(examples, tokenizer, labelled=False)
        predictions: list[dict[str, Any]] = []
        with inference(model):
            for batch in encoded.batches(batch_size, device=device_of(model)):
                logits = self.forward(model, batch).float().cpu()
                columns = {name: tensor.cpu() for name, tensor in batch.items()}
                for i in range(len(logits)):
                    row = {name: tensor[i : i + 1] for name, tensor in columns.items()}
                    example = examples[len(predictions)]
                    answer = self.describe(example, logits[i : i + 1], row)
                    predictions.append({"id": example.id} | answer)
        return predictions


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Disable gradients and dropout inside; restore every module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def require_evaluable(encoded: Encoded) -> None:
    """Refuse examples that no metric can be computed on."""
    if len(encoded) == 0:
        raise DataError("there is no example to evaluate on", fix="give a larger split")
    if not encoded.labelled:
        raise DataError(
            "examples without labels cannot be evaluated", fix="encode them with labels"
        )


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's parameters."""
    return next(model.parameters()).device


def expect(example: Example, shape: type[Shape], row: int, kind: str) -> Shape:
    """Return an example of this shape; refuse one of another task's shape."""
    if not isinstance(example, shape):
        raise DataError(
            f"a {kind} task cannot use an example of shape {type(example).__name__}",
            record=row + 1,
            fix=f"load the data for task kind {kind!r}",
        )
    return example


def wrong_label(
    row: int, field: str, allowed: Sequence[str], *, missing: bool = False
) -> DataError:
    """The error of a missing or undeclared label, without the value, which may be record text."""
    what = "the label is missing" if missing else "the label is not one of the task's labels"
    fix = f"allowed: {named(allowed)}"
    return DataError(
        what,
        record=row + 1,
        field=field,
        fix=f"label or remove the record; {fix}"
        if missing
        else f"{fix}; or declare it in [task] labels",
    )


def move(batch: Mapping[str, Tensor], device: Device) -> Batch:
    """Move a batch to a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}
