"""No verdict without a control that succeeds and a null that fails; what policy makes of it."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from secure_fl.audits import metadata_trials
from secure_fl.audits.attacks import reading
from secure_fl.audits.build_document import UPDATE, WORDS, recovered, trial_part
from secure_fl.audits.conclusions import judge, matrix, trial_id
from secure_fl.audits.document import PrivacyPart
from secure_fl.audits.findings import (
    AuditFinding,
    AuditTrial,
    CoordinatorView,
    Prior,
    Truth,
    Verdict,
)
from secure_fl.audits.report import sentences
from secure_fl.audits.roles import CODE, within_bound
from secure_fl.data.examples import Text
from secure_fl.settings import PolicySettings
from tests.support.documents import privacy

COORDINATOR = "coordinator"
WITHIN = within_bound(parties=3, bound=1)


def finding(value: float | None, attack: str, role: str, target: str = "a") -> AuditFinding:
    return AuditFinding(attack, role, target, "score", value, 0.1, 0.5, 10)


def trial(
    deployed: float | None,
    attack: str = "token bag",
    role: str = COORDINATOR,
    *,
    control: float = 1.0,
    null: float = 0.0,
    target: str = "a",
) -> AuditTrial:
    with_value = partial(finding, attack=attack, role=role, target=target)
    return AuditTrial(with_value(control), with_value(deployed), with_value(null))


@pytest.mark.parametrize(
    ("control", "deployed", "null", "verdict"),
    [
        (1.0, 0.0, 0.0, Verdict.HOLDS),
        (1.0, None, 0.0, Verdict.HOLDS),  # nothing that it could work on reached this role
        (1.0, 0.9, 0.0, Verdict.LEAKS),
        (0.0, 0.0, 0.0, Verdict.INCONCLUSIVE),  # a broken attack shows nothing
        (0.0, 0.9, 0.0, Verdict.INCONCLUSIVE),
        (1.0, 0.0, 0.9, Verdict.INCONCLUSIVE),  # it finds something where there is nothing
        (1.0, 0.9, 0.9, Verdict.INCONCLUSIVE),
    ],
)
def test_verdicts(control, deployed, null, verdict):
    assert trial(deployed, control=control, null=null).verdict is verdict


@pytest.mark.parametrize("which", ["control", "deployed", "null"])
def test_an_attack_that_could_not_run_shows_nothing(which: str) -> None:
    whole = trial(0.0)
    assert whole.control and whole.deployed and whole.null
    known = {"control": whole.control, "deployed": whole.deployed, "null": whole.null}
    failed = known[which].at(value=None, could_run=False, note="rounds do not match")
    known[which] = failed
    incomplete = AuditTrial(known["control"], known["deployed"], known["null"])
    assert incomplete.verdict is Verdict.INCONCLUSIVE
    part = trial_part(incomplete, {})  # the report judges again, from what the document has
    assert sentences.verdict(part) == "inconclusive"
    assert "rounds do not match" in sentences.outcome(part)
    if which == "deployed":
        assert "rounds do not match" in cell([incomplete], "words").note


def test_a_missing_control_shows_nothing():
    alone = AuditTrial(None, finding(0.0, "token bag", COORDINATOR), None)
    assert alone.verdict is Verdict.UNTESTED
    with pytest.raises(ValueError, match="at least one"):
        AuditTrial(None, None, None).attack  # noqa: B018


def cell(trials: list[AuditTrial], what: str) -> Any:
    row = next(row for row in matrix(trials, [COORDINATOR]) if row.what.startswith(what))
    return row.cells[0]


def test_words_are_hidden_where_no_update_could_be_read():
    unread = trial(0.0, "reading one hospital")
    weak = trial(0.0, "span check", control=0.0)
    result = cell([unread, weak], "words")
    assert (result.access, result.evidence) == ("nothing", (trial_id(unread),))
    assert result.note


def test_an_update_that_was_read_needs_every_attack_to_come_to_a_verdict():
    read = trial(1.0, "reading one hospital")
    held, weak = trial(0.0, "token bag"), trial(0.0, "span check", control=0.0)
    assert cell([read, held, weak], "words").access == "inconclusive"
    assert cell([read, held], "words").access == "nothing"
    leaking = cell([read, held, trial(0.8, "span check")], "words")
    assert leaking.access == "everything" and leaking.evidence == ("span-check/coordinator",)


def test_what_is_found_of_a_sum_says_whose_it_is_not():
    assert cell([trial(0.9, "token bag", target="the sum of 3")], "words").access == "of a sum"


def judged(
    *trials: AuditTrial, statement: tuple[PrivacyPart, ...] = (), **policy: Any
) -> tuple[str, str]:
    unread = trial(0.0, "reading one hospital")
    status, why = judge([unread, *trials], PolicySettings(**policy), WITHIN, statement)
    return status, " ".join(why)


def test_what_is_promised_is_asked_for():
    assert judged(trial(0.0)) == ("within policy", "")
    assert judged(trial(0.9))[0] == "beyond policy"
    status, why = judged(trial(1.0, "tampering: scales", CODE))
    assert status == "beyond policy" and "tampering" in why


def test_what_is_not_promised_is_not():
    beyond_the_bound = trial(1.0, "reading one hospital", "coordinator + 2 hospitals")
    assert judged(beyond_the_bound)[0] == "within policy"
    within_it = trial(1.0, "reading one hospital", "coordinator + 1 hospital")
    assert judged(within_it)[0] != "within policy"
    assert judged(trial(0.9, "token bag", target="the sum of 3"))[0] == "within policy"
    assert judged(trial(0.9), accept=("token-bag/x",))[0] != "within policy"
    assert judged(trial(0.9), accept=("token-bag/coordinator",))[0] == "within policy"


def test_open_questions_are_inconclusive():
    read = trial(1.0, "reading one hospital")
    accept = (trial_id(read),)
    weak = trial(0.0, control=0.0)
    assert judge([read, weak], PolicySettings(accept=accept), WITHIN, ())[0] == "inconclusive"
    assert judge([], PolicySettings(), WITHIN, ())[0] == "inconclusive"
    broken = trial(0.0, "mechanism self-test", CODE, control=0.0)
    assert judged(broken)[0] == "inconclusive"


def test_membership_and_epsilon_are_judged_where_the_policy_says():
    result = finding(0.8, "membership (LiRA)", "the public").at(interval=(0.7, 0.9))
    leak = AuditTrial(result, result, result.at(value=0.1))
    assert judged(leak)[0] == "within policy"
    assert judged(leak, membership=0.75)[0] == "within policy"
    assert judged(leak, membership=0.6)[0] == "beyond policy"
    for none in ((), (AuditTrial(result.at(value=0.1), result, result.at(value=0.1)),)):
        status, why = judged(*none, membership=0.75)  # a broken attack keeps no limit
        assert status == "inconclusive" and "no membership attack" in why
    (statement,) = (replace(part, epsilon=4.0) for part in privacy())
    assert judged(statement=(statement,), epsilon=4.0)[0] == "within policy"
    assert judged(statement=(statement,), epsilon=3.0)[0] == "beyond policy"
    assert "no differential-privacy statement" in judged(epsilon=3.0)[1]
    for other in (None, 50.0):  # of another unit: the smallest ε does not cover it
        both = (statement, replace(statement, unit="hospital", epsilon=other))
        assert judged(statement=both, epsilon=4.0)[0] == "beyond policy"


def test_a_ranking_is_compared_with_random_orders() -> None:
    sizes, unused = metadata_trials.PROBE_SIZES, cast(Any, None)
    truth = {f"h{n}": Truth(f"h{n}", (Text("", ""),) * n) for n in sizes}
    prior = Prior(unused, unused, unused, unused, unused, 0, truth)
    view = CoordinatorView(COORDINATOR, frames=())
    ranked = metadata_trials._ranked("sizes", view, prior, {f"h{n}": float(n) for n in sizes})
    assert ranked.value == 1.0 and ranked.chance == pytest.approx(0.23, abs=0.03)
    assert metadata_trials.null(ranked).value == ranked.chance


def test_tau_counts_pairs_and_ties_tell_nothing():
    up = np.arange(8.0)
    assert metadata_trials.tau(up, up) == 1.0
    assert metadata_trials.tau(up, -up) == -1.0
    assert metadata_trials.tau(up, np.zeros(8)) == 0.0
    swapped = np.array([0, 1, 2, 3, 4, 5, 7, 6.0])
    assert metadata_trials.tau(up, swapped) == pytest.approx(1 - 2 / 28)


def test_the_headline_is_the_update_and_words_name_what_guessing_gives():
    """With frozen embeddings no attack turns an update into words; it is read all the same."""
    read, words = trial(0.99, reading.ONE), trial(1.0)
    assert recovered([read, trial(0.0)]) == (0.99, UPDATE)
    assert recovered([read, words]) == (0.99, UPDATE)
    assert recovered([trial(0.03, reading.ONE), words]) == (0.03, UPDATE)
    value, measure = recovered([words])
    assert value == 1.0 and measure.startswith(WORDS) and measure.endswith("guessing: 0.10")
    assert recovered([]) == (None, UPDATE)
