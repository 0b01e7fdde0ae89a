"""A ledger for people and for other programs: totals per account, and a JSON export."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import get_args

from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.privacy.accounting import epsilon
from secure_fl.crypto.privacy.ledger import Note, events_of
from secure_fl.crypto.privacy.ledger_store import FORMAT, Chain, Entry


@dataclass(frozen=True, slots=True)
class Total:
    """What one account has spent, and under which budget it last reserved."""

    dataset: str
    unit: str
    adjacency: str
    events: int
    unfinished: int  # reserved and never committed: crashed, or under way
    runs: int
    delta: float
    budget: float
    spent: float  # ε of all events at this δ


def totals(chain: Chain) -> list[Total]:
    """Sum up each account, in the order of its first event."""
    reserved = [e for e in chain.entries if e.state == "reserved"]
    finished = {e.refers for e in chain.entries if e.state == "committed"}
    found = []
    for dataset, unit in dict.fromkeys((e.dataset, e.unit) for e in reserved):
        mine = [e for e in reserved if (e.dataset, e.unit) == (dataset, unit)]
        last = mine[-1]
        assert last.delta is not None and last.epsilon is not None  # noqa: S101 - reserved rows
        total = Total(
            dataset,
            unit,
            last.adjacency,
            len(mine),
            sum(e.sequence not in finished for e in mine),
            len({e.run for e in mine}),
            last.delta,
            last.epsilon,
            epsilon(events_of(chain, dataset, unit), last.delta),
        )
        found.append(total)
    return found


def notes(chain: Chain) -> list[str]:
    """What was decided about runs, a line each."""
    kinds = get_args(Note)
    return [f"{e.time}: {e.state} {e.run}{_by(e)}" for e in chain.entries if e.state in kinds]


def _by(entry: Entry) -> str:
    said = json.loads(entry.event)
    return f" by {said['who']}" if "who" in said else f" ({said['why']})"


def export(chain: Chain) -> dict[str, object]:
    """List everything as JSON values; keep `head` elsewhere to notice a restored old copy."""
    owner: PublicIdentity = chain.owner
    rows = zip(chain.entries, chain.hashes, chain.signatures, strict=True)
    return {
        "format": FORMAT,
        "owner": owner.name,
        "owner_fingerprint": owner.fingerprint(),
        "head": chain.head.hex(),
        "accounts": [asdict(total) for total in totals(chain)],
        "entries": [
            asdict(entry) | {"hash": found.hex(), "signature": signature.hex()}
            for entry, found, signature in rows
        ],
    }
