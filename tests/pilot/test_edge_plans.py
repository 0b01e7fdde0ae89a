"""Plans that smuggle, break or overflow: each is refused with a code."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.errors import SettingsError, WireError
from secure_fl.pilot.plan import RESTARTED, load_plan, read_plan, write_plan
from secure_fl.policy.plan import Plan
from secure_fl.policy.policy_file import DPLimits, SitePolicy
from secure_fl.policy.rules import Company, check
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import peek
from secure_fl.protocol.messages import Failed, Gather, Hello, Invite, Stop
from secure_fl.testing.hospitals import LABELS
from tests.support.edge import PLAN, SAMPLES, Asker
from tests.support.local_pilot import LocalPilot
from tests.support.mutants import changed, head_of, odd, signed, tree
from tests.support.raising import raises


def _allow(policy: SitePolicy, company: Company, plan: Plan) -> None:
    check(policy, plan, company)


def lawful(made: LocalPilot) -> None:
    """Every hospital has a policy that allows the town's plan, and no more."""
    for name in made.members:
        company = Company.of(made.roster, name)
        policy = SitePolicy(
            algorithms=("fedavg",),
            rosters=(company.fingerprint,),
            datasets=("notes",),
            models=("tiny",),
            until=datetime.now(UTC).date() + timedelta(days=1),
            max_rounds=2,
            dp=DPLimits(required=False),
            bits=(8,),
        )
        made.processes[name]._approve = partial(_allow, policy, company)


TEXT = write_plan(PLAN)


def named(algorithm: str) -> str:
    """The plan with another algorithm, without fields that only FedAvg has."""
    return re.sub(r"(?m)^(proximal|average) = .*\n", "", TEXT.replace('"fedavg"', f'"{algorithm}"'))


SMUGGLED: dict[str, tuple[str, str]] = {
    "recorded views": (TEXT.replace("record = false", "record = true"), "policy"),
    "more rounds": (TEXT.replace("rounds = 1", "rounds = 3"), "policy"),
    "weaker sums": (TEXT.replace('"he+secagg"', '"none"'), "policy"),
    "a folder": (TEXT.replace("seed = 0", 'seed = 0\nfolder = "/tmp"'), "policy"),
    "a name that climbs": (TEXT.replace('"run"', '"../../run"'), "policy"),
    "an absolute name": (TEXT.replace('"run"', '"/etc/run"'), "policy"),
    "a hidden name": (TEXT.replace('"run"', '".ssh"'), "policy"),
    "an empty name": (TEXT.replace('"run"', '""'), "policy"),
    "a model's folder": (TEXT.replace('"tiny"', '"/srv/model"'), "policy"),
    "another data set": (TEXT.replace('"notes"', '"everything"'), "policy"),
    "a data set that climbs": (TEXT.replace('"notes"', '"../notes"'), "settings"),
    "its own policy": (TEXT + '\n[site]\nalgorithms = ["centralized"]\n', "settings"),
    "its own records": (TEXT + '\n[data]\ncorpus = "ade"\n', "settings"),
    "an audit policy": (TEXT + "\n[policy]\nepsilon = 9.0\n", "settings"),
    "a class path": (TEXT.replace('"fedavg"', '"os.system"'), "settings"),
    "pooled records": (named("centralized"), "policy"),
    "a ledger": (
        TEXT.replace("[protection]", '[training.dp]\nepsilon = 1.0\nledger = "/x"\n\n[protection]'),
        "policy",
    ),
    "a field twice": (TEXT.replace("seed = 0", "seed = 0\nseed = 1"), "settings"),
    "another width": (TEXT.replace("bits = 8", "bits = 13"), "settings"),
    "a field of nobody": (TEXT.replace("proximal", "proximity"), "settings"),
    "no data set": (TEXT.replace('dataset = "notes"', ""), "settings"),
    "an empty plan": ("", "settings"),
    "no TOML": ("not toml", "settings"),
    "text for a number": (TEXT.replace("seed = 0", 'seed = "0"'), "settings"),
    "a long number": (TEXT.replace("seed = 0", "seed = " + "9" * 5000), "settings"),
    "a long hexadecimal": (TEXT.replace("seed = 0", "seed = 0x" + "f" * 5000), "settings"),
    "no number": (TEXT.replace("0.002", "nan"), "settings"),
    "a deep key": (TEXT + ".".join("a" * 3000) + " = 1\n", "settings"),
    "a deep table": (TEXT + "[algorithm." + ".".join("a" * 3000) + "]\n", "settings"),
    "a deep list": (TEXT.replace("seed = 0", "seed = " + "[" * 5000 + "]" * 5000), "settings"),
    "a list over lines": (TEXT.replace("seed = 0", "seed = [\n" + "1,\n" * 9000 + "]"), "settings"),
    "deep inline tables": (TEXT.replace("seed = 0", "seed = " + "{a=" * 900), "settings"),
    "many lines": (TEXT + "\n" * 5000, "settings"),
    "many unknown fields": (
        TEXT.replace("seed = 0", "\n".join(f"seed{i} = 0" for i in range(900))),
        "settings",
    ),
    "many wrong labels": (TEXT.replace('["ade"', "[" + "1, " * 40_000 + '"ade"'), "settings"),
    "control codes": (TEXT.replace("seed = 0", '"\\u001b[31m" = 0'), "settings"),
}


