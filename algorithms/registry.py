"""The registry: every algorithm by the name that settings files use.

Settings are read without torch. An algorithm's program, which needs torch, is imported when it
runs.

Plug-ins are entry points of the group `secure_fl.algorithms` in installed packages:

    [project.entry-points."secure_fl.algorithms"]
    mine = "my_package.mine:ENTRY"              # an `Entry`, whose settings are called "mine"

A package is imported when its algorithm is used, not before. Only installed packages are searched,
so a name in a plan cannot import anything that the site has not installed.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

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
from secure_fl.algorithms.probe import Probe
from secure_fl.algorithms.settings import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedExP,
    FedProx,
    FedSGD,
    FedYogi,
    Scaffold,
)
from secure_fl.errors import SettingsError
from secure_fl.features import load as load_features

__all__ = ["ALGORITHMS", "BUILT_IN", "Entry", "Registry", "entry_of"]

GROUP = "secure_fl.algorithms"


def installed(built_in: frozenset[str] = frozenset()) -> dict[str, EntryPoint]:
    """Find the algorithms of other packages by name, without loading them."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in built_in or point.name in points:
            others = package_of(points[point.name]) if point.name in points else "secure_fl itself"
            raise SettingsError(
                f"two algorithms are called {point.name!r}: {package_of(point)}'s and {others}'s",
                fix=f"uninstall {package_of(point)}, or give its entry point in {GROUP} another "
                "name, since settings files cannot tell the two apart",
            )
        points[point.name] = point
    return points


def load(point: EntryPoint) -> Entry:
    """Import an algorithm of another package."""
    try:
        entry = point.load()
    except Exception as error:  # imports of other packages can fail in any way
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    if not isinstance(entry, Entry):
        raise _broken(point, f"{point.value} is of type {type(entry).__name__}, not Entry")
    if entry.name != point.name:
        raise _broken(point, f"its settings are called {entry.name!r}")
    return entry


def package_of(point: EntryPoint) -> str:
    """Return the entry point's package, or its target if the package is unknown."""
    return point.value if point.dist is None else point.dist.name


def _broken(point: EntryPoint, why: str) -> SettingsError:
    return SettingsError(
        f"the algorithm {point.name!r} of {package_of(point)} cannot be used: {why}",
        fix=f"repair or uninstall {package_of(point)}; its entry point in {GROUP} must be an Entry "
        f"(secure_fl.algorithms.base) whose settings have name = {point.name!r}",
    )


BUILT_IN: Mapping[str, Entry] = {
    "fedavg": FedAvg.entry(),
    "fedadam": FedAdam.entry(),
    "fedyogi": FedYogi.entry(),
    "fedavgm": FedAvgM.entry(),
    "fedexp": FedExP.entry(),
    "fedprox": FedProx.entry(),
    "scaffold": Scaffold.entry(),
    "fedsgd": FedSGD.entry(),
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
    "probe": Probe.entry(),
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
