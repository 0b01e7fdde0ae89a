"""A hospital's own file: what it lets a coordinator ask for, where its records and keys are.

    [site]                  the policy; what is not allowed in so many words is refused
    [[data.set]]            the names that a plan may use, and this site's files behind them
    [keys]                  the folder of `secure-fl keys`

The file never leaves the site and no message changes it; `policy.rules` compares plans with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from secure_fl.config import toml as config_toml
from secure_fl.config.data import HUB, Fraction, PartyName, Source
from secure_fl.config.toml import Key, SettingsText, Table
from secure_fl.config.validation import validate
from secure_fl.data.rows import Columns
from secure_fl.errors import SettingsError
from secure_fl.policy.site_rules import with_feature_fields
from secure_fl.settings import Positive, PositiveReal, Protection, Section


def _known(name: str) -> str:
    """Take a registered algorithm's name; none that would put records in one place."""
    from secure_fl.algorithms.registry import ALGORITHMS

    if name not in ALGORITHMS or ALGORITHMS[name].pools_data:
        allowed = [known for known, entry in ALGORITHMS.items() if not entry.pools_data]
        raise PydanticCustomError("algorithm", "{names}", {"names": ", ".join(allowed)})
    return name


def is_fingerprint(text: str) -> bool:
    """Check that a text is a fingerprint as `secure-fl keys show` prints it."""
    groups = text.split()
    return len(groups) == 8 and all(g.isascii() and g.isdigit() and len(g) == 5 for g in groups)


def _spoken(text: str) -> str:
    if not is_fingerprint(text):
        raise PydanticCustomError("fingerprint", "eight groups of five digits")
    return " ".join(text.split())


def _day(value: object) -> object:
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise PydanticCustomError("day", "a day, as in 2027-03-31") from None


