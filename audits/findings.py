"""What every attack takes and gives: a view, what is known beforehand, a finding; and the gate.

An attack is a function `(view, prior) -> AuditFinding`. The type of the view is the threat model:
an attack that needs what a role did not see cannot be written down for it. A finding says how well
the attack did, against what guessing would give; whether that counts is decided in advance, by the
threshold it was made with, and in the end by the control gate.

The gate: each attack runs on an unprotected run, on the deployed one, and on a null in which there
is nothing to be found. "Nothing was found" counts only where the same attack finds something
unprotected and finds nothing in the null; otherwise the attack is broken or too weak, and the
verdict says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.data.examples import Example

if TYPE_CHECKING:
    from torch import nn

    from secure_fl.algorithms.base import Algorithm
    from secure_fl.capture.coordinator_view import CapturedFrame
    from secure_fl.capture.merging import Source
    from secure_fl.learning.tasks import Task
    from secure_fl.settings import TrainingSettings

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Values that a role could read: of whom, when, and from which bytes.

    `values` are means over records: named as the model names its weights where they are moves of
    weights, shaped as those are.
    """

    of: tuple[str, ...]  # one party, or several: then only their sum could be read
    round: int
    values: Arrays
    evidence: tuple[str, ...] = ()  # digests of the frames it was read from
    sources: Mapping[str, Source] = field(default_factory=dict)  # by name: which sum it was read of


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """All bytes and metadata on the coordinator's wires, and what it could read of them."""

    role: str
    readings: tuple[Reading, ...] = ()
    frames: Sequence[CapturedFrame] = ()


@dataclass(frozen=True, slots=True)
class PartyView:
    """What one party was told: sums, and what others shared with all."""

    role: str
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class HostView:
    """What the host was told: sums of predictions."""

    role: str
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class CollusionView:
    """What several roles have together, the coordinator's wires among it or not."""

    role: str
    readings: tuple[Reading, ...] = ()
    frames: Sequence[CapturedFrame] = ()


@dataclass(frozen=True, slots=True)
class PublicView:
    """What is published: the released model, which answers whoever asks."""

    role: str
    model: nn.Module
    evidence: tuple[str, ...] = ()  # the digest of the model's file


View: TypeAlias = CoordinatorView | PartyView | HostView | CollusionView
"""What reads values that others sent."""


@dataclass(frozen=True, slots=True)
class Truth:
    """One party's own records. Guesses are scored by them; no attack reads them before."""

    party: str
    records: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Prior:
    """What every attacker knows before it sees anything, and the truth it is judged by.

    The program, its settings and the initial model are public. `outsiders` are records that no
    party holds, of the same kind: what an attacker could collect elsewhere.
    """

    model: Callable[[], nn.Module]  # a fresh one, as all parties begin with
    tokenizer: Any
    task: Task
    training: TrainingSettings
    algorithm: Algorithm
    seed: int
    truth: Mapping[str, Truth] = field(default_factory=dict)
    outsiders: tuple[Example, ...] = ()

    def rng(self, *names: object) -> np.random.Generator:
        """Randomness for one purpose: the same seed gives the same report."""
        from secure_fl.seeds import seed_for

        return np.random.Generator(np.random.PCG64(seed_for(self.seed, "audit", *names)))


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What one attack came to, on one view."""

    attack: str  # its name in the registry, such as "token bag"
    role: str  # whose view it had
    target: str  # whom it was about: a party, "the sum of 3", "the released model"
    measure: str  # what `value` is, such as "token recall"
    value: float | None  # None: there was nothing that it could have worked on
    chance: float  # what guessing gives
    threshold: float  # from here on it counts as success; fixed before anything is measured
    samples: int  # what the value was measured over: tokens, records, trials
    interval: tuple[float, float] | None = None  # at 95 %
    evidence: tuple[str, ...] = ()  # digests of the frames or files it worked on
    details: Mapping[str, Any] = field(default_factory=dict)  # further figures, JSON values only
    note: str = ""  # why there was nothing to work on, or how to read the value

    @property
    def succeeded(self) -> bool:
        """Whether the attack reached its threshold."""
        return self.value is not None and self.value >= self.threshold

    def at(self, **changes: Any) -> AuditFinding:
        """The same finding, with some fields changed."""
        return replace(self, **changes)


class Verdict(StrEnum):
    """What three findings of one attack say together."""

    HOLDS = "holds"  # it works unprotected, and not here
    LEAKS = "leaks"  # it works here
    INCONCLUSIVE = "inconclusive"  # it does not even work unprotected, or works on nothing
    UNTESTED = "not tested"  # there was nothing it could be run on


@dataclass(frozen=True, slots=True)
class AuditTrial:
    """One attack on one role: on the control, on what is deployed, and on the null."""

    control: AuditFinding | None
    deployed: AuditFinding | None
    null: AuditFinding | None
    reason: str = ""  # why a finding is missing

    @property
    def verdict(self) -> Verdict:
        """Judge; an attack that was not run on all three has shown nothing."""
        if self.deployed is None or self.control is None or self.null is None:
            return Verdict.UNTESTED
        if not self.control.succeeded or self.null.succeeded:
            return Verdict.INCONCLUSIVE
        return Verdict.LEAKS if self.deployed.succeeded else Verdict.HOLDS

    @property
    def attack(self) -> str:
        """The attack's name."""
        return self._any.attack

    @property
    def role(self) -> str:
        """Whose view it had."""
        return self._any.role

    @property
    def _any(self) -> AuditFinding:
        found = self.deployed or self.control or self.null
        if found is None:
            raise ValueError("a trial holds at least one finding")
        return found
