"""Setup of a pilot by docs/pilot.md to the letter: three commands and two files at a site."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import click
import pytest
from click.testing import Result

from secure_fl import corpora
from secure_fl.cli.keyring import open_ring
from secure_fl.cli.main import main
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.keys.roster_files import card_bytes, load_card, load_roster
from secure_fl.data.splits import write
from secure_fl.errors import KeyringError, SettingsError
from secure_fl.pilot.kits import load_kit, open_kit, require_host, require_own
from secure_fl.policy.policy_file import SitePolicy, load_site
from tests.support.command_line import run
from tests.support.processes import free_port, killed_after, start_program
from tests.support.raising import raises

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pilot.md").read_text(encoding="utf-8")
SITES = ("north", "south", "east")
TYPED = re.compile(r"(\w+)\$ secure-fl (.*)")
SENT = re.compile(r"(\w+) -> (\w+): (\S+)")
TIME = re.compile(r"^\S+Z (?=info|warning)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FIRST, RUN, NEWCOMER = "## The steps", "### 5. Run", "## A hospital joins"


def blocks(kind: str, first: str, last: str) -> Iterator[str]:
    """The blocks of a kind between two headings: commands have none, or `toml`, or `text`."""
    part = PAGE[PAGE.index(first) : PAGE.index(last)]
    yield from (text for found, text in FENCE.findall(part) if found == kind)


def steps(first: str, last: str) -> Iterator[str]:
    """The commands, and files to send, between two headings."""
    for block in blocks("", first, last):
        yield from re.sub(r"\\\n\s+", "", block).splitlines()


def the_plan() -> str:
    (found,) = blocks("toml", "## The plan", "## Your own columns")
    return found


def unprinted(first: str, last: str, printed: str) -> list[str]:
    """The lines that the page shows as output, up to their first number, and no command printed."""
    lines = "".join(blocks("text", first, last)).splitlines()
    stable = [re.split(r"\d|nothing|hub\.ex|collusion: ", TIME.sub("", line))[0] for line in lines]
    words = " ".join(printed.split())
    return [line for line in stable if " ".join(line.split()) not in words]


class Places:
    """A folder for each machine; files travel as the page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.typed: list[tuple[str, str]] = []
        self.sent: list[tuple[str, str, str]] = []
        self.printed = ""
        for name in (*SITES, "hub"):
            (folder / name).mkdir()
        for name, made in zip(SITES, corpora.make("ade", parties=3, seed=0, size=48), strict=True):
            for split in ("train", "dev", "test"):
                write(getattr(made, split), folder / name / f"{split}.jsonl")
        (folder / "hub" / "plan.toml").write_text(the_plan())

    def type(self, who: str, command: str, answer: str = "y\n") -> Result:
        self.typed.append((who, command))
        with chdir(self.folder / who):
            done = run(*shlex.split(command), input=answer)
        self.printed += done.output
        return done

    def follow(self, lines: Iterator[str]) -> None:
        for line in lines:
            if typed := TYPED.fullmatch(line):
                done = self.type(typed[1], typed[2])
                assert done.exit_code == 0, (line, done.output)
            elif sent := SENT.fullmatch(line):
                self.send(*sent.groups())
            else:
                assert line.startswith("secure-fl data make"), line

    def send(self, who: str, whom: str, what: str) -> None:
        self.sent.append((who, whom, what))
        source, to = self.folder / who / what, self.folder / whom / Path(what).name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("SECURE_FL_SCRYPT_LOG_N", "10")
    monkeypatch.setattr("secure_fl.engines.flare.diagnosis.PATIENCE", 0.2)  # nobody is there
    return Places(tmp_path)


def test_a_site_is_ready_after_two_commands_and_two_files(places: Places) -> None:
    places.follow(steps(FIRST, RUN))
    assert unprinted(FIRST, RUN, places.printed) == []
    run = [line for line in steps(RUN, "## The plan") if line.startswith("south$")]
    at_south = [command for who, command in places.typed if who == "south"]
    assert len(at_south) + len(run) == 3
    assert len([one for one in places.sent if "south" in one[:2]]) == 2
    for name in SITES:
        rules, kit = load_site(places.folder / name / "site.toml"), places.folder / name / "kit"
        assert rules.policy.rosters == (load_roster(kit / "roster.json").fingerprint(),)
    said = places.type("south", at_south[1] + " --no-rehearsal")
    assert (
        said.exit_code == 0 and "allowed" in said.output and "ready: secure-fl join" in said.output
    )
    assert "a round here" not in said.output and "records" in said.output
    assert not list((places.folder / "south").glob(".rehearsal*"))
    check = "site check site.toml --passphrase-file passphrase --kit"
    for of, why in (("north.kit", "is for 'north'"), ("roster.json", "not a kit")):
        shutil.copy(places.folder / "north" / of, places.folder / "south")
        refused = places.type("south", f"{check} {of}")
        assert refused.exit_code == 6 and why in refused.output


