"""`secure-fl data`: describe a hospital's records, split them, generate synthetic ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from secure_fl.cli.group import WrappedHelpGroup
from secure_fl.cli.options import (
    FOLDER,
    FRACTION,
    KINDS,
    MOST_RECORDS,
    RECORDS,
    FiniteRange,
    Names,
    column_names,
    column_option,
    json_option,
)

if TYPE_CHECKING:
    from secure_fl.config.data import CorpusData, SourceData
    from secure_fl.config.silos import DistributedRecords
    from secure_fl.data.examples import Example
    from secure_fl.data.splits import Splits
    from secure_fl.settings import Kind

F = TypeVar("F", bound=Callable[..., Any])
PARTS = ("train", "dev", "test")
PARTIES = click.IntRange(1)

out_option = click.option("--out", type=FOLDER, required=True, help="Target folder.")
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed."
)
force_option = click.option("--force", is_flag=True, help="Replace existing files.")


def _reading(command: F) -> F:
    """Add the options of all commands that read records."""
    options = [
        click.option("--task", type=KINDS, default="classification", show_default=True,
                     help="Kind of task; determines the fields of a record."),
        click.option("--format", "format_", help="File format.  [default: by suffix or content]"),
        column_option,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=WrappedHelpGroup)
def data() -> None:
    """Describe, split or generate records. Nothing leaves this machine."""


@data.command(
    epilog="""\b
Examples:
  secure-fl data describe notes.csv --column text=note --column label=code
  secure-fl data describe train.jsonl dev.jsonl test.jsonl
      also records that they share
  secure-fl data describe corpus/ --task ner --json

The command prints only counts: sizes, labels, lengths, duplicates. It quotes no record."""
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_reading
@json_option
def describe(
    files: tuple[str, ...], task: str, format_: str | None, columns: tuple[str, ...], as_json: bool
) -> None:
    """Count the records of a training FILE, and optionally of a dev and a test FILE."""
    from secure_fl.cli import show
    from secure_fl.data.splits import Splits
    from secure_fl.data.splits import describe as count

    if len(files) > len(PARTS):
        raise click.UsageError("give at most three files: train, dev, test")
    parts = [_load(file, task, format_, columns) for file in files]
    counts = count(Splits(*parts), cast("Kind", task))
    if as_json:
        show.print_json(counts)
    else:
        _print_description(counts, files, task)


@data.command(
    epilog="""\b
Examples:
  secure-fl data split notes.csv --out north
  secure-fl data split notes.csv --out north --dev 0.1 --test 0.2 --seed 7
  secure-fl data split all.jsonl --out parts --parties 4 \\
      --partition dirichlet_class --alpha 0.5
  secure-fl data split all.jsonl --out parts --parties 4 --public 0.5
      for distillation