@pytest.mark.parametrize("what", SMUGGLED)
def test_smuggled_settings_are_refused_with_a_code(opened, what):
    text, code = SMUGGLED[what]
    assert text != TEXT and len(text) <= messages.MAX_PLAN
    made = opened()
    lawful(made)
    asker, began = Asker(made), time.thread_time()
    answer = asker.invite(text)
    assert answer == Failed(code)
    assert time.thread_time() - began < 8
    (told,) = made.seen("refused")
    assert told["code"] == code and len(told["why"]) <= 20_000
    assert all(c.isprintable() or c == "\n" for c in told["why"])
    assert not made.folder.exists()  # nothing was begun
    assert isinstance(asker.invite(), Hello)  # and the genuine plan is still allowed


def test_plans_beyond_the_limit_and_broken_text_do_not_decode(opened):
    made = opened()
    asker = Asker(made)
    padded = TEXT + "\n#" + "x" * (messages.MAX_PLAN - len(TEXT))
    for message in ([31, padded], [31, padded * 8], [31, b"\xff\xfe"], [31, TEXT, "more"], [31, 7]):
        frame = asker.link.pack(Stop("x"))
        head = signed([*tree(frame)[:-1], message], made.coordinator)
        assert asker.throw(head) is None
    raw = head_of([*tree(frame)[:-1], [31, "z" * 8]], b"").replace(b"z" * 8, b"\xff\xfe" * 4)
    assert asker.throw(raw + made.coordinator.sign(frames.digest(raw))) is None
    assert made.seen("plan_accepted") == []


def test_a_plan_that_no_site_could_read_is_refused_where_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    script = ALGORITHMS["script"].settings
    many = script(values={f"layer.{k}.weight": (3,) for k in range(1001)})  # type: ignore[call-arg]
    file.write_text(write_plan(Plan(algorithm=many, dataset="notes")))
    with raises(SettingsError, "lines; at most 1000"):
        load_plan(file)
    long = Plan(algorithm=script(values={"w" * 200: (3,)}), dataset="notes")  # type: ignore[call-arg]
    file.write_text(write_plan(long))
    assert load_plan(file) == read_plan(write_plan(long)) == long


def test_a_plan_cannot_control_the_terminal_of_who_approves_it() -> None:
    """U+009B moves the cursor in some terminals, and U+202E reverses the text after it."""
    label = LABELS[0]
    plan = read_plan(TEXT.replace(f'"{label}"', f'"{label}\x9b3A\u202e\U000e0001"'))
    assert plan.task.labels == (label + "\x9b3A\u202e\U000e0001", *LABELS[1:])
    shown = write_plan(plan)
    assert shown.replace("\n", "").isprintable() and r"\u009b3A\u202e\U000e0001" in shown
    assert read_plan(shown) == plan


