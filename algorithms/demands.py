"""What an algorithm's settings ask of one site: what a hospital's limits are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secure_fl.algorithms.base import Algorithm
    from secure_fl.settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The most that a run asks of one site. No figure has a default: each is somebody's limit.

    Each line names the field of a site's policy, `[site]`, that the figure is held against.
    """

    exchanges: int  # of models or gradients in the whole run: max_rounds
    passes: int  # in one round, over own or public records: max_epochs
    steps: int  # in one round, where steps are counted (0: they are not): max_steps
    batch: int  # records, or patients under DP-SGD, that are in memory at once: max_batch
    cells: int  # of a table beside the model, as a sketch (0: there is none): max_values
    drawn: float  # share of the parties in one sum: no limit, but the result's collusion bound

    @classmethod
    def of_fit(cls, algorithm: Algorithm, training: TrainingSettings) -> Demands:
        """One exchange in each round, and whole passes by `Site.fit` over the own records."""
        dp, held = training.dp, training.batch_size
        if dp is not None and dp.physical_batch is not None:
            held = min(held, dp.physical_batch)
        return cls(
            exchanges=algorithm.rounds,
            passes=algorithm.epochs,
            steps=0,
            batch=held,
            cells=0,
            drawn=1.0,
        )
