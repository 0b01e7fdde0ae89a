"""Codebooks opened in one process, from a program or by `secure-fl stats`.

tables = open_codebook("codebook.toml", {"north": frame, "south": frame, "east": frame})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl.config import toml as config_toml
from secure_fl.config.build import RunSettings, algorithm_settings
from secure_fl.config.toml import SettingsText
from secure_fl.config.validation import validate
from secure_fl.errors import SettingsError, nearest
from secure_fl.events import Event, Warned
from secure_fl.features.statistics.codebook import REFUSED, Codebook
from secure_fl.features.statistics.feature import StatisticsRules, broken_rules
from secure_fl.policy.violations import PolicyRefusal
from secure_fl.settings import ProtectionSettings

if TYPE_CHECKING:
    from secure_fl.federation.run_feature import SiteLimits

SECTIONS = ("algorithm", "run", "dataset", "protection")


@dataclass(frozen=True, slots=True, repr=False)
class Tables:
    """The released tables of a codebook, with the document of result.json."""

    document: Mapping[str, Any]
    refusals: tuple[str, ...] = ()  # of hospitals in this process

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables by name; empty if nothing is released."""
        return {one["name"]: one for one in self.document["statistics"].get("tables", [])}

    def to_frame(self, name: str) -> Any:
        """Make a pandas data frame of a table of one or two variables; hidden counts are NA."""
        import pandas

        one = self.tables[name]
        if len(one["labels"]) == 1:
            counts = [[count] for count in one["counts"]]
            return pandas.DataFrame(counts, one["labels"][0], ["records"], dtype="Int64")
        return pandas.DataFrame(one["counts"], *one["labels"], dtype="Int64")

    def to_json(self) -> dict[str, Any]:
        """Return the section of result.json."""
        return dict(self.document["statistics"])

    def __repr__(self) -> str:
        """Summarise in one line."""
        from secure_fl.features.statistics.page import lead

        return f"<Tables {', '.join(self.tables)}: {lead(self.document['statistics'])}>"


def load_codebook(path: str | Path) -> Codebook:
    """Read the codebook of a file, which may also be a pilot's plan."""
    file = Path(path)
    content = config_toml.read(
        file, "a codebook", missing="check the path", instead="give the TOML file, not the data"
    )
    return loads_codebook(content, str(file))


def loads_codebook(content: str, file: str | None = None) -> Codebook:
    """Read a codebook from a text."""
    tree = config_toml.parse(content, file)
    text = SettingsText(file, config_toml.lines(content))
    for name in tree:
        if name not in SECTIONS:
            raise text.error("there is no such section", (name,), fix=nearest(name, SECTIONS))
    validate(RunSettings, tree.get("run", {}), ("run",), text)
    raw = tree.get("algorithm")
    if not isinstance(raw, dict) or raw.get("name") != "statistics":
        fix = 'write [algorithm] and below it name = "statistics"'
        raise SettingsError("this file has no codebook", fix=fix, file=file, field="algorithm.name")
    found = validate(algorithm_settings(raw, text), raw, ("algorithm",), text)
    return Codebook.model_validate(found)


def load_rules(file: Path) -> StatisticsRules:
    """Read [site.statistics] of a hospital's file; its other sections are not read."""
    content = config_toml.read(
        file, "rules", missing="check the path", instead="give a TOML file with [site.statistics]"
    )
    site = config_toml.parse(content, str(file)).get("site", {})
    raw = site.get("statistics") if isinstance(site, dict) else None
    text = SettingsText(str(file), config_toml.lines(content))
    if not isinstance(raw, dict):
        fix = "write [site.statistics] and its fields below it"
        raise text.error("there is no table [site.statistics]", ("site", "statistics"), fix=fix)
    return validate(StatisticsRules, raw, ("site", "statistics"), text)


def open_codebook(
    codebook: Codebook | str | Path,
    hospitals: Mapping[str, Any] | Sequence[Any],
    *,
    rules: StatisticsRules | None = None,
    protection: ProtectionSettings | None = None,
    notes: Path | str | None = None,
    folder: Path | str | None = None,
) -> Tables:
    """Count over the records of these hospitals, all in this process.

    `hospitals`: data frames or `datasets` by name, or silos. `notes`: a folder where each hospital
    keeps what it opened; without it, nothing is remembered between calls.
    """
    from secure_fl.data.silo import Silo
    from secure_fl.features.statistics.tables import table_of
    from secure_fl.federation.federation import Federation

    if not isinstance(codebook, Codebook):
        codebook = load_codebook(codebook)
    if rules is not None and (broken := tuple(broken_rules(rules, codebook))):
        raise PolicyRefusal(broken, party="[site.statistics]")
    named = hospitals if isinstance(hospitals, Mapping) else {s.name: s for s in hospitals}
    silos = [Silo(name, (), table=table_of(one)) for name, one in sorted(named.items())]
    refusals: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Warned) and event.code == REFUSED:
            refusals.append(event.text)

    run = Federation(
        silos,
        codebook,
        protection=(protection or ProtectionSettings()).model_copy(update={"noise": None}),
        folder=folder,
        listener=listen,
        limits=partial(_limits, rules, notes),
    )
    return Tables(run.run().document, tuple(refusals))


def _limits(rules: StatisticsRules | None, notes: Path | str | None, name: str) -> SiteLimits:
    """Return the limits of one hospital: its budget, and the ledger beside its notes."""
    from secure_fl.federation.run_feature import SiteLimits
    from secure_fl.learning.dp.scope import open_ledger

    options = {} if rules is None else {"max_epsilon": rules.max_epsilon}
    ledger = None if notes is None else partial(open_ledger, Path(notes) / name, name)
    return SiteLimits(options=options, ledger=ledger)