def test_edited_plans_are_plans_or_settings_errors():
    rng, outcomes = random.Random(3), Counter[str]()
    pieces = [
        *TEXT.splitlines(),
        "[",
        "]",
        '"',
        "=",
        ".",
        "{",
        "}",
        "\n",
        "-1",
        "1e999",
        "\x00",
        "é",
    ]
    pieces += ["[[algorithm]]", "[run.x]", "1979-05-27", "true", "none", '"none"', '"\\ud800"']
    for _ in range(1000):
        text = TEXT
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(text))
            text = text[:start] + rng.choice(pieces) + text[start + rng.choice((0, 1, 5)) :]
        try:
            plan = read_plan(text)
        except SettingsError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            assert read_plan(write_plan(plan)) == plan
    assert outcomes["refused"] > 600 and outcomes["read"] > 1


def test_a_plan_that_breaks_something_unforeseen_is_refused(opened):
    """The site's process lives on; what went wrong is told here, and a code there."""

    def unforeseen(plan: Plan) -> None:
        raise ZeroDivisionError("patient 7 of ward 3")

    made = opened(approve={"hospital-1": unforeseen})
    assert Asker(made).invite() == Failed("error")
    assert "patient 7" in made.seen("refused")[0]["why"]
    made = opened(records={"hospital-1": unforeseen})
    asker = Asker(made)
    hello = asker.invite()
    nonces = {name: hello.nonce for name in made.members}
    assert asker.say(Gather(nonces)) == Failed("error")


# --- a genuine coordinator that does as it likes --------------------------------------------------


@pytest.mark.parametrize("state", ["never invited", "invited", "seated"])
def test_messages_out_of_place(opened, state):
    """Any kind, at any moment: an error or a code, and the next genuine invitation is accepted."""
    made = opened()
    asker = Asker(made)
    for message in SAMPLES if state != "seated" else [SAMPLES[i] for i in (1, 3, 5, 6, 11, 13, 19)]:
        if state != "never invited":
            asker.invite() if state == "invited" else asker.seated()
        answer = asker.throw(asker.link.pack(message).head)
        from_party = isinstance(message, messages.FromParty)
        if from_party or (state != "seated" and isinstance(message, Gather)):
            assert answer is None or peek(answer.head).message == Failed("cohort")
            assert answer is None or state == "invited"
        elif state == "never invited":
            assert answer is not None and peek(answer.head).message == Failed(RESTARTED)
        elif state == "invited":
            assert answer is None
        else:
            assert answer is not None and isinstance(peek(answer.head).message, Failed)
        assert asker.seat.joined == (state == "seated" and answer is None)
        asker.link = asker.fresh()
    assert isinstance(asker.invite(), Hello)


def test_what_a_genuine_coordinator_signs_breaks_nothing(opened):
    """Its signature is genuine, what it says is not a message or not one for now."""
    made, rng = opened(), random.Random(8)
    asker, outcomes = Asker(made), Counter[str]()
    for number in range(1200):
        if number % 10 == 0:
            asker.invite()
        frame = asker.link.pack(rng.choice(SAMPLES))
        mutant = changed(rng, tree(frame)) if rng.random() < 0.9 else odd(rng)
        answer = asker.throw(signed(mutant, made.coordinator), rng.choice((b"", b"x" * 9)))
        outcomes["answered" if answer else "refused"] += 1
    assert outcomes["refused"] > 600
    assert isinstance(asker.invite(), Hello)


@pytest.mark.parametrize("seed", range(4))
def test_what_it_signs_within_a_run_ends_the_run_at_worst(opened, seed):
    made, rng = opened(), random.Random(seed)
    asker = Asker(made)
    for _ in range(15):
        asker.seated()
        asker.say(SAMPLES[0])
        for _ in range(4):
            frame = asker.link.pack(rng.choice(SAMPLES[1:]))
            envelope = tree(frame)
            envelope[-1] = changed(rng, envelope[-1])
            asker.throw(signed(envelope, made.coordinator), rng.randbytes(9))
    assert isinstance(asker.invite(), Hello)


def test_an_old_invitation_ends_nothing(opened):
    """Replayed while a run is under way, it would end that run."""
    made = opened()
    asker = Asker(made)
    asker.link = asker.fresh()
    old = asker.link.pack(Invite(write_plan(made.plan)))
    assert isinstance(asker.link.unpack(asker.seat.step(old)), Hello)
    asker.seated()
    with pytest.raises(WireError, match="already answered"):
        asker.seat.step(old)
    assert isinstance(asker.say(SAMPLES[0]), messages.Ready)  # the run goes on
