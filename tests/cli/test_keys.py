"""The whole key exchange by the commands alone, and how each failure ends."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from secure_fl.algorithms.inclusivefl import InclusiveFL
from secure_fl.pilot.plan import write_plan
from secure_fl.settings import ProtectionSettings
from tests.support.command_line import ran
from tests.support.local_pilot import plan_of

NAMES = ("north", "south", "east")


run = partial(ran, "keys")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECURE_FL_PASSPHRASE", "correct horse battery")
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    return tmp_path


def assemble(*extra: str, output: str = "roster.json") -> None:
    cards = [f"{n}.card.json" for n in NAMES]
    run("roster", *cards, "--coordinator", "hub.card.json", "-o", output, *extra)


def cohort_line(result: Result) -> str:
    return next(line for line in result.output.splitlines() if "cohort fingerprint" in line)


@pytest.fixture
def sites(workplace: Path) -> None:
    for name in (*NAMES, "hub"):
        run("identity", name, "--keys", name)


@pytest.mark.usefixtures("sites")
def test_from_identities_to_rotation() -> None:
    assemble("--tier", "north=large")
    dealt = cohort_line(run("ceremony", "roster.json", "--yes", "--keys", "north"))
    for name in NAMES[1:]:
        kept = run("accept", "roster.json", f"bundles/{name}.bundle", "--yes", "--keys", name)
        assert cohort_line(kept) == dealt
        assert dealt in run("show", "--keys", name).output
    shown = run("show", "roster.json").output
    assert "signed by east, north, south" in shown and "north  party (large)" in shown
    assert "1 of the 3 hospitals collude" in " ".join(shown.split())

    assemble("--after", "roster.json", output="second.json")
    run("rotate", "roster.json", "--yes", "--keys", "north", code=6)
    rotate = ("rotate", "second.json", "--yes", "--keys", "north", "-o")
    run(*rotate, "roster.json/new", code=6)  # no folder: nothing is dealt
    rotated = cohort_line(run(*rotate, "new"))
    assert rotated != dealt
    assert "keys ceremony" in run(*rotate, "new", code=6).output
    assert cohort_line(run("ceremony", *rotate[1:], "new")) == rotated  # the same keys again
    run("accept", "second.json", "new/south.bundle", "--yes", "--keys", "south")
    assert Path("south/archive/cohort-1.key").exists()
    facts = json.loads(run("show", "--json", "--keys", "south").output)
    assert facts["cohort keys for roster version"] == 2


@pytest.mark.usefixtures("sites")
def test_kits_of_a_plan_with_tiers_show_which_layers_are_summed_over_whom() -> None:
    assemble("--tier", "north=weak", "--tier", "south=weak", "--tier", "east=strong")
    run("ceremony", "roster.json", "--yes", "--keys", "north")
    plan = plan_of(InclusiveFL(tiers={"weak": 2, "strong": 3}), protection=ProtectionSettings())
    Path("plan.toml").write_text(write_plan(plan))
    init = ["pilot", "init", "roster.json", "--host", "localhost", "--plan", "plan.toml"]
    done = ran(*init, "--keys", "hub")
    assert (
        "sums: layer 1: summed over east, north, south; layer 2, output: kept at east, north, "
        "south; layer 3: kept at east"
    ) in done.output


@pytest.mark.usefixtures("sites")
def test_signing_asks_first() -> None:
    run("roster", *[f"{n}.card.json" for n in NAMES], "--coordinator", "hub.card.json")
    before = Path("roster.json").read_bytes()
    deal = ["keys", "ceremony", "roster.json", "--keys", "north"]
    ran(*deal, input="n\n", code=6)
    assert Path("roster.json").read_bytes() == before


@pytest.mark.usefixtures("sites")
def test_failures_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    run("identity", "north", "--keys", "north", code=6)
    roster = ("roster", "north.card.json", "--coordinator", "hub.card.json")
    assert "NAME=TIER" in run(*roster, "--tier", "x", code=6).output
    twice = ("--tier", "north=weak", "--tier", "north=strong")
    assert "'north' has two tiers" in run(*roster, *twice, code=6).output
    assert "west" in run(*roster, "--host", "west", code=6).output
    assert "nothing.json" in run("show", "nothing.json", code=2).output
    assert "fingerprint" in run("show", "north.card.json").output
    monkeypatch.setenv("SECURE_FL_PASSPHRASE", "another passphrase")
    wrong = run("show", "--keys", "north", code=6)
    assert "another passphrase" not in wrong.output


def test_a_passphrase_is_in_a_file_or_typed(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECURE_FL_PASSPHRASE")
    file = workplace / "pass"
    file.write_text("a long enough one\n")
    file.chmod(0o644)
    options = ("--keys", "north", "--passphrase-file", str(file))
    run("identity", "north", *options, code=6)
    file.chmod(0o600)
    run("identity", "north", *options)
    typed = ran("keys", "show", "--keys", "north", input="a long enough one\n")
    assert "a long enough one" not in typed.output
    assert "--passphrase-file" in run("show", "--keys", "north", code=6).output


def test_a_short_passphrase_is_refused_for_fresh_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECURE_FL_PASSPHRASE", "short")
    run("identity", "north", "--keys", "north", code=6)
    assert not Path("north").exists()
