"""People approve a plan under a site's rules, with keys of their own: on record, or no run."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from importlib.util import spec_from_file_location
from pathlib import Path

import msgspec
import pytest

from secure_fl import FedAvg, __version__
from secure_fl.algorithms.registry import ALGORITHMS, GROUP
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.privacy.accounting import DpSgdSteps
from secure_fl.crypto.privacy.ledger import Account, Budget, Ledger
from secure_fl.errors import KeyringError, RunError, SettingsError
from secure_fl.learning.dp.scope import LEDGER
from secure_fl.pilot import plan as plans
from secure_fl.pilot.approvals import (
    ASKED,
    Approval,
    ApprovalFiles,
    Approving,
    _package_files,
    ledger_warning,
    programs_of,
    rules_of,
)
from secure_fl.pilot.plan import load_plan, write_plan
from secure_fl.pilot.progress import progress
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import load_site
from secure_fl.policy.violations import PolicyRefusal
from tests.support.local_pilot import local_pilot, plan_of
from tests.support.raising import raises

RULES = """\
[site]
algorithms = ["fedavg"]
until = 2030-01-01
{approval}
[data]
"""
ANNA, BEN, EVE = (Identity.generate(name) for name in ("anna", "ben", "eve"))
NORTH = Identity.generate("north")


def asking(*people: Identity, least: int = 1) -> str:
    by = ", ".join(f'"{one.public.fingerprint()}"' for one in people)
    return f"[site.approval]\nby = [{by}]\nleast = {least}"


class Site:
    """A hospital's file, its papers and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan, self.ledger = folder, plan_of(), "ledger"

    def rules(self, approval: str, more: str = "") -> None:
        text = RULES.format(approval=approval).replace("[site]\n", f"[site]\n{more}", 1)
        text += f'[keys]\nledger = "{self.ledger}"\n'
        (self.folder / "site.toml").write_text(text)

    @property
    def approving(self) -> Approving:
        return Approving(load_site(self.folder / "site.toml"), NORTH.public)

    def approve(self, *people: Identity, plan: Plan | None = None) -> None:
        now = self.approving
        for one in people:
            word = Approval.make(one, "north", plan or self.plan, rules_of(now.site))
            ApprovalFiles(now.folder, "north").add(word)

    def add(self, approval: Approval) -> Path:
        return ApprovalFiles(self.approving.folder, "north").add(approval)

    def join(self, plan: Plan | None = None) -> list[str]:
        asked = plan or self.plan
        return [one["who"] for one in self.approving.require(self.opened, asked)]

    @property
    def opened(self) -> Ledger:
        return Ledger(self.folder / self.ledger / "north" / LEDGER, NORTH)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_without_the_rule_nothing_is_needed(site: Site) -> None:
    site.rules("")
    assert site.join() == []
    assert not (site.folder / "ledger").exists() and not (site.folder / "approvals").exists()


def test_two_keys_are_two_people(site: Site) -> None:
    site.rules(asking(ANNA, BEN, least=2))
    with raises(PolicyRefusal, "approved by 0; allowed: approval by 2 of 2 keys"):
        site.join()
    assert load_plan(site.folder / "approvals" / ASKED) == site.plan  # what is to be approved
    site.approve(ANNA, ANNA, EVE)
    with raises(PolicyRefusal, "approved by 1"):
        site.join()
    site.approve(BEN)
    assert site.join() == ["anna", "ben"] and site.join() == ["anna", "ben"]
    noted = site.approving.noted()
    assert [one.who for one in noted] == ["anna", "ben"]  # once, however often it is joined
    assert noted[0].changes(site.plan, rules_of(site.approving.site)) == []


def test_what_changed_is_named(site: Site) -> None:
    site.rules(asking(ANNA))
    site.approve(ANNA)
    site.join()
    longer = site.plan.algorithm.model_copy(update={"rounds": 9})
    other = site.plan.model_copy(update={"algorithm": longer})
    with raises(PolicyRefusal, "since anna approved it: algorithm.rounds is 9; approved: 2"):
        site.join(other)
    site.rules(asking(ANNA), more="max_epochs = 99\n")
    with raises(PolicyRefusal, "site.max_epochs is 99; approved: 3") as caught:
        site.join()
    assert "secure-fl site approve" in str(caught.value)
    site.approve(ANNA)
    assert site.join() == ["anna"]


