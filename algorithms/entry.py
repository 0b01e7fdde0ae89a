"""What a registry says of an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import isabstract
from typing import Any

from secure_fl.algorithms.base import Algorithm
from secure_fl.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Entry:
    """An algorithm: its settings, its party program, and what is special about it.

    Left out, a flag claims nothing: no protection that the algorithm might not give.
    """

    settings: type[Algorithm]
    program: Callable[..., Coroutine[Any, Any, None]]  # (cohort, site, settings)
    pools_data: bool = False  # a yardstick that puts all records in one place
    own_labels: bool = False  # parties may have different label sets: heads stay at home
    sums_nothing: bool = False  # nothing is ever summed
    partial_sums: bool = False  # there are sums over some parties only
    has_host: bool = False  # one member is the host, and all hold public records
    opens_predictions: bool = False  # what the host opens are predictions, which can carry noise
    dp_covers_all: bool = False  # trains by `Site.fit` alone, so DP-SGD covers all that it sends
    summary: str = ""

    def __post_init__(self) -> None:
        if isabstract(self.settings):
            lacking = ", ".join(sorted(self.settings.__abstractmethods__))
            raise SettingsError(
                f"{self.settings.__name__} does not say what it asks of a site: {lacking}",
                fix="write these methods, as `algorithms.fedavg` does: a site's limits are held "
                "against what they return",
            )

    @property
    def name(self) -> str | None:
        """The name that its settings give themselves."""
        default: str | None = self.settings.model_fields["name"].get_default()
        return default
