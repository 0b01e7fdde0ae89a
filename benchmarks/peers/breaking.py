"""Mishaps and eavesdropping on every system, one mishap a run.

A run may end within `LONGEST` seconds. Its model is compared with that of a run without mishaps,
and lines of the server's logs that the calm run lacks are kept. Knowledge about a site is the
largest correlation of anything held with the change of any site's weights in a round: 1 is
everything, and a few hundredths are chance.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from benchmarks.peers import tables
from benchmarks.peers.compare import NETWORKED, by_hand, run_stage
from benchmarks.peers.environments import missing
from benchmarks.peers.inside.job import FINAL, KEPT, TAPPED, Array, Job, take
from benchmarks.peers.mishaps import MISHAPS, SERVER
from benchmarks.peers.prepare import Sizes, prepare
from benchmarks.peers.stage import FAILED, SAID
from benchmarks.peers.tables import CALM
from benchmarks.peers.ways import ROOT, WAYS, WITHOUT_MASKS
from benchmarks.report import Report

TRIED = NETWORKED
RAN = "ran.json"  # how a run ended
LONGEST = 420  # seconds that a run may take: many times a calm one of all but SecAgg+
TELLING = re.compile(
    r"error|warn|fail|lost|left out|refus|reject|named|drop|abort|mismatch|disconnect|restart", re.I
)
CHANGES = re.compile(r"[0-9a-f]{8}(-[0-9a-f]+){4}|[0-9a-f]{6,}|\d+")  # between runs of a story
MOST_LINES = 8


def measure(
    names: Sequence[str] = (*TRIED, WITHOUT_MASKS),
    mishaps: Sequence[str] = tuple(MISHAPS),
    environments: str | Path = "peers",
    rounds: int = 3,
    records: int = 60,
    work: str | Path | None = None,
) -> Report:
    """Run each system with each mishap; `work`: folder of finished runs."""
    homes = Path(environments).absolute()
    sizes = Sizes(sites=4, records=records, rounds=rounds)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(work or temporary).absolute()
        job = folder / "job"
        if not job.exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(job, sizes)
        reference = by_hand(Job(job))
        for name in names:
            way = WAYS[name]
            rows[name] = {"system": way.mode, "protected": way.protected}
            if way.system and (why := missing(homes, way.system)):
                rows[name]["error"] = why
                continue
            for mishap in (CALM, *(m for m in mishaps if fits(name, m))):
                out = folder / f"{name}-{mishap}"
                ran = out / RAN
                if not ran.exists():
                    said = _run(name, mishap, job, out, homes)
                    out.mkdir(exist_ok=True)
                    ran.write_text(json.dumps(said, indent=1))
                calm = folder / f"{name}-{CALM}"
                judged = judge(Job(job), out, reference, mishap, calm)
                rows[name][mishap] = json.loads(ran.read_text()) | judged
    tried = {name: row for name, row in rows.items() if "error" not in row}
    sizes_of = {"sites": 4, "rounds": rounds, "records": records}
    return Report(
        "breaking",
        sizes_of,
        sizes.seed,
        {"rows": rows},
        [tables.broken(tried), tables.learning(tried)],
    )


def fits(name: str, mishap: str) -> bool:
    """Return True if a mishap is tried on a system; the control without masks is only read."""
    return name != WITHOUT_MASKS or mishap == "tap"


def _run(name: str, mishap: str, job: Path, out: Path, homes: Path) -> dict[str, Any]:
    """Run once, in a process and a network of its own."""
    sites, found = Job(job).sites, MISHAPS.get(mishap)
    where = SERVER if found and found.signal and found.who == SERVER else sites[1]
    began = time.time()
    env = {"PEERS_LONGEST": str(LONGEST)}
    done = run_stage(name, job, out, homes, f"{mishap} {where}" if found else "", env=env)
    failed = out / FAILED
    why = failed.read_text() if failed.exists() else done.stderr[-600:]
    return {
        "where": where if found else None,
        "ended": done.returncode == 0 and (out / SAID).exists(),
        "why": why.replace(f"{ROOT}/", "").replace(f"{homes}/", "") if done.returncode else None,
        "seconds": time.time() - began,
    }


def judge(
    job: Job, out: Path, reference: Mapping[str, Array], mishap: str, calm: Path
) -> dict[str, Any]:
    """Measure a run's model, the server's new log lines, and the knowledge about sites."""
    row: dict[str, Any] = {"said": new_warnings(out, calm) if mishap != CALM else []}
    if (out / FINAL).exists():
        with np.load(out / FINAL) as found:
            weights = dict(found)
        model = job.model()
        take(model, weights)
        row["finite"] = all(bool(np.isfinite(values).all()) for values in weights.values())
        row["accuracy"] = job.test(model)
        row["off"] = max(float(np.abs(weights[n] - v).max()) for n, v in reference.items())
    if mishap in MISHAPS and MISHAPS[mishap].reads:
        truths = list(_truths(out))
        row["truths"] = len(truths)
        row["learnt"] = learnt(truths, out / TAPPED)
        row["learnt_with_a_site"] = learnt(truths, out / f"{TAPPED}-with-a-site")
        row["learnt_from_model"] = _from_model(out, truths)
    return row


def new_warnings(out: Path, calm: Path) -> list[str]:
    """Find the warnings and errors in the server's logs that the calm run lacks."""
    known = {CHANGES.sub("#", line) for line in _lines(calm)}
    found: dict[str, str] = {}
    for line in _lines(out):
        plain = CHANGES.sub("#", line)
        if plain not in known and TELLING.search(line) and "waits for" not in line:
            found.setdefault(plain, line.strip()[:240])
    return list(found.values())[:MOST_LINES]


