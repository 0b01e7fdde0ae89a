"""`secure-fl init`: write a commented settings file that runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from textwrap import fill
from typing import Any, Literal, get_origin

import click

from secure_fl.cli.options import FOLDER, FiniteRange, Names, complete_algorithm, known_algorithm
from secure_fl.thresholds import MOST_MASKED

# The built-in corpus of each kind of task.
CORPORA = {
    "classification": "ade", "pair": "pairs", "multilabel": "codes", "regression": "similarity",
    "ner": "ner", "ranking": "news", "completion": "summaries",
}  # fmt: skip
TIERS = 3  # weak, medium and strong
SUMMED = 3  # default of min_cohort
ENTITIES = '["Disease", "Dose", "Drug", "Symptom"]'  # each hospital of "ner" labels some of them
CODES = '["E11", "I50", "J18", "J45", "N17", "D64", "G40", "M10"]'  # in the notes of "codes"
NAME = "federation.toml"
PROBE = "probe"
PROBED = ("classification", "pair", "multilabel")  # tasks of a probe with differential privacy
SHORT: Mapping[str, int] = {"rounds": 12, "epochs": 2}  # if an algorithm allows these values

HEAD = """\
# A federation of {parties} hospitals. It runs as it is, on built-in data:
#     secure-fl train {file}
# Any field can be changed for one run: secure-fl train {file} --set algorithm.rounds=20

[run]
seed = 0                       # equal seeds give equal results, bit for bit
# folder = "runs/first"        # folder of the results; default: runs/ and this file's name

[task]
{kind:<30}# or {kinds}
max_length = 64                # tokens; longer texts are truncated
{labels:<30} # default: those of all records
{positive:<31}# the positive class: its F1 is the main score, and its weight in
                               # the loss equals that of the other classes
"""

DATA = """
# Records, in one of three forms:
[data]
{corpus:<31}# 1. built in: synthetic, different at each hospital
parties = {parties}
{public:<31}# unlabelled records that all members hold, for distillation
{labelled:<31}# records of the host, the member with the central model
# source = "notes.csv"         # 2. one file, folder or hub:NAME, distributed over parties
# partition = "dirichlet_class"  # or "iid", "dirichlet_client"
# alpha = 0.5                  # smaller: more different
# columns = {{ text = "note", label = "code" }}
# public = 0.5                 # this fraction of the records is public
# labelled = 0.1               # this fraction of the public ones keeps its labels, at the host
#
# public = "public.jsonl"      # 3. an unlabelled file that all members hold, and
# [[data.party]]               # each hospital's own files; paths are relative to this file
# name = "north"
# role = "party"               # or "host"
# train = "north/train.jsonl"  # csv, tsv, jsonl, parquet, conll, BRAT or MIND folders
# dev = 0.1                    # a file, or a fraction of the training records
# test = "north/test.jsonl"
"""

TAIL = """
[model]
name = "tiny"                  # built in; or a transformers folder or hub name
# layers = 4                   # keep only the first layers
freeze_embeddings = true       # changed embeddings would show which words a hospital uses
# pooling = "attentive"        # over all tokens, the default if layers is set; "cls": first token

[training]
optimizer = "adamw"            # or "sgd"
# learning_rate = 2e-3         # default: depends on model width; `secure-fl tune` searches
batch_size = 16
device = "auto"                # or "cpu", "cuda", "mps"
precision = "float32"          # or "bfloat16" on hardware that supports it
{dp}
[protection]
mode = "he+secagg"             # "secagg": less CPU; "none" shows updates to the coordinator
bits = 8                       # per value of an update: 4, 6, 8, 12, 16 or 24
{cohort:<31}# minimum number of hospitals in a sum
"""

DP = """
[training.dp]
epsilon = {epsilon:g}
{noise:<31}# "shared": each hospital adds a share; "local": it adds all
# unit = "patient"             # default: record; record ids are then PATIENT/NOTE
# ledger = "ledgers"           # folder that outlives runs; default: the run's own folder
"""
SHARED = """\
colluders = 1                  # hospitals that may reveal their noise, or add none
dropouts = 0                   # hospitals that may be missing in a step; each costs more noise
"""


@click.command(
    epilog="""\b