A record's part depends only on its id and the seed: it stays the same if the file grows. With
--column patient=COLUMN, it depends on the patient."""
)
@click.argument("file")
@out_option
@_reading
@click.option("--dev", type=FRACTION, default=0.1, show_default=True,
              help="Fraction for the choice of the best round.")  # fmt: skip
@click.option("--test", type=FRACTION, default=0.2, show_default=True,
              help="Fraction for the reported results.")  # fmt: skip
@seed_option
@click.option("--parties", type=PARTIES, help="Distribute over this number of hospitals first.")
@click.option("--partition", type=Names(["iid", "dirichlet_class", "dirichlet_client"]),
              default="iid", show_default=True,
              help="How the records are distributed.")  # fmt: skip
@click.option("--alpha", type=FiniteRange(0, min_open=True), default=1.0, show_default=True,
              help="Concentration of the Dirichlet draws.")  # fmt: skip
@click.option("--minimum", type=click.IntRange(1), default=10, show_default=True,
              help="Minimum records per hospital.")  # fmt: skip
@click.option("--public", type=FRACTION, help="Fraction shared with every hospital.")
@click.option("--labelled", type=FRACTION,
              help="Fraction of the public records with labels, at a host. [0.1]")  # fmt: skip
@force_option
def split(file: str, out: Path, seed: int, force: bool, **options: Any) -> None:
    """Split FILE into train, dev and test files, for one or several hospitals."""
    reading = (options["task"], options["format_"], options["columns"])
    if options["parties"] is None:
        from secure_fl.data.splits import patient
        from secure_fl.data.splits import split as deal

        if options["public"] or options["labelled"]:
            raise click.UsageError("--public and --labelled need --parties")
        examples = _load(file, *reading)
        parts = deal(examples, dev=options["dev"], test=options["test"], seed=seed, by=patient)
        _write(_files("", parts, out), force)
        return
    _spread(file, out, seed, force, options)


def _spread(file: str, out: Path, seed: int, force: bool, options: Mapping[str, Any]) -> None:
    from secure_fl.config.data import SourceData
    from secure_fl.config.silos import spread
    from secure_fl.config.toml import SettingsText
    from secure_fl.config.validation import validate

    given = ("parties", "partition", "alpha", "minimum", "dev", "test", "public", "labelled")
    asked = {name: options[name] for name in given if options[name] is not None}
    asked |= {"source": file, "columns": column_names(options["columns"])}
    asked |= {"format": options["format_"]} if options["format_"] else {}
    source = validate(SourceData, asked, (), SettingsText())
    _require_public(source)
    _write_distributed(spread(source, cast("Kind", options["task"]), seed), out, force)


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
@out_option
@click.option("--parties", type=PARTIES, default=3, show_default=True, help="Number of hospitals.")
@click.option("--size", type=click.IntRange(1, MOST_RECORDS), help="Training records per hospital.")
@click.option("--shift", type=FiniteRange(0, 1), help="Difference of the hospitals, 0 to 1.")
@click.option("--public", type=RECORDS, default=0, help="Records shared with every hospital.")
@click.option("--labelled", type=RECORDS, default=0, help="Labelled records of a host.")
@click.option("--patients", is_flag=True, help="Write ids as PATIENT/NOTE, for DP per patient.")
@seed_option
@force_option
def make(corpus: str, out: Path, seed: int, force: bool, **options: Any) -> None:
    """Generate a built-in synthetic CORPUS, with one folder per hospital."""
    from secure_fl.config.data import CorpusData
    from secure_fl.config.silos import generated

    asked = CorpusData(corpus=corpus, **options)
    _require_public(asked)
    _write_distributed(generated(asked, seed), out, force)


def _require_public(data: CorpusData | SourceData) -> None:
    if data.labelled and not data.public:
        raise click.UsageError("--labelled records are part of the public ones: add --public")


def _load(file: str, task: str, format_: str | None, columns: Sequence[str]) -> tuple[Example, ...]:
    from secure_fl.data.splits import Columns, load

    return load(file, cast("Kind", task), format=format_, columns=Columns(**column_names(columns)))


def _files(name: str, splits: Splits, out: Path) -> dict[Path, Sequence[Example]]:
    parts = {out / name / f"{part}.jsonl": getattr(splits, part) for part in PARTS}
    return {file: examples for file, examples in parts.items() if examples}


def _write_distributed(records: DistributedRecords, out: Path, force: bool) -> None:
    """Write a folder for each hospital and the host, and the public file."""
    from secure_fl.config.data import HOST

    files: dict[Path, Sequence[Example]] = {}
    for number, splits in enumerate(records.parties, 1):
        files |= _files(f"hospital-{number}", splits, out)
    if records.host is not None:
        files |= _files(HOST, records.host, out)
    if records.public:
        files[out / "public.jsonl"] = records.public
    _write(files, force)


def _write(files: Mapping[Path, Sequence[Example]], force: bool) -> None:
    """Write records into files; without `force`, an existing file prevents all writing."""
    from secure_fl.data.splits import write
    from secure_fl.errors import DataError

    there = [file for file in files if file.exists()]
    if there and not force:
        fix = "add --force to replace it, or choose another folder"
        raise DataError("the file exists", fix=fix, file=there[0])
    for file, examples in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"the folder cannot be created: {error.strerror}"
            fix = "check that the folder above exists, belongs to this user and has free space"
            raise DataError(what, fix=fix, file=file.parent) from None
        write(examples, file)
        click.echo(f"{file}: {len(examples)} records")


def _print_description(description: Mapping[str, Any], files: Sequence[str], task: str) -> None:
    from secure_fl.cli import show

    console = show.out()
    for part, file in zip(PARTS, files, strict=False):
        counts = description[part]
        words = counts["words"]
        lengths = f"words {words['min']:g} to {words['max']:g}, median {words['median']:g}"
        console.print(f"{part} {file}: {counts['size']} records, {lengths}", style="bold")
        total = counts["size"] if task == "multilabel" else sum(counts["labels"].values())
        rows = [
            [k, str(n), f"{100 * n / max(total, 1):.1f} %"] for k, n in counts["labels"].items()
        ]
        if rows:
            console.print(show.grid("", ["label", "count", "share"], rows))
        if duplicates := description["duplicate_texts"][part]:
            console.print(f"{duplicates} texts occur twice", style="yellow")
    for name in ("shared_texts", "shared_patients"):  # not ids: they can be row numbers
        for pair, count in description.get(name, {}).items():
            if count:
                text = f"{count} {name.removeprefix('shared_')} are in both {pair}"
                console.print(f"{text}: the model can memorise the test", style="yellow")