AlgorithmName: TypeAlias = Annotated[str, AfterValidator(_known)]
Fingerprint: TypeAlias = Annotated[str, AfterValidator(_spoken)]
Day: TypeAlias = Annotated[date, BeforeValidator(_day)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Share: TypeAlias = Annotated[float, Field(gt=0.5, le=1)]
Probability: TypeAlias = Annotated[float, Field(gt=0, lt=1)]


class DPLimits(Section):
    """Limits for DP-SGD on this site's records. They apply even if DP is not required.

    The ledger enforces `max_epsilon`; a run's target only determines the noise.
    """

    required: bool = True
    max_epsilon: PositiveReal = 1.0
    """Maximum of training.dp.epsilon, the ledger's budget."""
    max_target_epsilon: PositiveReal | None = None
    """Maximum of one run's target. Default: max_epsilon."""
    max_delta: Probability = 1e-5
    min_colluders: Annotated[int, Field(ge=0)] = 1
    """Minimum number of colluding sites that shared noise must tolerate."""
    own_epsilon: PositiveReal | None = None
    """A run may cost this site's records this ε at most. The site adds more noise, or more than its
    share, if the plan's target is larger. Default: the plan's target."""
    unit: Literal["record", "patient"] = "patient"
    """record: both units are allowed."""


class NoiseLimits(Section):
    """Required noise on predictions before another site, as host, opens their sum."""

    required: bool = True
    """Noise is required if another site is the host."""
    max_epsilon: PositiveReal = 1.0
    """Maximum of protection.noise.epsilon, the ledger's budget."""
    max_target_epsilon: PositiveReal | None = None
    """Maximum of one run's target. Default: max_epsilon."""
    max_delta: Probability = 1e-5
    min_colluders: Annotated[int, Field(ge=0)] = 1
    """Minimum number of colluding sites that the noise must tolerate."""


class ApprovalRule(Section):
    """People who approve a plan and these rules, each with their own key."""

    by: Annotated[tuple[Fingerprint, ...], Field(min_length=1)]
    """Fingerprints of the cards of the people who may approve."""
    least: Positive = 1
    """Number of approvals that a plan needs."""

    @model_validator(mode="after")
    def _enough(self) -> ApprovalRule:
        if len(set(self.by)) < self.least:
            raise ValueError("at least as many different fingerprints in by as least says")
        return self


class OwnFields(Section):
    """The fields of [site] that belong to no optional feature."""

    algorithms: tuple[AlgorithmName, ...] = ()
    """Algorithms that a plan may use."""
    caveats: tuple[AlgorithmName, ...] = ()
    """Algorithms that may show hospitals more than sums, such as FedKD with per_party."""
    protection: Protection = "he+secagg"
    """Minimum protection of sums."""
    min_cohort: Positive = 3
    """Minimum number of hospitals in a sum."""
    threshold_share: Share = 2 / 3
    """Minimum fraction of the hospitals that must remain to open a sum."""
    bits: tuple[Literal[4, 6, 8, 12, 16, 24], ...] = (8,)
    rosters: tuple[Fingerprint, ...] = ()
    """Allowed rosters, by fingerprint as `secure-fl keys show` prints it."""
    hosts: tuple[PartyName, ...] = ()
    """Other sites that may be the host."""
    may_be_host: bool = False
    """This site may be the host."""
    datasets: tuple[PartyName, ...] = ()
    """Names of [[data.set]] that a plan may use."""
    models: tuple[Name, ...] = ()
    """"tiny", or names exactly as in the plan."""
    frozen_embeddings: bool = True
    """Embeddings must be frozen: changed rows would show which words this hospital uses."""
    max_rounds: Positive = 10
    """Maximum number of exchanges; each gradient step of FedKD counts as one."""
    max_epochs: Positive = 3
    """Maximum passes in a round or for a personal model, over own or public records."""
    max_steps: Positive = 100
    """Maximum steps of a round, for algorithms that count steps."""
    max_batch: Positive = 256
    """Maximum records or patients in memory at once, in training or evaluation."""
    max_values: Positive = 500_000_000
    """Maximum values of all trained models together, or of a sketch: limits memory."""
    recording: bool = False
    """Views of all roles may be recorded for audits. They are as confidential as the records."""
    not_before: Day | None = None
    """First allowed day, in UTC."""
    until: Day | None = None
    """Last allowed day, in UTC. Default: none; no run is allowed."""
    dp: DPLimits = DPLimits()
    noise: NoiseLimits = NoiseLimits()
    approval: ApprovalRule | None = None
    """Default: none; a plan within these rules needs no approval."""
    retention_days: Positive | None = None
    """Days after a run's last event until `site erase` deletes it."""


if TYPE_CHECKING:
    _AllFields = OwnFields
else:
    _AllFields = with_feature_fields(OwnFields)


class SitePolicy(_AllFields):
    """Rules for plans at this site. By default lists are empty and limits are strict."""


class DataSet(Section):
    """Files of one data set. Other sites never see them."""

    name: PartyName
    train: Source | None = None
    """Default: none; the test records serve evaluations and codebooks only."""
    dev: Source | Fraction = 0.1
    """A file, or a fraction of the training records."""
    test: Source | Fraction = 0.2
    """A file, or a fraction of the training records."""
    public: Source | None = None
    """Records that all members hold; labels are not read."""
    format: str | None = None
    columns: Columns = Columns()


class SiteData(Section):
    """The data sets of a site."""

    set: tuple[DataSet, ...] = ()


class KeysSettings(Section):
    """Folders of a site's keys and privacy ledger."""

    folder: Source = "keys"
    ledger: Source = "ledger"
    """Folder of the privacy ledger: the cost of all runs on this site's records. Training,
    codebooks and evaluations have budgets of their own, which add up."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A hospital's file, read and checked."""

    file: Path
    policy: SitePolicy
    sets: Mapping[str, DataSet]
    keys: Path
    ledger: Path


def load_site(path: str | Path) -> SiteFile:
    """Read a hospital's file; paths in it are relative to it."""
    file = Path(path)
    content = _text(file)
    tree = config_toml.parse(content, str(file))
    text = SettingsText(str(file), config_toml.lines(content))
    fix = 'add [site] and below it algorithms = ["fedavg"]; without it nothing is allowed'
    text.check_sections(tree, ("site", "data", "keys"), {"site": fix})
    _days_as_text(tree)
    for key, found in config_toml.odd_values(tree):
        raise text.error(f"{found}; no field takes that", key)
    base = file.absolute().parent
    policy = validate(SitePolicy, tree["site"], ("site",), text, base)
    data = validate(SiteData, tree.get("data", {}), ("data",), text, base)
    keys = validate(KeysSettings, tree.get("keys", {}), ("keys",), text, base)
    _check_sets(policy, data.set, text)
    sets = MappingProxyType({found.name: found for found in data.set})
    return SiteFile(file, policy, sets, Path(keys.folder), Path(keys.ledger))


def _text(file: Path) -> str:
    missing = "check the path; without a policy nothing is allowed"
    text = config_toml.read(file, "a policy", missing=missing, instead="give the site's TOML file")
    if os.name == "posix" and file.stat().st_mode & 0o002:
        what, fix = "everybody on this machine may change it", "chmod o-w it, and read it again"
        raise SettingsError(what, fix=fix, file=str(file))
    return text


def _days_as_text(tree: Table) -> None:
    """Let days stand in the file as TOML's own dates, which pass through JSON as text."""
    for name in ("not_before", "until"):
        if isinstance(value := tree["site"].get(name), date):
            tree["site"][name] = value.isoformat()


def _check_sets(policy: SitePolicy, sets: tuple[DataSet, ...], text: SettingsText) -> None:
    """Look at what concerns several fields: names, and the files behind them."""
    names: list[str] = []
    files: dict[str, str] = {}
    for index, found in enumerate(sets):
        key: Key = ("data", "set", index)
        if found.name in names:
            raise text.error(f"found {found.name!r} a second time", (*key, "name"))
        names.append(found.name)
        for field, source in _sources(found):
            if not source.startswith(HUB) and not os.path.exists(source):
                raise text.error("there is no such file", (*key, field), fix="check the path")
        field, main = ("test", found.test) if found.train is None else ("train", found.train)
        if not isinstance(main, str):
            fix = "give a file of training records, or one of test records for evaluations alone"
            raise text.error("there are no records", (*key, "train"), fix=fix)
        main = main if main.startswith(HUB) else str(Path(main).resolve())
        if main in files:
            what = f"these are the records of {files[main]!r}"
            fix = "give them one name: two names would be two privacy budgets"
            raise text.error(what, (*key, field), fix=fix)
        files[main] = found.name
    for index, name in enumerate(policy.datasets):
        if name not in names:
            fix = f'add [[data.set]] with name = "{name}"; found: {", ".join(names) or "none"}'
            what = f"found {name!r}, and no files of that name"
            raise text.error(what, ("site", "datasets", index), fix=fix)


def _sources(found: DataSet) -> Iterator[tuple[str, str]]:
    fields: dict[str, Any] = {name: getattr(found, name) for name in ("train", "dev", "test")}
    for name, value in (fields | {"public": found.public}).items():
        if isinstance(value, str):
            yield name, value
