"""Storms of kills and lies: pilots in which one member, or the coordinator, does what it likes.

A seed chooses who lies, how, when, and who is killed meanwhile. At the end either all honest
hospitals have finished with one model, bit for bit, or the run has stopped and said who lied; and
no honest hospital has lost a round that it had finished.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.federations.drawn import EXCHANGES, ROUNDS, Drawn
from benchmarks.federations.lies import COORDINATOR, Liar, lying
from benchmarks.federations.storm_cells import BLAMING, ITSELF, NAMED, Storm, report, run
from benchmarks.federations.storm_harm import lost_keys, models, overspent, rounds_lost
from benchmarks.report import Report
from secure_fl.errors import DISTRUST, SecureFLError
from secure_fl.pilot.progress import saved_in, unsolved_in
from tests.support.event_documents import event_of
from tests.support.local_pilot import LocalPilot, local_pilot

HOSPITALS = 5
TRIES = 6  # starts of the coordinator's process


def measure(
    *, storms: int = 300, seed: int = 0, within: int = EXCHANGES, cells: Path | None = None
) -> Report:
    """So many storms; those that the file of cells holds are not run again."""
    started = time.perf_counter()
    found = run(storm, range(seed, seed + storms), within, cells)
    return report("storms", found, {"hospitals": HOSPITALS, "rounds": ROUNDS}, started)


def storm(folder: Path, seed: int, within: int = EXCHANGES) -> Storm:
    """One storm."""
    started, killed = time.monotonic(), list[str]()
    names = [f"hospital-{number}" for number in range(1, HOSPITALS + 1)]
    drawn = Drawn.of(seed, names, names, within)
    made = local_pilot(folder, drawn.plan(), HOSPITALS)
    liar = Liar(drawn.liar, drawn.lie, drawn.first, drawn.once)
    when = list(drawn.kills)

    def after(pilot: LocalPilot, party: str) -> None:
        if when and pilot.exchanges >= when[0][0] and party == when[0][1]:
            when.pop(0)
            killed.append(party)
            pilot.kill(party)

    made.after = after
    with lying(liar):
        error = _led(made, drawn)
    for process in made.processes.values():
        process.close()
    honest = [name for name in names if name != drawn.liar]
    folders = {name: folder / name for name in honest}

    def seen(kind: str, name: str) -> list[dict[str, Any]]:
        return [event for event in made.seen(kind) if event["party"] == name]

    return Storm(
        seed=seed,
        within=within,
        private=drawn.private,
        lie=drawn.lie,
        liar=drawn.liar,
        told=liar.told,
        kills=len(killed),
        end=_end(made, drawn, honest, error),
        rounds_lost=sum(
            rounds_lost(own / "run", name, [e["round"] for e in seen("round", name)])
            for name, own in folders.items()
        ),
        overspent=sum(
            overspent(own / "ledger", len(seen("privacy", name)), killed.count(name))
            for name, own in folders.items()
        ),
        keys_lost=sum(lost_keys(own / "ledger", made.roster) for own in folders.values()),
        seconds=round(time.monotonic() - started, 1),
    )


def _led(made: LocalPilot, drawn: Drawn) -> SecureFLError | None:
    """Lead it to its end, and start again after errors; returns the last one."""
    named: set[str] = set()
    error: SecureFLError | None = None
    for _ in range(TRIES):
        error = None
        try:
            led = [event for event in made.events if event["party"] == "coordinator"]
            told = [event_of(event) for event in led]
            known = {"unsolved": unsolved_in(told), "saved": saved_in(told)}
            made.lead(patience=20, named=named, **known).run()
            if all(made.processes[n].done for n in made.members if n != drawn.liar):
                break
        except SecureFLError as problem:
            error = problem
            convicted = [e for e in made.seen("convicted") if e["party"] == "coordinator"]
            named |= {party for event in convicted for party in event["parties"]}
            if _blamed(made, drawn, error):
                break
        for party in sorted(made.down):  # an operator looks after it
            made.start(party)
    return error


def _end(made: LocalPilot, drawn: Drawn, honest: list[str], error: SecureFLError | None) -> str:
    """How a storm ended."""
    if error is not None and _blamed(made, drawn, error):
        return NAMED
    if error is not None and drawn.liar == COORDINATOR:
        return ITSELF
    if error is not None:
        return f"stopped: {error.code} {error.where.get('party', '')}".rstrip()
    return models([made.folder / name / "run" for name in honest])


def _blamed(made: LocalPilot, drawn: Drawn, error: SecureFLError) -> bool:
    """Whether the liar, and nobody else, is named."""
    convicted = made.seen("convicted")  # by evidence; else nobody else may be blamed
    told = convicted or [event for kind in BLAMING for event in made.seen(kind)]
    named = {party for event in told for party in event["parties"]}
    if named or drawn.liar != COORDINATOR:
        return (named or {error.where.get("party")}) == {drawn.liar}
    said = [e["why"] for kind in ("refused", "unanswered") for e in made.seen(kind) if "why" in e]
    return any(DISTRUST in why for why in said)
