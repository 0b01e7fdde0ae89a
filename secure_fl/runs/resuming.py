"""Checks that a resumed run has the settings that it began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from secure_fl.errors import RunError

Tree = Mapping[str, Any]


def require_run(settings: Path) -> None:
    """Refuse to resume a run that did not begin."""
    if not settings.exists():
        fix = "start it without --resume, or name its folder with --out"
        raise RunError(
            "there is no run to resume here", fix=fix, file=settings.parent, reason="missing"
        )


def require_same(before: Tree, after: Tree, ignored: tuple[str, ...], folder: Path) -> None:
    """Refuse different settings, and name each of them."""
    if changed := differences(before, after, ignored):
        what = "the settings are not those this run began with:\n  " + "\n  ".join(changed)
        fix = "put these back to resume, or start a new run in another folder"
        raise RunError(what, fix=fix, file=folder, reason="other-settings")


def differences(before: Tree, after: Tree, ignored: tuple[str, ...]) -> list[str]:
    """List differing fields with both values, except those with an ignored prefix."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return [
        f"{name}: {old.get(name, 'nothing')} -> {new.get(name, 'nothing')}"
        for name in {**old, **new}
        if old.get(name) != new.get(name) and not name.startswith(ignored)
    ]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        for index, entry in enumerate(value):
            yield from _flat(entry, f"{name}.{index + 1}")
    else:
        yield name, value
