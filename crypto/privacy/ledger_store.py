"""The ledger's file: an append-only SQLite table whose rows are chained, signed and anchored.

Specified in docs/protocol-bytes.md 11. An edited, deleted, moved or truncated row is found. An
older copy of the file cannot be found from inside: keep the head that `export` prints elsewhere.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import msgspec

from secure_fl.crypto.keys.identity import PublicIdentity, digest_of
from secure_fl.errors import BudgetError, CryptoError, TamperError, TamperReason

FORMAT = 2
BUSY_SECONDS = 60.0
NOTHING = bytes(32)  # the hash before the first row

SCHEMA = (
    """CREATE TABLE entries (
        sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, state TEXT NOT NULL,
        dataset TEXT NOT NULL, unit TEXT NOT NULL, adjacency TEXT NOT NULL,
        event TEXT NOT NULL, epsilon REAL, delta REAL, run TEXT NOT NULL, round INTEGER,
        refers INTEGER, hash BLOB NOT NULL, signature BLOB NOT NULL) STRICT""",
    """CREATE TABLE anchor (id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER NOT NULL,
        hash BLOB NOT NULL, signature BLOB NOT NULL) STRICT""",
    """CREATE TRIGGER keep_entries BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER keep_all_entries BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER keep_anchor BEFORE DELETE ON anchor
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER forward_anchor BEFORE UPDATE ON anchor WHEN NEW.sequence <= OLD.sequence
        BEGIN SELECT RAISE(ABORT, 'the anchor only moves forward'); END""",
)


_Columns = tuple[  # a row with its hash and signature
    int, str, str, str, str, str, str, float | None, float | None, str, int | None, int | None,
    bytes, bytes,
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One row without its hash and signature."""

    sequence: int
    time: str  # ISO 8601, UTC
    state: str  # opened (row 0), reserved or committed; approved, erased: notes
    dataset: str
    unit: str
    adjacency: str
    event: str  # canonical JSON; row 0: the owner's public identity; a note's own text
    epsilon: float | None  # the budget under which it was reserved
    delta: float | None
    run: str
    round: int | None
    refers: int | None  # committed: the reservation

    def chained(self, previous: bytes) -> bytes:
        """Hash the row together with the hash before it."""
        row = json.dumps(astuple(self), ensure_ascii=False, separators=(",", ":"))
        return digest_of(b"secure-fl ledger entry", previous, row.encode())


@dataclass(frozen=True, slots=True)
class Chain:
    """A ledger's rows with their hashes and signatures, and its anchor, as read."""

    entries: tuple[LedgerRow, ...]
    hashes: tuple[bytes, ...]
    signatures: tuple[bytes, ...]
    anchor: tuple[int, bytes, bytes] | None  # sequence, hash, signature

    @property
    def head(self) -> bytes:
        """The last row's hash."""
        return self.hashes[-1] if self.hashes else NOTHING

    @property
    def owner(self) -> PublicIdentity:
        """The owner named in row 0; compare fingerprints to prove it."""
        try:
            owner = json.loads(self.entries[0].event)
            if (form := owner["format"]) != FORMAT:
                raise BudgetError(
                    f"the ledger has format {form}, this program reads {FORMAT}",
                    fix="read it with the release that wrote it; here, set a new folder in "
                    "`[keys] ledger`, and lower `max_epsilon` by what it shows",
                    reason="ledger-unusable",
                )
            keys = bytes.fromhex(owner["signing"]), bytes.fromhex(owner["agreement"])
            return PublicIdentity(owner["name"], *keys)
        except (ValueError, LookupError, TypeError, RecursionError, CryptoError):
            raise TamperError(
                "the ledger's first row does not name its owner", reason="owner"
            ) from None

    @property
    def ledger_name(self) -> str:
        """The random name in row 0: a ledger that is begun again has another one."""
        self.owner  # noqa: B018 - refuses a row that cannot be read
        return str(json.loads(self.entries[0].event).get("ledger", ""))

    def check(self, owner: PublicIdentity, *, pinned: bytes | None = None) -> None:
        """Raise TamperError unless all rows are chained and the owner signed the anchor.

        A head that was kept elsewhere must be in the chain.
        """
        previous = NOTHING
        for i, (entry, row_hash) in enumerate(zip(self.entries, self.hashes, strict=True)):
            if entry.sequence != i:
                raise _tampered(f"row {i} is missing (row {entry.sequence} follows)", "row-missing")
            if entry.chained(previous) != row_hash:
                raise _tampered(
                    f"row {i} was changed, or a row before it was replaced", "row-changed"
                )
            previous = row_hash
        if self.anchor is None or not self.entries:
            raise _tampered("the ledger has no rows or no anchor", "truncated")
        sequence, head, signature = self.anchor
        if (sequence, head) != (len(self.entries) - 1, previous):
            raise _tampered(
                f"rows after {len(self.entries) - 1} were cut off or added", "truncated"
            )
        self.owner  # noqa: B018 - refuses a ledger of another format
        _check_signature(owner, head_digest(sequence, head), signature, "anchor")
        if pinned is not None and pinned not in self.hashes:
            raise _tampered(
                "the head kept elsewhere is not in it: an older copy was put back", "older-copy"
            )

    def check_all(self, owner: PublicIdentity, *, pinned: bytes | None = None) -> None:
        """Check every row's signature, too."""
        self.check(owner, pinned=pinned)
        rows = zip(self.entries, self.hashes, self.signatures, strict=True)
        for entry, row_hash, signature in rows:
            _check_signature(owner, row_hash, signature, f"row {entry.sequence}")


