"""One hospital's records, and what it brings to a federation: plain data that anyone can make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from secure_fl.data.examples import Example
from secure_fl.data.public import without_labels
from secure_fl.errors import DataError
from secure_fl.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class Silo:
    """One hospital: its name, its records, and what it brings to the federation."""

    name: str
    train: Sequence[Example]
    dev: Sequence[Example] = ()
    test: Sequence[Example] = ()
    role: Literal["party", "host"] = "party"
    tier: str | None = None
    model: ModelSettings | None = None  # its own architecture, where an algorithm allows that
    public: Sequence[Example] = ()  # D⁰, the same at all members; labels are taken off

    def __post_init__(self) -> None:
        if not self.train:
            raise DataError(
                "the training split is empty",
                fix="give more records, or smaller shares for dev and test",
                party=self.name,
                field="train",
            )
        object.__setattr__(self, "public", without_labels(self.public))
