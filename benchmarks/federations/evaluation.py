"""What an evaluation takes over the forward passes of its models."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks import checkpoint
from benchmarks.clocks import cpu_seconds
from benchmarks.report import Report, Target, table
from secure_fl import corpora
from secure_fl.data.examples import Text
from secure_fl.data.silo import Silo
from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.features.evaluation.evaluation import named
from secure_fl.federation.federation import Federation
from secure_fl.learning.exporting import export
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ModelSettings, TaskSettings, TrainingSettings

LABELS, TOKENS, NOTES = ("ade", "no-ade"), 128, 6  # a record: so many built-in notes
BEFORE = ("load model", "tokenise")  # whoever evaluates at home needs them, too
FORWARD = "evaluate"
SHARE = 0.02  # of the forward passes, for all else


@dataclass(frozen=True, slots=True)
class Row:
    """CPU seconds of one evaluation, over all hospitals."""

    models: int
    forward: float
    other: float  # own metrics, counting, sealing, opening, comparing, the coordinator
    share: float  # of the forward passes


def measure(
    *,
    parties: int = 4,
    records: int = 200,
    repeats: int = 3,
    model: str | None = None,
    seed: int = 0,
) -> Report:
    """Evaluate one model, and two, at some hospitals; torch on one thread."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    about = checkpoint.find(model)
    try:
        with TemporaryDirectory() as folder, cpu_seconds():
            rows = _rows(Path(folder), about.name, _silos(parties, records, seed), repeats, seed)
    finally:
        torch.set_num_threads(threads)
    cells = [
        (str(r.models), f"{r.forward:.2f}", f"{r.other:.3f}", f"{100 * r.share:.2f} %")
        for r in rows
    ]
    return Report(
        "evaluation",
        {
            "parties": parties,
            "records": records,
            "tokens": TOKENS,
            "protection": "he+secagg",
            "model": about.identity,
        },
        seed,
        {"rows": [asdict(row) for row in rows]},
        [table("an evaluation, CPU", ("models", "forward s", "all else s", "of forward"), cells)],
        [Target(f"all else over forward, {r.models} model(s)", SHARE, r.share) for r in rows],
        seconds=time.perf_counter() - started,
    )


def _rows(folder: Path, name: str, silos: list[Silo], repeats: int, seed: int) -> list[Row]:
    task = make_task(TaskSettings(labels=LABELS, max_length=TOKENS))
    spec = ModelSettings(name=name, pooling="cls")
    places = []
    for number in (1, 2):
        tokenizer = load_tokenizer(spec)
        made = load_model(spec, task, tokenizer, seed + number)
        places.append(export(made, tokenizer, folder / f"model-{number}", task))
    found = []
    for count in (1, 2):
        taken = [_once(places[:count], silos) for _ in range(repeats + 1)][1:]  # one warms up
        share = median(other / forward for forward, other in taken)
        forward, other = (median(column) for column in zip(*taken, strict=True))
        found.append(Row(count, forward, other, share))
    return found


def _once(places: list[Path], silos: list[Silo]) -> tuple[float, float]:
    """CPU seconds of forward passes, and of all else once the models are read."""
    federation = Federation(
        silos,
        Evaluate(models=named(places)),
        task=TaskSettings(labels=LABELS, max_length=TOKENS),
        training=TrainingSettings(device="cpu"),
        progress=False,
    )
    spent = federation.run().document["seconds"]
    alone = {
        name: sum(phases.get(name, 0.0) for phases in spent["party"].values())
        for name in (FORWARD, *BEFORE)
    }
    return alone[FORWARD], spent["coordinator"]["run"] - sum(alone.values())


def _silos(parties: int, records: int, seed: int) -> list[Silo]:
    """Hospitals whose test records are as long as notes are."""
    found = []
    made = corpora.make("ade", parties=parties, seed=seed, size=records * NOTES)
    for number, splits in enumerate(made, 1):
        notes = [note for note in splits.train if isinstance(note, Text)]
        tests = [
            replace(notes[at], text=" ".join(note.text for note in notes[at : at + NOTES]))
            for at in range(0, records * NOTES, NOTES)
        ]
        found.append(Silo(f"hospital-{number}", notes[:8], (), tests))
    return found