def _lines(out: Path) -> Iterator[str]:
    logs = [out / "server.log", out / "submit.log", out / "run.log"]
    logs += [f for f in out.rglob("log.txt") if "/server/" in str(f)]
    for log in logs:
        if log.exists():
            yield from log.read_text(errors="replace").splitlines()


Arrays = Mapping[str, Array]
Truth = tuple[int, Arrays, Arrays]  # the round, what a site got, what it sent


def _truths(out: Path) -> Iterator[Truth]:
    for file in sorted((out / KEPT).glob("sent-*.npz")):
        got = file.with_name(file.name.replace("sent-", "got-", 1))
        yield int(file.stem.rsplit("-", 1)[1]), _arrays(got), _arrays(file)


def learnt(truths: Sequence[Truth], folder: Path) -> float:
    """Compute the best correlation of anything held with any site's change of weights."""
    best = 0.0
    for file in sorted(folder.glob("*.npz")) if folder.exists() else ():
        with suppress(BadZipFile):  # whoever wrote it was stopped
            held = _arrays(file)
            best = max([best, *(likeness(held, truth) for truth in truths)])
    return best


def likeness(held: Arrays, truth: Truth) -> float:
    """Correlate values with a site's change, after removing what its old weights explain."""
    _, got, sent = truth
    names = list(sent) if held.keys() == sent.keys() else list(held)
    seen = np.resize(_flat(held, names), _flat(sent).size).astype(float)
    before, change = _flat(got), _flat(sent) - _flat(got)
    return abs(_correlation(_without(seen, before), _without(change, before)))


def _from_model(out: Path, truths: Sequence[Truth]) -> float:
    """Correlate the final model, which every site has, with one site's last change."""
    last = max((round for round, *_ in truths), default=0)
    if not (out / FINAL).exists():
        return 0.0
    final = _arrays(out / FINAL)
    return max((likeness(final, t) for t in truths if t[0] == last), default=0.0)


def _without(values: Array, other: Array) -> Array:
    """Remove the mean of values and their projection on the others."""
    values, other = values - values.mean(), other - other.mean()
    square = float(other @ other)
    return values - other * (float(values @ other) / square) if square else values


def _correlation(one: Array, other: Array) -> float:
    norm = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norm if np.isfinite(norm) and norm else 0.0


def _arrays(file: Path) -> Arrays:
    with np.load(file) as found:
        return {name.replace("__", "."): found[name] for name in found.files}


def _flat(arrays: Arrays, names: Sequence[str] | None = None) -> Array:
    return np.concatenate([np.ravel(arrays[n]).astype(float) for n in names or list(arrays)])
