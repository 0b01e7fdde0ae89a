"""The command `vectors`."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.vectors import documents, keys, numbers, product, recordings
from benchmarks.vectors.book import Book, outcome, write
from benchmarks.vectors.record import NAMES, Kind, Plan, record
from benchmarks.vectors.seeds import seeded
from secure_fl.crypto.sealing import secret
from vectors.reader import __main__ as reader
from vectors.reader.kinds import FOLDER

KINDS: tuple[Kind, ...] = ("plain", "carried", "partial", "host")


def make_all(folder: Path) -> None:
    """Write all files of vectors."""
    with seeded("cohort"):
        key = secret.generate()
    data = key.to_bytes()
    shared = {"about": "The key of all ciphertexts (8.5)", "cohort": b64encode(data).decode()}
    (folder / "keys.json").write_text(json.dumps(shared, indent=1) + "\n")
    of = product.kinds(data)
    books = {
        "encodings": (numbers.encodings, "Packing, exact numbers, layouts and segments (5)"),
        "masks": (numbers.masks, "Streams, mask keys, shares and commitments (6)"),
        "tags": (numbers.sums, "Tags and totals (7)"),
        "ciphertexts": (lambda book: numbers.ciphertexts(book, key), "BFV (8)"),
        "seals": (keys.seals, "Signatures and sealed messages (2)"),
        "rosters": (keys.rosters, "Cards and rosters (3)"),
        "documents": (documents.documents, "Key files, approvals and ids of runs (2, 3)"),
        "frames": (keys.wire, "Frames and links (4)"),
        "recordings": (lambda book: recordings.recordings(book, data), "Whole runs (4 to 8)"),
        "ledgers": (keys.ledgers, "Ledgers (11)"),
    }
    written = {name: Book(about, of) for name, (_, about) in books.items()}
    for name, (fill, _) in books.items():
        fill(written[name])
    write(folder, written)


def failures(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Verify cases with the product and with the reader; yields a line for each failure."""
    shared = json.loads((FOLDER / "keys.json").read_text())
    of = product.kinds(b64decode(shared["cohort"]))
    for case in cases:
        wanted = reader.expected(case)
        for who, found in (("product", outcome(case, of)), ("reader", reader.outcome(case))):
            if found != wanted:
                yield f"{who}: {case['name']}: {str(wanted)[:90]} expected, {str(found)[:90]} found"


def plans(sums: int, seed: int) -> Iterator[Plan]:
    """Draw runs of all modes until they have at least so many sums."""
    draw = random.Random(seed)  # noqa: S311 - it chooses runs
    for number in range(sums):
        parties, kind = draw.randint(3, len(NAMES)), KINDS[number % len(KINDS)]
        lost = draw.choice(NAMES[1:parties]) if parties > 3 and draw.random() < 0.5 else ""
        yield Plan(
            f"run {number}",
            ("secagg", "he+secagg")[number // len(KINDS) % 2],
            parties,
            kind,
            values=draw.randint(9, 400),
            sums=draw.randint(1, 3),
            bits=draw.choice((4, 8, 12, 16)),
            lose={lost: draw.randint(2, 7)} if lost else {},
        )


def recorded(sums: int, seed: int) -> Iterator[tuple[Plan, dict[str, Any]]]:
    """Record runs with fresh keys, until they have so many sums."""
    done = 0
    for plan in plans(sums, seed):
        key = secret.generate().to_bytes()
        members = recordings.keys_of_all(key)
        run = random.SystemRandom().randbytes(16)
        case = record(plan, members, keys.HUB, run)
        yield plan, {**case, "cohort": b64encode(key).decode()}
        done += len(case["result"])
        if done >= sums:
            return


@click.command(
    epilog="""\b
Examples:
  python -m benchmarks vectors               all vectors, and 100 recorded sums
  python -m benchmarks vectors --sums 0      the vectors alone, in seconds
  python -m benchmarks vectors --write       write vectors/*.json

docs/protocol.md specifies the protocol, and vectors/README.md describes the files."""
)
@click.option("--write", "writes", is_flag=True, help="Write the vectors from fixed seeds.")
@click.option("--sums", type=click.IntRange(min=0), default=100, show_default=True,
              help="Sums to record and to open.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the runs.")
def vectors(writes: bool, sums: int, seed: int) -> None:
    """Verify the vectors with the product and with a second reader.

    The reader shares no code with the product. Both must give each result, and refuse each wrong
    vector for its reason. Exits with 1 if one does not.
    """
    if writes:
        make_all(FOLDER)
    cases = list(reader.cases(reader.files()))
    found = list(failures(cases))
    wrong = sum("refused" in case for case in cases)
    click.echo(f"{len(cases)} vectors, of which {wrong} must be refused; {len(found)} failures")
    opened: dict[str, int] = {}
    for plan, case in recorded(sums, seed) if sums else ():
        name = f"{plan.mode}, {plan.kind}{', with a dropout' if plan.lose else ''}"
        opened[name] = opened.get(name, 0) + len(case["result"])
        found += failures([case])
    for name, count in sorted(opened.items()):
        click.echo(f"{count:4} sums opened: {name}")
    if opened:
        click.echo(f"{sum(opened.values())} recorded sums; {len(found)} failures in all")
    for line in found:
        click.echo(line)
    if found:
        raise click.exceptions.Exit(1)
