"""Questions in the place of a plan: invited, approved by each site's rules, answered at each."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest

from secure_fl.errors import CohortError, SecureFLError, SettingsError
from secure_fl.pilot.hospital import QuestionRules
from secure_fl.pilot.plan import load_proposal, read_plan, read_proposal, write_plan
from secure_fl.pilot.progress import progress
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.policy.questions import QuestionPlan, check_questions
from secure_fl.policy.rules import Company
from secure_fl.policy.violations import PolicyRefusal
from secure_fl.statistics.note import Note
from secure_fl.statistics.questions import loads
from secure_fl.statistics.rules import StatisticsRules
from secure_fl.statistics.site import StatisticsSite
from secure_fl.testing.hospitals import silos
from tests.support.local_pilot import LocalPilot
from tests.support.raising import raises
from tests.support.tables import hospitals

TEXT = """
dataset = "notes"
[run]
name = "what-is-there"
[[question]]
name = "labels"
kind = "categories"
field = "label"
values = ["a", "b", "c"]
[[question]]
name = "ages"
kind = "histogram"
field = "age"
low = 0
high = 100
[question.where]
sex = "f"
"""
DAY = date(2026, 1, 1)


def questions(folder: Path) -> QuestionPlan:
    file = folder / "questions.toml"
    file.write_text(TEXT)
    found = load_proposal(file)
    assert isinstance(found, QuestionPlan)
    return found


def pilot(folder: Path, rules: StatisticsRules, count: int = 3) -> LocalPilot:
    members = {silo.name: silo for silo in silos(count)}
    tables = dict(zip(members, hospitals(count).values(), strict=True))

    def asked(name: str) -> QuestionRules:
        def site(plan: QuestionPlan) -> StatisticsSite:
            note = Note(folder / name / "note.jsonl")
            return StatisticsSite(name, tables[name], rules, note)

        return QuestionRules(lambda plan: None, site)

    return LocalPilot(
        folder,
        cast(Any, questions(folder)),
        members,
        asked={name: asked(name) for name in members},
    )


def test_questions_travel_as_they_were_written(tmp_path: Path) -> None:
    plan = questions(tmp_path)
    found = read_proposal(write_plan(plan))
    assert found == plan and isinstance(found, QuestionPlan)
    kinds = '[[question]]\nname = "labels"' + TEXT.partition('name = "labels"')[2]
    assert found.asked == loads(kinds) == plan.asked
    with raises(SettingsError):
        read_plan(write_plan(plan))  # who wants a plan gets none


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "[1]", '[{"kind": "count"}]', '[{"kind": "x", "name": "n"}]', "[" * 50_000,
     '[{"name":"n","kind":"categories","field":"text","values":["x"]}]',
     '[{"name":"n","kind":"count"},{"name":"n","kind":"count"}]'],
)  # fmt: skip
def test_what_is_no_question_is_refused_where_it_arrives(text: str) -> None:
    plan = QuestionPlan(dataset="notes", questions=text)
    with raises(SettingsError):
        read_proposal(write_plan(plan))


def test_all_sites_hold_the_same_answers(tmp_path: Path) -> None:
    made = pilot(tmp_path, StatisticsRules(min_patients=10))
    lead = made.lead()
    lead.run()
    assert lead.document()["algorithm"] == "statistics"
    documents = [
        json.loads((tmp_path / name / "what-is-there" / "answers.json").read_text())
        for name in made.members
    ]
    assert documents[0] == documents[1] == documents[2]
    labels, ages = documents[0]["answers"]
    assert labels["status"] == ages["status"] == "answered" and labels["total"] == 180
    assert progress(tmp_path / "hospital-1" / "what-is-there")["rounds"] == 0
    made.lead().run()  # the same questions again are answered again
    again = json.loads((tmp_path / "hospital-1" / "what-is-there" / "answers.json").read_text())
    assert again == documents[0]


def test_a_site_that_answers_no_questions_refuses_the_invitation(tmp_path: Path) -> None:
    made = pilot(tmp_path, StatisticsRules())
    made.asked = {name: one for name, one in made.asked.items() if name != "hospital-2"}
    made.start("hospital-2")
    with raises(CohortError, "question", party="hospital-2"):
        made.lead().run()


def policy(**changes: Any) -> SitePolicy:
    given = {"rosters": (), "datasets": ("notes",), "until": date(2027, 1, 1)}
    return SitePolicy.model_construct(
        **{**SitePolicy().__dict__, **given, "statistics": StatisticsRules(), **changes}
    )


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"statistics": None}, "site.statistics"),
        ({"datasets": ("other",)}, "site.datasets"),
        ({"until": date(2025, 1, 1)}, "site.until"),
        ({"min_cohort": 4}, "site.min_cohort"),
        ({"rosters": ("1 2",)}, "site.rosters"),
    ],
)
def test_a_site_is_asked_by_its_own_rules(
    changes: dict[str, Any], rule: str | None, tmp_path: Path
) -> None:
    company = Company("a", ("a", "b", "c"), None, 3, "me")
    own = policy(**({"rosters": ("me",)} | changes))
    broken: list[str] = []
    try:
        check_questions(own, questions(tmp_path), company, today=DAY)
    except PolicyRefusal as error:
        broken = [one.rule for one in error.broken]
    assert broken == ([] if rule is None else [rule])
    assert issubclass(PolicyRefusal, SecureFLError)


@pytest.mark.parametrize(
    ("heard", "found"),  # how many frames it answers before it is silent, and what the others get
    [
        (0, [("answered", 3), ("answered", 3)]),
        (7, [("refused", 4), ("refused", 3)]),
        (14, [("answered", 4), ("refused", 4)]),
    ],
)
def test_a_site_that_falls_silent_stops_nobody(
    tmp_path: Path, heard: int, found: list[tuple[str, int]]
) -> None:
    """It keeps its line open and answers nothing; half a question is no answer over fewer sites."""
    made, silent = pilot(tmp_path, StatisticsRules(min_patients=10), 4), "hospital-2"
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
    places = [tmp_path / name / "what-is-there" for name in made.members if name != silent]
    answers = [json.loads((place / "answers.json").read_text())["answers"] for place in places]
    assert answers[0] == answers[1] == answers[2]
    assert [(one["status"], one["hospitals"]) for one in answers[0]] == found
