"""`secure-fl bench`: measure what the documentation claims, on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from secure_fl.cli.papers import papers
from secure_fl.cli.results import results

if TYPE_CHECKING:
    from benchmarks.report import Report

F = TypeVar("F", bound=Callable[..., Any])

# Sizes that show the structure of the figures in seconds; only the defaults are meant for quoting.
QUICK: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "crypto": {"values": 100_000, "repeats": 1},
        "overhead": {"parties": 3, "records": 64, "rounds": 2, "repeats": 1},
        "memory": {"values": 100_000, "parties": (4, 16)},
        "protocol": {"parties": (3, 10, 32, 100)},
        "scale": {"clients": (10, 40, 100), "values": 100},
        "dp": {"records": 96, "repeats": 1},
        "wire": {"records": 16, "rounds": 2, "model": "tiny", "scale": 8},
        "layers": {"scale": 16, "batch": 4},
        "interactive": {"steps": 5, "turns": 2, "federate": False},
        "round": {
            "records": 16,
            "batch": 8,
            "model": "tiny",
            "names": ("fedavg", "fedkd", "fedid"),
        },
        "audits": {"full": False, "words": 3_000, "turns": 1},
        "engine": {"repeats": 20, "large_repeats": 2, "whole": False},
        "startup": {"repeats": 3},
    }
)


@click.group()
def bench() -> None:
    """Measure this machine: CPU time, bytes and memory, beside the alternatives.

    \b
    Examples:
      secure-fl bench crypto             ours beside NVFLARE's way, 1,000,000 values
      secure-fl bench all --quick        small sizes: what is there to see, in a minute or two
      secure-fl bench crypto --json --out crypto.json
      secure-fl bench papers --table fedkd          a paper's table, on real text
      secure-fl bench results                       the page of all tables, beside the papers'
    """  # noqa: D301


def _shared(command: F) -> F:
    """The options of every benchmark."""
    for option in (
        click.option("--quick", is_flag=True, help="Small sizes; figures are not for quoting."),
        click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save JSON."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else."),
    ):
        command = option(command)
    return command


def _sizes(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    """Numbers with commas between them."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter("whole numbers with commas between them, such as 10,100,1000")
    return tuple(int(part) for part in parts)


def _measure(name: str, sizes: Mapping[str, Any]) -> Report:
    report: Report = import_module(f"benchmarks.{name}").measure(**sizes)
    return report


def _run(
    names: tuple[str, ...], as_json: bool, out: Path | None, quick: bool, **sizes: Any
) -> None:
    from rich.console import Console

    from benchmarks.report import WIDTH

    documents = {}
    for name in names:
        report = _measure(name, {**(QUICK[name] if quick else {}), **sizes})
        documents[name] = report.document()
        if not as_json:
            report.show(Console(width=WIDTH))
    document = documents[names[0]] if len(names) == 1 else documents
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if as_json:
        click.echo(text)
    if out is not None:
        out.write_text(text + "\n")


@bench.command()
@_shared
def crypto(as_json: bool, out: Path | None, quick: bool) -> None:
    """One protected sum: bytes and CPU per value, ours beside NVFLARE's way."""
    _run(("crypto",), as_json, out, quick)


@bench.command()
@_shared
def overhead(as_json: bool, out: Path | None, quick: bool) -> None:
    """The cohort machinery and the privacy layer over a bare training loop."""
    _run(("overhead",), as_json, out, quick)


@bench.command()
@_shared
def memory(as_json: bool, out: Path | None, quick: bool) -> None:
    """The coordinator's peak memory as cohorts grow."""
    _run(("memory",), as_json, out, quick)


@bench.command()
@_shared
def protocol(as_json: bool, out: Path | None, quick: bool) -> None:
    """Bytes and CPU of one sum in cohorts of 3 to 1000 parties."""
    _run(("protocol",), as_json, out, quick)


@bench.command()
@_shared
def dp(as_json: bool, out: Path | None, quick: bool) -> None:
    """What DP-SGD costs over plain training."""
    _run(("dp",), as_json, out, quick)


@bench.command()
@_shared
def wire(as_json: bool, out: Path | None, quick: bool) -> None:
    """What FedKD sends, sealed, against plain FedAvg of its whole teacher."""
    _run(("wire",), as_json, out, quick)


@bench.command()
@click.option(
    "--scale",
    type=click.Choice(["1", "2", "4", "8", "16", "32"]),
    help="Divide BERT-base's widths; 1 takes 14 GB. [default: 2]",
)
@_shared
def layers(as_json: bool, out: Path | None, quick: bool, scale: str | None) -> None:
    """InclusiveFL's sums over BERT-base's layers, beside an epoch of training."""
    _run(("layers",), as_json, out, quick, **({} if scale is None else {"scale": int(scale)}))


@bench.command()
@_shared
def interactive(as_json: bool, out: Path | None, quick: bool) -> None:
    """What protection adds to a step of FedID; --quick leaves whole rounds out."""
    _run(("interactive",), as_json, out, quick)


@bench.command(name="round")
@click.option("--model", metavar="NAME_OR_FOLDER", help="The checkpoint, as for `bench papers`.")
@_shared
def round_(as_json: bool, out: Path | None, quick: bool, model: str | None) -> None:
    """Where a simulated round's time goes, for every algorithm."""
    _run(("round",), as_json, out, quick, **({} if model is None else {"model": model}))


@bench.command()
@_shared
def audits(as_json: bool, out: Path | None, quick: bool) -> None:
    """How long audits take; --quick leaves the full one out."""
    _run(("audits",), as_json, out, quick)


@bench.command()
@click.option(
    "--fuzz",
    "mutants",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="Instead, throw so many mutated frames at both ends of a run.",
)
@_shared
def engine(as_json: bool, out: Path | None, quick: bool, mutants: int | None) -> None:
    """What FLARE costs beside the in-process engine; --quick leaves rounds and start out."""
    if mutants is None:
        _run(("engine",), as_json, out, quick)
    else:
        _run(("fuzz",), as_json, out, False, mutants=mutants)


@bench.command()
@_shared
def startup(as_json: bool, out: Path | None, quick: bool) -> None:
    """How long the import and the help text take."""
    _run(("startup",), as_json, out, quick)


@bench.command()
@click.option("--clients", callback=_sizes, help="Cohort sizes. [default: 10,100,1000,10000]")
@click.option("--values", type=click.IntRange(min=9), help="Of the sum. [default: 1000]")
@_shared
def scale(
    as_json: bool,
    out: Path | None,
    quick: bool,
    clients: tuple[int, ...] | None,
    values: int | None,
) -> None:
    """One sum of a sampled cohort of 10 to 10,000 clients, of whom 5 % are lost."""
    given = {"clients": clients, "values": values}
    chosen = {name: size for name, size in given.items() if size is not None}
    _run(("scale",), as_json, out, quick, **chosen)


@bench.command(name="all")
@_shared
def everything(as_json: bool, out: Path | None, quick: bool) -> None:
    """All of them but `scale`, `papers` and `results`, one after the other."""
    _run(tuple(name for name in QUICK if name != "scale"), as_json, out, quick)


bench.add_command(papers)
bench.add_command(results)
