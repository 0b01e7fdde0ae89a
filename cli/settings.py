"""`secure-fl settings`: reference of all fields of settings files and site policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from secure_fl.cli.choices import nearest

if TYPE_CHECKING:
    from secure_fl.config.fields import FieldDescription
    from secure_fl.settings import Section

POLICY = "site"  # sections from here on belong to a hospital's own file
HEAD = """\
# Settings

Every field with its type and default (–: no default; blank: required). Errors in a file name the
line and the allowed values. `secure-fl settings training.dp` shows one section, and
`secure-fl settings --markdown` writes this page.

Environment variables:

- `SECURE_FL_PASSPHRASE` opens key files without a prompt.
- `SECURE_FL_KEYS` is the folder of keys if `--keys` is not given.
- `SECURE_FL_DEBUG=1` shows tracebacks.
- `SECURE_FL_SCRYPT_LOG_N` sets the cost of guessing a passphrase, for files written from then on.
"""
SITE = """\
# A site's policy

A hospital's own file, `site.toml` ([pilot.md](pilot.md#rules)). The tables `[site.dp]`,
`[site.noise]`, `[site.statistics]` ([statistics.md](statistics.md)) and `[site.approval]`
([pilot.md](pilot.md#approvals-on-record)) belong to `[site]`."""


@dataclass(frozen=True, slots=True)
class SectionDescription:
    """A section as it is printed: title and fields."""

    title: str
    fields: Sequence[FieldDescription]


def sections() -> Mapping[str, Callable[[], SectionDescription]]:
    """Return the sections of all files by their printed names."""
    from secure_fl import settings
    from secure_fl.config import data as config_data
    from secure_fl.config.build import RunSettings
    from secure_fl.policy import policy_file as site_policy
    from secure_fl.statistics.rules import StatisticsRules

    first: Mapping[str, type[Section]] = {
        "run": RunSettings,
        "task": settings.TaskSettings,
        "data, a built-in corpus": config_data.CorpusData,
        "data, one source": config_data.SourceData,
        "data.columns": config_data.ColumnSettings,
        "[data.party]": config_data.PartyFiles,
        "model": settings.ModelSettings,
        "model.adapter": settings.AdapterSettings,
        "training": settings.TrainingSettings,
        "training.dp": settings.DPSettings,
        "protection": settings.ProtectionSettings,
        "protection.noise": settings.NoiseSettings,
        "guard": settings.GuardSettings,
        "policy": settings.PolicySettings,
    }
    last: Mapping[str, type[Section]] = {
        POLICY: site_policy.SitePolicy,
        "site.dp": site_policy.DPLimits,
        "site.noise": site_policy.NoiseLimits,
        "site.statistics": StatisticsRules,
        "site.approval": site_policy.ApprovalRule,
        "[data.set]": site_policy.DataSet,
        "keys": site_policy.KeysSettings,
    }
    from secure_fl.cli.catalogue import names

    return {
        **{name: partial(_of_section, section) for name, section in first.items()},
        **{f"algorithm, {name}": partial(_of_algorithm, name) for name in names()},
        **{name: partial(_of_section, section) for name, section in last.items()},
    }


def _of_section(section: type[Section]) -> SectionDescription:
    from secure_fl.config.fields import describe_fields

    return SectionDescription(
        (section.__doc__ or "").strip().splitlines()[0], tuple(describe_fields(section))
    )


def _of_algorithm(name: str) -> SectionDescription:
    from secure_fl.cli.catalogue import listed
    from secure_fl.config.fields import FieldDescription

    found = listed(name)
    return SectionDescription(found.title, [FieldDescription(**field) for field in found.fields])


@click.command(
    epilog="""\b
Examples:
  secure-fl settings                 the names of all sections
  secure-fl settings training.dp
  secure-fl settings fedid           one algorithm
  secure-fl settings --markdown > settings.md"""
)
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print all sections as a page.")
def settings(name: str | None, markdown: bool) -> None:
    """Explain the fields of a section: type, default and meaning."""
    from secure_fl.config.fields import NO_DEFAULT

    if markdown:
        click.echo(page(), nl=False)
        return
    found = _named(name, sections())
    if not found:
        if name is not None:
            known = list(dict.fromkeys(map(_typed, sections())))
            raise click.UsageError(f"there is no section {name!r}: {nearest(name, known)}")
        click.echo("\n".join(sections()))
    for title, section in found.items():
        click.echo(f"[{title}]")
        for d in section().fields:
            given = f"{d.name} = {d.default}" if d.default not in ("", NO_DEFAULT) else d.name
            must = "" if d.default else "; required"
            click.echo(f"  {given:<34} {d.allowed}{must}{': ' * bool(d.help)}{d.help}")


def _named(
    name: str | None, among: Mapping[str, Callable[[], SectionDescription]]
) -> Mapping[str, Callable[[], SectionDescription]]:
    """Return the sections with this name: "dp" is a table of "training" and of "site"."""

    def called(title: str) -> tuple[str, ...]:
        typed = _typed(title)
        return title, title.split(",")[0], typed, typed.rpartition(".")[2]

    return {title: section for title, section in among.items() if name in called(title)}


def _typed(title: str) -> str:
    """Return what a user types for a section: no brackets, and an algorithm's bare name."""
    kind, _, one = title.strip("[]").partition(", ")
    return one if kind == "algorithm" else kind


def page() -> str:
    """Return all sections as Markdown."""
    return "\n".join([HEAD, *_parts()]).rstrip() + "\n"


def _parts() -> Iterator[str]:
    for title, section in sections().items():
        if title == POLICY:
            yield f"{SITE}\n"
        yield f"## `[{title}]`\n"
        told = section()
        yield f"{told.title}\n"
        yield "| field | type | default | |"
        yield "| --- | --- | --- | --- |"
        for d in told.fields:
            cells = (f"`{d.name}`", d.allowed, d.default, d.help)
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
        yield ""
