"""The registry: every algorithm by the name that settings files use.

Settings are read without torch. An algorithm's program needs torch, and is imported when it runs.

Plug-ins are entry points of the group `secure_fl.algorithms`, such as `mine = "my_package:ENTRY"`
for an `Entry` whose settings are called "mine". A package is imported when its algorithm is used.
Only installed packages are searched, so a plan cannot import anything that a site does not have.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from secure_fl.algorithms.base import Algorithm, Entry, Program, deferred
from secure_fl.algorithms.baselines.reference_points import (
    AllLarge,
    AllSmall,
    Centralized,
    ExclusiveFL,
    Local,
    exclusivefl,
    local,
    one_size,
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
from secure_fl.algorithms.inclusivefl.settings import InclusiveFL, Tiered
from secure_fl.algorithms.probe import Probe
from secure_fl.algorithms.settings import (
    Averaging,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedExP,
    FedProx,
    FedSGD,
    FedYogi,
    PublicDistillation,
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


ADAPTERS = ("lora", "ffa", "dora")  # these are averaged, or taught, like any other weights


def _averaging(settings: type[Averaging], summary: str, **properties: Any) -> Entry:
    """Make the entry of a relative of FedAvg."""
    usual: dict[str, Any] = {"own_labels": True, "dp_covers_all": True, "undoable": ""}
    program = _program("fedavg:fedavg")
    return Entry(settings, program, summary=summary, **usual | {"adapters": ADAPTERS} | properties)


def _distilling(
    settings: type[PublicDistillation], place: str, summary: str, *, opens_predictions: bool = True
) -> Entry:
    """Make the entry of an algorithm over public records."""
    return Entry(
        settings,
        _program(place),
        has_host=True,
        opens_predictions=opens_predictions,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary=summary,
    )


def _tiered(
    settings: type[Tiered], program: Program, summary: str, *, undoable: str | None = ""
) -> Entry:
    """Make the entry of an algorithm with tiers of depth."""
    return Entry(
        settings,
        program,
        own_labels=True,
        partial_sums=True,
        dp_covers_all=True,
        undoable=undoable,
        adapters=ADAPTERS,
        summary=summary,
    )


def _program(place: str) -> Program:
    return deferred(f"secure_fl.algorithms.{place}")


BUILT_IN: Mapping[str, Entry] = {
    "fedavg": _averaging(
        FedAvg, "mean of the parties' model updates", adapters=(*ADAPTERS, "exact")
    ),
    "fedadam": _averaging(FedAdam, "FedAvg with Adam as the server's step"),
    "fedyogi": _averaging(FedYogi, "FedAvg with Yogi as the server's step"),
    "fedavgm": _averaging(FedAvgM, "FedAvg with momentum as the server's step"),
    "fedexp": _averaging(
        FedExP,
        "FedAvg whose server's step grows where updates differ",
        dp_covers_all=False,
        without_dp="noise adds to the norms of updates, so the server's step would follow it",
    ),
    "fedprox": _averaging(FedProx, "FedAvg whose local steps are pulled to the shared model"),
    "scaffold": _averaging(
        Scaffold,
        "FedAvg with control variates against drift; twice the bytes",
        dp_covers_all=False,
        without_dp="control variates carry the noise of one round into all steps of the next",
    ),
    "fedsgd": Entry(
        FedSGD,
        _program("fedsgd:fedsgd"),
        dp_covers_all=True,
        adapters=("lora", "ffa"),
        summary="one sum for each step; with shared noise, DP as if records were pooled",
    ),
    "feddropout": Entry(
        FedDropout,
        _program("baselines.feddropout:feddropout"),
        dp_covers_all=True,
        undoable="",
        summary="a random sub-model is trained and summed in each round",
    ),
    "fetchsgd": Entry(
        FetchSGD,
        _program("baselines.fetchsgd:fetchsgd"),
        dp_covers_all=True,
        undoable="",
        summary="count sketches of the updates; momentum and error inside the sketch",
    ),
    "fedkd": Entry(
        FedKD,
        _program("fedkd.algorithm:fedkd"),
        own_labels=True,
        dp_covers_all=True,
        undoable="student",
        adapters=ADAPTERS,
        summary="parties keep large teachers and send a small student in sealed factors",
    ),
    "fedid": _distilling(
        FedID,
        "fedid.algorithm:fedid",
        "predictions on public records, and a host that shows which of them helped",
    ),
    "dsfl": _distilling(
        DSFL,
        "baselines.distillation:dsfl",
        "mean predictions, sharpened, teach the host and the parties",
    ),
    "mhat": _distilling(
        MHAT,
        "baselines.distillation:mhat",
        "votes teach the host's model, its predictions the parties",
    ),
    "gong": _distilling(
        Gong,
        "baselines.distillation:gong",
        "one exchange: the host learns the mean of all logits (FedKD by Gong et al.)",
        opens_predictions=False,
    ),
    "feded": _distilling(
        FedED, "baselines.distillation:feded", "predictions go up, the host's model comes down"
    ),
    "feddf": _distilling(
        FedDF,
        "baselines.distillation:feddf",
        "FedAvg, then the host distils the mean of predictions into the mean",
        opens_predictions=False,
    ),
    "heterofl": Entry(
        HeteroFL,
        _program("baselines.heterofl:heterofl"),
        own_labels=True,
        partial_sums=True,
        summary="hospitals with less memory train narrower slices of the model",
    ),
    "inclusivefl": _tiered(
        InclusiveFL,
        _program("inclusivefl.algorithm:inclusivefl"),
        "models of different depth share their lower layers, and learn from larger ones",
    ),
    "alllarge": _tiered(AllLarge, one_size, "every party trains the largest tier's model"),
    "allsmall": _tiered(AllSmall, one_size, "every party trains the smallest tier's model"),
    "exclusivefl": _tiered(
        ExclusiveFL, exclusivefl, "only the parties of the largest tier take part", undoable=None
    ),
    "probe": Entry(
        Probe,
        _program("probe.algorithm:probe"),
        dp_covers_all=True,
        summary="a linear model on fixed features of a frozen encoder; seconds",
    ),
    "local": Entry(
        Local,
        local,
        own_labels=True,
        sums_nothing=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="every party trains alone; nothing is sent",
    ),
    "centralized": Entry(
        Centralized,
        local,
        pools_data=True,
        sums_nothing=True,
        dp_covers_all=True,
        adapters=ADAPTERS,
        summary="all records in one place, for comparison",
    ),
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
