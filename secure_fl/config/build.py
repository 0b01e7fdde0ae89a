"""Construction of one validated `Settings` tree from TOML tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny, create_model

from secure_fl.algorithms.base import Algorithm
from secure_fl.config.data import FORMS, Data, fault, parties
from secure_fl.config.toml import SettingsText, Table
from secure_fl.config.validation import NONE, joined, nullable, section_or_errors
from secure_fl.errors import SettingsError, nearest
from secure_fl.features import load, places
from secure_fl.settings import (
    ModelSettings,
    PolicySettings,
    ProtectionSettings,
    Section,
    TaskSettings,
    TrainingSettings,
)


class RunSettings(Section):
    """Name, seed and folder of a run."""

    name: str = "run"
    seed: int = 0
    folder: str | None = None
    """Default: runs/NAME."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of a finished run. An unfinished run always has two."""
    record: bool = False
    """Record each role's view for `secure-fl audit`. These files are as confidential as the
    records."""


class RunSections(Section):
    """The sections of a run's settings that belong to no optional feature."""

    run: RunSettings = RunSettings()
    task: TaskSettings = TaskSettings()
    data: Data
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    protection: ProtectionSettings = ProtectionSettings()
    policy: PolicySettings = PolicySettings()


def with_feature_sections(base: type[Section]) -> type[Section]:
    """Add an optional section for each feature that has one, after a class's own."""
    added: dict[str, Any] = {name: (cls | None, None) for name, cls in load("settings").items()}
    return create_model(base.__name__, __base__=base, __module__=base.__module__, **added)


if TYPE_CHECKING:
    _AllSections = RunSections
else:
    _AllSections = with_feature_sections(RunSections)


class Settings(_AllSections):
    """All settings of a run."""

    algorithm: SerializeAsAny[Algorithm]
    """One of algorithms.registry.ALGORITHMS."""


_FIX = "add [{}] and below it {}; secure-fl init writes a complete file"
NEEDED = {
    "data": _FIX.format("data", 'corpus = "ade"'),
    "algorithm": _FIX.format("algorithm", 'name = "fedavg"'),
}


def build(tree: Table, text: SettingsText, base: Path | None) -> Settings:
    """Validate tables; relative paths refer to `base`, or stay as they are without it."""
    text.check_sections(tree, list(Settings.model_fields), NEEDED)
    parts: dict[str, Any] = {}
    errors: list[SettingsError] = []
    simple = {n: type(f.default) for n, f in RunSections.model_fields.items() if n != "data"}
    simple |= load("settings")
    for name in (*simple, "data", "algorithm"):
        raw = tree.get(name, {})
        if name in places("settings") and name not in tree:
            continue
        try:
            cls = simple[name] if name in simple else _CHOSEN[name](raw, text)
        except SettingsError as error:
            errors.append(error)
            continue
        part = section_or_errors(cls, raw, (name,), text, base)
        errors += part if isinstance(part, list) else []
        parts[name] = part
    if errors:
        raise joined(errors)
    settings = Settings(**{name: _place_models(part, base) for name, part in parts.items()})
    _check(settings, text)
    return settings


def plain(section: Section) -> Table:
    """Convert a section to a TOML table, with all defaults."""
    table: Table = {}
    for name, field in type(section).model_fields.items():
        value = _plain(getattr(section, name))
        if value is not None:
            table[name] = value
        elif field.default is not None and nullable(field.annotation):
            table[name] = NONE
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return plain(value)
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _data_form(raw: Table, text: SettingsText) -> type[Section]:
    names = [name for name in FORMS if name in raw]
    if len(names) == 1:
        return FORMS[names[0]]
    what = f"found {' and '.join(names)} together" if names else "no records are named"
    fix = 'set one of corpus = "...", source = "..." or tables [[data.party]]'
    raise text.error(what, ("data", *names[-1:]), fix=fix)


def algorithm_settings(raw: Table, text: SettingsText) -> type[Algorithm]:
    """Return the settings class of the algorithm that a table names."""
    from secure_fl.algorithms.registry import ALGORITHMS

    name = raw.get("name")
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name].settings
    what = "this field is missing" if name is None else f"found {name!r}"
    raise text.error(what, ("algorithm", "name"), fix=nearest(str(name), list(ALGORITHMS)))


_CHOSEN: Mapping[str, Callable[[Table, SettingsText], type[Section]]] = MappingProxyType(
    {"data": _data_form, "algorithm": algorithm_settings}
)


def _place_models(part: Any, base: Path | None) -> Any:
    """Make the folders of models absolute, anywhere in a section."""
    if base is None:
        return part
    if isinstance(part, ModelSettings):
        folder = base / Path(part.name).expanduser()
        is_folder = part.name != "tiny" and folder.is_dir()
        return part.model_copy(update={"name": str(folder)}) if is_folder else part
    if isinstance(part, tuple):
        return tuple(_place_models(entry, base) for entry in part)
    if isinstance(part, Section):
        inner = {name: getattr(part, name) for name in type(part).model_fields}
        return part.model_copy(update={n: _place_models(v, base) for n, v in inner.items()})
    return part


def _check(settings: Settings, text: SettingsText) -> None:
    """Check rules that concern several sections."""
    if data_fault := fault(settings.data):
        key, what = data_fault
        raise text.error(what, ("data", *key))
    from secure_fl.algorithms.registry import ALGORITHMS

    if ALGORITHMS[settings.algorithm.name].sums_nothing:  # the rules below are about sums
        return
    protection, everyone = settings.protection, parties(settings.data)
    count = len(everyone)
    shown = ", ".join(everyone[:8]) + (", ..." if len(everyone) > 8 else "")
    who = f"{count} part{'y' if count == 1 else 'ies'} ({shown})"
    if protection.min_cohort > count:
        what = f"found {protection.min_cohort} with {who}: no sum could ever be opened"
        fix = (
            f"add parties, or set min_cohort = {count} deliberately: a sum over one hospital is "
            "its update, and from a sum over two each computes the other's update"
        )
        raise text.error(what, ("protection", "min_cohort"), fix=fix)
    if protection.threshold is not None and protection.threshold > count:
        what = f"found {protection.threshold} with {who}: no sum could ever be opened"
        fix = f"set 1 to {count}, or remove it for the default"
        raise text.error(what, ("protection", "threshold"), fix=fix)
