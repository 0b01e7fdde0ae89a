"""A site's scores on their way to those of all hospitals: its counts, and what their sum says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from secure_fl.data.examples import Example
from secure_fl.learning.counts import LOSS, Counts, add, pieces, whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from secure_fl.events import EventLog
    from secure_fl.learning.tasks import Batch, Task

SPLITS = ("dev", "test")
# Of records with their labels, and a model's answers: labels, tags, scores, as `Task.decode` says.
Metric: TypeAlias = Callable[[Sequence[Example], Sequence[Any]], float]


class Scores:
    """What one site measured in a round."""

    def __init__(
        self,
        task: Task,
        recorder: EventLog,
        *,
        by_label: bool,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self._task, self._recorder, self._by_label = task, recorder, by_label
        self._metrics = metrics or {}  # a program's own: each hospital's alone, for no sum has them
        self._counted: dict[tuple[str, str], Counts] = {}  # by model and split

    def begin(self, model: str, splits: Sequence[str] = SPLITS) -> None:
        """Count nothing yet of a model: as do those who hold none, or no records."""
        self._counted |= {(model, split): self._nothing for split in splits}

    def measure(
        self,
        model: str,
        split: str,
        round: int,
        outcomes: tuple[Sequence[Tensor], Sequence[Batch]],
        records: Sequence[Example],
        party: str = "",
    ) -> None:
        """Write down what a model is worth on the records of a split, and count it."""
        counts = self._count(*outcomes)
        values = self._task.measured(*outcomes, counts)
        values = self._own(records, outcomes) | values
        listed = _listed(counts)
        self._recorder.metrics(round, values, listed, split=split, model=model, party=party)
        self._counted[model, split] = add(self._counted[model, split], counts)

    def take_counts(self) -> dict[str, NDArray[Any]]:
        """Counts since they were last taken."""
        taken, self._counted = self._counted, {}
        return {
            f"scores/{model}/{split}/{name}": found
            for (model, split), counts in taken.items()
            for name, found in pieces(counts).items()
        }

    def pooled(self, round: int, sums: Mapping[str, NDArray[np.float64]]) -> float | None:
        """Write down the metrics over all hospitals' records; the main one on dev, if there is one.

        It is that of the model without a name, or of the first by name.
        """
        judged: list[float] = []
        for (model, split), counts in sorted(self.totals(sums).items()):
            if counts[LOSS][0]:
                values = self._task.pooled([counts])
                kept = _listed(counts)
                self._recorder.metrics(round, values, kept, split=split, model=model, pooled=True)
                judged += [values[self._task.metric]] if split == "dev" else []
        return judged[0] if judged else None

    def totals(self, sums: Mapping[str, NDArray[np.float64]]) -> dict[tuple[str, str], Counts]:
        """Counts over all hospitals, by model and split."""
        parts: dict[tuple[str, str], dict[str, Any]] = {}
        for key, found in sums.items():
            _, model, split, name = key.split("/", 3)
            parts.setdefault((model, split), {})[name] = found
        return {which: whole(found) for which, found in parts.items()}

    def _own(
        self,
        records: Sequence[Example],
        outcomes: tuple[Sequence[Tensor], Sequence[Batch]],
    ) -> dict[str, float]:
        if not self._metrics:
            return {}
        answers = [
            answer for pair in zip(*outcomes, strict=True) for answer in self._task.decode(*pair)
        ]
        return {name: float(metric(records, answers)) for name, metric in self._metrics.items()}

    @cached_property
    def _nothing(self) -> Counts:
        return self._count([], [])

    def _count(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> Counts:
        return self._task.counts(logits, batches, by_label=self._by_label)


def _listed(counts: Counts) -> dict[str, list[float]]:
    return {name: found.tolist() for name, found in counts.items()}
