"""Storms of kills and lies: pilots in which one member, or the coordinator, does what it likes.

A seed chooses who lies, how, when, and who is killed meanwhile. At the end either all honest
hospitals have finished with one model, bit for bit, or the run has stopped and said who lied; and
no honest hospital has lost a round that it had finished.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec import structs

from benchmarks.report import Report, Target, table
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto import sharing
from secure_fl.crypto.blind_sum import ProtectedTotal
from secure_fl.crypto.scheme import COHORT
from secure_fl.crypto.step_keys import StepKeys
from secure_fl.crypto.sum_under_way import SumUnderWay
from secure_fl.errors import SecureFLError
from secure_fl.party.session import Session
from secure_fl.protocol.messages import Boundary, Complaint, Failed, SumInput, Total, UnmaskShares
from secure_fl.settings import ProtectionSettings
from secure_fl.testing.pilot import LocalPilot, local_pilot, plan_of

HOSPITALS, ROUNDS, KILLS = 5, 3, 2
TRIES = 4  # starts of the coordinator's process
LIES = (
    "wrong tag",
    "wrong tag, hidden",
    "false share",
    "false complaint",
    "failed",
    "another step",
    "changed total",  # the coordinator's
)


@dataclass(slots=True)
class Liar:
    """Who lies in a storm, how, and from which of its chances on: each time, or once."""

    name: str
    lie: str
    first: int
    once: bool
    chances: int = 0
    told: int = 0

    def lies(self, who: str, lie: str) -> bool:
        """Whether it lies now."""
        if who != self.name or lie != self.lie:
            return False
        self.chances += 1
        now = self.chances >= self.first and not (self.once and self.told)
        self.told += now
        return now


@dataclass(frozen=True, slots=True)
class Storm:
    """What came of one seed."""

    seed: int
    lie: str
    liar: str
    told: int
    kills: int
    end: str  # "finished", "named", or what should not be
    rounds_lost: int


@contextmanager
def lying(liar: Liar) -> Iterator[None]:
    """Give one member, or the coordinator, its way; all others run as they are."""
    masked, reveal = SumUnderWay._masked, StepKeys.reveal
    answer, examine, result = Session._answer, Session._examine, ProtectedTotal.result

    def wrong_tag(sum: SumUnderWay, *what: Any) -> Any:
        slots = masked(sum, *what)
        if liar.lies(sum._context.me, "wrong tag") or liar.lies(
            sum._context.me, "wrong tag, hidden"
        ):
            slots[-1] = (slots[-1] + np.uint64(1)) % np.uint64(COHORT.modulus)
        return slots

    def hidden(session: Session, message: Any, frame: Any) -> Any:
        found, bulk = examine(session, message, frame)
        hides = session.party == liar.name and liar.lie == "wrong tag, hidden"
        return found, b"" if hides else bulk

    def false_share(keys: StepKeys, *what: Any) -> UnmaskShares:
        shares = reveal(keys, *what)
        if shares.seeds and liar.lies(keys.me, "false share"):
            owner = min(shares.seeds)
            value = (int.from_bytes(shares.seeds[owner], "big") + 1) % sharing.PRIME
            false = {**shares.seeds, owner: value.to_bytes(sharing.SHARE_BYTES, "big")}
            return structs.replace(shares, seeds=false)
        return shares

    def said(session: Session, message: Any, frame: Any) -> Any:
        found, bulk = answer(session, message, frame)
        if isinstance(message, Total) and liar.lies(session.party, "false complaint"):
            return Complaint(frame.head), frame.bulk
        if isinstance(found, SumInput) and liar.lies(session.party, "failed"):
            return Failed("training"), b""
        if isinstance(found, SumInput) and liar.lies(session.party, "another step"):
            return Boundary(1), b""
        return found, bulk

    def changed(total: ProtectedTotal, *what: Any) -> Any:
        found = dict(result(total, *what))
        if found and liar.lies("coordinator", "changed total"):
            return {k: d[:200] + bytes([d[200] ^ 64]) + d[201:] for k, d in found.items()}
        return found

    with ExitStack() as stack:
        for where, name, what in (
            (SumUnderWay, "_masked", wrong_tag),
            (Session, "_examine", hidden),
            (StepKeys, "reveal", false_share),
            (Session, "_answer", said),
            (ProtectedTotal, "result", changed),
        ):
            stack.enter_context(patch.object(where, name, what))
        yield


def storm(folder: Path, seed: int) -> Storm:
    """One storm."""
    rng, killed = random.Random(seed), []  # noqa: S311 - a seed chooses attacks
    protection = ProtectionSettings(min_cohort=3)
    plan = plan_of(FedAvg(rounds=ROUNDS), protection=protection)
    made = local_pilot(folder, plan, HOSPITALS)
    lie = rng.choice(LIES)
    name = "coordinator" if lie == "changed total" else rng.choice(sorted(made.members))
    liar = Liar(name, lie, rng.randint(1, 2 * ROUNDS), rng.random() < 0.5)
    when = sorted(rng.randint(8, 60 * ROUNDS) for _ in range(rng.randint(0, KILLS)))
    frames = 0

    def after(pilot: LocalPilot, party: str) -> None:
        nonlocal frames
        frames += 1
        if when and frames >= when[0] and party != liar.name:
            when.pop(0)
            killed.append(party)
            pilot.kill(party)

    made.after = after
    named: set[str] = set()
    error: SecureFLError | None = None
    with lying(liar):
        for _ in range(TRIES):
            error = None
            try:
                made.lead(patience=20, named=named).run()
                if all(made.processes[n].done for n in made.members if n != name):
                    break
            except SecureFLError as problem:
                error = problem
                told = [e for e in made.seen("named") if e["party"] == "coordinator"]
                named |= {party for event in told for party in event["parties"]}
                if name in named or error.where.get("party") == name:
                    break
            for party in sorted(made.down):  # an operator looks after it
                made.start(party)
    for process in made.processes.values():
        process.close()
    honest = sorted(set(made.members) - {name})
    return Storm(
        seed,
        lie,
        name,
        liar.told,
        len(killed),
        _end(made, liar, honest, error),
        _lost(made, honest),
    )


def _end(made: LocalPilot, liar: Liar, honest: list[str], error: SecureFLError | None) -> str:
    """How a storm ended."""
    if error is None:
        files = [made.folder / n / "run" / "model" / "model.safetensors" for n in honest]
        if not all(file.exists() for file in files):
            return "a hospital did not finish"
        return "finished" if len({f.read_bytes() for f in files}) == 1 else "models differ"
    named = {party for event in made.seen("named") for party in event["parties"]}
    if error.where.get("party") == liar.name or named == {liar.name}:
        return "named"
    return f"stopped: {error.code} {error.where.get('party', '')}".rstrip()


def _lost(made: LocalPilot, honest: list[str]) -> int:
    """How many finished rounds honest hospitals have no more, or no later ones."""
    lost = 0
    for name in honest:
        ended = [e["round"] for e in made.seen("round") if e["party"] == name]
        folder = made.folder / name / "run" / "parties" / name / "checkpoints"
        kept = [int(path.name.removeprefix("round-")) for path in folder.glob("round-*")]
        lost += max(0, max(ended, default=0) - max(kept, default=0))
    return lost


def measure(*, storms: int = 300, seed: int = 0) -> Report:
    """So many storms, one after the other."""
    started, found = time.perf_counter(), list[Storm]()
    for number in range(seed, seed + storms):
        with tempfile.TemporaryDirectory() as folder:
            found.append(storm(Path(folder), number))
    ends = Counter((one.lie, one.end) for one in found)
    bad = [one for one in found if one.end not in ("finished", "named") or one.rounds_lost]
    cells = [
        (lie, end, str(count), str(sum(o.kills for o in found if (o.lie, o.end) == (lie, end))))
        for (lie, end), count in sorted(ends.items())
    ]
    return Report(
        "storms",
        {"storms": storms, "hospitals": HOSPITALS, "rounds": ROUNDS},
        seed,
        {"storms": [asdict(one) for one in found]},
        [table("kills and lies", ("lie", "end", "storms", "kills in them"), cells)],
        (Target("storms that ended otherwise, or cost somebody a round", 0, len(bad)),),
        seconds=time.perf_counter() - started,
    )