def dealt(places: Places) -> Places:
    places.follow(steps("### 1. Each hospital", "### 4. Each hospital: check"))
    return places


def test_a_newcomer_is_ready_by_the_page(places: Places) -> None:
    dealt(places)
    shutil.copytree(places.folder / "east", places.folder / "west")
    for file in ("site.toml", "passphrase", "east.card.json"):
        (places.folder / "west" / file).unlink()
    shutil.rmtree(places.folder / "west" / "keys")
    places.follow(steps(NEWCOMER, "## Limits"))
    assert load_roster(places.folder / "west" / "kit" / "roster.json").version == 2
    assert "ready: secure-fl join site.toml --kit kit" in places.printed


def commands_in(lines: list[str]) -> set[tuple[str, ...]]:
    """The commands of the program in these lines, without their arguments."""
    found = set()
    for line in lines:
        group: click.Command | None = main
        words: list[str] = []
        with click.Context(main) as context:
            for word in line.split():
                if not isinstance(group, click.Group):
                    break
                group = group.get_command(context, word)
                words.append(word)
        assert group is not None and not isinstance(group, click.Group), line
        found.add(tuple(words))
    return found


def test_the_script_plays_every_command_of_the_page() -> None:
    script = (ROOT / "examples" / "pilot.sh").read_text()
    played = re.findall(r"^[^#\n]*\b(?:at|start) \S+ ([a-z].*)", script, re.M)
    typed = [found[2] for line in steps(FIRST, "## Limits") if (found := TYPED.fullmatch(line))]
    assert commands_in(typed) <= commands_in(played)


def test_every_rule_is_in_the_table() -> None:
    assert set(_named_rules(PAGE)) == set(SitePolicy.model_fields)


def _named_rules(page: str) -> Iterator[str]:
    table = page[page.index("| rule | refuses") :].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        yield from re.findall(r"`\[?(?:site\.)?(\w+)\]?`", row.split("|")[1])


def test_what_is_wrong_is_said_at_once_at_the_hospital(places: Places) -> None:
    dealt(places)
    check = "site check site.toml --kit south.kit --no-rehearsal --passphrase-file passphrase"
    assert "not signed" in places.type("south", check, "n\n").output
    other = places.type("south", f"{check} --roster {'12345-' * 7}12345")
    assert other.exit_code == 6 and "do not join" in other.output
    join = "join site.toml --passphrase-file passphrase"
    assert "there is no opened kit" in places.type("south", join).output
    south = places.folder / "south"
    open_kit(south / "south.kit", places_identity(south), south / "unseen")
    unseen = places.type("south", f"{join} --kit unseen")
    assert "signature of 'south' is missing" in unseen.output
    site = places.folder / "south" / "site.toml"
    site.write_text(site.read_text().replace("max_rounds = 10", "max_rounds = 5"))
    refused = places.type("south", check)
    assert refused.exit_code == 1 and "rule" in refused.output and "problem" in refused.output
    for name, why in (("north", "of 'north'"), ("hub", "the coordinator's kit")):
        kit = places.folder / "hub" / "kits" / "hub"
        if name == "north":
            places.type("north", check.replace("south", "north"))
            kit = places.folder / "north" / "kit"
        said = places.type("south", f"{join} --kit {kit}")
        assert said.exit_code == 6 and why in said.output, said.output


