"""What most parties fail by alike is the fault of none of those who say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from secure_fl.errors import PartyFailed, SecureFLError


def failed_alike(
    answers: Mapping[str, SecureFLError], asked: int, round: int
) -> PartyFailed | None:
    """Name nobody where most cannot go on for one reason: what was summed is the cause.

    Whoever gave it may say that it can go on, and who says first that it cannot is honest.
    """
    codes = Counter(e.reason for e in answers.values() if isinstance(e, PartyFailed))
    for code, count in codes.most_common(1):
        if 1 < count and asked < 2 * count:
            return PartyFailed(
                f"{count} of {asked} parties cannot go on, all for the same reason ({code})",
                fix="their own logs say why; what was summed cannot be used, and as it was "
                "sealed, nobody can tell who gave what",
                round=round or None,
                reason=code,
            )
    return None