def head_digest(sequence: int, head: bytes) -> bytes:
    """Compute the digest that the anchor's signature covers."""
    return digest_of(b"secure-fl ledger head", sequence.to_bytes(8, "big"), head)


@contextmanager
def connected(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the file with write-ahead log and full sync; transactions are explicit."""
    try:
        if create:  # the log files take over its mode
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        source = f"{path.resolve().as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(source, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA secure_delete=ON")  # an overwritten anchor must not linger
            yield db
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # SQLite cites damaged names
        raise BudgetError(
            f"the ledger cannot be used: {error}",
            file=path,
            fix="check the path and its permissions; without its ledger nothing may be released",
            reason="ledger-unusable",
        ) from None


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock from the first read to the commit: processes take turns."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def read_chain(db: sqlite3.Connection) -> Chain | None:
    """Read everything; None: a fresh file without tables.

    Other tables, or views of these names, are refused before they are read: a view can be endless.
    """
    made = db.execute("SELECT name, sql FROM sqlite_master WHERE name IN ('entries', 'anchor')")
    if not (tables := dict(made.fetchall())):
        return None
    if (tables.get("entries"), tables.get("anchor")) != SCHEMA[:2]:
        raise _tampered("its tables are others", "row-changed")
    read = db.execute("SELECT * FROM entries ORDER BY sequence").fetchall()
    last = db.execute("SELECT sequence, hash, signature FROM anchor").fetchone()
    try:  # SQLite does not check the types in a damaged file
        rows = msgspec.convert(read, list[_Columns])
        anchor = msgspec.convert(last, tuple[int, bytes, bytes] | None)
    except msgspec.ValidationError:
        raise _tampered("a column holds another type", "row-changed") from None
    return Chain(
        tuple(LedgerRow(*row[:12]) for row in rows),
        tuple(row[12] for row in rows),
        tuple(row[13] for row in rows),
        anchor,
    )


def append(
    db: sqlite3.Connection, entry: LedgerRow, row_hash: bytes, signature: bytes, anchor: bytes
) -> None:
    """Write one row and move the anchor to it; the caller holds the transaction."""
    row = (*astuple(entry), row_hash, signature)
    db.execute(f"INSERT INTO entries VALUES ({','.join('?' * len(row))})", row)  # noqa: S608
    db.execute(
        "INSERT INTO anchor VALUES (1, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "sequence = excluded.sequence, hash = excluded.hash, signature = excluded.signature",
        (entry.sequence, row_hash, anchor),
    )


def _check_signature(owner: PublicIdentity, digest: bytes, signature: bytes, what: str) -> None:
    try:
        owner.verify(digest, signature)
    except CryptoError:
        raise _tampered(f"the signature of {what} is not {owner.name!r}'s", "signature") from None


def _tampered(what: str, reason: TamperReason) -> TamperError:
    return TamperError(
        f"the ledger is not as it was written: {what}",
        fix="release nothing more from this silo; restore the newest copy and compare its head "
        "with the one kept elsewhere",
        reason=reason,
    )
