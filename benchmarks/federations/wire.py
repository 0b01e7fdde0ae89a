"""What FedKD sends, against federated averaging of its whole teacher in plain 32-bit floats.

Bytes are those of the frames that crossed, headers included, up and down, of one party. First real
training: how wide factors must be follows from real updates. Then BERT-base's shapes, with factors
as wide as those were.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import bert_shapes, checkpoint, collection, datasets
from benchmarks.report import Report, Target, table
from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.fedkd.lowrank import useful_rank
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.learning.anatomy import depth as depth_of
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.models import load_backbone, load_tokenizer
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings
from tests.support.event_documents import into

# The paper's plain figures, 10.8x and 18.6x for 4 and 2 layers of 12, over the cut in depth alone.
FACTORS_IN_THE_PAPER: Mapping[int, float] = {4: 10.8 / 3, 2: 18.6 / 6}
CLEAR = ProtectionSettings(mode="none")
SHARE_LIMIT = 0.10  # of a round's time, for encryption, masks and factors together
COLUMNS = (
    "student",
    "MB, he+secagg",
    "MB, fp32 teacher",
    "ratio",
    "of useful rank",
    "BERT-base",
    "share of time",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: bytes of one party, the share of time that was not training, factors' widths."""

    bytes: float
    share_of_time: float
    widths: Mapping[str, float]  # of the largest useful rank, by kind of weight; 1: sent whole


def measure(
    records: int = 400,
    rounds: int = 3,
    parties: int = 4,
    students: Sequence[int] = (4, 2),
    bits: int = 4,
    model: str | None = None,
    data: str | Path | None = None,
    seed: int = 0,
    scale: int = 1,
) -> Report:
    """Train FedKD under he+secagg and compare its bytes; then those of BERT-base's shapes.

    `scale` divides BERT-base's widths, for a quick look.
    """
    started = time.perf_counter()
    found, folder = checkpoint.find(model), collection.find(data)
    name = "built-in ade" if folder is None else "ade_cls"
    silos = _silos(name, folder, parties, records, seed)
    settings = ModelSettings(name=found.name, pooling="attentive")
    sealed = ProtectionSettings.model_validate({"mode": "he+secagg", "bits": bits})
    depth = _depth(settings)
    # FedAvg of the whole teacher is FedKD's student at full depth, sent whole; a few records do
    whole = FedKD(student_layers=depth, factors="none", rounds=rounds, hidden=False)
    few = [Silo(silo.name, silo.train[:8]) for silo in silos]
    reference = _run(few, whole, settings, CLEAR, name, seed).bytes
    bert = bert_shapes.exchange_bytes(bert_shapes.LAYERS, {}, CLEAR, parties, scale)
    results: dict[str, Any] = {}
    for layers in (k for k in students if k <= depth):
        student = FedKD(student_layers=layers, rounds=rounds)
        ours = _run(silos, student, settings, sealed, name, seed)
        base = bert_shapes.exchange_bytes(layers, ours.widths, sealed, parties, scale)
        results[str(layers)] = {
            "depth_of_teacher": depth,
            "bytes_per_party": ours.bytes,
            "reference_bytes_per_party": reference,
            "ratio": reference / ours.bytes,
            "widths": dict(ours.widths),
            "bert_base": {"bytes": base, "reference_bytes": bert, "ratio": bert / base},
            "share_of_time": ours.share_of_time,
        }
    sizes = {
        "model": found.label,
        "data": name,
        "parties": parties,
        "records_per_party": records,
        "rounds": rounds,
        "bits": bits,
    }
    title = (
        f"FedKD on the wire: up and down, one of {parties} parties, {rounds} rounds, {bits} bits"
    )
    return Report(
        "wire",
        sizes,
        seed,
        {"students": results},
        [table(title, COLUMNS, [_row(*item) for item in results.items()])],
        [target for item in results.items() for target in _targets(*item)],
        seconds=time.perf_counter() - started,
    )


def _silos(name: str, folder: Path | None, parties: int, records: int, seed: int) -> list[Silo]:
    spread = datasets.Spread((name,), parties, records * parties)
    return [Silo(silo.name, silo.train) for silo in datasets.silos(spread, folder, seed)]


def _run(
    silos: Sequence[Silo],
    algorithm: FedKD,
    model: ModelSettings,
    protection: ProtectionSettings,
    data: str,
    seed: int,
) -> Measured:
    events: list[dict[str, Any]] = []
    result = Federation(
        silos,
        algorithm,
        task=TaskSettings(labels=collection.SETS[data].labels, max_length=48),
        model=model,
        training=TrainingSettings(learning_rate=1e-4, precision="bfloat16"),
        protection=protection,
        seed=seed,
        listener=into(events),
    ).run()
    document = result.document
    shapes = {name: w.shape for name, w in trainable(result.models["student"]).items()}
    return Measured(
        fmean(sent["up"] + sent["down"] for sent in document["bytes"].values()),
        _share(document["seconds"]),
        _widths([e for e in events if e["event"] == "factor_widths"], shapes),
    )


def _share(seconds: Mapping[str, Any]) -> float:
    """The share of the rounds that went into encryption, masks and factors, of all parties."""
    parties = seconds["party"].values()
    rounds = seconds["coordinator"]["run"] - sum(p.get("load model", 0.0) for p in parties)
    factors = sum(p.get("factorise", 0.0) for p in parties)
    share: float = seconds["privacy_share"] + factors / rounds
    return share


def _widths(events: Sequence[dict[str, Any]], shapes: Mapping[str, Any]) -> dict[str, float]:
    """How wide factors were, as a share of what is useful: the mean of a kind over all rounds."""
    found = defaultdict(list)
    for event in events:
        for name, width in event["widths"].items():
            useful = useful_rank(shapes[name])
            found[bert_shapes.kind(name)].append(1.0 if width is None else width / useful)
    return {kind: fmean(shares) for kind, shares in found.items()}


def _depth(model: ModelSettings) -> int:
    """How many layers the model has."""
    return depth_of(load_backbone(model, load_tokenizer(model), 0))


def _row(layers: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{layers} of {figures['depth_of_teacher']} layers",
        f"{figures['bytes_per_party'] / 1e6:.2f}",
        f"{figures['reference_bytes_per_party'] / 1e6:.2f}",
        f"{figures['ratio']:.1f}x",
        f"{fmean(figures['widths'].values()):.2f}",
        f"{figures['bert_base']['ratio']:.1f}x",
        f"{figures['share_of_time']:.1%}",
    )


def _targets(layers: str, figures: Mapping[str, Any]) -> list[Target]:
    """No less than the paper's plain factors, on top of the cut in depth."""
    depth, k = figures["depth_of_teacher"], int(layers)
    found = [Target(f"share of time, {k} layers", SHARE_LIMIT, figures["share_of_time"])]
    if k in FACTORS_IN_THE_PAPER:
        gain, base = FACTORS_IN_THE_PAPER[k], bert_shapes.LAYERS
        mine = [(f"{k} of {depth} layers", gain * depth / k, figures["ratio"])]
        mine += [(f"BERT-base, {k} layers", gain * base / k, figures["bert_base"]["ratio"])]
        found += [Target(what, limit, ratio, at_least=True) for what, limit, ratio in mine]
    return found
