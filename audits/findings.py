"""Views of roles, prior knowledge, findings of attacks, and the control gate that judges them.

An attack is a function `(view, prior) -> AuditFinding`. The view is the threat model: it contains
what its role saw, and nothing else. A finding compares the attack with guessing. Its threshold is
fixed before anything is measured.

Each attack runs on an unprotected run, on the deployed run, and on a null that contains nothing to
find. The deployed result counts only if the same attack succeeds on the unprotected run and fails
on the null. Otherwise the attack is broken or too weak, and the verdict is inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secure_fl.data.examples import Example

if TYPE_CHECKING:
    from torch import nn

    from secure_fl.algorithms.base import Algorithm
    from secure_fl.capture.merging import Source
    from secure_fl.capture.recording import CapturedFrame
    from secure_fl.learning.site import Site
    from secure_fl.learning.tasks import Task
    from secure_fl.settings import TrainingSettings

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Values that a role could read, with their owners, round and evidence.

    `values` are means over records; opened predictions are sums, with their weight. Updates have
    the names and shapes of the model's weights.
    """

    of: tuple[str, ...]  # one party, or several: then only their sum could be read
    round: int
    values: Arrays
    evidence: tuple[str, ...] = ()  # places of the frames it was read from
    sources: Mapping[str, Source] = field(default_factory=dict)  # by name: the sum it was read of


@dataclass(frozen=True, slots=True)
class View:
    """The values that a role could read: sums that it opened, and values that others sent to it."""

    role: str
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class CoordinatorView(View):
    """A view of the coordinator, alone or with colluders, with all bytes on its wires."""

    frames: Sequence[CapturedFrame] = ()


@dataclass(frozen=True, slots=True)
class PublicView:
    """The released model, which anybody may query."""

    role: str
    model: nn.Module
    evidence: tuple[str, ...] = ()  # the name of the model's folder


@dataclass(frozen=True, slots=True)
class Truth:
    """One party's own records. They score guesses; no attack reads them."""

    party: str
    records: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Prior:
    """The knowledge that every attacker has beforehand, and the truth that scores its guesses.

    The program, its settings and the initial model are public. `outsiders` are records of the same
    kind that no party holds: an attacker could collect them elsewhere.
    """

    model: Callable[[], nn.Module]  # returns a new copy of the initial model
    tokenizer: Any
    task: Task
    training: TrainingSettings
    algorithm: Algorithm
    seed: int
    truth: Mapping[str, Truth] = field(default_factory=dict)
    outsiders: tuple[Example, ...] = ()
    imitation: Callable[[Site], nn.Module] | None = None  # the run's program at one site, if each
    # of its rounds is one step; None: comparison models are trained by local passes

    def rng(self, *names: object) -> np.random.Generator:
        """Make a generator for one purpose: the same seed gives the same report."""
        from secure_fl.seeds import seed_for

        return np.random.Generator(np.random.PCG64(seed_for(self.seed, "audit", *names)))


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of one attack on one view."""

    attack: str  # its name in the registry, such as "token bag"
    role: str  # the owner of the view
    target: str  # a party, "the sum of 3", "the released model"
    measure: str  # of `value`, such as "token recall"
    value: float | None  # None: there was nothing to work on
    chance: float  # the value of a guess
    threshold: float  # the least value of a success, fixed before anything is measured
    samples: int  # tokens, records or trials behind the value
    interval: tuple[float, float] | None = None  # at 95 %
    evidence: tuple[str, ...] = ()  # places of the frames or files it worked on
    details: Mapping[str, Any] = field(default_factory=dict)  # further figures, JSON values only
    note: str = ""  # why there was nothing to work on, or how to read the value
    could_run: bool = True  # false: values reached the role, and the attack could not use them

    @property
    def succeeded(self) -> bool:
        """True if the attack reached its threshold."""
        return self.value is not None and self.value >= self.threshold

    def at(self, **changes: Any) -> AuditFinding:
        """Copy the finding with some fields changed."""
        return replace(self, **changes)


class Verdict(StrEnum):
    """The conclusion from three findings of one attack."""

    HOLDS = "holds"  # the attack works unprotected, and not here
    LEAKS = "leaks"  # it works here
    INCONCLUSIVE = "inconclusive"  # it could not run, fails unprotected, or succeeds on the null
    UNTESTED = "not tested"  # there was nothing to run it on


class JudgedFinding(Protocol):
    """The properties of a finding on which a verdict depends."""

    @property
    def succeeded(self) -> bool:
        """True if the attack reached its threshold."""

    @property
    def could_run(self) -> bool:
        """False if values reached the role, and the attack could not use them."""


def verdict_of(
    control: JudgedFinding | None, deployed: JudgedFinding | None, null: JudgedFinding | None
) -> Verdict:
    """Judge an attack; one that was not run on all three has shown nothing."""
    if deployed is None or control is None or null is None:
        return Verdict.UNTESTED
    ran = control.could_run and deployed.could_run and null.could_run
    if not ran or not control.succeeded or null.succeeded:
        return Verdict.INCONCLUSIVE
    return Verdict.LEAKS if deployed.succeeded else Verdict.HOLDS


@dataclass(frozen=True, slots=True)
class AuditTrial:
    """One attack on one role: on the control, on the deployed run, and on the null."""

    control: AuditFinding | None
    deployed: AuditFinding | None
    null: AuditFinding | None
    reason: str = ""  # why a finding is missing

    @property
    def verdict(self) -> Verdict:
        """The verdict on the three findings."""
        return verdict_of(self.control, self.deployed, self.null)

    @property
    def attack(self) -> str:
        """The attack's name."""
        return self._any.attack

    @property
    def role(self) -> str:
        """The owner of the view."""
        return self._any.role

    @property
    def _any(self) -> AuditFinding:
        known = self.deployed or self.control or self.null
        if known is None:
            raise ValueError("a trial holds at least one finding")
        return known
