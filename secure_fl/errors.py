"""Errors of secure_fl: one tree, with a code and an exit status for each kind.

An error says what happened, where, and what to do. Its text never leaves the party that raised it:
only the class's `code` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import ClassVar, Literal, TypeAlias

KeyringReason: TypeAlias = Literal[
    # files; permissions: other users can read it; other-format: of another version of the program
    "unreadable", "unwritable", "missing", "exists", "permissions", "malformed", "other-format",
    "changed", "passphrase", "certificate", "mixed-kits", "invalid-option",
    # content of a roster
    "duplicate-names", "role", "card", "several-hosts", "no-party", "shared-key", "threshold",
    "dates",
    # use of a roster by this site, now
    "not-listed", "other-keys", "other-roster", "unsigned", "signature", "not-yet-valid", "expired",
    "older-version", "retired-keys",
    # bundles of a dealer
    "other-recipient", "other-dealer", "cannot-open", "newer-keys-present",
]  # fmt: skip
BudgetReason: TypeAlias = Literal[
    "spent", "plan", "accountant", "delta", "adjacency", "unknown-event", "unknown-account",
    "second-budget", "no-ledger", "ledger-unusable", "owner", "not-a-reservation", "step-count",
    "variance-too-large", "noise-hides-signal", "too-many-dropouts", "needs-more-noise",
    "not-reserved", "unprotected",
    "unreachable-epsilon",  # no noise is enough
    "no-guarantee",  # the numbers of an event protect nobody
    "no-noise-source",  # all parties may drop out or collude
]  # fmt: skip
TamperReason: TypeAlias = Literal[
    "wrong-sum", "relayed-value",
    "equivocation",  # the coordinator signed different statements for two members
    # ledgers
    "owner", "row-changed", "row-missing", "truncated", "signature", "older-copy",
]  # fmt: skip
RunReason: TypeAlias = Literal[
    "missing", "exists", "unreadable", "unwritable", "malformed", "unfinished", "changed",
    "other-program", "other-settings", "unusable-address",
    "in-use",  # by another process
    "no-folder",  # a run without folder cannot be resumed or joined
    "missing-extra",  # an optional dependency is not installed
    "not-covered",  # differential privacy does not cover a model that was to be published
]  # fmt: skip

DISTRUST = "stop the run: do not trust this coordinator"


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Suggest the allowed name that is most similar to a mistyped one, and list all."""
    near = get_close_matches(name, allowed, n=1, cutoff=0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"allowed: {', '.join(allowed)}"


class SecureFLError(Exception):
    """Base of all errors: what happened, where (party, round, step, file, field) and the fix."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    advice: ClassVar[str] = ""  # the default fix

    reason: str = ""  # one of a closed list, in classes with several reasons

    def __init__(self, what: str, *, fix: str = "", **where: object) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix or self.advice
        self.where = {key: value for key, value in where.items() if value is not None}

    @property
    def party(self) -> str:
        """The named party; "" if none is named, or several are."""
        return str(self.where.get("party", ""))

    def at(self, **where: object) -> SecureFLError:
        """Add places that only a caller knows; known places keep their values."""
        self.where = {k: v for k, v in where.items() if v is not None} | self.where
        return self

    def __str__(self) -> str:
        place = ", ".join(f"{key} {value}" for key, value in self.where.items())
        text = f"{place}: {self.what}" if place else self.what
        return f"{text}\n  -> {self.fix}" if self.fix else text


class SettingsError(SecureFLError):
    """A settings file, an override or a flag is wrong."""

    advice = "`secure-fl settings` explains every field"
    code = "settings"
    exit_status = 2


class DataError(SecureFLError):
    """A data file is missing, unreadable or empty, or a label is not allowed."""

    advice = "check that the file exists and that this user can read it"
    code = "data"
    exit_status = 2


class ModelError(SecureFLError):
    """A model or tokenizer is not available here, or does not fit the task."""

    advice = "check the name or folder of the model, and that it exists on this machine"
    code = "model"
    exit_status = 2


class TrainingError(SecureFLError):
    """Training produced NaN or infinity, or the device failed."""

    advice = "lower training.learning_rate, or check the device"
    code = "training"
    exit_status = 5


class WireError(SecureFLError):
    """A frame is malformed, forged, replayed, out of order or too large."""

    advice = "if it happens again, compare versions at both ends, or stop: frames are being changed"
    code = "wire"
    exit_status = 6


class Misconduct(WireError):  # noqa: N818 - it names what was done
    """A member's own signed messages prove that it broke the protocol."""

    advice = "ask that site; `secure-fl status` shows the evidence, signed by its own key"
    code = "misconduct"


class CohortError(SecureFLError):
    """The parties of a run cannot continue together."""

    advice = (
        "start all parties with the same program and settings; if it happens "
        "again, do not trust the coordinator"
    )
    code = "cohort"
    exit_status = 5


class TooFewParties(CohortError):  # noqa: N818 - it names a state, and reads so at the call
    """A sum over fewer than `min_cohort` parties was refused."""

    advice = "wait for the others, then continue with --resume"
    code = "too-few-parties"
    exit_status = 8


class PlanRefused(CohortError):  # noqa: N818 - it names what the site did
    """A site refuses a plan; only the code of the reason is known."""

    advice = "the site's own log names the rules; change the plan, or ask the site"
    code = "plan-refused"
    exit_status = 9


class PartyFailed(CohortError):  # noqa: N818
    """Parties (`members`) cannot continue; only the code of their error is known.

    `party` is the one to blame, if one is.
    """

    advice = "read that party's own log, then continue with --resume"

    def __init__(
        self,
        what: str,
        *,
        reason: str,
        party: str | None = None,
        members: tuple[str, ...] = (),
        fix: str = "",
        **where: object,
    ) -> None:
        super().__init__(what, fix=fix, party=party, **where)
        self.reason = reason
        self.members = members or tuple(filter(None, [party]))


class UnusableKeys(PartyFailed):
    """Two members cannot use what one sent the other, or contradict each other, or most one."""

    advice = "resume the run: the round is repeated; if it recurs, leave these members out"

    code = "keys-refused"

    def __init__(self, members: tuple[str, ...], what: str) -> None:
        super().__init__(what, reason="keys", party=" and ".join(members), members=members)


class Disagreement(CohortError):  # noqa: N818
    """State that must be equal at all parties differs."""

    advice = "give all parties the same settings, data sets and version"
    code = "disagreement"


class RefusedRounds(CohortError):  # noqa: N818 - it names a state
    """The parties' votes refused more rounds than the plan allows."""

    advice = "find the site whose updates make the model worse, and continue without it"
    code = "refused-rounds"


class CryptoError(SecureFLError):
    """Sealing, opening or verification failed."""

    advice = "compare version, run and keys at both ends; if they match, messages are being changed"
    code = "crypto"
    exit_status = 6


class PeerKeysError(CryptoError):
    """Keys or shares of another member (`party`) that this member cannot use."""

    advice = "the round is repeated; if it recurs, the coordinator leaves both members out"
    code = "keys"


class KeyringError(CryptoError):
    """A key file, a roster or a passphrase is wrong."""

    advice = "use the original file, or create it again with `secure-fl keys`"
    code = "keyring"

    def __init__(self, what: str, *, reason: KeyringReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class TamperError(CryptoError):
    """An aggregate was changed, scaled, injected or replayed, or a ledger was rewritten."""

    advice = DISTRUST
    code = "tamper"

    def __init__(self, what: str, *, reason: TamperReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class BudgetError(SecureFLError):
    """The privacy budget does not allow a release."""

    advice = "`secure-fl budget` shows the cost of a plan, `secure-fl ledger` the spent budget"
    code = "budget"
    exit_status = 7

    def __init__(self, what: str, *, reason: BudgetReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class RunError(SecureFLError):
    """A run's folder cannot be written, read or resumed."""

    advice = "check that the folder exists, belongs to this user and has free space"
    code = "run"
    exit_status = 4

    def __init__(self, what: str, *, reason: RunReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason
