"""Typed TOML: from a file and overrides to one frozen `Settings` tree, and back.

    settings = load("run.toml", ["algorithm.rounds=5"])
    Federation.of(settings, folder=Path("runs/first")).run()

Every error names the file, the line, the field, what was found and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from secure_fl.config import toml as config_toml
from secure_fl.config.build import RunSettings, Settings, build, plain
from secure_fl.config.data import PartyData, PartyFiles, located, names
from secure_fl.config.errors import NONE
from secure_fl.config.toml import Key, Table, Text
from secure_fl.runs import resuming

if TYPE_CHECKING:
    from secure_fl.data.silo import Silo

__all__ = [
    "RunSettings",
    "Settings",
    "changed",
    "differences",
    "dump",
    "load",
    "loads",
    "names",
    "run_folder",
    "settings_to_resume",
    "silos",
    "tree",
]

# Where a run and its continuation may differ.
_MOVABLE = ("run.name", "run.folder")
_PATHS = frozenset({"source", "train", "dev", "test", "public", "folder"})


def load(path: str | Path, overrides: Iterable[str] = ()) -> Settings:
    """Read a settings file; `overrides` are like "algorithm.rounds=5" and win over it.

    Paths in the file are relative to it, paths in overrides to the current folder.
    """
    file = Path(path)
    content = _text(file)
    tables = config_toml.parse(content, str(file))
    options: dict[Key, str] = {}
    for assignment in overrides:
        key, option = config_toml.override(tables, assignment, _from_here)
        options[key] = option
    if isinstance(run := tables.setdefault("run", {}), dict):
        run.setdefault("name", file.stem)
    text = Text(str(file), config_toml.lines(content), options)
    return build(tables, text, file.absolute().parent)


def loads(content: str, base: Path | None = None) -> Settings:
    """Read settings from a text; paths are relative to `base`, or stay as they are."""
    tables = config_toml.parse(content, None)
    return build(tables, Text(None, config_toml.lines(content)), base)


def changed(settings: Settings, overrides: Iterable[str]) -> Settings:
    """The same settings but for these fields, which are written like "algorithm.rounds=5"."""
    tables = tree(settings)
    options = dict(config_toml.override(tables, one, _from_here) for one in overrides)
    return build(tables, Text(None, {}, options), None)


def dump(settings: Settings) -> str:
    """Write settings as TOML that loads back equal, all defaults included."""
    return config_toml.write(tree(settings)).lstrip()


def tree(settings: Settings) -> Table:
    """Give settings as nested tables, as TOML and JSON hold them."""
    return plain(settings)


def differences(before: Settings, after: Settings) -> list[str]:
    """List what changed, for a resume that is refused; where a run lies does not matter."""
    return resuming.differences(tree(before), tree(after), _MOVABLE)


def run_folder(settings: Settings) -> Path:
    """Where a run goes unless somebody says otherwise."""
    chosen = settings.run.folder
    return Path(chosen) if chosen else Path("runs") / settings.run.name


def silos(settings: Settings) -> list[Silo]:
    """Read every member's records, without a made host that the algorithm has no use for."""
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.config.silos import read

    found = read(settings.data, settings.task, settings.run.seed)
    if isinstance(settings.data, PartyData) or ALGORITHMS[settings.algorithm.name].has_host:
        return found  # who names a host means it: `rules_of` says if there is no use for one
    return [silo for silo in found if silo.role != "host"]


def settings_to_resume(settings: Settings, folder: Path) -> str:
    """Give a run's settings as they were written, unless these differ in more than parties."""
    file = folder / "settings.toml"
    resuming.require_run(file)
    before = load(file)
    same = before.data == settings.data
    old, new = (before, settings) if same else _stayed(before, settings)
    resuming.require_same(tree(old), tree(new), _MOVABLE, folder)
    return _text(file) if same else dump(settings.model_copy(update={"run": before.run}))


def _stayed(before: Settings, after: Settings) -> tuple[Settings, Settings]:
    """Give both with the parties that are in both, or as they are where nobody may come or go.

    A host may not: what it opens, nobody else does. Nor may anybody where all records are pooled,
    or where one source is spread over the parties: the others' records would change.
    """
    from secure_fl.algorithms.registry import ALGORITHMS

    old, new = before.data, after.data
    pooled = ALGORITHMS[after.algorithm.name].pools_data
    if pooled or not (isinstance(old, PartyData) and isinstance(new, PartyData)):
        return before, after
    names = {party.name for party in old.party} & {party.name for party in new.party}

    def kept(data: PartyData) -> PartyData:
        def name(party: PartyFiles) -> str:
            return party.name

        stay = (p for p in data.party if p.name in names or p.role == "host")
        return data.model_copy(update={"party": tuple(sorted(stay, key=name))})

    return (
        before.model_copy(update={"data": kept(old)}),
        after.model_copy(update={"data": kept(new)}),
    )


def _text(file: Path) -> str:
    return config_toml.read(
        file,
        "a settings file",
        missing="check the path, or let secure-fl init write one",
        instead="give the TOML file, not the data",
    )


def _from_here(key: Key, value: str) -> str:
    """Take an override's paths as the shell does: relative to the current folder."""
    is_path = key[-1] in _PATHS or (key[-2:] == ("model", "name") and Path(value).is_dir())
    return located(value, Path.cwd()) if is_path and value not in ("", NONE) else value
