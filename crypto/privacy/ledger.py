"""The durable privacy budget of one silo: spent before anything is computed, never refunded.

`reserve` composes all events ever reserved for a dataset and unit with the new one, and refuses to
exceed the budget. From its commit on the event counts, whatever happens to the process. ε is always
recomposed from the events. `commit` only adds the information that a step was finished. Composition
is per dataset and unit: a hospital-level release is not also charged to the record-level account.
Two names for the same records are two accounts, so use one name.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.accounting import (
    Adjacency,
    DpSgdSteps,
    Event,
    SkellamRelease,
    decode_event,
    encode_event,
    epsilon,
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
from secure_fl.crypto.privacy.opacus_accountants import orders
from secure_fl.errors import BudgetError, TamperError

Unit = Literal["record", "patient", "hospital"]
RECORDS: frozenset[Unit] = frozenset({"record", "patient"})  # units whose ε add up
Note = Literal["approved", "erased"]  # a plan approved by a person; a run's folder erased


@dataclass(frozen=True, slots=True)
class Account:
    """The protected data: its dataset, the protected unit, and the kind of neighbours."""

    dataset: str
    unit: Unit
    adjacency: Adjacency = "add-remove"


@dataclass(frozen=True, slots=True)
class Budget:
    """The lifetime budget of an account."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Proof that an event is on the ledger: only then may it be computed."""

    sequence: int
    before: float  # ε at the budget's δ without it
    spent: float  # ε with it


@dataclass(frozen=True, slots=True)
class Ledger:
    """One silo's ledger file and the identity that signs in it.

    `pinned` is a head kept elsewhere (a run's folder, a notebook): with it, a deleted ledger or an
    older copy is refused.
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
        orders()  # imports the accountant before the lock
        with connected(self.path, create=True) as db, transaction(db):
            chain = read_chain(db) or self._begin(db)
            chain.check(self.identity.public, pinned=self.pinned)
            _check_adjacency(chain, account)
            _check_unit(chain, account)
            recorded = events_of(chain, account.dataset, account.unit)
            before = epsilon(recorded, budget.delta) if recorded else 0.0
            spent = epsilon([*recorded, event], budget.delta)
            if not spent <= budget.epsilon:
                raise _overspent(account, budget, before, spent).at(run=run, round=round)
            sequence = self._append(db, row, chain)
        return Reservation(sequence, before, spent)

    def commit(self, reservation: Reservation) -> None:
        """Record that a reserved step was finished; it is spent either way."""
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

    def begin(self) -> str:
        """Create the ledger if there is none, and return its random name."""
        with connected(self.path, create=True) as db, transaction(db):
            chain = read_chain(db) or self._begin(db)
            chain.check(self.identity.public, pinned=self.pinned)
        return chain.ledger_name

    def note(self, kind: Note, text: str, *, run: str) -> None:
        """Record a decision about a run; it spends nothing."""
        row = LedgerRow(0, _now(), kind, "", "", "", text, None, None, run, None, None)
        with connected(self.path, create=True) as db, transaction(db):
            chain = read_chain(db) or self._begin(db)
            chain.check(self.identity.public, pinned=self.pinned)
            self._append(db, row, chain)

    def require_unit(self, account: Account) -> None:
        """Refuse an account whose records are accounted per another unit."""
        if self.path.exists():
            _check_unit(load_chain(self.path), account)

    def noted(self, kind: Note, *, run: str) -> int:
        """Count the decisions of this kind about a run."""
        if not self.path.exists():
            return 0
        rows = load_chain(self.path).entries
        return sum((row.state, row.run) == (kind, run) for row in rows)

    def require_sound(self) -> None:
        """Refuse a ledger that was tampered with; one that was never begun is sound."""
        if self.path.exists():
            load_chain(self.path).check(self.identity.public, pinned=self.pinned)

    def spent(self, account: Account, delta: float) -> float:
        """Recompose ε of all events of an account; 0 if there are none."""
        events = self.events(account)
        return epsilon(events, delta) if events else 0.0

    def events(self, account: Account, run: str | None = None) -> list[Event]:
        """Return an account's reserved events (of one run, or all), after a check of all rows.

        A missing file has no events, unless a pinned head shows that it existed.
        """
        if self.path.exists():
            chain = load_chain(self.path)
            chain.check(self.identity.public, pinned=self.pinned)
            return events_of(chain, account.dataset, account.unit, run)
        if self.pinned is None:
            return []
        raise TamperError(
            "the ledger is missing, and this run has spent from it",
            fix="release nothing more from this silo; restore the newest copy",
            file=self.path,
            reason="older-copy",
        )

    def at_head(self) -> Ledger:
        """Return this ledger pinned to its present head."""
        return replace(self, pinned=load_chain(self.path).head)

    @property
    def pinned_hex(self) -> str | None:
        """The pinned head for checkpoints, which exposes an older copy of the ledger."""
        return None if self.pinned is None else self.pinned.hex()

    def pinned_to(self, state: Mapping[str, Any], account: Account) -> Ledger:
        """Return this ledger pinned to the head in a checkpoint; refuse one without that head."""
        if (head := state.get("head")) is None:
            return self
        pinned = replace(self, pinned=bytes.fromhex(head))
        pinned.events(account)
        return pinned

    def _begin(self, db: sqlite3.Connection) -> Chain:
        for statement in SCHEMA:
            db.execute(statement)
        public = self.identity.public
        owner = {
            "format": FORMAT,
            "name": public.name,
            "signing": public.signing.hex(),
            "agreement": public.agreement.hex(),
            "ledger": os.urandom(16).hex(),  # so two ledgers of one owner share no hash
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


def events_of(chain: Chain, dataset: str, unit: str, run: str | None = None) -> list[Event]:
    """Return the events reserved for a dataset and unit (by one run, or all), without a check."""
    return [
        decode_event(row.event)
        for row in chain.entries
        if (row.state, row.dataset, row.unit) == ("reserved", dataset, unit)
        and run in (None, row.run)
    ]


def unfinished(chain: Chain, dataset: str, unit: str, run: str) -> LedgerRow | None:
    """Return a run's last reservation, if it is not committed."""
    of_run = [e for e in chain.entries if (e.dataset, e.unit, e.run) == (dataset, unit, run)]
    return of_run[-1] if of_run and of_run[-1].state == "reserved" else None


