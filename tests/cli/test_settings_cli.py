"""`secure-fl settings`: the reference of all fields is what the classes say."""

from __future__ import annotations

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.algorithms.registry import BUILT_IN
from secure_fl.cli.settings import describe_fields, sections
from secure_fl.features.evaluation.algorithm import Evaluate
from secure_fl.policy.policy_file import SitePolicy
from secure_fl.settings import DPSettings, Section, TrainingSettings
from tests.support.command_line import ran, run


def test_every_field_is_described_once() -> None:
    for title, section in sections().items():
        names = [d.name for d in describe_fields(section)]
        assert len(set(names)) == len(names) > 0, title
    classes: list[type[Section]] = [DPSettings, TrainingSettings, SitePolicy]
    for section in (*classes, *(entry.settings for entry in BUILT_IN.values())):
        names = [d.name for d in describe_fields(section)]
        assert names == list(section.model_fields), section


def test_types_bounds_and_docstrings_are_read_off() -> None:
    found = {d.name: d for d in describe_fields(DPSettings)}
    assert found["epsilon"].allowed == "number > 0" and found["epsilon"].default == ""
    assert found["unit"].allowed == '"record", "patient"' and found["unit"].default == '"record"'
    assert found["delta"].allowed == "number in (0, 1)"
    assert "outlives runs" in found["ledger"].help
    inherited = {d.name: d.help for d in describe_fields(Evaluate)}["epochs"]
    assert inherited == {d.name: d.help for d in describe_fields(FedAvg)}["epochs"] != ""


def test_one_section_is_shown_and_a_wrong_name_lists_all() -> None:
    shown = ran("settings", "fedid")
    assert "distill_epochs = 1" in shown.output
    assert run("settings").output.splitlines() == list(sections())
    wrong = ran("settings", "nope", code=2)
    assert "no section 'nope'" in wrong.output
