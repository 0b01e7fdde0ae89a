"""Algorithms of other installed packages: entry points of the group `secure_fl.algorithms`.

    [project.entry-points."secure_fl.algorithms"]
    mine = "my_package.mine:ENTRY"              # an `Entry`, whose settings are called "mine"

A package is imported when its algorithm is used, not before. Only what is installed on a machine is
ever looked up: a name that arrives in a plan imports nothing that its site has not installed.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from secure_fl.errors import SettingsError

if TYPE_CHECKING:
    from secure_fl.algorithms.base import Entry

GROUP = "secure_fl.algorithms"


def installed(taken: frozenset[str] = frozenset()) -> dict[str, EntryPoint]:
    """The algorithms of other packages by name, none of them loaded; `taken`: names of our own."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in taken or point.name in found:
            others = package_of(found[point.name]) if point.name in found else "secure_fl itself"
            raise SettingsError(
                f"two algorithms are called {point.name!r}: {package_of(point)}'s and {others}'s",
                fix=f"uninstall {package_of(point)}, or give its entry point in {GROUP} another "
                "name; nothing says which of the two a settings file means",
            )
        found[point.name] = point
    return found


def load(point: EntryPoint) -> Entry:
    """Import an algorithm of another package."""
    from secure_fl.algorithms.base import Entry

    try:
        entry = point.load()
    except Exception as error:  # whatever a package does when it is imported
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    if not isinstance(entry, Entry):
        raise _broken(point, f"{point.value} is no Entry, but of type {type(entry).__name__}")
    if entry.name != point.name:
        raise _broken(point, f"its settings are called {entry.name!r}")
    return entry


def package_of(point: EntryPoint) -> str:
    """The package that an entry point belongs to, or where it leads to."""
    return point.value if point.dist is None else point.dist.name


def _broken(point: EntryPoint, why: str) -> SettingsError:
    return SettingsError(
        f"the algorithm {point.name!r} of {package_of(point)} cannot be used: {why}",
        fix=f"mend {package_of(point)}, or uninstall it; its entry point in {GROUP} leads to an "
        f"Entry (secure_fl.algorithms.base) whose settings have name = {point.name!r}",
    )
