"""A run whose coordinator forges every total."""

from __future__ import annotations

from typing import Any

import pytest

from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.errors import SecureFLError
from tests.support.attacker import tampering
from tests.support.local_pilot import LocalPilot


def change(totals: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The second half of every ciphertext's first word, by one bit far up."""
    return {key: data[:200] + bytes([data[200] ^ 64]) + data[201:] for key, data in totals.items()}


def forge(made: LocalPilot) -> None:
    """Lead a run to its end, with a coordinator that changes all totals."""

    def totals(*arguments: Any, **named: Any) -> Any:
        return tampering(blind_totals(*arguments, **named), change)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SecureFLError):
        patch.setattr("secure_fl.coordinator.assembly.blind_totals", totals)
        made.lead(patience=0).run()
