"""The registry: every algorithm by the name that settings files use.

Settings are read without torch. An algorithm's program, which needs torch, is imported when it
runs, and a plug-in's package when it is looked up.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint

from secure_fl.algorithms.base import Algorithm, Entry
from secure_fl.algorithms.baselines.reference_points import (
    AllLarge,
    AllSmall,
    Centralized,
    ExclusiveFL,
    Local,
)
from secure_fl.algorithms.baselines.settings import (
    DSFL,
    MHAT,
    FedDF,
    FedDropout,
    FedED,
    FetchSGD,
    Gong,
    HeteroFL,
)
from secure_fl.algorithms.fedid import FedID
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.algorithms.plugins import GROUP, installed, load
from secure_fl.algorithms.settings import FedAdam, FedAvg
from secure_fl.errors import SettingsError
from secure_fl.features import load as load_features

__all__ = ["ALGORITHMS", "BUILT_IN", "Entry", "Registry", "entry_of"]

BUILT_IN: Mapping[str, Entry] = {
    "fedavg": FedAvg.entry(),
    "fedadam": FedAdam.entry(),
    "feddropout": FedDropout.entry(),
    "fetchsgd": FetchSGD.entry(),
    "fedkd": FedKD.entry(),
    "fedid": FedID.entry(),
    "dsfl": DSFL.entry(),
    "mhat": MHAT.entry(),
    "gong": Gong.entry(),
    "feded": FedED.entry(),
    "feddf": FedDF.entry(),
    "heterofl": HeteroFL.entry(),
    "inclusivefl": InclusiveFL.entry(),
    "alllarge": AllLarge.entry(),
    "allsmall": AllSmall.entry(),
    "exclusivefl": ExclusiveFL.entry(),
    "local": Local.entry(),
    "centralized": Centralized.entry(),
    **{str(entry.name): entry for entry in load_features("algorithm").values()},
}


class Registry(UserDict[str, Entry]):
    """The built-in algorithms, and plug-ins, which are loaded on first use."""

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """The entry points of other packages, found on first use."""
        return installed(frozenset(BUILT_IN))

    def __getitem__(self, name: str) -> Entry:
        if name in self.plugins and name not in self.data:
            self.data[name] = load(self.plugins[name])
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.plugins or name in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data | self.plugins)

    def __len__(self) -> int:
        return len(self.data | self.plugins)


ALGORITHMS = Registry(BUILT_IN)


def entry_of(algorithm: Algorithm) -> Entry:
    """Return the entry of these settings: the registry's, or that of their class."""
    name, cls = algorithm.name, type(algorithm)
    entry = cls.entry()
    if entry is not None and entry.name != name:
        entry = None  # a base class's
    if name not in ALGORITHMS:
        if entry is not None:
            return entry
        raise SettingsError(
            f"there is no algorithm {name!r}: {cls.__name__} is not registered",
            fix=f"let {cls.__name__}.entry() return its Entry, which is enough for use in Python; "
            f"or register the Entry by an entry point of the group {GROUP}, which settings files "
            "and commands need too",
            field="algorithm.name",
        )
    if entry is not None and entry.settings is not ALGORITHMS[name].settings:
        raise SettingsError(
            f"another algorithm is registered as {name!r}, and {cls.__name__} has an entry of its "
            "own",
            fix="give it another name",
            field="algorithm.name",
        )
    return ALGORITHMS[name]
