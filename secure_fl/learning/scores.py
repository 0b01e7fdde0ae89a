"""A site's scores: its counts, and the metrics that follow from their sum over hospitals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from secure_fl.data.examples import Example
from secure_fl.learning.metric_counts import LOSS, Counts, add, from_pieces, pieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from secure_fl.events import EventLog
    from secure_fl.learning.tasks import Batch, Task

SPLITS = ("dev", "test")
# Arguments: records with their labels, and a model's answers (labels, tags, scores: `Task.decode`).
Metric: TypeAlias = Callable[[Sequence[Example], Sequence[Any]], float]


class SiteScores:
    """The measurements of one site in a round."""

    def __init__(
        self,
        task: Task,
        recorder: EventLog,
        *,
        by_label: bool,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self._task, self._recorder, self._by_label = task, recorder, by_label
        self._metrics = metrics or {}  # a program's own, for each hospital alone: not from counts
        self._counted: dict[tuple[str, str], Counts] = {}  # by model and split

    def begin(self, model: str, splits: Sequence[str] = SPLITS) -> None:
        """Start with zero counts of a model; they remain without a model or records."""
        self._counted |= {(model, split): self._zeros for split in splits}

    def measure(
        self,
        model: str,
        split: str,
        round: int,
        outcomes: tuple[Sequence[Tensor], Sequence[Batch]],
        records: Sequence[Example],
        party: str = "",
    ) -> None:
        """Log a model's metrics on the records of a split, and add its counts."""
        counts = self._count(*outcomes)
        values = self._task.score(*outcomes, counts if self._by_label else None)
        values = self._additional(records, outcomes) | values
        self._log(round, values, counts, split=split, model=model, party=party)
        self._counted[model, split] = add(self._counted[model, split], counts)

    def take_counts(self) -> dict[str, NDArray[Any]]:
        """Return the counts since the last call, and reset them."""
        counted, self._counted = self._counted, {}
        return {
            f"scores/{model}/{split}/{name}": piece
            for (model, split), counts in counted.items()
            for name, piece in pieces(counts).items()
        }

    def pooled(self, round: int, sums: Mapping[str, NDArray[np.float64]]) -> float | None:
        """Log the metrics over all hospitals' records; return the main one on dev, if there is one.

        It is that of the model without a name, or of the first by name.
        """
        main: list[float] = []
        for (model, split), counts in sorted(self.totals(sums).items()):
            if counts[LOSS][0]:
                values = self._task.pooled([counts])
                self._log(round, values, counts, split=split, model=model, pooled=True)
                main += [values[self._task.metric]] if split == "dev" else []
        return main[0] if main else None

    def log_noised(self, model: str, split: str, counts: Counts) -> None:
        """Log the metrics of sums with noise; some, or all, may be lost in it."""
        self._log(1, self._task.rates(counts), counts, split=split, model=model, pooled=True)

    def _log(self, round: int, values: dict[str, float], counts: Counts, **labels: Any) -> None:
        listed = {name: vector.tolist() for name, vector in counts.items()}
        labels["scored_class"] = self._task.scored_class
        self._recorder.metrics(round, values, listed, **labels)

    def totals(self, sums: Mapping[str, NDArray[np.float64]]) -> dict[tuple[str, str], Counts]:
        """Counts over all hospitals, by model and split."""
        parts: dict[tuple[str, str], dict[str, Any]] = {}
        for key, piece in sums.items():
            _, model, split, name = key.split("/", 3)
            parts.setdefault((model, split), {})[name] = piece
        return {key: from_pieces(summed) for key, summed in parts.items()}

    def _additional(
        self, records: Sequence[Example], outcomes: tuple[Sequence[Tensor], Sequence[Batch]]
    ) -> dict[str, float]:
        if not self._metrics:
            return {}
        answers = [
            answer for pair in zip(*outcomes, strict=True) for answer in self._task.decode(*pair)
        ]
        return {name: float(metric(records, answers)) for name, metric in self._metrics.items()}

    @cached_property
    def _zeros(self) -> Counts:
        return self._count([], [])

    def _count(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> Counts:
        return self._task.counts(logits, batches, by_label=self._by_label)
