"""The three types of examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """A text or a pair of texts with a class, a score or several labels (`None`: unlabelled).

    An empty tuple is a record that was read and has no label. For completion: a prompt, with its
    completion as the pair.
    """

    id: str
    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence of tokens with IOB2 tags (`None`: unlabelled)."""

    id: str
    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Impression:
    """One page shown to a reader: titles read before, titles offered, which were clicked."""

    id: str
    history: tuple[str, ...]
    candidates: tuple[str, ...]
    clicks: tuple[bool, ...]


Example: TypeAlias = Text | Tagged | Impression
