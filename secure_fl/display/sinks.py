"""Sinks for a run's scores: listeners of `Federation` that write to files and servers.

    Federation(hospitals, FedAvg(), listener=to_csv("scores.csv")).run()

Sinks are optional. A sink writes the pooled scores of each round, which every hospital learns. With
`hospitals=True` it also writes each hospital's own scores, which under sealed sums only that
hospital knows: a hospital's training scores say something about its records. It never writes
settings, records, or names of files or people. Scores carry no noise, and a run's ε does not cover
them. After a failed write a sink stops with a warning, and the run continues.
"""

from __future__ import annotations

import csv
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from secure_fl.errors import SettingsError
from secure_fl.events import Event, Listener, Scored

ALL = "all records"


class Score(NamedTuple):
    """One value of a metric, and its owner."""

    who: str
    round: int
    split: str
    model: str
    name: str
    value: float

    @property
    def key(self) -> str:
        """The name in a flat list: `dev/accuracy`, `north/student/dev/accuracy`."""
        parts = ["" if self.who == ALL else self.who, "" if self.model == "model" else self.model]
        return "/".join(part for part in (*parts, self.split, self.name) if part)


def to_csv(file: Path | str, *, hospitals: bool = False) -> Listener:
    """Return a sink that appends lines to a file: who, round, split, model, name, value."""
    target = Path(file)

    def write(scores: Sequence[Score]) -> None:
        begins = not target.exists()
        with target.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if begins:
                writer.writerow(Score._fields)
            writer.writerows(scores)

    return _listener(f"csv={target}", write, hospitals)


def to_tensorboard(folder: Path | str, *, hospitals: bool = False) -> Listener:
    """Return a sink that writes TensorBoard's event files into a folder.

    The files also contain times of day, and this machine's name.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _missing("tensorboard") from None
    made: list[Any] = []

    def write(scores: Sequence[Score]) -> None:
        if not made:  # created with the first score, so a run that never starts leaves no folder
            made.append(SummaryWriter(str(folder)))
        for one in scores:
            made[0].add_scalar(one.key, one.value, one.round)
        made[0].flush()

    return _listener(f"tensorboard={folder}", write, hospitals)


def to_mlflow(uri: str, *, experiment: str = "secure_fl", hospitals: bool = False) -> Listener:
    """Return a sink that sends scores to MLflow, as one run of an experiment.

    The server's users see scores and times of day. MLflow's usage tracking is switched off.
    """
    # By default MLflow sends usage data to its developers, and retries a dead server for long.
    for name, value in MLFLOW.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise _missing("mlflow") from None
    _require_folders_allowed(uri)
    # `mlflow.start_run` would also send the user's name, the program's path and its commit.
    client = MlflowClient(tracking_uri=uri)
    made: list[str] = []

    def write(scores: Sequence[Score]) -> None:
        if not made:
            known = client.get_experiment_by_name(experiment)
            place = known.experiment_id if known else client.create_experiment(experiment)
            made.append(client.create_run(place).info.run_id)
        now = int(1000 * time.time())
        names = [re.sub(r"[^\w\-. /]", "_", one.key) for one in scores]
        pairs = zip(names, scores, strict=True)
        metrics = [Metric(name, one.value, now, one.round) for name, one in pairs]
        client.log_batch(made[0], metrics=metrics)

    return _listener(f"mlflow={uri}", write, hospitals)


MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
KINDS: Mapping[str, Callable[..., Listener]] = {
    "csv": to_csv,
    "tensorboard": to_tensorboard,
    "mlflow": to_mlflow,
}


def sink(text: str, *, hospitals: bool = False) -> Listener:
    """Make the sink of an option: `csv=FILE`, `tensorboard=FOLDER` or `mlflow=URI`."""
    kind, equals, target = text.partition("=")
    if kind not in KINDS or not equals or not target:
        raise SettingsError(
            f"{text!r} is not a sink",
            fix="write csv=FILE, tensorboard=FOLDER or mlflow=URI",
            field="sink",
        )
    return KINDS[kind](target, hospitals=hospitals)


def scores_of(event: Event, *, hospitals: bool = False) -> list[Score]:
    """List the scores in an event: pooled ones, and with `hospitals` a hospital's own."""
    if not isinstance(event, Scored) or not (event.pooled or hospitals):
        return []
    at = (ALL if event.pooled else event.party, event.round, event.split, event.model or "model")
    return [Score(*at, name, value) for name, value in event.numbers().items()]


def _listener(name: str, write: Callable[[Sequence[Score]], None], hospitals: bool) -> Listener:
    """Make the listener; after a failed write it stops writing, and the run continues."""
    failed: list[bool] = []

    def listener(event: Event) -> None:
        scores = [] if failed else scores_of(event, hospitals=hospitals)
        if not scores:
            return
        try:
            write(scores)
        except Exception as error:  # servers, disks and other libraries raise anything
            failed.append(True)
            what = f"no more scores are written to {name}: {type(error).__name__}: {error}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)

    return listener


def _require_folders_allowed(uri: str) -> None:
    """Refuse a folder now if MLflow would refuse it at the first score."""
    from mlflow import environment_variables as switches

    scheme = uri.partition(":")[0] if ":" in uri else ""
    # This switch exists in versions that refuse folders.
    switch = getattr(switches, "MLFLOW_ALLOW_FILE_STORE", None)
    if scheme in ("", "file") and switch is not None and not switch.get():
        raise SettingsError(
            f"MLflow does not accept a folder ({uri}) by default",
            fix="set MLFLOW_ALLOW_FILE_STORE=true in the environment of this command, give the "
            "address of a server, mlflow=http://HOST:PORT, or use csv=FILE",
            field="sink",
        )


def _missing(extra: str) -> SettingsError:
    return SettingsError(
        f"{extra} is not installed",
        fix=f"from a checkout: pip install --constraint constraints.txt '.[{extra}]'; or use "
        "csv=FILE, which needs no package",
        field="sink",
    )
