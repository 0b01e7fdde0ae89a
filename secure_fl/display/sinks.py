"""Where else a run's scores can go, as it happens: a sink is a listener of `Federation`.

    Federation(hospitals, FedAvg(), listener=to_csv("scores.csv")).run()

None is there unless it is asked for. A sink tells whoever reads its target the scores over all
hospitals' records, which every hospital learns, by round; with `hospitals=True` also each
hospital's own, which under sealed sums nobody but that hospital learns. Never settings, records,
names of files or people.
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
    """One value, and whose it is."""

    who: str
    round: int
    split: str
    model: str
    name: str
    value: float

    @property
    def key(self) -> str:
        """Its name where scores lie in one list: `dev/accuracy`, `north/student/dev/accuracy`."""
        parts = ["" if self.who == ALL else self.who, "" if self.model == "model" else self.model]
        return "/".join(part for part in (*parts, self.split, self.name) if part)


def to_csv(file: Path | str, *, hospitals: bool = False) -> Listener:
    """Append a line per score to a file: who, round, split, model, name, value."""
    target = Path(file)

    def write(scores: Sequence[Score]) -> None:
        begins = not target.exists()
        with target.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if begins:
                writer.writerow(Score._fields)
            writer.writerows(scores)

    return _told(f"csv={target}", write, hospitals)


def to_tensorboard(folder: Path | str, *, hospitals: bool = False) -> Listener:
    """Write TensorBoard's event files into a folder: values, rounds and times of day."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _missing("tensorboard") from None
    made: list[Any] = []

    def write(scores: Sequence[Score]) -> None:
        if not made:  # with the first score: a run that never begins leaves no folder
            made.append(SummaryWriter(str(folder)))
        for one in scores:
            made[0].add_scalar(one.key, one.value, one.round)
        made[0].flush()

    return _told(f"tensorboard={folder}", write, hospitals)


def to_mlflow(uri: str, *, experiment: str = "secure_fl", hospitals: bool = False) -> Listener:
    """Send scores to an MLflow server, or a folder of its kind, as one run of an experiment."""
    # MLflow counts its uses at its makers unless told not to, and waits long for a dead server.
    for name, value in MLFLOW.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise _missing("mlflow") from None
    _require_folders_allowed(uri)
    # The client alone: `mlflow.start_run` would send the user's name, the program's path and its
    # commit with every run.
    client = MlflowClient(tracking_uri=uri)
    made: list[str] = []

    def write(scores: Sequence[Score]) -> None:
        if not made:
            known = client.get_experiment_by_name(experiment)
            place = known.experiment_id if known else client.create_experiment(experiment)
            made.append(client.create_run(place).info.run_id)
        now = int(1000 * time.time())
        client.log_batch(
            made[0],
            metrics=[
                Metric(re.sub(r"[^\w\-. /]", "_", one.key), one.value, now, one.round)
                for one in scores
            ],
        )

    return _told(f"mlflow={uri}", write, hospitals)


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
    """The sink that a command's option names: `csv=FILE`, `tensorboard=FOLDER`, `mlflow=URI`."""
    kind, equals, target = text.partition("=")
    if kind not in KINDS or not equals or not target:
        raise SettingsError(
            f"{text!r} names no sink",
            fix="write csv=FILE, tensorboard=FOLDER or mlflow=URI",
            field="sink",
        )
    return KINDS[kind](target, hospitals=hospitals)


def scores_of(event: Event, *, hospitals: bool = False) -> list[Score]:
    """List the scores in an event: those over all hospitals' records, and if asked this one's."""
    if not isinstance(event, Scored) or not (event.pooled or hospitals):
        return []
    at = (ALL if event.pooled else event.party, event.round, event.split, event.model or "model")
    return [Score(*at, name, value) for name, value in event.numbers().items()]


def _told(name: str, write: Callable[[Sequence[Score]], None], hospitals: bool) -> Listener:
    """Hand scores on; a target that fails is given up, and the run goes on."""
    failed: list[bool] = []

    def listener(event: Event) -> None:
        scores = [] if failed else scores_of(event, hospitals=hospitals)
        if not scores:
            return
        try:
            write(scores)
        except Exception as error:  # whatever a server, a disk or another library does
            failed.append(True)
            what = f"scores go no longer to {name}: {type(error).__name__}: {error}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)

    return listener


def _require_folders_allowed(uri: str) -> None:
    """Say at once what MLflow would say at the first score, when nobody looks any more."""
    from mlflow import environment_variables as switches

    scheme = uri.partition(":")[0] if ":" in uri else ""
    switch = getattr(switches, "MLFLOW_ALLOW_FILE_STORE", None)  # there since folders are refused
    if scheme in ("", "file") and switch is not None and not switch.get():
        raise SettingsError(
            f"MLflow takes no plain folder ({uri}) unless it is told to",
            fix="set MLFLOW_ALLOW_FILE_STORE=true in the environment of this command; or give the "
            "address of a server, mlflow=http://HOST:PORT; or take csv=FILE",
            field="sink",
        )


def _missing(extra: str) -> SettingsError:
    return SettingsError(
        f"{extra} is not installed",
        fix=f"from a checkout: pip install --constraint constraints.txt '.[{extra}]'; or take "
        "csv=FILE, which needs nothing",
        field="sink",
    )
