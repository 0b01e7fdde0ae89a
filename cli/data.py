"""`secure-fl data`: describe a hospital's records, split them, make synthetic ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from secure_fl.cli.choices import Kinds, Names
from secure_fl.cli.group import Told
from secure_fl.cli.numbers import MOST_RECORDS, Real, Whole

if TYPE_CHECKING:
    from secure_fl.config.data import CorpusData, SourceData
    from secure_fl.config.silos import DistributedRecords
    from secure_fl.data.examples import Example
    from secure_fl.data.splits import Splits
    from secure_fl.settings import Kind

F = TypeVar("F", bound=Callable[..., Any])
PARTS = ("train", "dev", "test")
KEEPS = "What of the public ones a host keeps, with labels."


def _reading(command: F) -> F:
    """Add the options of all commands that read records."""
    options = [
        click.option(
            "--task",
            type=Kinds,
            default="classification",
            show_default=True,
            help="What a row must hold.",
        ),
        click.option("--format", "format_", help="Force a format; left out: by suffix or content."),
        click.option(
            "--column",
            "columns",
            multiple=True,
            metavar="FIELD=COLUMN",
            help="Which column holds a field, as in --column text=note. Can be repeated.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=Told)
def data() -> None:
    """Describe, split or make records. Nothing leaves this machine."""


@data.command(
    epilog="""\b
Examples:
  secure-fl data describe notes.csv --column text=note --column label=code
  secure-fl data describe train.jsonl dev.jsonl test.jsonl
      also what they share
  secure-fl data describe corpus/ --task ner --json

Only counts are printed: sizes, labels, lengths, duplicates. No record is quoted."""
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_reading
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
def describe(
    files: tuple[str, ...], task: str, format_: str | None, columns: tuple[str, ...], as_json: bool
) -> None:
    """Count what a training FILE, and perhaps a dev and a test FILE, hold."""
    from secure_fl.cli import show
    from secure_fl.data.splits import Splits
    from secure_fl.data.splits import describe as count

    if len(files) > len(PARTS):
        raise click.UsageError("give at most three files: train, dev, test")
    parts = [_load(file, task, format_, columns) for file in files]
    found = count(Splits(*parts), cast("Kind", task))
    if as_json:
        show.print_json(found)
    else:
        _print_description(found, files)


@data.command(
    epilog="""\b
Examples:
  secure-fl data split notes.csv --out north
  secure-fl data split notes.csv --out north --dev 0.1 --test 0.2 --seed 7
  secure-fl data split all.jsonl --out parts --parties 4 \\
      --partition dirichlet_class --alpha 0.5
  secure-fl data split all.jsonl --out parts --parties 4 --public 0.5
      for distillation

A record's part depends on its id and the seed only: it stays there when the file grows."""
)
@click.argument("file")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Target folder."
)
@_reading
@click.option(
    "--dev",
    type=Real(0, 1, max_open=True),
    default=0.1,
    show_default=True,
    help="The share to choose rounds by.",
)
@click.option(
    "--test",
    type=Real(0, 1, max_open=True),
    default=0.2,
    show_default=True,
    help="The share to be measured on.",
)
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Of all that is drawn.")
@click.option("--parties", type=Whole(min=1), help="Spread over so many hospitals first.")
@click.option(
    "--partition",
    type=Names(["iid", "dirichlet_class", "dirichlet_client"]),
    default="iid",
    show_default=True,
    help="How alike hospitals are.",
)
@click.option(
    "--alpha",
    type=Real(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Of the Dirichlet draws.",
)
@click.option("--minimum", type=Whole(1), default=10, show_default=True, help="Records of each.")
@click.option("--public", type=Real(0, 1, max_open=True), help="Share that all hold.")
@click.option("--labelled", type=Real(0, 1, max_open=True), help=f"{KEEPS} [0.1]")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def split(file: str, out: Path, seed: int, force: bool, **options: Any) -> None:
    """Split FILE into train, dev and test files, for one or several hospitals."""
    reading = (options["task"], options["format_"], options["columns"])
    if options["parties"] is None:
        from secure_fl.data.splits import split as deal

        if options["public"] or options["labelled"]:
            raise click.UsageError("--public and --labelled need --parties")
        examples = _load(file, *reading)
        parts = deal(examples, dev=options["dev"], test=options["test"], seed=seed)
        _write(_files("", parts, out), force)
        return
    _spread(file, out, seed, force, options)


def _spread(file: str, out: Path, seed: int, force: bool, options: Mapping[str, Any]) -> None:
    from secure_fl.config.data import SourceData
    from secure_fl.config.silos import spread
    from secure_fl.config.toml import Text
    from secure_fl.config.validation import validate

    given = ("parties", "partition", "alpha", "minimum", "dev", "test", "public", "labelled")
    asked = {name: options[name] for name in given if options[name] is not None}
    asked |= {"source": file, "columns": _columns(options["columns"])}
    asked |= {"format": options["format_"]} if options["format_"] else {}
    source = validate(SourceData, asked, (), Text())
    _require_public(source)
    _write_dealt(spread(source, cast("Kind", options["task"]), seed), out, force)


@data.command(
    epilog="""\b
Examples:
  secure-fl data make ade --out hospitals
  secure-fl data make ade --out hospitals --parties 5 --size 200 \\
      --shift 1.0 --seed 3
  secure-fl data make ade --out hospitals --public 240 --labelled 60
      for distillation"""
)
@click.argument("corpus")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Target folder."
)
@click.option(
    "--parties",
    type=Whole(min=1),
    default=3,
    show_default=True,
    help="How many hospitals.",
)
@click.option("--size", type=Whole(1, MOST_RECORDS), help="Training records of each hospital.")
@click.option("--shift", type=Real(0, 1), help="0: hospitals alike, 1: different.")
@click.option("--public", type=Whole(0, MOST_RECORDS), default=0, help="Records that all hold.")
@click.option("--labelled", type=Whole(0, MOST_RECORDS), default=0, help=KEEPS)
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Of all that is drawn.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def make(corpus: str, out: Path, seed: int, force: bool, **options: Any) -> None:
    """Write a built-in synthetic CORPUS, one folder for each hospital."""
    from secure_fl.config.data import CorpusData
    from secure_fl.config.silos import generated

    asked = CorpusData(corpus=corpus, **options)
    _require_public(asked)
    _write_dealt(generated(asked, seed), out, force)


