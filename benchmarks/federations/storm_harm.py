"""What a storm came to at honest hospitals, as their files tell: models, rounds, keys and budget.

Both kinds of storms ask the same, of folders in one process (`storms`) and of machines'
(`process_storms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.federations.storm_cells import FINISHED
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.privacy.ledger import load_chain
from secure_fl.errors import SecureFLError
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot.site_memory import SiteMemory
from secure_fl.runs.checkpoint import put_back


def models(runs: Sequence[Path]) -> str:
    """Whether all of these runs' folders have one model, bit for bit."""
    files = [run / "model" / "model.safetensors" for run in runs]
    if not all(file.exists() for file in files):
        return "a hospital did not finish"
    return FINISHED if len({file.read_bytes() for file in files}) == 1 else "models differ"


def rounds_lost(run: Path, name: str, ended: Iterable[int]) -> int:
    """How many rounds a hospital ended, and has no more, nor later ones."""
    folder = run / "parties" / name / "checkpoints"
    put_back(folder)  # as its next start does with what was set aside
    kept = [int(path.name.removeprefix("round-")) for path in folder.glob("round-*")]
    return max(0, max(ended, default=0) - max(kept, default=0))


def lost_keys(ledger: Path, roster: Roster) -> bool:
    """Whether a hospital refuses all runs of its roster."""
    try:
        SiteMemory(ledger).require_unforged(roster)
    except SecureFLError:
        return True
    return False


def overspent(ledger: Path, announced: int, kills: int) -> int:
    """Payments beyond those that its log announced; a kill between the two may cost one."""
    try:
        entries = [e for file in ledger.rglob(LEDGER) for e in load_chain(file).entries]
    except SecureFLError:
        return 1
    paid = sum(entry.state == "reserved" for entry in entries)
    return max(0, paid - announced - kills)