@pytest.mark.parametrize("changed", ["", asking(EVE)], ids=["dropped", "given to another"])
def test_who_drops_the_rule_needs_those_whom_it_names(site: Site, changed: str) -> None:
    """The attack works where the ledger is gone: it is what knows about the rule."""
    site.rules(asking(ANNA))
    site.approve(ANNA)
    site.join()
    site.rules(changed)
    if changed:
        site.approve(EVE)
    with raises(PolicyRefusal, "approved by 0"):
        site.join()
    hidden = (site.folder / "ledger").rename(site.folder / "hidden")
    history = site.approving.history.file
    known = history.rename(site.folder / "known")
    if changed:
        site.approve(EVE)
    site.join()  # nothing here knows of Anna
    shutil.rmtree(site.folder / "ledger", ignore_errors=True)
    known.rename(history)
    with raises(PolicyRefusal, "approved by 0"):  # the history knows of her
        site.join()
    shutil.rmtree(site.folder / "ledger", ignore_errors=True)
    hidden.rename(site.folder / "ledger")
    with raises(PolicyRefusal, "approved by 0"):
        site.join()
    site.approve(ANNA, *([EVE] if changed else []))
    site.join()
    assert site.approving.noted()[-1].rules == rules_of(site.approving.site)


def test_another_ledger_voids_approvals(site: Site) -> None:
    """Another ledger begins with an unspent budget, and without the earlier approvals."""
    site.rules(asking(ANNA))
    site.approve(ANNA)
    site.join()
    site.ledger = "other"
    site.rules(asking(ANNA))
    with raises(PolicyRefusal, "approved by 0", "keys.ledger is"):
        site.join()


@pytest.mark.parametrize("keeps", [True, False], ids=["with the rule", "without"])
@pytest.mark.parametrize("moves", [True, False], ids=["another", "removed"])
def test_a_new_ledger_needs_the_approvers(site: Site, moves: bool, keeps: bool) -> None:
    """A ledger in another folder, or begun again in the same one, is a fresh budget."""
    rule = asking(ANNA)
    site.rules(rule)
    site.approve(ANNA)
    assert site.join() == site.join() == ["anna"]
    if moves:
        site.ledger = "other"
    else:
        shutil.rmtree(site.folder / "ledger")
    site.rules(rule if keeps else "")
    with raises(PolicyRefusal, "approved by 0"):
        site.join()
    with raises(PolicyRefusal, "keys.ledger is", "budget 2 of this site"):
        site.join()
    site.approve(ANNA)
    assert site.join() == ["anna"]
    assert site.join() == (["anna"] if keeps else [])  # she has approved that nobody is asked


def test_a_budget_that_omits_earlier_runs_is_reported(site: Site) -> None:
    def found() -> tuple[str, str] | None:
        return ledger_warning(site.approving.site, "north")

    def spend() -> None:
        site.join()
        budget, event = Budget(9.0, 1e-5), DpSgdSteps(2.0, 0.1, 1)
        site.opened.reserve(event, Account("north", "record"), budget, run="one")

    site.rules("")
    assert site.join() == [] and found() is None  # the first run has not begun its ledger
    spend()
    assert site.join() == [] and found() is None
    hidden = (site.folder / "ledger").rename(site.folder / "hidden")
    what, fix = found() or ("", "")
    assert f"{site.opened.path} is missing" in what and "restore" in fix
    for _ in range(2):  # the first start begins a new one
        assert site.join() == []
        assert "before it was replaced" in (found() or ("", ""))[0]
    shutil.rmtree(site.folder / "ledger")
    hidden.rename(site.folder / "ledger")
    first = site.opened.path
    site.ledger = "other"
    site.rules("")
    spend()
    for _ in range(2):  # at each start
        assert site.join() == []
        what, fix = found() or ("", "")
        assert f"{first} (since" in what and "set ledger in [keys]" in fix


