"""A round of InclusiveFL over BERT-base's layers, beside the training that it follows.

What opening, FedAdam and averages take of a party is held against an epoch of its own training;
the coordinator's time and memory are those of a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import fmean
from typing import Any

import torch
from rich.table import Table
from torch import nn

from benchmarks import bert_shapes
from benchmarks.federations.tier_round import (
    LADDER,
    SEALED,
    TIER_OF,
    Played,
    Server,
    outlines,
    play,
)
from benchmarks.report import Report, Target, cpu, table
from secure_fl.learning.anatomy import trainable
from secure_fl.learning.local_training import make_optimizer
from secure_fl.settings import TrainingSettings

WAYS: tuple[tuple[Server, str], ...] = (
    ("fedadam", "a sum per tier, FedAdam"),
    ("linear", "mixed under encryption"),
)
BATCH, TOKENS, WORDS = 16, 64, 1000
STEPS = 2  # measured, after one that warms up
EPOCH = 5_000  # records
LIMIT = 0.10  # of an epoch, for opening, FedAdam and averages


@dataclass(frozen=True, slots=True)
class Row:
    """One party's round, as a mean over its tier; CPU seconds and bytes."""

    way: str
    tier: str
    layers: int
    parties: int
    values: int  # of its model, without embeddings
    up: float
    down: float
    seal: float
    unmask: float
    open: float
    mix: float
    training_step: float
    share_of_epoch: float  # of opening and mixing, in an epoch of EPOCH records
    records_for_limit: int  # the least an epoch must have for that share to be within LIMIT


def measure(*, scale: int = 2, batch: int = BATCH, tokens: int = TOKENS, seed: int = 0) -> Report:
    """Measure both ways of mixing; `scale` divides widths (1: all parties take over 10 GB)."""
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    rows: list[Row] = []
    coordinators: list[dict[str, Any]] = []
    try:
        steps = {t: _training_step(d, scale, batch, tokens) for t, d in LADDER.depths.items()}
        sketches = outlines(scale, seed)
        values = {tier: sketch.values for tier, sketch in sketches.items()}
        for server, way in WAYS:
            begun = time.perf_counter()
            played = play(server, sketches, seed)
            seconds = time.perf_counter() - begun
            rows += [_row(way, played, t, values[t], steps[t], batch) for t in LADDER.tiers]
            coordinators.append(_coordinator(way, played, seconds))
    finally:
        torch.set_num_threads(threads)
    return Report(
        "layers",
        {
            "scale": scale,
            "parties": len(TIER_OF),
            "depths": dict(LADDER.depths),
            "bits": SEALED.bits,
            "batch": batch,
            "tokens": tokens,
            "epoch_records": EPOCH,
        },
        seed,
        {"rows": [asdict(row) for row in rows], "coordinator": coordinators},
        [_parties_table(rows, scale), _coordinator_table(coordinators)],
        [
            Target(f"{r.way}, {r.tier}: of an epoch of {EPOCH} records", LIMIT, r.share_of_epoch)
            for r in rows
        ],
        seconds=time.perf_counter() - started,
    )


def _training_step(layers: int, scale: int, batch: int, tokens: int) -> float:
    """CPU seconds of one optimiser step of a model of this depth, in 32-bit floats."""
    model, settings = bert_shapes.model(layers, scale).train(), TrainingSettings()
    optimizer = make_optimizer(model, settings)
    words = torch.randint(WORDS, (batch, tokens))
    mask, labels = torch.ones_like(words), torch.randint(2, (batch,))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(words, mask).logits, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trainable(model).values(), 1.0)
        optimizer.step()

    step()
    return fmean(cpu(step)[0] for _ in range(STEPS))


def _row(way: str, played: Played, tier: str, values: int, step: float, batch: int) -> Row:
    own = [name for name in TIER_OF if TIER_OF[name] == tier]
    phases = {
        phase: fmean(played.recorders[name].seconds[phase] for name in own)
        for phase in ("seal", "unmask", "open")
    }
    mix = fmean(played.mixed[name] for name in own)
    after = phases["open"] + mix
    return Row(
        way,
        tier,
        LADDER.depths[tier],
        len(own),
        values,
        fmean(played.recorders[name].bytes_up for name in own),
        fmean(played.recorders[name].bytes_down for name in own),
        **phases,
        mix=mix,
        training_step=step,
        share_of_epoch=after / (EPOCH / batch * step),
        records_for_limit=ceil(after / (LIMIT * step) * batch),
    )


def _coordinator(way: str, played: Played, seconds: float) -> dict[str, Any]:
    every = played.recorders.values()
    return {
        "way": way,
        **asdict(played.coordinator),
        "bytes_up": sum(recorder.bytes_up for recorder in every),
        "bytes_down": sum(recorder.bytes_down for recorder in every),
        "round_seconds": seconds,  # by the clock, all parties one after the other
        "equal": played.equal,
    }


def _parties_table(rows: Sequence[Row], scale: int) -> Table:
    width = "BERT-base's widths" if scale == 1 else f"BERT-base's widths over {scale}"
    columns = (
        "a party's round, CPU s",
        "values",
        "MB up",
        "MB down",
        "seal",
        "open",
        "mix",
        "training step",
        f"of {EPOCH:,} records",
        f"records for {LIMIT:.0%}",
    )
    cells = [
        (
            f"{row.way}: {row.tier}, {row.layers} layers",
            f"{row.values:,}",
            f"{row.up / 1e6:.1f}",
            f"{row.down / 1e6:.1f}",
            f"{row.seal:.2f}",
            f"{row.open:.2f}",
            f"{row.mix:.2f}",
            f"{row.training_step:.2f}",
            f"{row.share_of_epoch:.1%}",
            f"{row.records_for_limit:,}",
        )
        for row in rows
    ]
    return table(f"one round of InclusiveFL, {len(TIER_OF)} parties, {width}", columns, cells)


def _coordinator_table(found: Sequence[dict[str, Any]]) -> Table:
    columns = ("the coordinator", "CPU s", "pipe CPU s", "peak MB", "MB up", "MB down", "equal")
    cells = []
    for figures in found:
        peak = figures["peak_resident"]
        cells.append(
            (
                figures["way"],
                f"{figures['cpu_seconds']:.2f}",
                f"{figures['pipe_cpu_seconds']:.2f}",
                "-" if peak is None else f"{peak / 1e6:.0f}",
                f"{figures['bytes_up'] / 1e6:.0f}",
                f"{figures['bytes_down'] / 1e6:.0f}",
                "yes" if figures["equal"] else "NO",
            )
        )
    return table("in a process of its own", columns, cells)