def _require_public(data: CorpusData | SourceData) -> None:
    if data.labelled and not data.public:
        raise click.UsageError("--labelled is a part of the public records: give --public too")


def _load(file: str, task: str, format_: str | None, columns: Sequence[str]) -> tuple[Example, ...]:
    from secure_fl.data.splits import Columns, load

    return load(file, cast("Kind", task), format=format_, columns=Columns(**_columns(columns)))


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    from secure_fl.config.data import ColumnSettings

    found = {}
    for pair in pairs:
        field, equals, column = pair.partition("=")
        if not equals or field not in ColumnSettings.model_fields:
            allowed = ", ".join(ColumnSettings.model_fields)
            raise click.UsageError(f"--column {pair}: write FIELD=COLUMN; fields: {allowed}")
        found[field] = column
    return found


def _files(name: str, splits: Splits, out: Path) -> dict[Path, Sequence[Example]]:
    parts = {out / name / f"{part}.jsonl": getattr(splits, part) for part in PARTS}
    return {file: examples for file, examples in parts.items() if examples}


def _write_dealt(dealt: DistributedRecords, out: Path, force: bool) -> None:
    """Write a folder for each hospital and for the host, and the file that all hold."""
    from secure_fl.config.data import HOST

    files: dict[Path, Sequence[Example]] = {}
    for number, splits in enumerate(dealt.parties, 1):
        files |= _files(f"hospital-{number}", splits, out)
    if dealt.host is not None:
        files |= _files(HOST, dealt.host, out)
    if dealt.public:
        files[out / "public.jsonl"] = dealt.public
    _write(files, force)


def _write(files: Mapping[Path, Sequence[Example]], force: bool) -> None:
    """Write records into files; nothing is written if anything would be replaced."""
    from secure_fl.data.splits import write
    from secure_fl.errors import DataError

    there = [file for file in files if file.exists()]
    if there and not force:
        fix = "add --force to replace it, or choose another folder"
        raise DataError("the file is there already", fix=fix, file=there[0])
    for file, examples in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"the folder cannot be made: {error.strerror}"
            raise DataError(what, file=file.parent) from None
        write(examples, file)
        click.echo(f"{file}: {len(examples)} records")


def _print_description(found: Mapping[str, Any], files: Sequence[str]) -> None:
    from secure_fl.cli import show

    console = show.out()
    for part, file in zip(PARTS, files, strict=False):
        counts = found[part]
        words = counts["words"]
        lengths = f"words {words['min']:g} to {words['max']:g}, median {words['median']:g}"
        console.print(f"{part} {file}: {counts['size']} records, {lengths}", style="bold")
        total = max(sum(counts["labels"].values()), 1)
        rows = [[k, str(n), f"{100 * n / total:.1f} %"] for k, n in counts["labels"].items()]
        if rows:
            console.print(show.grid("", ["label", "count", "share"], rows))
        if found["duplicate_texts"][part]:
            console.print(f"{found['duplicate_texts'][part]} texts occur twice", style="yellow")
    for name in ("shared_texts", "shared_patients"):  # ids may be no more than numbers of rows
        for pair, count in found.get(name, {}).items():
            if count:
                text = f"{count} {name.removeprefix('shared_')} are in both {pair}"
                console.print(f"{text}: the test would be passed from memory", style="yellow")
