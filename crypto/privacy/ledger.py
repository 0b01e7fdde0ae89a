"""The durable privacy budget of one silo: spent before anything is computed, never un-spent.

`reserve` composes all events ever reserved for a dataset and unit with the new one and refuses
what would exceed the budget; from its commit on the event counts, whatever happens to the process.
ε is always recomposed from the events. `commit` only adds the information that a step was
finished. Composition is per dataset and unit: a hospital-level release is not also charged to the
record-level account, and two names for the same records are two accounts, so name datasets once.
"""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.crypto.privacy.accounting import (
    DpSgdSteps,
    Event,
    decode_event,
    encode_event,
    epsilon,
    orders,
)
from secure_fl.crypto.privacy.ledger_store import (
    FORMAT,
    SCHEMA,
    Chain,
    LedgerRow,
    append,
    connected,
    head_digest,
    read_chain,
    transaction,
)
from secure_fl.errors import BudgetError, TamperError

Unit = Literal["record", "patient", "hospital"]
Adjacency = Literal["add-remove", "replace-one"]
Note = Literal["approved", "erased"]  # of a plan and the rules, by a person; of a run's folder


@dataclass(frozen=True, slots=True)
class Account:
    """What is protected: whose data, which unit, and what neighbouring datasets are."""

    dataset: str
    unit: Unit
    adjacency: Adjacency = "add-remove"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much an account may spend in its lifetime."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Proof that an event is on the ledger: only now may it be computed."""

    sequence: int
    before: float  # ε at the budget's δ without it
    spent: float  # ε with it


@dataclass(frozen=True, slots=True)
class Ledger:
    """One silo's ledger file and the identity that signs in it.

    `pinned` is a head kept elsewhere (a run's folder, a notebook): with it, a ledger that was
    deleted or put back from an old copy is refused.
    """

    path: Path
    identity: Identity
    pinned: bytes | None = None

    def reserve(
        self, event: Event, account: Account, budget: Budget, *, run: str, round: int | None = None
    ) -> Reservation:
        """Spend an event, durably, or raise BudgetError before anything is computed."""
        _check_account(account, event)
        row = LedgerRow(
            **asdict(account),
            sequence=0,
            time=_now(),
            state="reserved",
            event=encode_event(event),
            epsilon=float(budget.epsilon),
            delta=float(budget.delta),
            run=run,
            round=round,
            refers=None,
        )
        orders()  # imports the accountant before the lock is taken
        with connected(self.path, create=True) as db, transaction(db):
            chain = read_chain(db) or self._begin(db)
            chain.check(self.identity.public, pinned=self.pinned)
            _check_adjacency(chain, account)
            _check_unit(chain, account, event)
            held = events_of(chain, account.dataset, account.unit)
            before = epsilon(held, budget.delta) if held else 0.0
            spent = epsilon([*held, event], budget.delta)
            if not spent <= budget.epsilon:
                raise _overspent(account, budget, before, spent).at(run=run, round=round)
            sequence = self._append(db, row, chain)
        return Reservation(sequence, before, spent)

    def commit(self, reservation: Reservation) -> None:
        """Note that a reserved step was finished; it is spent either way."""
        with connected(self.path) as db, transaction(db):
            chain = required(read_chain(db), self.path)
            chain.check(self.identity.public, pinned=self.pinned)
            at = reservation.sequence
            if not 0 < at < len(chain.entries) or chain.entries[at].state != "reserved":
                raise BudgetError(
                    f"row {at} of the ledger is not a reservation",
                    file=self.path,
                    reason="not-a-reservation",
                )
            row = replace(
                chain.entries[at],
                time=_now(),
                state="committed",
                epsilon=None,
                delta=None,
                refers=at,
            )
            self._append(db, row, chain)

    def note(self, kind: Note, text: str, *, run: str) -> None:
        """Write down among the rows what was decided about a run; it spends nothing."""
        row = LedgerRow(0, _now(), kind, "", "", "", text, None, None, run, None, None)
        with connected(self.path, create=True) as db, transaction(db):
            chain = read_chain(db) or self._begin(db)
            chain.check(self.identity.public, pinned=self.pinned)
            self._append(db, row, chain)

    def require_sound(self) -> None:
        """Refuse a ledger that is not as it was written; one that was never begun is sound."""
        if self.path.exists():
            load_chain(self.path).check(self.identity.public, pinned=self.pinned)

    def spent(self, account: Account, delta: float) -> float:
        """Recompose ε of everything this account ever reserved; 0 if it never did."""
        chain = self.held()
        held = [] if chain is None else events_of(chain, account.dataset, account.unit)
        return epsilon(held, delta) if held else 0.0

    def held(self) -> Chain | None:
        """All rows, checked; None: nothing was ever spent. One that is gone is refused."""
        if self.path.exists():
            chain = load_chain(self.path)
            chain.check(self.identity.public, pinned=self.pinned)
            return chain
        if self.pinned is None:
            return None
        raise TamperError(
            "the ledger is gone, and this run has spent from it",
            fix="release nothing more from this silo; restore the newest copy",
            file=self.path,
            reason="older-copy",
        )

    def at_head(self) -> Ledger:
        """The same, which from now on must hold what it holds now."""
        return replace(self, pinned=load_chain(self.path).head)

    def _begin(self, db: sqlite3.Connection) -> Chain:
        for statement in SCHEMA:
            db.execute(statement)
        public = self.identity.public
        owner = {
            "format": FORMAT,
            "name": public.name,
            "signing": public.signing.hex(),
            "agreement": public.agreement.hex(),
            "ledger": os.urandom(16).hex(),  # two ledgers of one owner share no hash
        }
        text = json.dumps(owner, sort_keys=True)
        row = LedgerRow(0, _now(), "opened", "", "", "", text, None, None, "", None, None)
        self._append(db, row, Chain((), (), (), None))
        return required(read_chain(db), self.path)

    def _append(self, db: sqlite3.Connection, row: LedgerRow, chain: Chain) -> int:
        row = replace(row, sequence=len(chain.entries))
        head = row.chained(chain.head)
        anchor = self.identity.sign(head_digest(row.sequence, head))
        append(db, row, head, self.identity.sign(head), anchor)
        return row.sequence


