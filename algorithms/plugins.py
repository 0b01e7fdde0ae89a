"""Plug-in algorithms: entry points of the group `secure_fl.algorithms` in installed packages.

    [project.entry-points."secure_fl.algorithms"]
    mine = "my_package.mine:ENTRY"              # an `Entry`, whose settings are called "mine"

A package is imported when its algorithm is used, not before. Only installed packages are searched,
so a name in a plan cannot import anything that the site has not installed.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from secure_fl.errors import SettingsError

if TYPE_CHECKING:
    from secure_fl.algorithms.base import Entry

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
    from secure_fl.algorithms.base import Entry

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
