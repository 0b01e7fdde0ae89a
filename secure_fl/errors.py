"""Every error of secure_fl, in one tree.

    SecureFLError
    ├── SettingsError      a settings file or flag is wrong                    exit 2
    ├── DataError          a data file, split or label is wrong                exit 2
    ├── ModelError         a model or tokenizer cannot be had or does not fit  exit 2
    ├── TrainingError      NaN, infinity or a device failure while training    exit 5
    ├── WireError          a frame is malformed, forged, replayed or too large exit 6
    ├── CohortError        parties are missing or disagree                     exit 5
    │   ├── TooFewParties  a sum over so few parties would expose one of them
    │   ├── PartyFailed    a party cannot go on, and its own log says why
    │   └── Disagreement   replicated state differs between parties
    ├── CryptoError        something cannot be sealed, opened or verified      exit 6
    │   ├── KeyringError   a key file, roster or passphrase is wrong
    │   └── TamperError    an aggregate was changed on its way
    ├── BudgetError        the privacy budget does not allow this              exit 7
    ├── PolicyRefusal      a site's own rules do not allow it; stays there
    └── RunError           a run's folder cannot be written, read or resumed   exit 4

An error says what happened, where, and what to do. It stays inside the party that raised it:
what leaves a hospital is the class's `code`, never the text.
"""

from __future__ import annotations

from typing import ClassVar


class SecureFLError(Exception):
    """The base of all errors: what happened, where (party, round, step, file, field), the fix."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, what: str, *, fix: str = "", **where: object) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
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

    code = "settings"
    exit_status = 2


class DataError(SecureFLError):
    """A data file is missing, unreadable or empty, or a label does not belong."""

    code = "data"
    exit_status = 2


class ModelError(SecureFLError):
    """A model or tokenizer cannot be had here, or does not fit what is asked of it."""

    code = "model"
    exit_status = 2


class TrainingError(SecureFLError):
    """Training produced NaN or infinity, or the device failed."""

    code = "training"
    exit_status = 5


class WireError(SecureFLError):
    """A frame is malformed, forged, replayed, out of order or too large."""

    code = "wire"
    exit_status = 6


class CohortError(SecureFLError):
    """The parties of a run cannot go on together."""

    code = "cohort"
    exit_status = 5


class TooFewParties(CohortError):  # noqa: N818 - it names a state, and reads so at the call
    """A sum over fewer than `min_cohort` parties was refused."""

    code = "too-few-parties"


class PartyFailed(CohortError):  # noqa: N818
    """A party said that it cannot go on; all that is known of why is its code."""

    def __init__(self, what: str, *, reason: str, fix: str = "", **where: object) -> None:
        super().__init__(what, fix=fix, **where)
        self.reason = reason


class Disagreement(CohortError):  # noqa: N818
    """State that must be equal at all parties differs."""

    code = "disagreement"


class CryptoError(SecureFLError):
    """Something cannot be sealed, opened or verified."""

    code = "crypto"
    exit_status = 6


class KeyringError(CryptoError):
    """A key file, a roster or a passphrase is wrong."""

    code = "keyring"


class TamperError(CryptoError):
    """An aggregate was changed, scaled, injected or replayed on its way."""

    code = "tamper"


class BudgetError(SecureFLError):
    """The privacy budget does not allow this release."""

    code = "budget"
    exit_status = 7


class RunError(SecureFLError):
    """A run's folder cannot be written, read or resumed."""

    code = "run"
    exit_status = 4