def load_chain(path: Path) -> Chain:
    """Read a ledger without writing to it; nothing is checked yet."""
    with connected(path) as db:
        return required(read_chain(db), path)


def events_of(chain: Chain, dataset: str, unit: str) -> list[Event]:
    """List every event that was reserved for a dataset and unit."""
    return [
        decode_event(e.event)
        for e in chain.entries
        if e.state == "reserved" and (e.dataset, e.unit) == (dataset, unit)
    ]


def required(chain: Chain | None, path: Path) -> Chain:
    """Refuse a file without a ledger's tables."""
    if chain is None:
        raise BudgetError(
            "the file holds no ledger", file=path, fix="check the path", reason="no-ledger"
        )
    return chain


def _check_account(account: Account, event: Event) -> None:
    if account.adjacency not in get_args(Adjacency) or account.unit not in get_args(Unit):
        raise BudgetError(
            f"unit {account.unit!r} with adjacency {account.adjacency!r} is not known",
            fix=f"units: {', '.join(get_args(Unit))}; adjacency: {', '.join(get_args(Adjacency))}",
            reason="unknown-account",
        )
    if not account.dataset:
        raise BudgetError(
            "the dataset has no name", fix="name it, the same in all runs", reason="unknown-account"
        )
    sampled = isinstance(event, DpSgdSteps) and event.sample_rate < 1
    if sampled and account.adjacency != "add-remove":
        raise BudgetError(
            "amplification by sampling is accounted for add-remove neighbours only",
            fix="use adjacency add-remove for DP-SGD",
            reason="adjacency",
        )


def _check_adjacency(chain: Chain, account: Account) -> None:
    for e in chain.entries[1:]:
        same = (e.dataset, e.unit) == (account.dataset, account.unit)
        if same and e.adjacency != account.adjacency:
            raise BudgetError(
                f"{account.dataset!r} is accounted per {account.unit} as {e.adjacency}, this event "
                f"as {account.adjacency}: they do not compose",
                fix=f"state this event's noise for {e.adjacency} neighbours",
                reason="adjacency",
            )


def _check_unit(chain: Chain, account: Account, event: Event) -> None:
    """Training on the same records spends from one account, not from one for each unit."""
    if not isinstance(event, DpSgdSteps):
        return
    for e in chain.entries[1:]:
        other = e.state == "reserved" and e.dataset == account.dataset and e.unit != account.unit
        if other and isinstance(decode_event(e.event), DpSgdSteps):
            raise BudgetError(
                f"DP-SGD on {account.dataset!r} is accounted per {e.unit} here, this training per "
                f"{account.unit}: it would spend from a second budget for the same records",
                fix=f'keep unit = "{e.unit}" for these records',
                reason="second-budget",
            )


def _overspent(account: Account, budget: Budget, before: float, spent: float) -> BudgetError:
    return BudgetError(
        f"the privacy budget of {account.dataset!r} per {account.unit} is ε = {budget.epsilon:g} "
        f"at δ = {budget.delta:g}; {before:.4g} is spent, and this step would make it {spent:.4g}",
        fix="stop here, or plan fewer steps or more noise with `secure-fl budget`; a larger budget "
        "is a decision of those who answer for the data. Nothing was computed",
        reason="spent",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class AccountTotal:
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


def totals(chain: Chain) -> list[AccountTotal]:
    """Sum up each account, in the order of its first event."""
    reserved = [e for e in chain.entries if e.state == "reserved"]
    finished = {e.refers for e in chain.entries if e.state == "committed"}
    found = []
    for dataset, unit in dict.fromkeys((e.dataset, e.unit) for e in reserved):
        mine = [e for e in reserved if (e.dataset, e.unit) == (dataset, unit)]
        last = mine[-1]
        assert last.delta is not None and last.epsilon is not None  # noqa: S101 - reserved rows
        total = AccountTotal(
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


def _by(entry: LedgerRow) -> str:
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
