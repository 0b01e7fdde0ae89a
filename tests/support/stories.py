"""A run's folder as runs write them: the figures are made up, but fit together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from secure_fl.display.run_history import RunHistory, read_run_history
from secure_fl.events import Crossing

PARTIES = ("north", "south", "west")
STUDY = """\
[data]
corpus = "ade"
size = 24
[task]
max_length = 16
[model]
layers = 1
[training]
learning_rate = 2e-3
device = "cpu"
[protection]
mode = "none"
[algorithm]
name = "fedavg"
rounds = 2
"""
SETTINGS = """[run]
seed = 0

[training]
optimizer = "adamw"
learning_rate = 0.0001
schedule = "linear"
warmup = "none"
batch_size = 16

[protection]
mode = "he+secagg"

[algorithm]
name = "{algorithm}"
rounds = {rounds}
epochs = 2
"""
VERSIONS = {"sealed-federation": "0.1.0", "torch": "2.13.0"}


def score(round: int, shift: float = 0.0) -> dict[str, float]:
    return {"accuracy": 0.9 - 0.4 / round + shift, "loss": 0.7 / round}


def events(rounds: int, parties: tuple[str, ...], shift: float) -> Iterator[dict[str, Any]]:
    """What happened until the last round began, or ended."""
    for n in range(1, rounds + 1):
        members = parties if n != 2 else parties[:-1]
        told = {"round": n, "members": members, "at": 1000.0 + 3 * n}
        yield {"event": "round_started", "party": "coordinator"} | told
        if n == 2:
            yield {"event": "lost", "party": "coordinator", "parties": parties[-1:]}
        for place, name in enumerate(members):
            step = {"round": n, "step": 4, "steps": 4, "loss": 0.8 / n}
            yield {"event": "train", "party": name} | step
            for split in ("dev", "test"):
                own = score(n, shift + 0.02 * place)
                yield {"event": "scores", "party": name, "round": n, "split": split, "values": own}
        for split in ("dev", "test"):
            pooled = {"round": n, "split": split, "values": score(n), "pooled": True}
            yield {"event": "scores", "party": parties[0]} | pooled
    last = {"round": rounds + 1, "members": parties, "at": 1003.0 + 3 * rounds}
    yield {"event": "round_started", "party": "coordinator"} | last


def document(rounds: int, algorithm: str, parties: tuple[str, ...], shift: float) -> dict[str, Any]:
    scores = {"dev": score(rounds), "test": score(rounds)}
    own = {
        name: {split: score(rounds, shift + 0.02 * place) for split in ("dev", "test")}
        for place, name in enumerate(parties)
    }
    counts = {"loss": [120.0, 60.0], "truly ade": [30, 10], "truly no-ade": [10, 70]}
    found = {
        "round": rounds,
        "pooled": scores,
        "mean": scores,
        "party": own,
        "counts": {"test": counts},
        "intervals": {"test": {"accuracy": [0.8, 0.9]}},
    }
    return {
        "algorithm": algorithm,
        "protection": {"mode": "he+secagg", "statement": "3 of 3 hospitals open a sum."},
        "privacy": None,
        "noise": None,
        "task": {"kind": "classification", "labels": ["ade", "no-ade"]},
        "parties": list(parties),
        "rounds": rounds,
        "main_metric": "accuracy",
        "metrics": {"last": found, "best": found},
        "history": [],
        "model_round": rounds,
        "values": 37_762,
        "bytes": {name: {"up": 110_000 * rounds, "down": 112_000 * rounds} for name in parties},
        "seconds": {
            "total": 3.0 * rounds,
            "party": {name: {"train": 1.5 * rounds, "seal": 0.25} for name in parties},
            "coordinator": {"add": 0.5, "run": 3.0 * rounds},
            "privacy_share": 0.05,
        },
        "versions": VERSIONS,
    }


def written(
    folder: Path,
    *,
    rounds: int = 6,
    algorithm: str = "fedavg",
    parties: tuple[str, ...] = PARTIES,
    shift: float = 0.0,
    done: bool = True,
) -> Path:
    """A run's folder."""
    folder.mkdir(parents=True)
    settings = SETTINGS.format(algorithm=algorithm, rounds=rounds)
    (folder / "settings.toml").write_text(settings)
    lines = [json.dumps(event) for event in events(rounds, parties, shift)]
    (folder / "events.jsonl").write_text("\n".join(lines if done else lines[:-3]) + "\n")
    for name in parties:
        (folder / "parties" / name).mkdir(parents=True)
        crossings = [
            Crossing(
                party=name,
                round=n,
                exchange=n,
                direction=way,
                kind="SumInput",
                audience="parties",
                head_bytes=500,
                bulk_bytes=109_500 + n,
                digest="",
            )
            for n in range(1, rounds + 1)
            for way in ("out", "in")
        ]
        lines_of = b"".join(crossing.line() for crossing in crossings)
        (folder / "parties" / name / "transcript.jsonl").write_bytes(lines_of)
    if done:
        text = json.dumps(document(rounds, algorithm, parties, shift))
        (folder / "result.json").write_text(text)
    return folder


def story(folder: Path, **options: Any) -> RunHistory:
    """The same, read."""
    return read_run_history(written(folder, **options))
