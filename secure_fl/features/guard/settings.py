"""The [guard] section of a settings file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from secure_fl.settings import Positive, Section


class GuardSettings(Section):
    """Votes on every round: each hospital tests the new model on its own dev records.

    The votes are a protected sum. All hospitals undo a refused round.
    """

    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A round is refused if this fraction of the votes is against it."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Loss of quality at which a hospital votes against a round: the fraction of its dev records
    that become wrong."""
    errors: Annotated[float, Field(ge=0)] = 0.25
    """Number of standard errors of the dev records that is added to the tolerance."""
    max_growth: Annotated[float, Field(gt=1)] | None = 10.0
    """Limit on the squared norm of a sum, relative to that of the last accepted round (in the first
    round, to that of the hospital's own update). A hospital votes against a sum above it. "none":
    no limit."""
    most: Positive = 5
    """Number of refused rounds that a run survives; it stops at the next one."""
    again: bool = True
    """Train one more round for each refused one. false: the run has fewer rounds."""
    search: bool = False
    """After a refusal, sum over halves of the hospitals to exclude a hospital that is in every
    refused sum. Members may then learn each other's record counts."""

    @property
    def extra_rounds(self) -> int:
        """The number of refused rounds that may be repeated."""
        return self.most if self.again else 0
