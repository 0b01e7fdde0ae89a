"""The whole way of docs/pilot.md on one machine: what `secure-fl pilot local` shows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.processes import free_port
from secure_fl.cli.steps import Started, Steps

if TYPE_CHECKING:
    from secure_fl.policy.questions import QuestionPlan

HUB, PERSON = "hub", "anna"
KEYS = "--passphrase-file passphrase"
RECORDS = "--train train.jsonl --dev dev.jsonl --test test.jsonl"
GRACE = 5  # seconds: whoever is killed here is gone
WAIT = 120  # seconds until everybody has to be there
TRAINED, ASKED = "study", "question"
PLAN = """\
dataset = "notes"

[run]
name = "{run}"

[task]
labels = ["ade", "no-ade"]
max_length = 64

[model]
layers = 2

[training]
learning_rate = 1.5e-3
batch_size = 16
device = "cpu"

[algorithm]
name = "fedavg"
rounds = {rounds}
epochs = 3
"""
QUESTION = """\
dataset = "notes"

[run]
name = "{run}"

[[question]]
name = "labels"
kind = "categories"
field = "label"
values = ["ade", "no-ade"]
"""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is played: hospitals, and the rounds and notes that they learn by."""

    folder: Path
    parties: int
    rounds: int
    size: int
    questions: QuestionPlan | None = None  # these are asked, and nothing is learned

    @property
    def names(self) -> list[str]:
        """The hospitals."""
        return [f"hospital-{number}" for number in range(1, self.parties + 1)]

    def play(self) -> None:
        """Do every step; one that fails is the last."""
        began, steps = time.perf_counter(), Steps(self.folder)
        _make_places(self)
        steps.say(
            f"A pilot of {self.parties} hospitals and a coordinator, each a folder below "
            f"{self.folder} and processes of its own, with TLS between them. Notes are made up, "
            "and nobody telephones: --yes and --roster say that fingerprints were compared. "
            "All else is as in `secure-fl docs pilot`."
        )
        try:
            _get_ready(self, steps)
            if self.questions is None:
                _learn(self, steps)
            _ask(self, steps)
            if self.questions is None:
                _erase(self, steps)
        finally:
            steps.stop()
        minutes, seconds = divmod(round(time.perf_counter() - began), 60)
        click.echo()
        steps.say(f"All of it took {minutes} min {seconds} s. Look around:")
        click.echo(f"  {self.folder}/{self.names[1]}/runs      what a hospital has")
        click.echo(f"  {self.folder}/{HUB}/runs             what the coordinator saw of it")


def _make_places(played: Rehearsal) -> None:
    """A folder for each machine, with the records of its own, and what the coordinator plans."""
    from secure_fl import corpora
    from secure_fl.data.splits import write

    for name in (HUB, *played.names):
        (played.folder / name).mkdir(parents=True)
    made = corpora.make("ade", parties=played.parties, seed=0, size=played.size)
    for name, splits in zip(played.names, made, strict=True):
        for split in ("train", "dev", "test"):
            write(getattr(splits, split), played.folder / name / f"{split}.jsonl")
    plan = PLAN.format(run=TRAINED, rounds=played.rounds)
    asked = QUESTION.format(run=ASKED) if played.questions is None else _as_text(played.questions)
    for file, text in (("plan.toml", plan), ("questions.toml", asked)):
        (played.folder / HUB / file).write_text(text, encoding="utf-8")


def _as_text(questions: QuestionPlan) -> str:
    from secure_fl.config.build import RunSettings
    from secure_fl.pilot.plan import write_plan

    return write_plan(questions.model_copy(update={"run": RunSettings(name=ASKED)}))


def _get_ready(played: Rehearsal, steps: Steps) -> None:
    """From nothing to ready: steps 1 to 4 of the page."""
    names, first = played.names, played.names[0]
    steps.title("Each hospital: identity, rules, a card")
    steps.type_at_each(
        names,
        f"site init {{name}} --dataset notes {RECORDS} --rounds {played.rounds} --made-up {KEYS}",
    )
    steps.write(names, "site.toml", "[site.statistics]  # counts may be asked for, as left out\n")
    steps.type(HUB, f"keys identity {HUB} {KEYS}")
    for name in (*names[1:], HUB):
        steps.send(name, first, f"{name}.card.json")

    steps.title("The dealer, one of them: roster and keys")
    cards = " ".join(f"{name}.card.json" for name in names)
    # All are needed, however many there are, so that the others wait for the one that is killed.
    needed = f"--threshold {played.parties}" if played.parties > 3 else ""
    steps.type(first, f"keys roster {cards} --coordinator {HUB}.card.json {needed}")
    steps.type(first, f"keys ceremony roster.json --yes {KEYS}", last=2)
    steps.send(first, HUB, "roster.json", "bundles")

    steps.title("The coordinator: kits")
    here = f"--host localhost --port {free_port()}"
    steps.type(HUB, f"pilot init roster.json --plan plan.toml {here} {KEYS}")
    for name in names:
        steps.send(HUB, name, f"kits/{name}.kit")

    steps.title("Each hospital: check")
    told = _fingerprint(played.folder / HUB / "roster.json")
    check = f"site check site.toml --kit {{name}}.kit --roster '{told}' {KEYS}"
    steps.type_at_each(names, check)

    steps.title(f"At {first} somebody has to approve")
    theirs = f"--keys {PERSON} --passphrase-file {PERSON}.passphrase"
    said = steps.type(first, f"keys identity {PERSON} {theirs}")
    by = said.partition("fingerprint: ")[2].splitlines()[0]
    steps.write([first], "site.toml", f'[site.approval]\nby = ["{by}"]\n')
    if played.questions is None:
        _approve(steps, first, "kit/plan.toml")