def test_a_kit_that_was_changed_or_is_for_another_card_does_not_open(places: Places) -> None:
    dealt(places)
    folder = places.folder / "south"
    me = places_identity(folder)
    kit, data = folder / "south.kit", (folder / "south.kit").read_bytes()
    require_own(load_kit(open_kit(kit, me, folder / "kit")), me)  # it is genuine
    assert (folder / "kit" / "client.key").stat().st_mode & 0o077 == 0
    for reason, changed in (
        ("cannot-open", data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
        ("malformed", data[: len(data) // 2]),
        ("other-format", data.replace(b"secure-fl/kit/3", b"secure-fl/kit/9")),
    ):
        kit.write_bytes(changed)
        with raises(KeyringError, reason=reason):
            open_kit(kit, me, folder / "other")
    kit.write_bytes(data)
    with raises(KeyringError, reason="other-recipient"):
        open_kit(kit, places_identity(places.folder / "east"), folder / "other")
    assert not (folder / "other").exists()


def test_an_old_kit_or_a_refused_one_replaces_nothing(places: Places) -> None:
    """A hub that mails a kit of before would else put who has left back, or stop the site."""
    dealt(places)
    check = "site check site.toml --no-rehearsal --passphrase-file passphrase --kit"
    assert places.type("south", f"{check} south.kit").exit_code == 0
    cards = "north.card.json south.card.json west.card.json --coordinator hub.card.json"
    west = Identity.generate("west")
    (places.folder / "north" / "west.card.json").write_bytes(card_bytes(west))
    places.type("north", f"keys roster {cards} --after roster.json -o roster2.json")
    dealing = "keys rotate roster2.json -o bundles2 --passphrase-file passphrase"
    assert places.type("north", dealing).exit_code == 0
    places.send("north", "hub", "roster2.json")
    places.send("north", "hub", "bundles2")
    made = "--bundles bundles2 --host hub -o kits2 --passphrase-file passphrase"
    assert places.type("hub", f"pilot init roster2.json {made}").exit_code == 0
    (places.folder / "hub" / "kits2" / "south.kit").rename(places.folder / "south" / "new.kit")

    def kit() -> dict[str, bytes]:
        folder = places.folder / "south" / "kit"
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    first = kit()
    said = places.type("south", f"{check} new.kit", "n\n").output
    assert "east has left" in said and "west is new" in said and "not signed" in said
    assert kit() == first
    assert "dealt by north" in places.type("south", f"{check} new.kit").output
    newest = kit()
    assert newest != first and "plan.toml" not in newest  # nothing of the old one is left
    old = places.type("south", f"{check} south.kit")
    assert old.exit_code == 6 and "already holds keys of roster version 2" in old.output
    assert kit() == newest and not list((places.folder / "south").glob(".kit*"))


def places_identity(folder: Path) -> Identity:
    return open_ring(folder / "keys", folder / "passphrase").identity()


def test_nothing_is_overwritten_and_a_failed_start_leaves_nothing(places: Places) -> None:
    init = "site init south --dataset notes --train none.jsonl --passphrase-file passphrase"
    failed = places.type("south", init)
    assert failed.exit_code == 2 and "no such file" in failed.output
    assert not (places.folder / "south" / "site.toml").exists()
    right = init.replace("none", "train")
    assert places.type("south", right).exit_code == 0
    card = load_card(places.folder / "south" / "south.card.json")
    assert places.type("south", right).exit_code == 2
    assert load_card(places.folder / "south" / "south.card.json") == card


@pytest.mark.parametrize("host", ["bad host name", "-x", "a..b", "http://hub", "", "fe80::1"])
def test_a_host_that_nobody_can_dial_is_refused(host: str) -> None:
    for right in ("hub.example.org", "localhost", "10.0.0.7"):
        require_host(right)
    with raises(SettingsError):
        require_host(host)


@pytest.mark.slow
def test_the_page_leads_to_a_model(places: Places) -> None:
    def here(lines: Iterator[str]) -> Iterator[str]:
        port = free_port()
        for line in lines:
            yield line.replace("hub.example.org", "localhost").replace("8443", str(port))

    places.follow(here(steps("### 1. Each hospital", RUN)))
    started, logs, later = {}, [], []
    for line in steps(RUN, "## The plan"):
        if not (typed := TYPED.fullmatch(line)) or not typed[2].startswith(("join", "coord")):
            later.append(line)
            continue
        logs.append(places.folder / typed[1] / "log")
        started[typed[1]] = start_program(logs[-1].parent, *typed[2].split())
    assert len(started) == 4
    with killed_after(started):
        *sites, hub = started.values()
        assert hub.wait(200) == 0
        assert [site.wait(60) for site in sites] == [0, 0, 0]
    models = {
        (places.folder / name / "runs" / "study" / "model" / "model.safetensors").read_bytes()
        for name in SITES
    }
    assert len(models) == 1
    places.follow(iter(later))
    printed = places.printed + "".join(log.read_text() for log in logs)
    missing = unprinted(RUN, "## The plan", printed)
    # Which hospital the coordinator waits for, if any, depends on which process starts last.
    assert [line for line in missing if not line.startswith("warning waits for ")] == []
