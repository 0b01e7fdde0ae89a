"""Sites, keys and files from fixed seeds, which the genuine inputs of decoders belong to."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.vectors.seeds import bytes_of, identity, seeded
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.keyring import CohortKeys
from secure_fl.crypto.keys.roster import Member, Roster
from secure_fl.crypto.privacy.accounting import DpSgdSteps, GaussianRelease, SkellamRelease
from secure_fl.crypto.privacy.ledger import Account, Budget, Ledger, load_chain
from secure_fl.crypto.sealing import secret
from secure_fl.policy.plan import Plan
from secure_fl.settings import TaskSettings, TrainingSettings
from vectors.reader import __main__ as reader
from vectors.reader.kinds import FOLDER

NORTH, SOUTH, WEST, HUB = (identity(name) for name in ("north", "south", "west", "coordinator"))
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
RUN = bytes_of("run", 16)
FAST = Path("/dev/shm")  # noqa: S108 - files in memory, where the system has them


@cache
def roster(tier: str | None = None) -> Roster:
    """Make a roster that its first member signed, valid for a century."""
    members = tuple(Member(of.name, "party", tier, of.public) for of in (NORTH, SOUTH, WEST))
    until = BEGUN + timedelta(days=36_500)
    return Roster(members, HUB.public, 2, BEGUN, until).sign(NORTH).sign(SOUTH)


@cache
def cohort_key() -> secret.SecretKey:
    """Return the key of the vectors' ciphertexts."""
    shared = json.loads((FOLDER / "keys.json").read_text())
    return secret.SecretKey.from_bytes(b64decode(shared["cohort"]))


@cache
def cohort_keys() -> CohortKeys:
    """Make the keys of a ceremony under the roster."""
    with seeded("cohort of the fuzzed roster"):
        key = secret.generate().to_bytes()
    of, tag, channel = roster(), bytes_of("tag"), bytes_of("channel")
    return CohortKeys(of.digest(), of.version, of.expires, SOUTH.name, key, tag, channel)


@cache
def plan() -> Plan:
    """Make a plan of two rounds."""
    return Plan(
        algorithm=FedAvg(rounds=2),
        dataset="notes",
        task=TaskSettings(labels=("no", "yes"), max_length=32),
        training=TrainingSettings(learning_rate=2e-3, batch_size=16, device="cpu"),
    )


def cases(name: str) -> Iterator[dict[str, Any]]:
    """Yield the cases of one file of vectors."""
    return reader.cases([FOLDER / f"{name}.json"])


@contextmanager
def folder() -> Iterator[Path]:
    """Make an empty folder, in memory if possible."""
    with TemporaryDirectory(dir=FAST if FAST.is_dir() else None) as place:
        yield Path(place)


@cache
def ledger_file() -> tuple[bytes, bytes]:
    """Make a ledger with three kinds of events; returns its file and its rows as JSON."""
    with folder() as place:
        ledger = Ledger(place / "ledger.db", NORTH)
        account, budget = Account("notes", "patient"), Budget(8.0, 1e-5)
        events = (GaussianRelease(5.0), SkellamRelease(400.0, 1.0, 1.0), DpSgdSteps(2.0, 0.1, 3))
        for event in events:
            ledger.commit(ledger.reserve(event, account, budget, run="first", round=1))
        ledger.note("erased", json.dumps({"why": "retention"}), run="first")
        rows = [astuple(entry) for entry in load_chain(ledger.path).entries]
        return ledger.path.read_bytes(), json.dumps(rows).encode()