def _learn(played: Rehearsal, steps: Steps) -> None:
    """A run, in which one hospital is killed and comes back: step 5 of the page."""
    names, killed = played.names, played.names[1]
    steps.title(f"All run; {killed} is killed, and comes back")
    join = f"join site.toml {KEYS} --quiet"
    hospitals = {name: steps.start(name, join) for name in names}
    hub = _coordinate(steps, "plan.toml", TRAINED, f"--grace {GRACE}")
    steps.follow(hub, until=f"round {min(2, played.rounds)} of")
    steps.kill(hospitals[killed])
    steps.follow(hub, until=f"waits for {killed}")
    steps.type(HUB, f"status runs/{TRAINED}")
    hospitals[killed] = steps.start(killed, join)
    steps.follow(hub)
    steps.ended(hospitals.values())

    steps.title("What each has of it")
    steps.type(HUB, f"status runs/{TRAINED}")
    steps.type(names[0], f"status runs/{TRAINED}")
    models = {_digest(played.folder / name / "runs" / TRAINED) for name in names}
    which = "same" if len(models) == 1 else "OTHER MODELS"
    steps.say(f"The model at all hospitals, by its SHA-256: {which}, {' '.join(models)}")


def _ask(played: Rehearsal, steps: Steps) -> None:
    """Questions, to which the answers are sealed sums."""
    names = played.names
    steps.title("The coordinator asks a question about the records")
    steps.send(HUB, names[0], "questions.toml")
    _approve(steps, names[0], "questions.toml")
    hospitals = [steps.start(name, f"join site.toml {KEYS} --quiet") for name in names]
    steps.follow(_coordinate(steps, "questions.toml", ASKED))
    steps.ended(hospitals)
    runs = [played.folder / name / "runs" / ASKED for name in names]
    steps.say(f"At each hospital, and not at the coordinator, {runs[0]}/answers.json:")
    for answer in json.loads((runs[0] / "answers.json").read_text())["answers"]:
        counts = ", ".join(f"{value} {count}" for value, count in answer["counts"])
        click.echo(f"  {answer['name']}: {answer['status']}; {counts}")
    if played.questions is not None:
        click.echo(f"from the begin of the run to the last answer: {_took(runs):.1f} s")


def _erase(played: Rehearsal, steps: Steps) -> None:
    """What a hospital no longer keeps, and what its record says of all this."""
    first = played.names[0]
    steps.title(f"{first} erases the run; its ledger tells of it")
    steps.type(first, f"site erase site.toml --run {TRAINED} --yes {KEYS}")
    steps.type(first, f"ledger show ledger/{first}/ledger.sqlite")


def _approve(steps: Steps, who: str, plan: str) -> None:
    theirs = f"--keys {PERSON} --passphrase-file {PERSON}.passphrase"
    steps.type(who, f"site approve site.toml --plan {plan} {theirs} --yes", last=2)


def _coordinate(steps: Steps, plan: str, run: str, more: str = "") -> Started:
    return steps.start(
        HUB, f"coordinate {plan} --kit kits/{HUB} --out runs/{run} --wait {WAIT} {more} {KEYS}"
    )


def _fingerprint(roster: Path) -> str:
    from secure_fl.crypto.keys.roster_files import load_roster

    return load_roster(roster).fingerprint()


def _digest(run: Path) -> str:
    return sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]


def _took(runs: Sequence[Path]) -> float:
    """Seconds from a hospital's begin of the run to its answers, without the processes' start."""
    from secure_fl.runs.folder import SETTINGS
    from secure_fl.statistics.pages import DOCUMENT

    begun = min((run / SETTINGS).stat().st_mtime for run in runs)
    return max((run / DOCUMENT).stat().st_mtime for run in runs) - begun