Examples:
  secure-fl init                                   write federation.toml here
  secure-fl init study --task ner --parties 5
  secure-fl init study --algorithm fedadam --force
  secure-fl init study --dp 3 --parties 4          with differential privacy"""
)
@click.argument("folder", type=FOLDER, default=".")
@click.option("--task", type=Names(sorted(CORPORA)), default="classification", show_default=True,
              help="Kind of task.")  # fmt: skip
@click.option(
    "--algorithm",
    metavar="NAME",
    callback=known_algorithm,
    shell_complete=complete_algorithm,
    help="Algorithm; docs/algorithms.md lists the names.  [default: fedavg; with --dp: probe]",
)
@click.option("--parties", type=click.IntRange(1, MOST_MASKED), default=3, show_default=True,
              help="Number of hospitals.")  # fmt: skip
@click.option("--dp", "epsilon", type=FiniteRange(0, 1e5, min_open=True), metavar="EPSILON",
              help="Protect records by differential privacy.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(
    folder: Path, task: str, algorithm: str | None, parties: int, epsilon: float | None, force: bool
) -> None:
    """Write a commented settings file, federation.toml, into FOLDER."""
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.errors import RunError, SettingsError

    private = epsilon is not None and task in PROBED
    algorithm = algorithm or (PROBE if private else "fedavg")
    require_classes(task, algorithm)
    file = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(template(task, algorithm, parties, file, epsilon))
    except FileExistsError:
        fix = "add --force to replace it, or name another folder"
        raise SettingsError("the file exists", fix=fix, file=str(file)) from None
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise RunError(what, file=file, reason="unwritable") from None
    command = "train" if epsilon is None else "budget"
    click.echo(f"written: {file}\nnext: secure-fl {command} {quote(str(file))}")
    if algorithm != PROBE and task not in ("ranking", "completion"):
        click.echo(f"baseline in ten seconds: secure-fl init probe --task {task} --algorithm probe")
    if parties < SUMMED and not ALGORITHMS[algorithm].sums_nothing:
        click.echo(f"note: in a sum over {parties}, members can see each other's part", err=True)


def require_classes(task: str, algorithm: str) -> None:
    """Refuse an algorithm that needs classes for a task that has none."""
    from secure_fl.algorithms.registry import ALGORITHMS

    if ALGORITHMS[algorithm].has_host and task not in ("classification", "pair"):
        what = f"{algorithm} sums predictions per class, and {task} has not one class per record"
        raise click.UsageError(f"{what}: use --task classification or pair")


def template(
    task: str, algorithm: str, parties: int, file: Path, epsilon: float | None = None
) -> str:
    """Return the text of a settings file with comments."""
    from secure_fl.algorithms.registry import ALGORITHMS

    named = {"ner": f"labels = {ENTITIES}", "multilabel": f"labels = {CODES}"}
    labels = named.get(task, '# labels = ["no", "yes"]')
    positive = 'positive = "ade"' if task == "classification" else '# positive = "yes"'
    hosted = ALGORITHMS[algorithm].has_host
    public, labelled = "" if hosted or algorithm == PROBE else "# ", "" if hosted else "# "
    values = {
        "labels": labels,
        "positive": positive,
        "kind": f'kind = "{task}"',
        "kinds": ", ".join(kind for kind in CORPORA if kind != task),
        "corpus": f'corpus = "{CORPORA[task]}"',
        "parties": parties,
        "public": f"{public}public = 240",
        "labelled": f"{labelled}labelled = 60",
        "file": quote(str(file)),
        "cohort": f"min_cohort = {min(SUMMED, parties)}",
        "dp": "" if epsilon is None else _dp(algorithm, epsilon),
    }
    text = "".join(part.format(**values) for part in (HEAD, DATA, TAIL))
    return text + _algorithm(algorithm, parties, private=epsilon is not None)


def _dp(algorithm: str, epsilon: float) -> str:
    """Return the section of differential privacy; noise is shared where each step is a sum."""
    from secure_fl.algorithms.registry import ALGORITHMS

    settings = ALGORITHMS[algorithm].settings
    steps = settings.model_construct(**_defaults(algorithm)).step_rate is not None
    noise = "shared" if steps else "local"
    return DP.format(epsilon=epsilon, noise=f'noise = "{noise}"') + (SHARED if steps else "")


def _defaults(name: str) -> dict[str, Any]:
    """Return the default settings of an algorithm."""
    from secure_fl.algorithms.registry import ALGORITHMS

    made = ALGORITHMS[name].settings.model_construct(name=name)
    values: dict[str, Any] = made.model_dump(mode="json")
    return values


def _algorithm(name: str, parties: int, *, private: bool = False) -> str:
    """Return an algorithm's section with its defaults."""
    from secure_fl.algorithms.registry import ALGORITHMS
    from secure_fl.config.toml import write

    entry = ALGORITHMS[name]
    defaults = _defaults(name)
    fixed = {
        field
        for field, info in entry.settings.model_fields.items()
        if get_origin(info.annotation) is Literal
    }
    values = {field: value for field, value in defaults.items() if value is not None}
    if name == PROBE and private:
        values |= {"fit": "logistic", "rounds": 60}
    elif values["rounds"] > 1 and "sample_rate" not in values:  # else rounds are single steps
        values |= {field: value for field, value in SHORT.items() if field not in fixed}
    if "mix" in values and parties < SUMMED * TIERS:
        values["mix"] = "wide"  # tiers would be too small for separate sums
    if name == "inclusivefl":  # it has no such mix: use as many tiers as can be summed separately
        values["tiers"] = dict(list(values["tiers"].items())[: max(1, parties // SUMMED)])
    others = ", ".join(n for n, e in ALGORITHMS.items() if n != name and e.trains_model)
    lines = write(values, "algorithm.")
    comment = fill(f"# others: {others}", 90, subsequent_indent="#   ")
    return f"\n[algorithm]\n# {entry.summary}\n{comment}\n{lines}"
