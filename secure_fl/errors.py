"""Every error of secure_fl, in one tree.

    SecureFLError
    ├── SettingsError      a settings file or flag is wrong                    exit 2
    ├── DataError          a data file, split or label is wrong                exit 2
    ├── ModelError         a model or tokenizer cannot be had or does not fit  exit 2
    ├── TrainingError      NaN, infinity or a device failure while training    exit 5
    ├── WireError          a frame is malformed, forged, replayed or too large exit 6
    │   └── Misconduct     what a member signed shows that it broke the protocol
    ├── CohortError        parties disagree, or cannot go on together          exit 5
    │   ├── TooFewParties  a sum over so few parties would expose one of them  exit 8
    │   ├── PlanRefused    a site's rules do not allow the plan, or it cannot  exit 9
    │   ├── PartyFailed    a party cannot go on, and its own log says why
    │   ├── Disagreement   replicated state differs between parties
    │   └── RefusedRounds  the parties refused more rounds than the plan allows
    ├── CryptoError        something cannot be sealed, opened or verified      exit 6
    │   ├── KeyringError   a key file, roster or passphrase is wrong
    │   └── TamperError    an aggregate was changed on its way
    ├── BudgetError        the privacy budget does not allow this              exit 7
    ├── QuestionRefused    a site does not let this be asked of its records    exit 9
    ├── PolicyRefusal      a site's own rules do not allow it; stays there
    └── RunError           a run's folder cannot be written, read or resumed   exit 4

An error says what happened, where, and what to do. It stays inside the party that raised it:
what leaves a hospital is the class's `code`, never the text.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

KeyringReason: TypeAlias = Literal[
    # a file
    "unreadable",
    "unwritable",
    "missing",
    "exists",
    "exposed",  # others may open it
    "form",  # it is cut short, or another kind of file
    "version",  # of another program
    "changed",
    "passphrase",
    "certificate",
    "mixed",  # files of different kits
    "setting",
    # what a roster says
    "names",
    "role",
    "card",
    "hosts",
    "no-party",
    "shared-key",
    "threshold",
    "dates",
    # whom it is for, and until when
    "stranger",  # not on the roster
    "other-keys",
    "other-roster",
    "unsigned",
    "signature",
    "early",
    "expired",
    "older",
    "retired",
    # a dealer's bundle
    "recipient",
    "dealer",
    "sealed",
    "held",  # keys of this version, or a later one, are here
]
BudgetReason: TypeAlias = Literal[
    "spent",
    "plan",
    "accountant",
    "delta",
    "out-of-reach",  # no noise is enough
    "event",  # of a kind that is not accounted for
    "no-promise",  # its numbers protect nobody
    "neighbours",
    "account",
    "second-budget",
    "no-ledger",
    "unusable",
    "owner",
    "reservation",
    "steps",
    "nobody-left",  # to add noise
    "too-noisy",
    "drowned",  # by noise
    "lost-noise",
    "unreserved",
    "unprotected",
]
TamperReason: TypeAlias = Literal[
    "sum",
    "relayed",
    "stories",  # a coordinator's, to two members
    # of a ledger
    "owner",
    "row-changed",
    "row-missing",
    "cut-off",
    "signature",
    "older-copy",
]
RunReason: TypeAlias = Literal[
    "missing",
    "exists",
    "in-use",  # another process works in this folder
    "unreadable",
    "unwritable",
    "form",
    "unfinished",
    "changed",
    "no-folder",  # the run keeps nothing, so it cannot be resumed or joined
    "other-program",
    "other-settings",
    "address",
    "extra",  # of the installation
]

DISTRUST = "stop the run: the coordinator is not to be trusted"


class SecureFLError(Exception):
    """The base of all errors: what happened, where (party, round, step, file, field), the fix."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1
    advice: ClassVar[str] = ""  # what to do where nothing better is known

    reason: str = ""  # of a closed list, in classes that have several

    def __init__(self, what: str, *, fix: str = "", **where: object) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix or self.advice
        self.where = {key: value for key, value in where.items() if value is not None}

    def at(self, **where: object) -> SecureFLError:
        """Add places that only a caller further up knows; what is already known stays."""
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
    """A data file is missing, unreadable or empty, or a label does not belong."""

    advice = "check the file, and that this user may read it"
    code = "data"
    exit_status = 2


