"""What one member can do to all others: with one message, at any time, and as often as it likes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from secure_fl.crypto import transcript
from secure_fl.crypto.transcript import Scales
from secure_fl.errors import CohortError
from secure_fl.protocol.ports import Group, Rule
from secure_fl.testing.harness import Federated, federate
from tests.support.attacker import NAMES, summing
from tests.support.raising import require

LIAR = "west"
VALUES = {"x": np.linspace(-1, 1, 400, dtype=np.float32)}


def with_a_negative_norm(monkeypatch: pytest.MonkeyPatch) -> Federated:
    """A sum whose scale nobody knows; the norm that one of them gives cannot be one."""
    honest, asked = Scales.unknown, iter(NAMES)  # parties come to it in this order

    def unknown(scales: Scales, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        found = honest(scales, groups, rule)
        if found and next(asked, None) == LIAR:
            wrong = {name: np.array([-1e6], np.float32) for name in found[0].vectors}
            return [Group(found[0].owners, wrong, found[0].readers)]
        return found

    monkeypatch.setattr(Scales, "unknown", unknown)
    programs = {name: summing(VALUES, carry=True) for name in NAMES}
    return federate(programs, mode="he+secagg", catch=True, min_cohort=3)


def test_a_negative_norm_would_be_a_fault_of_honest_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcript, "_squared", lambda _, norm: norm)
    out = with_a_negative_norm(monkeypatch)
    assert "math domain" in str(out.sessions["east"].error)


def test_a_negative_norm_is_an_error_that_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out = with_a_negative_norm(monkeypatch)
    assert out.results == {}
    error = out.sessions["east"].error
    assert isinstance(error, CohortError)
    require(error, "'x'", party="east", field="norm")