def required(chain: Chain | None, path: Path) -> Chain:
    """Refuse a file without a ledger's tables."""
    if chain is None:
        raise BudgetError(
            "the file contains no ledger", file=path, fix="check the path", reason="no-ledger"
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
            "the dataset has no name", fix="give it one name in all runs", reason="unknown-account"
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


def _check_unit(chain: Chain, account: Account) -> None:
    """Refuse a second account per record or patient for the same records."""
    if account.unit not in RECORDS:
        return
    for e in chain.entries[1:]:
        other = e.state == "reserved" and e.dataset == account.dataset and e.unit in RECORDS
        if other and e.unit != account.unit:
            raise BudgetError(
                f"{account.dataset!r} is accounted per {e.unit} here, this event per "
                f"{account.unit}: it would spend from a second budget for the same records",
                fix=f'keep unit = "{e.unit}" for these records; codebooks count per patient if '
                "the records have a column of patients",
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
    """The spending of one account, and the budget of its last reservation."""

    dataset: str
    unit: str
    adjacency: str
    events: int
    unfinished: int  # not committed: crashed, or running; noised sums are never committed
    runs: int
    delta: float
    budget: float
    spent: float  # ε of all events at this δ


def totals(chain: Chain) -> list[AccountTotal]:
    """Total each account, in the order of its first event."""
    reserved = [e for e in chain.entries if e.state == "reserved"]
    finished = {e.refers for e in chain.entries if e.state == "committed"}
    accounts = []
    for dataset, unit in dict.fromkeys((e.dataset, e.unit) for e in reserved):
        mine = [e for e in reserved if (e.dataset, e.unit) == (dataset, unit)]
        last = mine[-1]
        if last.delta is None or last.epsilon is None:
            raise TamperError(
                f"row {last.sequence} of the ledger reserves under no budget", reason="row-changed"
            )
        total = AccountTotal(
            dataset,
            unit,
            last.adjacency,
            len(mine),
            sum(e.sequence not in finished and not _is_sum(e) for e in mine),
            len({e.run for e in mine}),
            last.delta,
            last.epsilon,
            epsilon(events_of(chain, dataset, unit), last.delta),
        )
        accounts.append(total)
    return accounts


def of_records(chain: Chain) -> tuple[float, float] | None:
    """ε and δ of all accounts per record or patient together; None: there are fewer than two.

    Records may be in several of them, such as those of training and of codebooks.
    """
    rows = [e for e in chain.entries if e.state == "reserved" and e.unit in RECORDS]
    if len({(e.dataset, e.unit) for e in rows}) < 2:
        return None
    δ = max(e.delta for e in rows if e.delta is not None)
    return epsilon([decode_event(e.event) for e in rows], δ), δ


def _is_sum(row: LedgerRow) -> bool:
    return isinstance(decode_event(row.event), SkellamRelease)


def notes(chain: Chain) -> list[str]:
    """Format the decisions about runs, a line each."""
    kinds = get_args(Note)
    return [f"{e.time}: {e.state} {e.run}{_by(e)}" for e in chain.entries if e.state in kinds]


def _by(entry: LedgerRow) -> str:
    try:
        note = json.loads(entry.event)
    except (ValueError, RecursionError):
        note = None
    match note:
        case {"who": who}:
            return f" by {who}"
        case {"why": why}:
            return f" ({why})"
    return f" ({entry.event[:80]!r})"


def export(chain: Chain) -> dict[str, object]:
    """Export everything as JSON values; keep `head` elsewhere to notice an older copy."""
    owner = chain.owner
    rows = zip(chain.entries, chain.hashes, chain.signatures, strict=True)
    return {
        "format": FORMAT,
        "owner": owner.name,
        "owner_fingerprint": owner.fingerprint(),
        "head": chain.head.hex(),
        "accounts": [asdict(total) for total in totals(chain)],
        "entries": [
            asdict(entry) | {"hash": row_hash.hex(), "signature": signature.hex()}
            for entry, row_hash, signature in rows
        ],
    }
