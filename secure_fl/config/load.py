"""Loading of a file and overrides into one frozen `Settings` tree, and the reverse.

    settings = load("run.toml", ["algorithm.rounds=5"])
    Federation.of(settings, folder=Path("runs/first")).run()

Every error names the file, line and field, the value that was found and the allowed values.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from secure_fl.config import toml as config_toml
from secure_fl.config.build import RunSettings as RunSettings
from secure_fl.config.build import Settings as Settings
from secure_fl.config.build import build, plain
from secure_fl.config.data import PartyData, located
from secure_fl.config.data import names as names
from secure_fl.config.toml import Key, SettingsText, Table
from secure_fl.config.validation import NONE
from secure_fl.errors import SecureFLError
from secure_fl.runs import resuming

if TYPE_CHECKING:
    from secure_fl.data.silo import Silo

# Fields that may differ between a run and its continuation.
_MOVABLE = ("run.name", "run.folder")
_PATHS = frozenset({"source", "train", "dev", "test", "public", "folder", "ledger"})


def load(path: str | Path, overrides: Iterable[str] = ()) -> Settings:
    """Read a settings file; `overrides` such as "algorithm.rounds=5" replace its values.

    Paths in the file are relative to the file, paths in overrides and `run.folder` to the current
    folder.
    """
    file = Path(path)
    tables, text = _parsed(file, overrides)
    if isinstance(run := tables.setdefault("run", {}), dict):
        run.setdefault("name", file.stem)
    return build(tables, text, file.absolute().parent)


def locate(error: SecureFLError, path: str | Path, overrides: Iterable[str] = ()) -> None:
    """Add file and line, or the option, to an error about a field that was found after reading."""
    field, where = str(error.where.get("field", "")), error.where.keys()
    of_party = "party" in where and "." not in field  # its own model, role or tier
    if field and "file" not in where and not of_party:
        _, text = _parsed(Path(path), overrides)
        error.where = text.error("", tuple(field.split("."))).where | error.where


def _parsed(file: Path, overrides: Iterable[str]) -> tuple[Table, SettingsText]:
    content = _text(file)
    tables = config_toml.parse(content, str(file))
    options: dict[Key, str] = {}
    for assignment in overrides:
        key, option = config_toml.override(tables, assignment, _from_here)
        options[key] = option
    return tables, SettingsText(str(file), config_toml.lines(content), options)


def loads(content: str, base: Path | None = None) -> Settings:
    """Read settings from text; paths are relative to `base`, or stay as they are without it."""
    tables = config_toml.parse(content, None)
    return build(tables, SettingsText(None, config_toml.lines(content)), base)


def changed(settings: Settings, overrides: Iterable[str]) -> Settings:
    """Return settings with some fields changed, each written as "algorithm.rounds=5"."""
    tables = tree(settings)
    options = dict(config_toml.override(tables, one, _from_here) for one in overrides)
    return build(tables, SettingsText(None, {}, options), None)


def dump(settings: Settings) -> str:
    """Return settings as TOML with all defaults; loading it gives equal settings."""
    return config_toml.write(tree(settings)).lstrip()


def tree(settings: Settings) -> Table:
    """Return settings as nested tables, for TOML and JSON."""
    return plain(settings)


def differences(before: Settings, after: Settings) -> list[str]:
    """List changed fields, except a run's name and folder."""
    return resuming.differences(tree(before), tree(after), _MOVABLE)


def run_folder(settings: Settings) -> Path:
    """Return the default folder of a run."""
    chosen = settings.run.folder
    return Path(chosen) if chosen else Path("runs") / settings.run.name


def silos(settings: Settings) -> list[Silo]:
    """Read all members' records; a generated host is dropped if the algorithm has no host."""
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.config.silos import read
    from secure_fl.features import resolve

    entry = ALGORITHMS[settings.algorithm.name]
    if entry.records:
        read = resolve(entry.records)
    members = read(settings.data, settings.task, settings.run.seed)
    if isinstance(settings.data, PartyData) or entry.has_host:
        return members  # `rules_of` refuses an explicit host that the algorithm does not use
    return [silo for silo in members if silo.role != "host"]


def settings_to_resume(settings: Settings, folder: Path) -> str:
    """Return a run's own settings text; refuse settings that differ in more than the parties."""
    file = folder / "settings.toml"
    resuming.require_run(file)
    before = load(file)
    same = before.data == settings.data
    old, new = (before, settings) if same else _stayed(before, settings)
    resuming.require_same(tree(old), tree(new), _MOVABLE, folder)
    return _text(file) if same else dump(settings.model_copy(update={"run": before.run}))


def _stayed(before: Settings, after: Settings) -> tuple[Settings, Settings]:
    """Reduce both settings to their common parties, if parties may join and leave.

    The host must stay: nobody else can open its sums. If all records are pooled or one source is
    distributed, nobody may join or leave, because the records of the others would change.
    """
    from secure_fl.algorithms.registry import ALGORITHMS

    old, new = before.data, after.data
    pooled = ALGORITHMS[after.algorithm.name].pools_data
    if pooled or not (isinstance(old, PartyData) and isinstance(new, PartyData)):
        return before, after
    names = {party.name for party in old.party} & {party.name for party in new.party}

    def kept(data: PartyData) -> PartyData:
        stay = [p for p in data.party if p.name in names or p.role == "host"]
        stay.sort(key=lambda party: party.name)
        return data.model_copy(update={"party": tuple(stay)})

    return (
        before.model_copy(update={"data": kept(old)}),
        after.model_copy(update={"data": kept(new)}),
    )


def _text(file: Path) -> str:
    return config_toml.read(
        file,
        "a settings file",
        missing="check the path, or create a file with secure-fl init",
        instead="give the TOML file, not the data",
    )


def _from_here(key: Key, value: str) -> str:
    """Interpret paths in overrides as relative to the current folder, as a shell does."""
    is_path = key[-1] in _PATHS or (key[-2:] == ("model", "name") and Path(value).is_dir())
    return located(value, Path.cwd()) if is_path and value not in ("", NONE) else value
