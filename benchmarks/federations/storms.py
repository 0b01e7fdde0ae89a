"""Storms of kills and lies: pilots in which one member, or the coordinator, does what it likes.

A seed chooses who lies, how, when, and who is killed meanwhile. At the end either all honest
hospitals have finished with one model, bit for bit, or the run has stopped and said who lied; and
no honest hospital has lost a round that it had finished.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.federations.drawn import EXCHANGES, ROUNDS, Drawn
from benchmarks.federations.lies import COORDINATOR, Liar, lying
from benchmarks.federations.storm_cells import (
    BLAMING,
    FINISHED,
    ITSELF,
    NAMED,
    Storm,
    report,
    run,
)
from benchmarks.report import Report
from secure_fl.crypto.ledger import load_chain
from secure_fl.errors import DISTRUST, SecureFLError
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.progress import unsolved_in
from secure_fl.pilot.site import Memory
from secure_fl.testing.pilot import LocalPilot, local_pilot

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
    return Storm(
        seed=seed,
        within=within,
        private=drawn.private,
        lie=drawn.lie,
        liar=drawn.liar,
        told=liar.told,
        kills=len(killed),
        end=_end(made, drawn, honest, error),
        rounds_lost=_lost(made, honest),
        overspent=sum(_overspent(made, name, killed.count(name)) for name in honest),
        keys_lost=sum(_lost_keys(made, name) for name in honest),
        seconds=round(time.monotonic() - started, 1),
    )


def _led(made: LocalPilot, drawn: Drawn) -> SecureFLError | None:
    """Lead it to its end, and start again after errors; returns the last one."""
    named: set[str] = set()
    error: SecureFLError | None = None
    for _ in range(TRIES):
        error = None
        try:
            told = [event for event in made.events if event["party"] == "coordinator"]
            made.lead(patience=20, named=named, unsolved=unsolved_in(told)).run()
            if all(made.processes[n].done for n in made.members if n != drawn.liar):
                break
        except SecureFLError as problem:
            error = problem
            told = [e for e in made.seen("named") if e["party"] == "coordinator"]
            named |= {party for event in told for party in event["parties"]}
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
    files = [made.folder / n / "run" / "model" / "model.safetensors" for n in honest]
    if not all(file.exists() for file in files):
        return "a hospital did not finish"
    return FINISHED if len({f.read_bytes() for f in files}) == 1 else "models differ"


def _blamed(made: LocalPilot, drawn: Drawn, error: SecureFLError) -> bool:
    """Whether the liar, and nobody else, is named."""
    told = [event for kind in BLAMING for event in made.seen(kind)]
    named = {party for event in told for party in event["parties"]}
    if named or drawn.liar != COORDINATOR:
        return (named or {error.where.get("party")}) == {drawn.liar}
    said = [e["why"] for kind in ("refused", "unanswered") for e in made.seen(kind) if "why" in e]
    return any(DISTRUST in why for why in said)


def _lost(made: LocalPilot, honest: list[str]) -> int:
    """How many finished rounds honest hospitals have no more, or no later ones."""
    lost = 0
    for name in honest:
        ended = [e["round"] for e in made.seen("round") if e["party"] == name]
        folder = made.folder / name / "run" / "parties" / name / "checkpoints"
        kept = [int(path.name.removeprefix("round-")) for path in folder.glob("round-*")]
        lost += max(0, max(ended, default=0) - max(kept, default=0))
    return lost


def _lost_keys(made: LocalPilot, name: str) -> bool:
    """Whether it refuses all runs of its roster."""
    try:
        Memory(made.folder / name / "ledger").require_unforged(made.roster)
    except SecureFLError:
        return True
    return False


def _overspent(made: LocalPilot, name: str, kills: int) -> int:
    """Payments beyond those that its log announced; a kill between the two may cost one."""
    ledgers = list((made.folder / name / "ledger").rglob(LEDGER))
    entries = [e for file in ledgers for e in load_chain(file).entries if e.state == "reserved"]
    announced = [event for event in made.seen("privacy") if event["party"] == name]
    return max(0, len(entries) - len(announced) - kills)
