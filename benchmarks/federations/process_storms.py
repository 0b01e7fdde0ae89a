"""Storms over processes: a pilot's machines over TLS, one of which lies, and all of which may die.

Every machine is a process with a folder, keys, rules and a log of its own, and runs the commands of
a real pilot. A seed chooses who lies and how, who is killed and when, and whether records are
protected by DP-SGD with a budget. Who was killed is started again, as a machine would be; who stops
with an error is looked after by an operator, who starts it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.federations.drawn import EPSILON, EXCHANGES, ROUNDS, Drawn
from benchmarks.federations.lies import COORDINATOR, Liar
from benchmarks.federations.machines import Machine
from benchmarks.federations.storm_cells import BLAMING, ITSELF, NAMED, Storm, report, run
from benchmarks.federations.storm_harm import lost_keys, models, overspent, rounds_lost
from benchmarks.report import Report
from secure_fl.crypto.keys.vault import Cost
from secure_fl.pilot.kits import load_kit
from secure_fl.runs.folder import EVENTS, RESULT
from secure_fl.runs.party_checkpoints import EVIDENCE
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import free_port

NAMES = ("east", "middle", "north", "south", "west")
SIZE = 24
RUN = Path("runs", "run")  # of a site's folder
COMMON = ("--kit", "kit", "--passphrase-file", "passphrase")
STARTS = 4  # of the coordinator by an operator, and of each hospital, after errors
LIMIT = 1800.0  # seconds that a storm may take on a machine with much else to do
LAST = 30.0  # seconds that hospitals have once the coordinator is done
LOOK = 0.05
CHEAP = Cost(log_n=10)  # of opening a key: passphrases are not what is attacked here


def measure(
    *,
    storms: int = 300,
    seed: int = 0,
    within: int = EXCHANGES,
    jobs: int = 1,
    cells: Path | None = None,
) -> Report:
    """So many storms; those that the file of cells holds are not run again."""
    started = time.perf_counter()
    found = run(storm, range(seed, seed + storms), within, cells, jobs)
    sizes = {"hospitals": len(NAMES), "rounds": ROUNDS, "records": SIZE}
    return report("process-storms", found, sizes, started)


def storm(folder: Path, seed: int, within: int = EXCHANGES) -> Storm:
    """One storm."""
    started, drawn = time.monotonic(), Drawn.of(seed, NAMES, (HUB, *NAMES), within)
    trial = _trial(folder, drawn)
    with _running(trial, drawn) as machines:
        kills, end = _weather(trial, drawn, machines)
    sites = {name: trial.of(name) for name in trial.names if name != drawn.liar}
    told = trial.folder / "lies"
    return Storm(
        seed=seed,
        within=within,
        private=drawn.private,
        lie=drawn.lie,
        liar=drawn.liar,
        told=len(told.read_text().splitlines()) if told.exists() else 0,
        kills=kills,
        end=end,
        rounds_lost=sum(
            rounds_lost(site / RUN, name, [int(e["round"]) for e in _events(site / RUN, "round")])
            for name, site in sites.items()
        ),
        overspent=sum(
            overspent(site / "ledger", len(_events(site / RUN, "privacy")), machines[name].kills)
            for name, site in sites.items()
        ),
        keys_lost=sum(
            lost_keys(site / "ledger", load_kit(site / "kit").roster) for site in sites.values()
        ),
        seconds=round(time.monotonic() - started, 1),
    )


def _trial(folder: Path, drawn: Drawn) -> PilotFolders:
    made = make_pilot_folders(folder, NAMES, drawn.plan(), port=free_port(), size=SIZE, cost=CHEAP)
    for name in made.names if drawn.private else ():
        rules = made.of(name) / "site.toml"
        limits = f'max_epsilon = {EPSILON}\nmax_delta = 0.01\nunit = "record"\n'
        rules.write_text(rules.read_text().replace("[site.dp]\n", f"[site.dp]\n{limits}"))
    return made


@contextmanager
def _running(trial: PilotFolders, drawn: Drawn) -> Iterator[dict[str, Machine]]:
    lead = ("coordinate", "plan.toml", *COMMON, "--out", "run", "--grace", "4", "--wait", "60")
    liar = Liar(drawn.liar, drawn.lie, drawn.first, drawn.once, trial.folder / "lies")
    lies_at = HUB if drawn.liar == COORDINATOR else drawn.liar
    machines = {
        name: Machine(
            trial.of(name),
            lead if name == HUB else ("join", "site.toml", *COMMON),
            liar if name == lies_at else None,
        )
        for name in (HUB, *trial.names)
    }
    try:
        for machine in machines.values():
            machine.start()
        yield machines
    finally:
        for machine in machines.values():
            machine.kill()


def _weather(trial: PilotFolders, drawn: Drawn, machines: Mapping[str, Machine]) -> tuple[int, str]:
    """Kill and start until all is over: how many were killed, and how it ended."""
    due, until, killed = list(drawn.kills), time.monotonic() + LIMIT, 0
    while time.monotonic() < until:
        time.sleep(LOOK)
        if due and _exchanges(trial) >= due[0][0]:
            _, name = due.pop(0)
            if machines[name].code is None:
                killed += 1
                machines[name].kill()
                machines[name].start()
        for name in trial.names:
            if machines[name].code and machines[name].starts - machines[name].kills < STARTS:
                machines[name].start()
        if (code := machines[HUB].code) is None:
            continue
        if code == 0 and _all_done(trial, drawn, machines):
            return killed, _models(trial, drawn)
        if code and _blamed(trial, drawn):
            return killed, NAMED
        if machines[HUB].starts - machines[HUB].kills >= STARTS:
            itself = ITSELF if drawn.liar == COORDINATOR else f"stopped: {_last(trial)}"
            return killed, itself if code else _models(trial, drawn)
        for name in (HUB, *trial.names):  # those that had ended well are needed again
            if machines[name].code is not None:
                machines[name].start()
    return killed, "did not end"


def _exchanges(trial: PilotFolders) -> int:
    """How many a hospital has seen, at the most."""
    counts = [0]
    for name in trial.names:
        with suppress(OSError):
            file = trial.of(name) / RUN / "parties" / name / "transcript.jsonl"
            counts.append(file.read_bytes().count(b"\n") // 2)
    return max(counts)


def _all_done(trial: PilotFolders, drawn: Drawn, machines: Mapping[str, Machine]) -> bool:
    """Whether every honest hospital has ended well, a while after the coordinator did."""
    until, honest = time.monotonic() + LAST, [n for n in trial.names if n != drawn.liar]
    codes = [machines[n].wait(max(0.0, until - time.monotonic())) for n in honest]
    done = [(trial.of(n) / RUN / RESULT).exists() for n in honest]
    return all(code == 0 for code in codes) and all(done)


def _models(trial: PilotFolders, drawn: Drawn) -> str:
    return models([trial.of(name) / RUN for name in trial.names if name != drawn.liar])


def _blamed(trial: PilotFolders, drawn: Drawn) -> bool:
    """Whether the liar, and nobody else, is named: by the coordinator, or by evidence at sites."""
    if drawn.liar != COORDINATOR:
        hub = trial.of(HUB) / "run"
        convicted = _events(hub, "convicted")
        told = convicted or [event for kind in BLAMING for event in _events(hub, kind)]
        named = {party for event in told for party in event["parties"]}
        at = {event["at"] for event in _events(hub, "stopped")[-1:]}
        return (named or at) == {drawn.liar}
    kept = [
        {file.name for file in folder.glob("[!.]*")}
        for folder in trial.folder.glob(f"*/runs/run/parties/*/{EVIDENCE}")
    ]
    said = [(trial.of(name) / "log").read_text() for name in trial.names]
    distrusted = sum("the coordinator is not to be trusted" in text for text in said)
    return all(names == {HUB} for names in kept) and (bool(kept) or distrusted > 0)


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    with suppress(OSError):
        for line in (folder / EVENTS).read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                found += [event] if event["event"] == kind else []
    return found


def _last(trial: PilotFolders) -> str:
    stops = _events(trial.of(HUB) / "run", "stopped")
    return f"{stops[-1]['code']} {stops[-1]['at']}".rstrip() if stops else "no reason told"
