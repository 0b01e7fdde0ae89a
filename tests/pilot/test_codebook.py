"""A codebook as a pilot's plan: approved by each site's rules, with the same tables at each."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from secure_fl.config.build import RunSettings
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError
from secure_fl.features.statistics.codebook import Codebook
from secure_fl.features.statistics.feature import StatisticsRules
from secure_fl.features.statistics.tables import table_of
from secure_fl.pilot.progress import progress
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.rules import Company, check
from secure_fl.policy.violations import PolicyRefusal
from tests.support.local_pilot import LocalPilot
from tests.support.raising import raises
from tests.support.tables import hospitals

DAY = date(2026, 1, 1)
GIVEN: dict[str, Any] = {
    "variables": {"label": {"values": ("a", "b", "c")}, "age": {"low": 0, "high": 100, "bins": 5}},
    "tables": {"labels": ("label",), "both": ("label", "age")},
}


def plan_of(name: str = "what-is-there", **changes: Any) -> Plan:
    return Plan(
        algorithm=Codebook(**(GIVEN | changes)), dataset="notes", run=RunSettings(name=name)
    )


def pilot(folder: Path, plan: Plan, count: int = 3) -> LocalPilot:
    members = {name: Silo(name, (), table=table_of(t)) for name, t in hospitals(count).items()}
    return LocalPilot(folder, plan, members)


def tables_at(folder: Path, name: str, run: str = "what-is-there") -> dict[str, Any]:
    document = json.loads((folder / name / run / "result.json").read_text())
    found: dict[str, Any] = document["statistics"]
    return found


def test_all_sites_have_the_same_tables_and_the_coordinator_none(tmp_path: Path) -> None:
    made = pilot(tmp_path, plan_of())
    lead = made.lead()
    lead.run()
    document = lead.document()
    assert document["algorithm"] == "statistics" and "tables" not in json.dumps(document)
    first, *others = [tables_at(tmp_path, name) for name in made.members]
    assert first["status"] == "answered" and first["records"] == 180
    assert all(other == first for other in others)
    assert progress(tmp_path / "hospital-1" / "what-is-there")["rounds"] == 1
    note = tmp_path / "hospital-1" / "ledger" / "hospital-1" / "statistics.jsonl"
    assert len(note.read_text().splitlines()) == 2


def test_a_second_codebook_over_other_sites_is_refused(tmp_path: Path) -> None:
    """The difference would be one hospital's counts. The seed may repeat: nothing trains."""
    made = pilot(tmp_path, plan_of(), 4)
    made.lead().run()
    made.plan = plan_of("again", tables={"labels": ("label",), "ages": ("age",)})
    made.lead().run()
    assert tables_at(tmp_path, "hospital-1", "again")["status"] == "answered"
    made.plan = plan_of("fewer", tables={"labels": ("label",), "ages": ("age",)})
    made.kill("hospital-4")
    made.lead().run()
    found = tables_at(tmp_path, "hospital-1", "fewer")
    assert found["status"] == "refused" and "hospital refused" in found["reason"]


@pytest.mark.parametrize("heard", [7, 11, 14, 16])
def test_a_site_that_falls_silent_stops_nobody(tmp_path: Path, heard: int) -> None:
    made, silent = pilot(tmp_path, plan_of(), 4), "hospital-2"
    frames = list[str]()

    def before(town: LocalPilot, party: str) -> None:
        frames.extend([party] if party == silent else [])
        if len(frames) > heard:
            town.down.add(silent)

    made.before = before
    made.connected = lambda: frozenset(made.members)  # type: ignore[method-assign]
    made.nap = lambda seconds: None  # type: ignore[method-assign]
    made.lead(patience=0).run()
    made.kill(silent)
    found = [tables_at(tmp_path, name) for name in made.members if name != silent]
    assert found[0] == found[1] == found[2]
    assert (found[0]["status"], found[0].get("records")) in {("answered", 240), ("refused", None)}


@pytest.mark.parametrize("lies", [False, True])
def test_a_late_site_takes_no_part(
    tmp_path: Path, lies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has counted nothing. A coordinator that gathers it nevertheless gets a refusal."""
    made, late = pilot(tmp_path, plan_of(), 4), "hospital-4"
    made.kill(late)
    if lies:
        monkeypatch.setattr(Plan, "joinable", True)

    def after(town: LocalPilot, party: str) -> None:
        if town.seen("round_started") and late in town.down:
            town.start(late)

    made.after = after
    made.lead().run()
    made.kill(late)
    assert not made.processes[late].done and len(made.seen("gathered")) == 1 + lies
    refused = [event["why"] for event in made.seen("refused", late)]
    assert ["before this hospital joined" in why for why in refused] == [True] * lies
    found = [tables_at(tmp_path, name) for name in made.members if name != late]
    assert found[0] == found[1] == found[2] and found[0]["status"] == "answered"


def test_a_site_without_rules_for_codebooks_refuses_the_invitation(tmp_path: Path) -> None:
    made = pilot(tmp_path, plan_of())

    def approve(plan: Plan) -> None:
        check(policy(statistics=None), plan, COMPANY, today=DAY)

    made.approve = {"hospital-2": approve}
    made.start("hospital-2")
    with raises(CohortError, "policy", party="hospital-2"):
        made.lead().run()


COMPANY = Company("a", ("a", "b", "c"), None, 3, "me")


def policy(**changes: Any) -> SitePolicy:
    given = {
        "algorithms": ("statistics",),
        "rosters": ("me",),
        "datasets": ("notes",),
        "until": date(2027, 1, 1),
        "statistics": StatisticsRules(),
    }
    return SitePolicy.model_construct(**{**SitePolicy().__dict__, **given, **changes})


@pytest.mark.parametrize(
    ("changes", "asked", "rule"),
    [
        ({}, {}, None),
        ({"algorithms": ()}, {}, "site.algorithms"),
        ({"statistics": None}, {}, "site.statistics"),
        ({"datasets": ("other",)}, {}, "site.datasets"),
        ({"until": date(2025, 1, 1)}, {}, "site.until"),
        ({"min_cohort": 4}, {}, "site.min_cohort"),
        ({}, {"min_patients": 9}, "site.statistics.min_patients"),
    ],
)
def test_a_site_compares_a_codebook_with_its_own_rules(
    changes: dict[str, Any], asked: dict[str, Any], rule: str | None
) -> None:
    broken: list[str] = []
    try:
        check(policy(**changes), plan_of(**asked), COMPANY, today=DAY)
    except PolicyRefusal as error:
        broken = [one.rule for one in error.broken]
    assert broken == ([] if rule is None else [rule])


def test_an_older_codebook_than_the_approved_one_is_refused() -> None:
    """An approval signs the plan; a changed bin is another plan."""
    from secure_fl.crypto.keys.identity import Identity
    from secure_fl.pilot.approvals import Approval

    person = Identity.generate("anna")
    approved = Approval.make(person, "hospital-1", plan_of(), {})
    assert not approved.changes(plan_of(), {})
    older = plan_of(variables=GIVEN["variables"] | {"age": {"low": 0, "high": 100, "bins": 4}})
    assert any("bins" in change for change in approved.changes(older, {}))
