"""Storms over processes and TLS: one machine of a pilot lies, and all may be killed.

Every machine is a process with a folder, keys, rules and a log, and runs the commands of a real
pilot. A seed chooses the liar and the lie, the kills, and DP-SGD with a budget. Killed machines are
started again; so are machines that stop with an error, as by an operator. In the end all honest
hospitals have one model, bit for bit, or the run has stopped and named the liar, and no honest
hospital has lost a finished round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import jsonl
from benchmarks.report import Report
from benchmarks.storms.lies import AT_GATHERINGS, BY_MEMBERS, COORDINATOR, LIES, Liar
from benchmarks.storms.machines import Machine
from benchmarks.storms.outcomes import (
    ITSELF,
    NAMED,
    Storm,
    lost_keys,
    models,
    overspent,
    read,
    report,
    rounds_lost,
)
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.vault import Cost
from secure_fl.pilot.kits import load_kit
from secure_fl.policy.plan import Plan
from secure_fl.runs.folder import EVENTS, RESULT
from secure_fl.runs.party_checkpoints import EVIDENCE
from secure_fl.settings import DPSettings, ProtectionSettings
from tests.support.local_pilot import plan_of
from tests.support.pilot_folders import HUB, PilotFolders, make_pilot_folders
from tests.support.processes import KEYS, free_port

ROUNDS, KILLS = 3, 3
EXCHANGES = 10 * ROUNDS  # of an undisturbed run, about
EPSILON = 60.0
NAMES = ("east", "middle", "north", "south", "west")
SIZE = 24
RUN = Path("runs", "run")  # of a site's folder
BLAMING = ("convicted", "withheld", "rounds_repeated")  # events of the coordinator
STARTS = 4  # of each machine after errors
LIMIT = 1800.0  # seconds of a storm on a busy machine
LAST = 30.0  # seconds that hospitals have after the coordinator's end
LOOK = 0.05
CHEAP = Cost(log_n=10)  # of opening a key: passphrases are not attacked here


@dataclass(frozen=True, slots=True)
class StormDraw:
    """One storm before it begins; lies take turns, all other choices are random."""

    liar: str  # a member, or COORDINATOR
    lie: str
    first: int  # the first of its chances that it takes
    once: bool
    private: bool  # by DP-SGD with a budget
    kills: Sequence[tuple[int, str]]  # number of exchanges, and the machine

    @classmethod
    def of(
        cls, seed: int, members: Sequence[str], mortal: Sequence[str], within: int = EXCHANGES
    ) -> StormDraw:
        """Draw a storm over these members; `mortal` machines may be killed within some exchanges.

        Disturbed runs have more exchanges; a kill after the end does not happen.
        """
        rng = random.Random(seed)  # noqa: S311 - a seed chooses attacks
        lie = LIES[seed % len(LIES)]
        late = lie in AT_GATHERINGS  # about finished rounds, so some machine has to be killed
        liar = rng.choice(members) if lie in BY_MEMBERS else COORDINATOR
        earliest = within // 3 if late else 1
        kills = sorted(
            (rng.randint(earliest, within), rng.choice(mortal))
            for _ in range(rng.randint(int(late), KILLS))
        )
        first = 1 if late else rng.randint(1, 2 * ROUNDS)
        return cls(liar, lie, first, rng.random() < 0.5, rng.random() < 0.5, kills)

    def plan(self) -> Plan:
        """Make the plan of the run."""
        plan = plan_of(FedAvg(rounds=ROUNDS), protection=ProtectionSettings(min_cohort=3))
        if not self.private:
            return plan
        dp = DPSettings(epsilon=EPSILON, noise_multiplier=1.0, delta=1e-3, accountant="rdp")
        return plan.model_copy(update={"training": plan.training.model_copy(update={"dp": dp})})


def measure(
    *,
    storms: int = 300,
    seed: int = 0,
    within: int = EXCHANGES,
    jobs: int = 1,
    cells: Path | None = None,
) -> Report:
    """Run storms; those in the file are not repeated, and new ones are added to it."""
    kept = [] if cells is None else read(cells)
    known = {found.seed: found for found in kept if found.within == within}

    def run(number: int) -> None:
        if number in known:
            return
        with TemporaryDirectory(prefix=f"storm-{number}-") as folder:
            known[number] = storm(Path(folder), number, within)
        if cells is not None:
            jsonl.append(cells, asdict(known[number]))

    seeds = range(seed, seed + storms)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, seeds))
    sizes = {"hospitals": len(NAMES), "rounds": ROUNDS, "records": SIZE}
    return report([known[number] for number in seeds], sizes)


def storm(folder: Path, seed: int, within: int = EXCHANGES) -> Storm:
    """Run one storm and measure the harm at honest hospitals."""
    started, drawn = time.monotonic(), StormDraw.of(seed, NAMES, (HUB, *NAMES), within)
    pilot = _pilot(folder, drawn)
    with _running(pilot, drawn) as machines:
        kills, end = _weather(pilot, drawn, machines)
    sites = {name: pilot.of(name) for name in pilot.names if name != drawn.liar}
    lies = pilot.folder / "lies"
    return Storm(
        seed=seed,
        within=within,
        private=drawn.private,
        lie=drawn.lie,
        liar=drawn.liar,
        told=len(lies.read_text().splitlines()) if lies.exists() else 0,
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


def _pilot(folder: Path, drawn: StormDraw) -> PilotFolders:
    made = make_pilot_folders(folder, NAMES, drawn.plan(), port=free_port(), size=SIZE, cost=CHEAP)
    for name in made.names if drawn.private else ():
        rules = made.of(name) / "site.toml"
        limits = f'max_epsilon = {EPSILON}\nmax_delta = 0.01\nunit = "record"\n'
        rules.write_text(rules.read_text().replace("[site.dp]\n", f"[site.dp]\n{limits}"))
    return made


@contextmanager
def _running(pilot: PilotFolders, drawn: StormDraw) -> Iterator[dict[str, Machine]]:
    lead = ("coordinate", "plan.toml", *KEYS, "--out", "run", "--grace", "4", "--wait", "60")
    liar = Liar(drawn.liar, drawn.lie, drawn.first, drawn.once, pilot.folder / "lies")
    lies_at = HUB if drawn.liar == COORDINATOR else drawn.liar
    machines = {
        name: Machine(
            pilot.of(name),
            lead if name == HUB else ("join", "site.toml", *KEYS),
            liar if name == lies_at else None,
        )
        for name in (HUB, *pilot.names)
    }
    try:
        for machine in machines.values():
            machine.start()
        yield machines
    finally:
        for machine in machines.values():
            machine.kill()


def _weather(
    pilot: PilotFolders, drawn: StormDraw, machines: Mapping[str, Machine]
) -> tuple[int, str]:
    """Kill and start machines until the end; return the number of kills, and the end."""
    due, until, killed = list(drawn.kills), time.monotonic() + LIMIT, 0
    while time.monotonic() < until:
        time.sleep(LOOK)
        if due and _exchanges(pilot) >= due[0][0]:
            _, name = due.pop(0)
            if machines[name].code is None:
                killed += 1
                machines[name].kill()
                machines[name].start()
        for name in pilot.names:
            if machines[name].code and machines[name].starts - machines[name].kills < STARTS:
                machines[name].start()
        if (code := machines[HUB].code) is None:
            continue
        if code == 0 and _all_done(pilot, drawn, machines):
            return killed, _models(pilot, drawn)
        if code and _blamed(pilot, drawn):
            return killed, NAMED
        if machines[HUB].starts - machines[HUB].kills >= STARTS:
            itself = ITSELF if drawn.liar == COORDINATOR else f"stopped: {_last(pilot)}"
            return killed, itself if code else _models(pilot, drawn)
        for name in (HUB, *pilot.names):  # those that had ended well are needed again
            if machines[name].code is not None:
                machines[name].start()
    return killed, "did not end"


def _exchanges(pilot: PilotFolders) -> int:
    """Count the exchanges in the longest transcript of a hospital."""
    counts = [0]
    for name in pilot.names:
        with suppress(OSError):
            file = pilot.of(name) / RUN / "parties" / name / "transcript.jsonl"
            counts.append(file.read_bytes().count(b"\n") // 2)
    return max(counts)


def _all_done(pilot: PilotFolders, drawn: StormDraw, machines: Mapping[str, Machine]) -> bool:
    """Return True if every honest hospital ends well soon after the coordinator."""
    until, honest = time.monotonic() + LAST, [n for n in pilot.names if n != drawn.liar]
    codes = [machines[n].wait(max(0.0, until - time.monotonic())) for n in honest]
    done = [(pilot.of(n) / RUN / RESULT).exists() for n in honest]
    return all(code == 0 for code in codes) and all(done)


def _models(pilot: PilotFolders, drawn: StormDraw) -> str:
    return models([pilot.of(name) / RUN for name in pilot.names if name != drawn.liar])


def _blamed(pilot: PilotFolders, drawn: StormDraw) -> bool:
    """Return True if the liar alone is named: by the coordinator, or by evidence at sites."""
    if drawn.liar != COORDINATOR:
        hub = pilot.of(HUB) / "run"
        accusing = _events(hub, "convicted")  # with evidence; otherwise weaker events
        accusing = accusing or [event for kind in BLAMING for event in _events(hub, kind)]
        named = {party for event in accusing for party in event["parties"]}
        at = {event.get("member") for event in _events(hub, "stopped")[-1:]}
        return (named or at) == {drawn.liar}
    kept = [
        {file.name for file in folder.glob("[!.]*")}
        for folder in pilot.folder.glob(f"*/runs/run/parties/*/{EVIDENCE}")
    ]
    logs = [(pilot.of(name) / "log").read_text() for name in pilot.names]
    distrusted = sum("the coordinator is not to be trusted" in text for text in logs)
    return all(names == {HUB} for names in kept) and (bool(kept) or distrusted > 0)


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in jsonl.read(folder / EVENTS) if event["event"] == kind]


def _last(pilot: PilotFolders) -> str:
    stops = _events(pilot.of(HUB) / "run", "stopped")
    return f"{stops[-1]['code']} {stops[-1]['at']}".rstrip() if stops else "no reason given"
