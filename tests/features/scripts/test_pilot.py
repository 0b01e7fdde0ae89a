"""Scripts in a pilot: restarts in the middle of a round, rules, and real processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secure_fl import Script, ScriptCohort, simulate
from secure_fl.crypto.keys.vault import Cost
from secure_fl.data.silo import Silo
from secure_fl.errors import CohortError, DataError
from secure_fl.features.scripts import joining
from secure_fl.features.scripts.simulation import ThreadScript
from secure_fl.features.scripts.turns import LastMessage, ScriptHandle, thread_channels
from secure_fl.policy.plan import Plan
from secure_fl.policy.rules import PolicyRefusal, check
from secure_fl.settings import ProtectionSettings
from tests.features.scripts.averaging import learn
from tests.support.local_pilot import LocalPilot, plan_of
from tests.support.pilot_folders import HUB, make_pilot_folders
from tests.support.policy_plans import COMPANY, TODAY, policy
from tests.support.processes import PROGRAM, free_port, killed_after, this_code
from tests.support.raising import raises

NAMES = ("east", "north", "west")
PROTECTION = ProtectionSettings(bits=16)
VALUES = {"w": (3,), "n": ()}
ROUNDS = 4


def script_plan(rounds: int = ROUNDS, **algorithm: Any) -> Plan:
    return plan_of(Script(rounds=rounds, values=VALUES, **algorithm), protection=PROTECTION)


SCRIPT = """
import json, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import secure_fl
from tests.features.scripts.averaging import learn

with secure_fl.join("site.toml", passphrase_file="passphrase") as cohort:
    Path("found.json").write_text(json.dumps(learn(cohort, {})))
"""


class ScriptedPilot:
    """A pilot in this process, with a script in a thread at each site."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.found: dict[str, Any] = {}
        self.errors: dict[str, BaseException] = {}
        self.scripts: dict[str, ThreadScript] = {}
        silos = {name: Silo(name, (), table=object()) for name in NAMES}
        self.pilot = LocalPilot(
            folder, plan, silos, records={name: self._records(name) for name in NAMES}
        )

    def restart(self, name: str) -> None:
        """The process of a site ends, and its script with it."""
        self.pilot.kill(name)
        if name in self.scripts:
            self.scripts.pop(name).handle.end(CohortError("killed"))

    def _records(self, name: str) -> Any:
        def silo(plan: Plan) -> Silo:
            if name not in self.scripts:
                self.scripts[name] = ThreadScript(self._main, name, {})
            return Silo(name, (), table=self.scripts[name].handle)

        return silo

    def _main(self, cohort: ScriptCohort) -> None:
        try:
            self.found[cohort.name] = learn(cohort, {})
        except Exception as error:
            self.errors[cohort.name] = error
            raise


def simulated() -> Any:
    def main(cohort: ScriptCohort) -> Any:
        return learn(cohort, {})

    done = simulate(main, NAMES, rounds=ROUNDS, values=VALUES, protection=PROTECTION)
    return done.results


def test_a_pilot_gives_the_bits_of_a_simulation(tmp_path: Path) -> None:
    scripted = ScriptedPilot(tmp_path, script_plan())
    scripted.pilot.lead().run()
    assert scripted.found == simulated()
    results = sorted(tmp_path.glob("*/run/result.json"))
    assert [json.loads(file.read_text())["status"] for file in results] == ["finished"] * 3


@pytest.mark.parametrize("at", [11, 24, 40, 43, 59])
def test_scripts_continue_where_a_restart_finds_them(tmp_path: Path, at: int) -> None:
    """One site is killed after so many answers; the scripts of the others only wait."""
    scripted, answers = ScriptedPilot(tmp_path, script_plan()), list[str]()

    def after(pilot: LocalPilot, party: str) -> None:
        answers.append(party)
        if len(answers) == at:
            scripted.restart(party)

    scripted.pilot.after = after
    scripted.pilot.lead(patience=50).run()
    assert len(answers) >= at and len(scripted.pilot.seen("gathered")) > 1
    assert scripted.found == simulated() and not scripted.errors.keys() - {answers[at - 1]}


