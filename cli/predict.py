"""`secure-fl predict`: apply a run's model to texts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from secure_fl.cli.options import FOLDER, column_names, column_option, json_option

if TYPE_CHECKING:
    from secure_fl.data.examples import Example
    from secure_fl.settings import Kind

CARD = "secure_fl.json"
WORD = re.compile(r"\w+|[^\w\s]")
CUT = 60  # maximum characters of a text in a table


@click.command(
    epilog="""\b
Examples:
  secure-fl predict runs/first "Rash after starting velodorin."
  secure-fl predict runs/first --file notes.csv --json
  secure-fl predict runs/first --file export.csv --column text=note
  secure-fl predict runs/first "Is it raining?" --pair "It is wet outside."
  secure-fl predict runs/alone --party hospital-2 "Rash."
      a hospital's own model
  cat notes.txt | secure-fl predict runs/first
      one text per line

The output contains the texts: protect it like the records."""
)
@click.argument("run", type=FOLDER)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", type=click.Path(path_type=Path),
              help="File of records, as for `secure-fl data describe`, or a .txt file of lines.",
              )  # fmt: skip
@column_option
@click.option(
    "--pair", "pairs", multiple=True, metavar="TEXT", help="Second text for each TEXT, in order."
)
@click.option(
    "--party", metavar="NAME", help="Answer as this hospital: its model, temperature and threshold."
)
@json_option
def predict(
    run: Path,
    texts: tuple[str, ...],
    file: Path | None,
    columns: tuple[str, ...],
    pairs: tuple[str, ...],
    party: str | None,
    as_json: bool,
) -> None:
    """Apply the model of RUN to TEXTs: labels with probabilities, entities, scores or texts."""
    from secure_fl.cli import show
    from secure_fl.cli.runs import read_json

    folder = model_folder(run, party)
    kind = read_json(folder / CARD)["kind"]
    if columns and (file is None or file.suffix == ".txt"):
        raise click.UsageError("--column needs --file with a file of records")
    if file is not None and (texts or pairs):
        raise click.UsageError("give either TEXTs or --file")
    if file is not None and file.suffix != ".txt":
        examples = examples_of(file, kind, run, columns)
    else:
        examples = _from_texts(kind, _require_texts(texts, file), pairs)
    from secure_fl.learning.exporting import load_exported

    model, tokenizer, task = load_exported(folder)
    own = (_result(run).get("answers") or {}).get(party) or {}
    task = replace(task, **own)
    answers = task.predict(model, examples, tokenizer)
    if as_json:
        show.print_json({"model": str(folder), "task": task.kind, "predictions": answers})
        return
    columns, row = SHAPES[task.kind]
    rows = [row(example, answer) for example, answer in zip(examples, answers, strict=True)]
    show.out().print(show.grid("", columns, rows))


def model_folder(run: Path, party: str | None, name: str | None = None) -> Path:
    """Find an exported model in a run: the shared one (of this name), or a hospital's own."""
    from secure_fl.cli.runs import leads
    from secure_fl.errors import RunError

    if name is not None:
        return _named_model(run, name)
    if (run / CARD).is_file() and party is None:
        return run
    own = {p.parts[-3]: p.parent for p in sorted(run.glob(f"parties/*/*/{CARD}"))}
    own |= {p.parts[-3]: p.parent for p in sorted(run.glob(f"parties/*/model/{CARD}"))}
    own |= {name: run / folder for name, folder in (_result(run).get("serves") or {}).items()}
    shared = run / (_result(run).get("use") or "model")
    if party is None and (shared / CARD).is_file():
        return shared
    if party is not None and party in own:
        return own[party]
    if not run.is_dir():
        what, fix = "there is no such folder", "secure-fl runs lists runs"
    elif own:
        each = "each hospital of this run has its own model"
        what = each if party is None else f"there is no model of {party!r}"
        fix = f"name a hospital: --party {' or '.join(own)}"
    elif (shared / CARD).is_file():
        what, fix = f"{party!r} has no model of its own", "remove --party"
    elif leads(_result(run)):
        what, fix = "this is a coordinator's run, without a model", "name a hospital's run folder"
    elif not (run / "settings.toml").is_file():
        what, fix = "there is no run in this folder", "secure-fl runs FOLDER lists runs"
    else:
        what, fix = "this run has no model yet", "finish it with secure-fl train ... --resume"
    raise RunError(what, fix=fix, file=run, reason="missing")


def _named_model(run: Path, name: str) -> Path:
    """Return the folder of the shared model of this name, or raise an error with the names."""
    from secure_fl.errors import RunError

    folders = {card.parent.name: card.parent for card in sorted(run.glob(f"*/{CARD}"))}
    if name not in folders:
        what = f"this run has no shared model with the name {name!r}"
        fix = f"give --name {' or '.join(folders)}" if folders else "remove --name"
        raise RunError(what, fix=fix, file=run, reason="missing")
    return folders[name]


