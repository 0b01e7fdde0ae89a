"""Every trick of a lying coordinator works without protection, and is refused with it, by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from secure_fl.audits.findings import AuditTrial, Verdict
from secure_fl.audits.selftest.malicious_coordinators import (
    COORDINATORS,
    MISSING,
    VICTIM,
    OmittingCoordinator,
)
from secure_fl.audits.selftest.malicious_federation import (
    PARTIES,
    FederationSetup,
    HonestCoordinator,
    right,
    run_federation,
)
from secure_fl.audits.selftest.tampering import (
    KEYS,
    OnTrust,
    Uncounted,
    attacked,
    input_read,
    tampering_trials,
)
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.crypto.sealing.transcript import SeenHistory
from secure_fl.settings import Protection

MODES: tuple[Protection, ...] = ("secagg", "he+secagg")
FORGED = "forges a sum for one hospital, with another's keys"
NAMED = {
    "scales an aggregate",
    "injects a constant",
    "drops a hospital's input",
    "replays an old total",
    "swaps keys",
    "lies about dropouts",
    "relabels a sum",
    "replays a frame",
    FORGED,
}


@cache
def setting(mode: Protection) -> FederationSetup:
    return FederationSetup.of(mode)


@cache
def judged(mode: Protection) -> dict[str, AuditTrial]:
    return {t.attack: t for t in tampering_trials(mode=mode)}


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_an_honest_coordinator_is_believed(mode: Protection) -> None:
    out = run_federation(setting(mode), HonestCoordinator())
    assert out.clean and not out.accepted and set(out.results) == set(PARTIES)
    # 1+2+3+4, then one more each; "some" without the last: 0.5+1+1.5
    for finding in out.results.values():
        for index, (survivors, values) in enumerate(finding):
            assert survivors == PARTIES
            assert values["all"] == pytest.approx([10 + 4 * index] * 20, abs=0.01)
            if "some" in values:
                assert values["some"] == pytest.approx([3.0] * 20, abs=0.01)


def test_all_tricks_that_were_asked_for_are_there() -> None:
    assert set(COORDINATORS) == NAMED
    assert {t.removeprefix("tampering: ") for t in judged("he+secagg")} == NAMED


@pytest.mark.parametrize("name", sorted(NAMED - {KEYS, "replays a frame"}))
def test_a_trick_changes_what_unprotected_parties_accept(name: str) -> None:
    out = run_federation(setting("none"), COORDINATORS[name]("none"))
    assert out.accepted and not out.noticed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(NAMED - {KEYS}))
def test_a_trick_is_refused_by_name(name: str, mode: Protection) -> None:
    trial = judged(mode)[f"tampering: {name}"]
    assert trial.verdict is Verdict.HOLDS
    assert trial.control and trial.control.value == 1 and trial.null and trial.null.value == 0
    assert trial.deployed and trial.deployed.value == 0
    who, code = next(iter(trial.deployed.details["noticed by"].items()))
    assert who in PARTIES
    expected = {
        "lies about dropouts": {"cohort", "crypto"},
        "replays a frame": {"wire"},
        FORGED: {"tamper", "crypto"},  # of the next sum, in which one hospital's masks are alone
    }
    assert code in expected.get(name, {"tamper"})


def test_an_old_frame_passes_where_frames_are_not_counted() -> None:
    honest = setting("none")
    uncounted = FederationSetup("none", honest.keys, Uncounted)
    assert attacked("replays a frame", uncounted).succeeded
    assert not attacked("replays a frame", honest).succeeded
    assert run_federation(uncounted, HonestCoordinator()).clean  # only the replay passes


@pytest.mark.parametrize("mode", MODES)
def test_swapped_keys(mode: Protection) -> None:
    trial = judged(mode)[f"tampering: {KEYS}"]
    assert trial.verdict is Verdict.HOLDS
    assert trial.deployed and trial.deployed.details["noticed by"] == {VICTIM: "keys"}


def test_keys_on_trust_give_the_input_away() -> None:
    assert input_read(OnTrust, swap=True) == (True, "")
    assert input_read(OnTrust, swap=False) == (False, "")  # without the swap there is nothing
    assert input_read(StepKeys, swap=True) == (False, "keys")
    assert input_read(StepKeys, swap=False) == (False, "")


def test_without_protection_the_verdict_says_so() -> None:
    verdicts = {name: t.verdict for name, t in judged("none").items()}
    leaks = {f"tampering: {name}" for name in NAMED - {KEYS, "replays a frame"}}
    assert {name for name, verdict in verdicts.items() if verdict is Verdict.LEAKS} == leaks


def test_a_trick_without_effect_is_not_taken_for_one_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COORDINATORS, "scales an aggregate", lambda _mode: HonestCoordinator())
    assert attacked("scales an aggregate", setting("he+secagg")).value == 1


def test_one_party_that_accepts_is_enough() -> None:
    """The others' refusal does not undo what it took for its result."""
    out = run_federation(setting("none"), HonestCoordinator())
    assert out.clean
    out.results[VICTIM] = [
        (s, {n: [v[0] + 1] * 20 for n, v in x.items()}) for s, x in out.results[VICTIM]
    ]
    out.noticed = {"west": "tamper"}
    assert out.accepted and not out.clean


def test_results_are_compared_with_the_truth() -> None:
    out = run_federation(setting("none"), OmittingCoordinator("none"))
    for finding in out.results.values():
        assert finding[0][1]["all"] == pytest.approx([10 - (PARTIES.index(MISSING) + 1)] * 20)
        assert not right(finding)
        survivors: Any = finding[0][0]
        assert survivors == PARTIES  # and nothing tells


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_a_forged_sum_is_taken_where_masks_do_not_name_what_was_seen(
    mode: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tag is right: only the next sum tells, if its masks are bound to this one."""
    assert not attacked(FORGED, setting(mode)).succeeded
    monkeypatch.setattr(SeenHistory, "by", lambda self, readers, *, host: b"")
    monkeypatch.setattr(SeenHistory, "beyond", lambda self, me, peers, readers, *, host: {})
    assert attacked(FORGED, setting(mode)).succeeded