def test_an_unspent_ledger_is_no_earlier_budget(site: Site) -> None:
    site.rules(asking(ANNA))
    site.approve(ANNA)
    site.join()
    site.ledger = "other"
    site.rules(asking(ANNA))
    assert ledger_warning(site.approving.site, "north") is None


def test_approvals_of_other_people_and_runs_are_other_files(site: Site) -> None:
    namesake, dashed = Identity.generate("anna"), Identity.generate("a-ben")
    site.rules(asking(ANNA, namesake, least=2))
    site.approve(ANNA, namesake, ANNA)
    assert site.join() == ["anna", "anna"]
    one, other = (
        Approval.make(BEN, "north", site.plan, {}),
        Approval.make(dashed, "north", site.plan, {}),
    )
    papers = site.add(msgspec.structs.replace(one, run="run-a")), site.add(other)
    assert papers[0] != papers[1]


FORGED: dict[str, Callable[[Approval], Approval]] = {
    "another plan": lambda one: msgspec.structs.replace(one, plan=one.plan + "\n"),
    "another name": lambda one: msgspec.structs.replace(one, who="ben"),
    "another site": lambda one: msgspec.structs.replace(one, site="south"),
    "no signature": lambda one: msgspec.structs.replace(one, signature=b""),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_paper_is_none(site: Site, what: str) -> None:
    site.rules(asking(ANNA))
    word = Approval.make(ANNA, "north", site.plan, rules_of(site.approving.site))
    ApprovalFiles(site.approving.folder, "north").add(FORGED[what](word))
    with raises(KeyringError, reason="signature"):
        site.join()


def test_a_paper_of_another_site_does_not_count(site: Site) -> None:
    site.rules(asking(ANNA))
    word = Approval.make(ANNA, "south", site.plan, rules_of(site.approving.site))
    ApprovalFiles(site.approving.folder, "south").add(word)
    with raises(PolicyRefusal, "approved by 0"):
        site.join()


def test_a_run_tells_who_approved_it(site: Site, tmp_path: Path) -> None:
    """In its result, and in what `status` reads."""
    site.rules(asking(ANNA))
    made = local_pilot(tmp_path / "runs", plan_of())
    assert made.plan == site.plan
    site.approve(ANNA)
    facts = [one.facts() for one in ApprovalFiles(site.approving.folder, "north").of("run")]
    made.approvals["hospital-1"] = lambda plan: facts
    made.restart("hospital-1")
    made.lead().run()
    run = tmp_path / "runs" / "hospital-1" / "run"
    assert progress(run)["approvals"] == facts
    assert msgspec.json.decode((run / "result.json").read_bytes())["approvals"] == facts
    other = tmp_path / "runs" / "hospital-2" / "run" / "result.json"
    assert "approvals" not in msgspec.json.decode(other.read_bytes())


CLIMBING = ("../../escaped", "/escaped", ".", "..", "a/b", "", "run\n")


@pytest.mark.parametrize("name", CLIMBING)
def test_a_plan_for_approval_is_not_named_as_a_path(site: Site, name: str) -> None:
    """The name of a plan from a kit becomes part of a file's name."""
    site.rules(asking(ANNA))
    climbing = site.plan.model_copy(update={"run": site.plan.run.model_copy(update={"name": name})})
    file = site.folder / "plan.toml"
    file.write_text(write_plan(climbing))
    with raises(SettingsError, "name of a run is a file's name", field="run.name"):
        load_plan(file)
    with raises(SettingsError, field="run.name"):
        site.approve(ANNA, plan=climbing)
    older = Approval.make(ANNA, "north", site.plan, {})
    with raises(SettingsError, field="run.name"):
        site.add(msgspec.structs.replace(older, run=name))
    assert sorted(one.name for one in site.folder.iterdir()) == ["plan.toml", "site.toml"]


def test_the_check_of_names_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "RUN_NAME", re.compile(".*"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    run = plan_of().run.model_copy(update={"name": "../../escaped"})
    word = Approval.make(ANNA, "north", plan_of().model_copy(update={"run": run}), {})
    written = ApprovalFiles(tmp_path / "a" / "b" / "approvals", "north").add(word)
    assert written.resolve().parent == tmp_path / "a" and written.name.startswith("escaped-anna-")


MODULE = """
from typing import Literal
from secure_fl import FedAvg
from secure_fl.algorithms.base import Entry

class Settings(FedAvg):
    name: Literal["mine"] = "mine"

    @classmethod
    def entry(cls): return ENTRY

async def run(cohort, site, cfg): pass

ENTRY = Entry(Settings, run, summary="as FedAvg")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with an algorithm, as an installer leaves it."""
    place = tmp_path / "packages"
    about = place / "faraway-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "faraway").mkdir()
    (place / "faraway" / "__init__.py").write_text(MODULE)
    (place / "faraway_data.bin").write_bytes(b"weights")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faraway\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nmine = faraway:ENTRY\n")
    (about / "RECORD").write_text("faraway/__init__.py,,\nfaraway_data.bin,,\n")
    monkeypatch.syspath_prepend(str(place))
    vars(ALGORITHMS).pop("plugins", None)
    yield place
    sys.modules.pop("faraway", None)
    vars(ALGORITHMS).pop("plugins", None)
    ALGORITHMS.data.pop("mine", None)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the module": lambda p: (p / "faraway" / "__init__.py").write_text(MODULE + "# more\n"),
    "another module": lambda p: (p / "faraway" / "helper.py").write_text("pass\n"),
    "a listed file": lambda p: (p / "faraway_data.bin").write_bytes(b"others"),
    "the version": lambda p: (p / "faraway-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: faraway\nVersion: 1.1\n"
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_package_needs_another_approval(site: Site, plugin: Path, what: str) -> None:
    site.rules(asking(ANNA))
    mine = ALGORITHMS["mine"].settings(name="mine")
    plan = site.plan.model_copy(update={"algorithm": mine})
    site.approve(ANNA, plan=plan)
    assert site.join(plan) == ["anna"]
    before = site.approving.noted()[0]
    assert before.programs["secure_fl"].startswith(f"{__version__} ")
    CHANGES[what](plugin)
    assert (before.plan, before.rules) == (write_plan(plan), rules_of(site.approving.site))
    with raises(PolicyRefusal, "since anna approved it: program faraway is 1."):
        site.join(plan)
    site.approve(ANNA, plan=plan)
    assert site.join(plan) == ["anna"]


def test_an_approval_signs_all_folders_of_this_package() -> None:
    """In a checkout some are links; a wheel has the folders themselves."""
    folders = {name.split("/")[1] for name in _package_files("secure_fl")}
    assert folders >= {"algorithms", "audits", "cli", "crypto", "pilot"}


def test_an_approval_signs_an_editable_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installer's finder knows its folder, and sys.path does not."""
    (tmp_path / "faraway").mkdir()
    module = tmp_path / "faraway" / "__init__.py"
    module.write_text(MODULE)

    class Editable(MetaPathFinder):
        @classmethod
        def find_spec(cls, fullname: str, *_: object) -> ModuleSpec | None:
            return spec_from_file_location(fullname, module) if fullname == "faraway" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    point = EntryPoint("mine", "faraway:ENTRY", GROUP)
    monkeypatch.setitem(vars(ALGORITHMS), "plugins", {"mine": point})
    monkeypatch.setitem(ALGORITHMS.data, "mine", ALGORITHMS["fedavg"])
    plan = plan_of()
    plan = plan.model_copy(update={"algorithm": FedAvg.model_construct(name="mine")})
    before = programs_of(plan)
    assert len(before) == 2
    module.write_text(MODULE + "# more\n")
    assert [name for name, what in programs_of(plan).items() if what != before[name]] == [
        point.value
    ]
    module.unlink()
    with raises(RunError, "no file of the package faraway was found", reason="missing"):
        programs_of(plan)
