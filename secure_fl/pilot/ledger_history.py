"""The privacy ledgers that a site has used, in a file beside its approvals.

A second ledger, and a new one that replaces a lost one, are fresh budgets for the same records. So
each start reports it, and approvals of plans count for the ledgers that were used when they were
signed. Approvers need not read a ledger: the file has the random name in each ledger's first row.
It is not signed, so a user who may remove both this file and the ledger can begin again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from secure_fl.crypto.privacy.ledger import Ledger, load_chain
from secure_fl.errors import RunError, SecureFLError
from secure_fl.files import replace_whole

FILE = "ledgers.jsonl"


class UsedLedger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ledger, with the approval rule of the last plan that was approved under it."""

    ledger: str  # the random name in its first row
    file: str
    since: str
    approval: dict[str, Any] = {}

    @property
    def unspent(self) -> bool:
        """True if the ledger is still there and no run has spent from it."""
        file = Path(self.file)
        try:
            chain = load_chain(file) if file.exists() else None
        except SecureFLError:
            return False
        if chain is None or chain.ledger_name != self.ledger:
            return False
        return not any(row.state == "reserved" for row in chain.entries)

    def described(self, now: Path) -> str:
        """Name the ledger for a site whose ledger is now this file."""
        replaced = ", before it was replaced" if self.file == str(now) else ""
        return f"{self.file} (since {self.since}{replaced})"


@dataclass(frozen=True, slots=True)
class LedgerHistory:
    """The ledgers of one site, in the order of their use."""

    folder: Path  # of the site's approvals

    @property
    def file(self) -> Path:
        """The file of the history."""
        return self.folder / FILE

    def used(self) -> list[UsedLedger]:
        """Return all ledgers so far; refuse a broken file."""
        try:
            text = self.file.read_bytes() if self.file.exists() else b""
            return [msgspec.json.decode(line, type=UsedLedger) for line in text.splitlines()]
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            what = f"the list of this site's ledgers cannot be read ({error})"
            fix = "restore the file, or remove it: then plans need new approvals"
            raise RunError(what, file=self.file, fix=fix, reason="unreadable") from error

    def later(self) -> list[str]:
        """Return the names of all ledgers after the first: changes that approvals must know."""
        return [one.ledger for one in self.used()[1:]]

    @property
    def approval(self) -> dict[str, Any]:
        """The approval rule of the last approved plan; empty: there was none."""
        used = self.used()
        return used[-1].approval if used else {}

    def meet(self, ledger: Ledger) -> None:
        """Note the ledger if it is not the last one; begin it if an earlier one is lost."""
        used = self.used()
        if not used and not ledger.path.exists():
            return  # the site's first run will begin it
        name, now = ledger.begin(), datetime.now(UTC).isoformat(timespec="seconds")
        if not used or used[-1].ledger != name:
            self._write([*used, UsedLedger(name, str(ledger.path), now, self.approval)])

    def approved(self, ledger: Ledger, rule: dict[str, Any]) -> None:
        """Note the approval rule of a plan that is approved, for a later ledger."""
        self.meet(ledger)
        *earlier, last = self.used()
        if last.approval != rule:
            self._write([*earlier, msgspec.structs.replace(last, approval=rule)])

    def warning(self, file: Path) -> tuple[str, str] | None:
        """Describe a budget that does not count earlier runs, and its fix; `file`: the ledger."""
        used, name = self.used(), _name(file)
        others = {one.ledger: one for one in used if one.ledger != name and not one.unspent}
        if not others:
            return None
        last = list(others.values())[-1]
        if name is None and last.file == str(file):
            return (
                f"the privacy ledger {file} is missing: runs since {last.since} spent from it, and "
                "the next run would begin with an unspent budget",
                "restore the newest copy of the ledger's folder; without one, lower max_epsilon in "
                "[site.dp] by what the last export shows",
            )
        files = ", ".join(one.described(file) for one in others.values())
        return (
            f"earlier runs of this site spent from other privacy ledgers: {files}. The budget of "
            f"{file} does not count them",
            "set ledger in [keys] to the earlier folder; or, if the change is intended, lower "
            "max_epsilon in [site.dp] by what `secure-fl ledger show` reports for the earlier one",
        )

    def _write(self, used: list[UsedLedger]) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            lines = [msgspec.json.encode(one) + b"\n" for one in used]
            replace_whole(self.file, *lines)
        except OSError as error:
            what = f"the list of this site's ledgers could not be written ({error.strerror})"
            raise RunError(what, file=self.file, reason="unwritable") from error


def _name(file: Path) -> str | None:
    """Return the name of a ledger, or None: there is none, or it cannot be read."""
    try:
        return load_chain(file).ledger_name if file.exists() else None
    except SecureFLError:
        return None
