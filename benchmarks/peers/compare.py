"""The same job on every system, in turns: seconds, CPU, bytes, memory and accuracy.

A round lasts from the start of its first site's training to that of the next round. The first round
does not count: systems load and connect in it. A system that is not installed, or fails, is a row
with its error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers import tables
from benchmarks.peers.environments import missing
from benchmarks.peers.inside.job import FINAL, TRAINED, Job, take, trained
from benchmarks.peers.prepare import Sizes, prepare
from benchmarks.peers.stage import FAILED, LONGEST, SAID
from benchmarks.peers.ways import NO_SERVER, ROOT, WAYS, WITHOUT_MASKS, Way
from benchmarks.report import Grid, Report

SIMULATED = tuple(name for name, way in WAYS.items() if way.server == NO_SERVER)
NETWORKED = tuple(name for name in WAYS if name not in {*SIMULATED, WITHOUT_MASKS})
FEWEST = 3  # rounds: the first does not count, and a round ends when another begins


@dataclass(frozen=True, slots=True)
class Turn:
    """Cost and result of one run."""

    first: float  # seconds from the command to the first round
    seconds: float  # of a round
    cpu: float  # of a round, all processes
    up: float  # bytes of a round and site
    down: float
    peak_server: int
    peak_site: int
    accuracy: float
    off: float  # the largest difference from the weights of the job done by hand
    rounds: int
    load: float  # of the machine, on average of the last minute


def measure(
    names: Sequence[str] | None = None,
    environments: str | Path = "peers",
    turns: int = 5,
    sites: int | None = None,
    rounds: int = 4,
    records: int | None = None,
    model: str = "tiny",
    data: str | Path | None = None,
    simulated: bool = False,
    threads: int = 1,
) -> Report:
    """Run the job on every system, in turns; `simulated`: many clients in one process."""
    names = names or (SIMULATED if simulated else NETWORKED)
    sites, records = sites or (100 if simulated else 4), records or (24 if simulated else 120)
    homes = Path(environments).absolute()
    size = {"sites": sites, "records": records, "rounds": rounds, "threads": threads}
    sizes = Sizes.of(model, real=data is not None, **size)
    taken: dict[str, list[Turn]] = {name: [] for name in names}
    errors: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(Path(folder, "job"), sizes, None if data is None else Path(data))
        reference = by_hand(Job(job))
        values = sum(map(np.size, reference.values()))
        for turn in range(turns):
            for name in names:
                if name in errors:
                    continue
                out = Path(folder, f"{name}-{turn}")
                found = _run(name, job, out, homes, reference)
                shutil.rmtree(out, ignore_errors=True)  # large models, turn after turn, fill disks
                if isinstance(found, str):
                    errors[name] = found.replace(f"{ROOT}/", "")
                else:
                    taken[name].append(found)
    rows = {name: _row(WAYS[name], taken[name], errors.get(name)) for name in names}
    title = f"{sites} sites of {records} records, {rounds} rounds, {sizes.label}"
    columns = tables.SIMULATED if simulated else tables.NETWORKED
    return Report(
        "peers",
        {**asdict(sizes), "model": sizes.label, "turns": turns, "values": values},
        sizes.seed,
        {"rows": rows},
        [Grid.of(f"{title}; median of {turns} turns", rows.values(), columns)],
    )


def by_hand(job: Job) -> dict[str, Any]:
    """Run the job as a loop, for the weights that all systems should have at the end."""
    model = job.model()
    weights = trained(model)
    total = sum(map(job.records, job.sites))
    for round in range(1, job.rounds + 1):
        mean = {name: np.zeros(values.shape) for name, values in weights.items()}
        for site in job.sites:
            take(model, weights)
            job.train(model, site, round)
            for name, values in trained(model).items():
                mean[name] += values.astype(float) * (job.records(site) / total)
        weights = {name: values.astype(np.float32) for name, values in mean.items()}
    return weights


def run_stage(
    name: str, job: Path, out: Path, homes: Path, mishap: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a system once, in a process and a network of its own; options are those of `run`."""
    way = WAYS[name]
    bin = homes / way.system / "bin" if way.system else Path(sys.executable).parent
    command = [sys.executable, "-m", "benchmarks.peers.stage", *map(str, (job, out, name, bin))]
    root = () if os.geteuid() == 0 else ("--map-root-user",)
    env = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run(
        ["unshare", "--net", *root, *command, mishap],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def _run(name: str, job: Path, out: Path, homes: Path, reference: Mapping[str, Any]) -> Turn | str:
    """Run once and read the measurements; a text is the reason of a failure."""
    if WAYS[name].system and (why := missing(homes, WAYS[name].system)):
        return why
    try:
        done = run_stage(name, job, out, homes, timeout=2 * LONGEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        failed = out / FAILED
        return failed.read_text() if failed.exists() else done.stderr[-600:]
    return _turn(Job(job), out, reference)


def _turn(job: Job, out: Path, reference: Mapping[str, Any]) -> Turn | str:
    """Read the files of a run; a text is the reason of a failure."""
    said = json.loads((out / SAID).read_text())
    begins: dict[int, float] = {}
    for line in (out / TRAINED).read_text().splitlines():
        one = json.loads(line)
        begins[one["round"]] = min(one["began"], begins.get(one["round"], one["began"]))
    ordered = sorted(begins.values())
    if len(ordered) < FEWEST:
        return f"{len(ordered)} rounds began, and {FEWEST} are needed to measure one"
    ticks = np.array(said["ticks"])
    cpu, up, down = (np.interp(ordered[1:], ticks[:, 0], ticks[:, at]) for at in (1, 2, 3))
    rounds = len(ordered) - 2
    with np.load(out / FINAL) as found:
        weights = dict(found)
    model = job.model()
    take(model, weights)
    return Turn(
        ordered[0] - said["began"],
        (ordered[-1] - ordered[1]) / rounds,
        float(cpu[-1] - cpu[0]) / rounds,
        float(up[-1] - up[0]) / rounds / len(job.sites),
        float(down[-1] - down[0]) / rounds / len(job.sites),
        said["peak_server"],
        said["peak_site"],
        job.test(model),
        max(float(np.abs(weights[name] - values).max()) for name, values in reference.items()),
        rounds,
        os.getloadavg()[0],
    )


def _row(way: Way, turns: Sequence[Turn], error: str | None) -> dict[str, Any]:
    """Compute median, minimum and maximum over turns."""
    about = {
        "system": way.mode,
        "protected": way.protected,
        "lines": sum(_lines(ROOT / "benchmarks/peers/inside" / file) for file in way.files),
        "error": error,
        "turns": len(turns),
    }
    if not turns:
        return about
    names = asdict(turns[0])
    values = {name: [float(getattr(turn, name)) for turn in turns] for name in names}
    return about | {name: [median(v), min(v), max(v)] for name, v in values.items()}


def _lines(file: Path) -> int:
    """Count the lines of a file that are not blank."""
    if not file.exists():
        return 0
    return sum(bool(line.strip()) for line in file.read_text().splitlines())
