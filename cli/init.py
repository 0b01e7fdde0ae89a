"""`secure-fl init`: write a settings file that runs as it is and explains itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

import click

from secure_fl.cli.choices import Names, algorithms_like, known_algorithm
from secure_fl.cli.numbers import Whole
from secure_fl.thresholds import MOST_MASKED

# The corpus that shows each kind of task, and what its labels are.
CORPORA = {
    "classification": "ade",
    "pair": "pairs",
    "regression": "similarity",
    "ner": "ner",
    "ranking": "news",
    "completion": "summaries",
}
TIERS = 3  # weak, medium and strong
SUMMED = 3  # parties that a sum needs, unless fewer are there
ENTITIES = '["Disease", "Dose", "Drug", "Symptom"]'  # each hospital of "ner" marks some of them
NAME = "federation.toml"
SHORT: Mapping[str, int] = {"rounds": 12, "epochs": 2}  # unless an algorithm allows one value only

HEAD = """\
# A federation of {parties} hospitals. It runs as it is, on built-in data:
#     secure-fl train {file}
# Any field can be changed for one run: secure-fl train {file} --set algorithm.rounds=20

[run]
seed = 0                       # equal seeds give equal results, bit for bit
# folder = "runs/first"        # where results go; left out: runs/ and this file's name

[task]
{kind:<31}# or {kinds}
max_length = 64                # tokens; longer texts are cut
{labels:<30} # for all; left out: read from their records
# positive = "yes"             # the class that is looked for: its F1 is reported, and it counts
                               # as much as the others, however rare it is
"""

DATA = """
# Whose records. One of three ways:
[data]
{corpus:<31}# 1. built in: synthetic, different at each hospital
parties = {parties}
{public:<31}# records without labels that all hold, to distil over
{labelled:<31}# records of the host, the member with the central model
# source = "notes.csv"         # 2. one file, folder or hub:NAME, spread over parties
# partition = "dirichlet_class"  # or "iid", "dirichlet_client"
# alpha = 0.5                  # smaller: more different
# columns = {{ text = "note", label = "code" }}
# public = 0.5                 # this share of the records is public
# labelled = 0.1               # this share of the public ones keeps its labels, at the host
#
# public = "public.jsonl"      # 3. a file without labels that all hold, and
# [[data.party]]               # each hospital's own files; paths are relative to this file
# name = "north"
# role = "party"               # or "host"
# train = "north/train.jsonl"  # csv, tsv, jsonl, parquet, conll, BRAT or MIND folders
# dev = 0.1                    # a file, or a share of the training records
# test = "north/test.jsonl"
"""

TAIL = """
[model]
name = "tiny"                  # built in; or a transformers folder or hub name
# layers = 4                   # keep only the first layers
freeze_embeddings = true       # their updates would tell which words a hospital uses
# pooling = "attentive"        # over all tokens, the default of a cut; "cls": by the first token

[training]
optimizer = "adamw"            # or "sgd"
# learning_rate = 2e-3         # left out: by the model's width; `secure-fl tune` tries others
batch_size = 16
device = "auto"                # or "cpu", "cuda", "mps"
precision = "float32"          # or "bfloat16" on hardware that has it

[protection]
mode = "he+secagg"             # "he", "secagg"; "none" shows updates in clear
bits = 8                       # of each value of an update: 4, 6, 8, 12, 16 or 24
{cohort:<31}# no sum over fewer hospitals is ever opened
"""


@click.command(
    epilog="""\b
Examples:
  secure-fl init                                   write federation.toml here
  secure-fl init study --task ner --parties 5
  secure-fl init study --algorithm fedadam --force"""
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option(
    "--task",
    type=Names(sorted(CORPORA)),
    default="classification",
    show_default=True,
    help="What is learned.",
)
@click.option(
    "--algorithm",
    metavar="NAME",
    callback=known_algorithm,
    shell_complete=algorithms_like,
    default="fedavg",
    show_default=True,
    help="How the hospitals learn; docs/algorithms.md lists the names.",
)
@click.option(
    "--parties",
    type=Whole(1, MOST_MASKED),
    default=3,
    show_default=True,
    help="How many hospitals.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def init(folder: Path, task: str, algorithm: str, parties: int, force: bool) -> None:
    """Write a commented settings file, federation.toml, into FOLDER."""
    from secure_fl.cli.catalogue import listed
    from secure_fl.errors import RunError

    require_classes(task, algorithm)
    file = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(template(task, algorithm, parties, file))
    except FileExistsError:
        fix = "add --force to replace it, or name another folder"
        raise RunError("the file is there already", fix=fix, file=file, reason="exists") from None
    except OSError as error:
        raise RunError(
            f"cannot be written: {error.strerror}", file=file, reason="unwritable"
        ) from None
    click.echo(f"written: {file}\nnext: secure-fl train {file}")
    if parties < SUMMED and not listed(algorithm).sums_nothing:
        click.echo(f"note: a sum over {parties} hides nothing from its members", err=True)


def require_classes(task: str, algorithm: str) -> None:
    """Refuse a pair that no run could begin with."""
    from secure_fl.cli.catalogue import listed

    if listed(algorithm).has_host and task not in ("classification", "pair"):
        what = f"{algorithm} sums predictions class by class, and a task of {task} has no classes"
        raise click.UsageError(f"{what}: take --task classification or pair")


def template(task: str, algorithm: str, parties: int, file: Path) -> str:
    """Write the settings with their explanations."""
    from secure_fl.cli.catalogue import listed

    labels = '# labels = ["no", "yes"]' if task != "ner" else f"labels = {ENTITIES}"
    unused = "" if listed(algorithm).has_host else "# "
    chosen = {
        "labels": labels,
        "kind": f'kind = "{task}"',
        "kinds": ", ".join(kind for kind in CORPORA if kind != task),
        "corpus": f'corpus = "{CORPORA[task]}"',
        "parties": parties,
        "public": f"{unused}public = 240",
        "labelled": f"{unused}labelled = 60",
        "file": file,
        "cohort": f"min_cohort = {min(SUMMED, parties)}",
    }
    text = "".join(part.format(**chosen) for part in (HEAD, DATA, TAIL))
    return text + _algorithm(algorithm, parties)


def _algorithm(name: str, parties: int) -> str:
    """Write an algorithm's own fields with their defaults."""
    from secure_fl.cli.catalogue import listed, names
    from secure_fl.config.toml import write

    entry = listed(name)
    values = dict(entry.values) | {k: v for k, v in SHORT.items() if k not in entry.fixed}
    if "mix" in values and parties < SUMMED * TIERS:
        values["mix"] = "wide"  # tiers would be too small to be summed apart
    if name == "inclusivefl":  # has no such mix: as many tiers as can be summed apart
        values["tiers"] = dict(list(values["tiers"].items())[: max(1, parties // SUMMED)])
    others = ", ".join(other for other in names() if other not in (name, "evaluate"))
    lines = write(values, "algorithm.")
    told = fill(f"# others: {others}", 90, subsequent_indent="#   ")
    return f"\n[algorithm]\n# {entry.summary}\n{told}\n{lines}"