class ModelError(SecureFLError):
    """A model or tokenizer cannot be had here, or does not fit what is asked of it."""

    advice = "check the name or folder of the model, and that it is on this machine"
    code = "model"
    exit_status = 2


class TrainingError(SecureFLError):
    """Training produced NaN or infinity, or the device failed."""

    advice = "lower training.learning_rate, or look at the device"
    code = "training"
    exit_status = 5


class WireError(SecureFLError):
    """A frame is malformed, forged, replayed, out of order or too large."""

    advice = "if it comes again, compare versions at both ends, or stop: somebody changes frames"
    code = "wire"
    exit_status = 6


class Misconduct(WireError):  # noqa: N818 - it names what was done
    """What a member signed shows that it broke the protocol, to anybody who looks at it."""

    advice = "ask that site; `secure-fl status` shows the evidence, which its own key has signed"
    code = "misconduct"


class CohortError(SecureFLError):
    """The parties of a run cannot go on together."""

    advice = (
        "start all parties with the same program and settings; if it comes "
        "again, do not trust the coordinator"
    )
    code = "cohort"
    exit_status = 5


class TooFewParties(CohortError):  # noqa: N818 - it names a state, and reads so at the call
    """A sum over fewer than `min_cohort` parties was refused."""

    advice = "wait for the others, then go on with --resume"
    code = "too-few-parties"
    exit_status = 8


class PlanRefused(CohortError):  # noqa: N818 - it names what the site did
    """A site does not take part in a plan; all that is known of why is its code."""

    advice = "its own log says which rules; change the plan, or ask the site"
    code = "plan-refused"
    exit_status = 9


class PartyFailed(CohortError):  # noqa: N818
    """A party said that it cannot go on; all that is known of why is its code."""

    advice = "read that party's own log, then go on with --resume"

    def __init__(self, what: str, *, reason: str, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class Disagreement(CohortError):  # noqa: N818
    """State that must be equal at all parties differs."""

    advice = "give all parties the same settings, data sets and version"
    code = "disagreement"


class RefusedRounds(CohortError):  # noqa: N818 - it names a state
    """The parties' votes refused more rounds than the plan allows."""

    advice = "find out which site sends what makes the model worse, and go on without it"
    code = "refused-rounds"


class CryptoError(SecureFLError):
    """Something cannot be sealed, opened or verified."""

    advice = "compare versions, run and keys of both ends; if they fit, somebody changes messages"
    code = "crypto"
    exit_status = 6


class KeyringError(CryptoError):
    """A key file, a roster or a passphrase is wrong."""

    advice = "use the file as it was made, or make it again with `secure-fl keys`"
    code = "keyring"

    def __init__(self, what: str, *, reason: KeyringReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class TamperError(CryptoError):
    """An aggregate was changed, scaled, injected or replayed on its way, or a ledger rewritten."""

    advice = DISTRUST
    code = "tamper"

    def __init__(self, what: str, *, reason: TamperReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class BudgetError(SecureFLError):
    """The privacy budget does not allow this release."""

    advice = "`secure-fl budget` shows what a plan costs, `secure-fl ledger` what is spent"
    code = "budget"
    exit_status = 7

    def __init__(self, what: str, *, reason: BudgetReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class QuestionRefused(SecureFLError):  # noqa: N818 - it names what the site did
    """A site's rules for statistics do not let this question be asked of its records."""

    advice = "ask something else; `[site.statistics]` is each site's own"
    code = "question"
    exit_status = 9


class RunError(SecureFLError):
    """A run's folder cannot be written, read or resumed."""

    advice = "check that the folder is there, belongs to this user, and has space left"
    code = "run"
    exit_status = 4

    def __init__(self, what: str, *, reason: RunReason, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason
