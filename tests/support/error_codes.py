"""What may be said of an error across the wire."""

from __future__ import annotations

from secure_fl.errors import SecureFLError
from secure_fl.pilot.run_id import RESTARTED


def error_codes(cls: type[SecureFLError] = SecureFLError) -> set[str]:
    """Every code of the error tree; no answer may say more."""
    return {cls.code, RESTARTED}.union(*(error_codes(child) for child in cls.__subclasses__()))
