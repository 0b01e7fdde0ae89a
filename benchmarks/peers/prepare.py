"""The folder of a job: the same weights, records and orders of batches for every system."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import BertConfig, BertModel

from benchmarks import checkpoint, collection
from benchmarks.datasets import Spread, silos
from benchmarks.peers.inside.job import save
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.data.splits import write
from secure_fl.errors import ModelError
from secure_fl.learning import fetching
from secure_fl.learning.builtin import tiny_config, tiny_tokenizer
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import Task, make_task
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, TaskSettings

RECORDS = "records"  # the sites' texts, as our own command reads them
LENGTH = 48  # tokens
BUILT_IN, REAL = "built-in ade", "ade_cls"
FRESH, PRETRAINED = 1e-3, 2e-4  # learning rates of random weights, and of a checkpoint
# By about how many values are trained: columns and layers, with heads of 64 columns.
SHAPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"1M": (192, 2), "10M": (512, 3), "100M": (1024, 8)}
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a job."""

    sites: int = 4
    records: int = 120  # of each site
    test: int = 400
    rounds: int = 10
    batch_size: int = 16
    learning_rate: float = FRESH
    model: str = checkpoint.BUILT_IN  # or a size of `SHAPES`, or a checkpoint
    seed: int = 0
    threads: int = 1  # of each process
    set: str = BUILT_IN  # of `collection.SETS`

    @property
    def label(self) -> str:
        """The model's name, without a checkpoint's folder."""
        return checkpoint.find(self.model).label

    @classmethod
    def of(cls, model: str, *, real: bool, **more: int) -> Sizes:
        """Choose the sizes for a model; `real`: on ade_cls instead of built-in records."""
        fresh = model in (checkpoint.BUILT_IN, *SHAPES)
        rate = FRESH if fresh else PRETRAINED
        return cls(model=model, set=REAL if real else BUILT_IN, learning_rate=rate, **more)


def prepare(folder: Path, sizes: Sizes, data: Path | None = None) -> Path:
    """Write the job of these sizes; `data`: the folder of real records."""
    found, name = collection.find(data), sizes.set
    if name != BUILT_IN:
        collection.require((name,), found)
    spread = Spread((name,), sizes.sites, sizes.records * sizes.sites, test=sizes.test)
    parties = silos(spread, found, sizes.seed)
    task = make_task(TaskSettings(labels=collection.SETS[name].labels, max_length=LENGTH))
    # transformers' own head, which every system can read
    model = ModelSettings(name=_model(folder, sizes), pooling="cls")
    tokenizer = load_tokenizer(model)
    _write_model(folder / "model", model, task, tokenizer, sizes.seed)
    (folder / "sites").mkdir()
    for party in parties:
        save(folder / "sites" / f"{party.name}.npz", _columns(task, tokenizer, party.train))
        (folder / RECORDS).mkdir(exist_ok=True)
        write(party.train, folder / RECORDS / f"{party.name}.jsonl")
    tests = [text for party in parties for text in party.test]
    save(folder / "test.npz", _columns(task, tokenizer, tests))
    about = {
        "sites": [party.name for party in parties],
        "rounds": sizes.rounds,
        "batch_size": sizes.batch_size,
        "learning_rate": sizes.learning_rate,
        # where our own sites begin to draw their orders from
        "seeds": {party.name: seed_for(sizes.seed, party.name) for party in parties},
        "seed": sizes.seed,
        "threads": sizes.threads,
        "labels": list(task.labels),
        "records": name,
    }
    (folder / "job.json").write_text(json.dumps(about, indent=1))
    return folder


def members(folder: Path) -> list[Silo]:
    """Load the job's sites for our library."""
    from secure_fl.data import load

    about = json.loads((folder / "job.json").read_text())
    return [
        Silo(site, tuple(load(folder / RECORDS / f"{site}.jsonl", "classification")))
        for site in about["sites"]
    ]


def _model(folder: Path, sizes: Sizes) -> str:
    """Return the checkpoint of the job's model."""
    if sizes.model in SHAPES:
        tokenizer = tiny_tokenizer()
        with fetching.seeded(sizes.seed), fetching.quiet():
            BertModel(config_of(sizes.model, len(tokenizer))).save_pretrained(folder / "body")
        tokenizer.save_pretrained(folder / "body")
        return str(folder / "body")
    if sizes.model != checkpoint.PACKAGE:
        return checkpoint.find(sizes.model).name
    if (installed := checkpoint.installed()) is None:  # nothing else may stand in its row
        raise ModelError(f"{checkpoint.PACKAGE} is not installed here", fix="install it by pip")
    return str(installed)


def config_of(size: str, vocabulary: int) -> BertConfig:
    """Make the configuration of a size, with feed-forward layers of four times the columns."""
    columns, layers = SHAPES[size]
    wider = {
        "hidden_size": columns,
        "intermediate_size": 4 * columns,
        "num_attention_heads": columns // 64,
        "initializer_range": 0.02,
    }
    return BertConfig(**tiny_config(vocabulary, layers=layers).to_dict() | wider)


def _write_model(folder: Path, model: ModelSettings, task: Task, tokenizer: Any, seed: int) -> None:
    """Write a checkpoint with its head; without dropout, equal batches give equal weights."""
    made: Any = load_model(model, task, tokenizer, seed)
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(made.config, field, 0.0)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _columns(task: Task, tokenizer: Any, texts: Sequence[Example]) -> dict[str, Any]:
    """Encode records as tables, padded to the longest."""
    (batch,) = task.encode(texts, tokenizer).batches(len(texts))
    return {name: column.numpy() for name, column in batch.items()}