def _result(run: Path) -> Mapping[str, Any]:
    """Read the run's result; {} if it has none."""
    from secure_fl.cli.runs import read_json

    return read_json(run / "result.json")


def examples_of(
    file: Path, kind: Kind, run: Path, columns: Sequence[str] = ()
) -> Sequence[Example]:
    """Read a file of records, by the given columns and those of the run's settings that it has."""
    from secure_fl.cli.runs import settings_of
    from secure_fl.data.loaders import rows_of
    from secure_fl.data.splits import Columns, load

    trained = settings_of(run).get("data", {}).get("columns") or {}
    names = next((row.values for row in rows_of(file)), {})
    known = {field: column for field, column in trained.items() if column in names}
    return load(file, kind, columns=Columns(**known | column_names(columns)))


def _require_texts(texts: Sequence[str], file: Path | None) -> Sequence[str]:
    """Return the given texts, or the lines of the file or of stdin."""
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise click.UsageError(f"text {number} is empty")
    if not texts and (file is not None or not sys.stdin.isatty()):
        texts = lines_of(file)
    if not texts:
        raise click.UsageError("there is no input: give TEXT, --file or lines on stdin")
    return texts


def lines_of(file: Path | None) -> list[str]:
    """Read the lines of a UTF-8 file that are not empty; None: of stdin."""
    from secure_fl.data.file_readers import lines
    from secure_fl.errors import DataError

    if file is not None:
        return _lines("".join(text for _, text in lines(file)))
    try:
        return _lines(sys.stdin.buffer.read().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise DataError("is not UTF-8", fix="convert it to UTF-8", file="stdin") from None


def _from_texts(kind: Kind, texts: Sequence[str], pairs: Sequence[str]) -> Sequence[Example]:
    from secure_fl.data.examples import Tagged, Text

    if kind == "ranking":
        raise click.UsageError("news ranking needs --file with history and candidates")
    if kind == "ner":
        words = [tuple(WORD.findall(text)) for text in texts]
        return [Tagged(str(k + 1), tokens) for k, tokens in enumerate(words) if tokens]
    if kind == "pair" and not pairs:
        raise click.UsageError("this model compares two texts: add --pair TEXT for each TEXT")
    if pairs and len(pairs) != len(texts):
        raise click.UsageError(f"{len(texts)} TEXTs and {len(pairs)} --pair do not match")
    seconds: Sequence[str | None] = pairs or [None] * len(texts)
    return [
        Text(str(k + 1), text, pair)
        for k, (text, pair) in enumerate(zip(texts, seconds, strict=True))
    ]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _cut(text: str) -> str:
    return text if len(text) <= CUT else f"{text[: CUT - 3]}..."


def _class_row(example: Any, answer: Mapping[str, Any]) -> list[str]:
    chances = answer["probabilities"]
    ranked = sorted(chances, key=chances.__getitem__, reverse=True)[:3]
    shown = ", ".join(f"{label} {chances[label]:.3f}" for label in ranked)
    pair = f" | {_cut(example.pair)}" if example.pair else ""
    given = ", ".join(answer["labels"]) or "-" if "labels" in answer else answer["label"]
    return [_cut(example.text) + pair, given, shown]


def _score_row(example: Any, answer: Mapping[str, Any]) -> list[str]:
    return [_cut(example.text), f"{answer['score']:.3f}"]


def _entity_row(example: Any, answer: Mapping[str, Any]) -> list[str]:
    entities = [f"{entity['text']} [{entity['type']}]" for entity in answer["entities"]]
    return [_cut(" ".join(example.tokens)), "; ".join(entities) or "-"]


def _ranking_row(example: Any, answer: Mapping[str, Any]) -> list[str]:
    best = [f"{entry['title']} {entry['score']:.2f}" for entry in answer["ranking"][:3]]
    return [answer["id"], "; ".join(map(_cut, best))]


def _completion_row(example: Any, answer: Mapping[str, Any]) -> list[str]:
    return [_cut(example.text), answer["completion"]]


_CLASSES = (("text", "label", "probabilities"), _class_row)
SHAPES: Mapping[str, tuple[tuple[str, ...], Callable[[Any, Mapping[str, Any]], list[str]]]] = (
    MappingProxyType(
        {
            "classification": _CLASSES,
            "pair": _CLASSES,
            "multilabel": (("text", "labels", "probabilities"), _class_row),
            "regression": (("text", "score"), _score_row),
            "ner": (("text", "entities"), _entity_row),
            "ranking": (("impression", "best titles"), _ranking_row),
            "completion": (("prompt", "completion"), _completion_row),
        }
    )
)
