"""How much FedID's tables learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

# FedID as its paper prints it; the authors' batch of labels goes with the table's.
PRINTED: Mapping[str, Any] = {
    "alone": 0,
    "own_shares": "kept",
    "labelled": False,
    "feedback": "scalar",
    "feedback_scale": "printed",
    "batches_per_exchange": 1,
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run learns from, and how long its texts are."""

    train: int | None
    dev: int | None
    test: int | None
    max_length: int


@dataclass(frozen=True, slots=True)
class Scale:
    """The sets, the members, the rounds."""

    sets: Mapping[str, Size]
    parties: int
    rounds: int
    epochs: int
    distill_epochs: int
    depth: int  # of every model where all are alike, and of the host's
    depths: tuple[int, ...]  # of the parties' models where they are not; repeated in turn
    batch: int


# Twice the records of an earlier scale, with which models learnt little, in fewer passes over each.
# Chosen with FedID alone on another seed (7): with 2,400 its longer rounds end at half right.
SCALE = Scale(
    {"sst2": Size(800, 60, None, 32)},
    parties=4,
    rounds=2,
    epochs=3,
    distill_epochs=1,
    depth=6,
    depths=(3, 4, 5, 6),
    batch=8,
)
EARLIER = replace(  # of the noised and of the audited runs
    SCALE, sets={"sst2": Size(400, 60, 300, 32)}, epochs=5, distill_epochs=2
)
