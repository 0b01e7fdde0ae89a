"""The plan of a script: which values it may sum, and in how many rounds."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Literal

from pydantic import Field, field_validator

from secure_fl.algorithms.base import Demands, Entry, WithoutModel, deferred
from secure_fl.settings import Positive, TrainingSettings

Name = Annotated[str, Field(pattern=r'^[^"\\\n]{1,200}$')]
Shape = Annotated[tuple[Positive, ...], Field(max_length=8)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
WEIGHT = "sum of weights"  # the name under which weights of a mean are summed


class Script(WithoutModel):
    """The sums of a script that each site runs itself."""

    name: Literal["script"] = "script"
    rounds: Positive = 10
    """Number of rounds. A round sums each name at most once."""
    epochs: Literal[1] = 1
    values: Mapping[Name, Shape] | None = None
    """Name and shape of everything that may be summed: weights = [10, 3], or [] for a number.
    Default: anything, which only `simulate` accepts."""
    weighted: bool = True
    """A mean may have weights, and then the sum of all weights is opened too."""
    means_to_coordinator: bool = False
    """The coordinator reads the means too. It is for strategies of other engines that compute the
    next model at the server."""
    sha256: Digest | None = None
    """SHA-256 of the script's file, as `sha256sum` prints it. Sites then refuse other scripts.
    Default: each site runs the script that it chooses."""

    @field_validator("values")
    @classmethod
    def _free_names(cls, found: Mapping[str, Shape] | None) -> Mapping[str, Shape] | None:
        if found is not None and WEIGHT in found:
            raise ValueError(f"the name {WEIGHT!r} is used for means; rename this value")
        return found

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for one exchange of all values in each round; the site's script knows the rest."""
        cells = sum(map(prod, (self.values or {}).values()))
        return Demands(
            exchanges=self.rounds,
            passes=1,
            steps=0,
            batch=training.batch_size,
            cells=cells,
            drawn=1.0,
        )


ENTRY = Entry(
    Script,
    deferred("secure_fl.features.scripts.program:run_script"),
    records="secure_fl.features.scripts.program:without_script",
    summary="sums of a script that each site runs itself",
)