def test_a_plan_that_does_not_name_the_values_is_refused() -> None:
    asked = script_plan()
    mine = policy(algorithms=("script",), models=(), bits=(16,), dp={"required": False})
    check(mine, asked, COMPANY, today=TODAY)
    anything = asked.model_copy(update={"algorithm": Script(rounds=ROUNDS)})
    with raises(PolicyRefusal, "plan.values", party="north"):
        check(mine, anything, COMPANY, today=TODAY)
    read = script_plan(means_to_coordinator=True)
    with raises(PolicyRefusal, "site.means_to_coordinator", party="north"):
        check(mine, read, COMPANY, today=TODAY)
    check(policy(mine, means_to_coordinator=True), read, COMPANY, today=TODAY)
    long = asked.model_copy(update={"algorithm": Script(rounds=10_000, values=VALUES)})
    with raises(PolicyRefusal, "site.max_rounds", party="north"):
        check(mine, long, COMPANY, today=TODAY)


def test_a_site_runs_the_approved_script_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has the digest of the script's file, and approvals sign the plan."""
    script = tmp_path / "script.py"
    script.write_text("print(1)\n")
    planned = hashlib.sha256(script.read_bytes()).hexdigest()
    plan, me = script_plan(sha256=planned), SimpleNamespace(name="east", tier=None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    handle: Any = object()
    found: Any = joining.running_file()
    script.write_text("print(2)\n")
    assert joining._silo(handle, found, me, plan).name == "east"  # type: ignore[arg-type]
    found = joining.running_file()
    script.write_text("print(1)\n")  # the approved file comes after the start of another one
    with raises(DataError, planned[:16], party="east", field="algorithm.sha256"):
        joining._silo(handle, found, me, plan)  # type: ignore[arg-type]
    monkeypatch.delattr(sys.modules["__main__"], "__file__")  # typed by hand
    found = joining.running_file()
    with raises(DataError, "no file", party="east"):
        joining._silo(handle, found, me, plan)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [None, 0, 1, "no records"])
def test_an_exit_in_the_block_ends_the_part(code: Any) -> None:
    """The others would wait for a lost member."""
    channel, programs = thread_channels()
    script, got = ScriptHandle(programs), list[Any]()
    script.begin(NAMES, Script(values=VALUES))
    party: Any = SimpleNamespace(
        serve=lambda step: got.append(script.next_request()), stop=lambda: None
    )
    hospital: Any = SimpleNamespace(done=True, step=None)
    refusals: Any = SimpleNamespace(last="")
    service = joining.Service(party, hospital, script, refusals)
    with pytest.raises(SystemExit), service.serving("east", channel):
        sys.exit(code)
    (last,) = got
    assert isinstance(last, LastMessage) and (last.error is not None) == bool(code)
    assert not isinstance(last.error, SystemExit)


@pytest.mark.slow
def test_scripts_of_real_processes_give_the_bits_of_a_simulation(tmp_path: Path) -> None:
    """Three scripts and an unchanged coordinator."""
    trial = make_pilot_folders(
        tmp_path, NAMES, script_plan(), port=free_port(), size=12, cost=Cost(log_n=10)
    )
    here = str(Path(__file__).parents[3])
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | this_code()

    def start(name: str) -> subprocess.Popen[str]:
        common = ["--kit", "kit", "--passphrase-file", "passphrase"]
        lead = [PROGRAM, "coordinate", "plan.toml", *common, "--out", "run", "--grace", "5"]
        return subprocess.Popen(
            [sys.executable, "-c", *(lead if name == HUB else [SCRIPT, here])],
            cwd=trial.of(name),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    for name in NAMES:
        site = trial.of(name) / "site.toml"
        site.write_text(site.read_text().replace("[site]\n", "[site]\nbits = [16]\n"))
    with killed_after({name: start(name) for name in (HUB, *NAMES)}) as processes:
        out, _ = processes[HUB].communicate(timeout=280)
        assert processes[HUB].returncode == 0, out
        for name in NAMES:
            text, _ = processes[name].communicate(timeout=60)
            assert processes[name].returncode == 0, text
    found = {name: json.loads((trial.of(name) / "found.json").read_text()) for name in NAMES}
    assert found == {name: list(one) for name, one in simulated().items()}
    document = json.loads((trial.of("east") / "runs" / "run" / "result.json").read_text())
    assert document["algorithm"] == "script" and document["algorithm_settings"]["values"]
