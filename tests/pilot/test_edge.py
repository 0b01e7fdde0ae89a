"""The edge of a pilot: what nobody should send is refused, whoever sends it, and nothing breaks."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from secure_fl import wire
from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator import Coordinator
from secure_fl.crypto.blind_sum import ClearTotal
from secure_fl.crypto.identity import Identity, PublicIdentity
from secure_fl.engines.flare_parcel import HEADER, Kind, Parcel, StepId
from secure_fl.errors import KeyringError, SecureFLError, SettingsError, WireError
from secure_fl.link import Link
from secure_fl.pilot.kits import load_kit, write_kits
from secure_fl.pilot.lobby import run_id
from secure_fl.pilot.plan import read_plan, write_plan
from secure_fl.pilot.seat import RESTARTED, rules_of_roster
from secure_fl.recorder import Recorder
from secure_fl.roster import Member, make_roster
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.site_policy import DPLimits, SitePolicy
from secure_fl.site_rules import Company, Plan, check
from secure_fl.totals import blind_totals
from secure_fl.wire import Bulk, Failed, Frame, Gather, Gathered, Hello, Invite, Start, Stop, peek
from tests.pilot.fuzzing import (
    MUTATORS,
    Found,
    Storm,
    changed,
    cut,
    flipped,
    head_of,
    longer,
    nested,
    odd,
    signed,
    tree,
)
from tests.pilot.hospitals import Town, plan_of, town

PLAN = plan_of(FedAvg(rounds=1))


def codes(cls: type[SecureFLError] = SecureFLError) -> set[str]:
    """Every code of the error tree; no answer may say more."""
    return {cls.code, RESTARTED}.union(*(codes(child) for child in cls.__subclasses__()))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Town]]:
    """Makes towns, and closes their folders."""
    towns: list[Town] = []

    def make(**options: Any) -> Town:
        towns.append(town(tmp_path / f"{len(towns)}", PLAN, **options))
        return towns[-1]

    yield make
    for made in towns:
        for seat in made.seats.values():
            seat.close()


# --- mutated frames --------------------------------------------------------------------------


def weather(folder: Path, mutants: int, seed: int = 0) -> Storm:
    """A run that ends as if nothing had been thrown at either end."""
    made = town(folder, PLAN)
    storm = Storm(
        made, mutants // 60, seed
    )  # at the least 60 frames: 10 exchanges, 3 parties, 2 ways
    storm.lead().run()
    assert storm.found == []
    assert all(seat.done for seat in made.seats.values())
    assert sum(storm.thrown.values()) >= mutants, storm.thrown
    assert set(storm.kinds) == set(MUTATORS)
    assert storm.repeated > 0, "no mutant was a plain repetition"
    assert storm.slowest < 0.5  # seconds of this thread's own time
    return storm


def test_a_hundred_thousand_mutants_and_the_run_ends(tmp_path):
    storm = weather(tmp_path, 100_000)
    assert min(storm.thrown["party"], storm.thrown["coordinator"]) > 40_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_mutants_and_the_run_ends(tmp_path):
    weather(tmp_path, 1_000_000, seed=1)


class NoReceiver(Link):
    """Takes what was meant for others."""

    def _expect(self, field: str, holds: bool) -> None:
        super()._expect(field, holds or field == "receiver")


class NoCount(Link):
    """Takes what is old."""

    def _expect(self, field: str, holds: bool) -> None:
        super()._expect(field, holds or field in ("exchange", "round"))


class NoSender(Link):
    """Believes the name in a frame."""

    def _verify(self, sender: str, digest: bytes, signature: bytes) -> None:
        """Look at nothing."""


def any_bulk(frame: Frame, verify: Any) -> wire.Envelope:
    """Decode without a look at the bulk."""
    try:
        envelope = peek(frame.head)
    except Exception as error:
        raise WireError("not a frame") from error
    verify(envelope.sender, wire.digest(frame.head[:-64]), frame.head[-64:])
    return envelope


def fragile(frame: Frame, verify: Any) -> wire.Envelope:
    """Decode, and let errors fly."""
    peek(frame.head)
    return DECODE(frame, verify)


DECODE = wire.decode


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Break one check."""
    links = {"receiver": NoReceiver, "count": NoCount, "sender": NoSender}
    if bug in links:
        for module in ("secure_fl.pilot.seat", "secure_fl.pilot.lead"):
            patch.setattr(f"{module}.Link", links[bug])
    elif bug == "signature":
        patch.setattr(PublicIdentity, "verify", lambda self, digest, signature: None)
    else:
        patch.setattr(wire, "decode", any_bulk if bug == "bulk" else fragile)


@pytest.mark.parametrize(
    ("bug", "seen"),
    [
        ("receiver", "accepted"),
        ("count", "accepted"),
        ("sender", "accepted"),
        ("signature", "accepted"),
        ("bulk", "accepted"),
        ("errors that fly", r": (Decode|Validation)Error: "),
    ],
)
def test_the_storm_finds_planted_bugs(opened, monkeypatch, bug, seen):
    plant(monkeypatch, bug)
    storm = Storm(opened(), 100, eager=True)
    with pytest.raises(Found, match=seen):
        storm.lead().run()


# --- memory ----------------------------------------------------------------------------------


def peak(take: Any, frame: Any) -> int:
    """The most bytes that were held while this was looked at."""
    tracemalloc.start()
    try:
        with pytest.raises(SecureFLError):
            take(frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def envelope_of(message: Any, **fields: Any) -> list[Any]:
    """An envelope, as lists."""
    given = {"run": b"r" * 16, "exchange": 1, "round": 0, "sender": "coordinator"}
    given |= {"receiver": "hospital-1", "size": 0, "digest": wire.digest(b"")} | fields
    return [*given.values(), message]


def test_memory_and_time_stay_bounded(opened):
    """At a hospital no forged frame is even decoded; at the coordinator a head costs 32 times."""
    made = opened()
    step = made.seats["hospital-1"].step
    link = made.lead()._link(b"r" * 16, "hospital-1")
    many = 200_000
    heavy = {
        "rounds": [1, [], None, [[0, []]] * many],
        "counts": [1, [1000] * many, None, []],
        "names": [22, {f"{i:x}": [] for i in range(many)}],
        "shares": [1, [], [b"a" * 32, {f"{i:x}": b"" for i in range(many)}]],
        "deep": [4, nested(500), {}],
    }
    for message in heavy.values():
        frame = Frame(head_of(envelope_of(message), b"s" * 64))
        began = time.thread_time()
        assert peak(step, frame) < 4 * frame.size + 2**16
        assert peak(link.unpack, frame) < 32 * frame.size + 2**16
        assert time.thread_time() - began < 5
    start = head_of(envelope_of([1])[:7], b"")
    start = start[:1] + b"\x98" + start[2:]
    for kind in range(33):
        for huge in (b"\xdd", b"\xdf", b"\xdb", b"\xc6"):
            declared = start + bytes([0x92, kind]) + huge + b"\xff\xff\xff\xff" + b"s" * 64
            assert peak(step, Frame(declared)) < 2**16
            assert peak(link.unpack, Frame(declared)) < 2**16
    too_large = Frame(bytes([wire.VERSION]) * (wire.MAX_HEAD + 65))
    assert peak(step, too_large) < 2**16  # not even hashed
    assert peak(link.unpack, too_large) < 2**16
    bulk = Frame(head_of(envelope_of([28, "x"]), b"s" * 64), bytes(2**24))
    assert peak(step, bulk) < 2**16
    assert peak(link.unpack, bulk) < 2**16


def test_parcels_are_whole_or_errors():
    """The engine's own layer: any bytes at all."""
    rng = random.Random(5)
    frame, step = Frame(b"h" * 90, b"b" * 300), StepId(b"l" * 16, 7)
    genuine = [b"".join(Parcel(kind, step, frame).to_buffers()) for kind in Kind]
    refused = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(genuine))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 32))] = rng.randrange(256)
        data = data[: rng.choice((len(data), rng.randrange(len(data) + 1)))]
        try:
            parcel = Parcel.from_bytes(data)
        except WireError:
            refused += 1
        else:  # what was read is what is there, and no byte more
            assert b"".join(parcel.to_buffers()) == bytes(data)
    assert 1000 < refused < 19_000
    header = HEADER.pack(1, Kind.STEP, b"l" * 16, 7)
    assert peak(Parcel.from_bytes, header + b"\xff\xff\xff\xff" + b"x") < 2**12


# --- a coordinator that is genuine, and does as it likes ---------------------------------------


class Asker:
    """Speaks for the coordinator to one hospital, and says whatever it is told to."""

    def __init__(self, made: Town, party: str = "hospital-1") -> None:
        self.made, self.party, self.seat = made, party, made.seats[party]
        self.link = self.fresh()
        self.nonce = b""

    def fresh(self) -> Link:
        public = self.made.roster.member(self.party).identity
        return Link(os.urandom(16), self.made.coordinator, public, asks=True)

    def say(self, message: Any, bulk: bytes = b"") -> Any:
        return self.link.unpack(self.seat.step(self.link.pack(message, Bulk.of(bulk))))

    def invite(self, text: str | None = None) -> Any:
        self.link = self.fresh()
        return self.say(Invite(write_plan(self.made.plan) if text is None else text))

    def seated(self) -> Gathered:
        """Invite, gather, and speak in the run from here on."""
        hello = self.invite()
        others = {name: os.urandom(16) for name in self.made.members}
        nonces = others | {self.party: hello.nonce}
        answer = self.say(Gather(nonces))
        assert isinstance(answer, Gathered)
        assert answer.run == run_id(self.made.roster, write_plan(self.made.plan), nonces)
        self.link.run, self.link.exchange = answer.run, 0
        return answer

    def throw(self, head: bytes, bulk: bytes = b"") -> Frame | None:
        """Let the seat have any bytes; an answer says a code, or what a program says."""
        try:
            answer = self.seat.step(Frame(head, bulk))
        except SecureFLError:
            return None
        message = peek(answer.head).message
        assert isinstance(message, wire.FromParty)
        if isinstance(message, Failed):
            assert message.code in codes() and re.fullmatch("[a-z-]+", message.code)
            assert not answer.bulk
        return answer


SAMPLES: list[Any] = [
    Start(("hospital-1", "hospital-2", "hospital-3")),
    wire.Begin(0, ("hospital-1",)),
    wire.Owners({"x": ("hospital-1",)}),
    wire.Unmask(("hospital-1",), ("hospital-2",)),
    wire.Confirmed({"hospital-2": b"s" * 64}),
    wire.Total(("hospital-1",), ("hospital-1",), (9,)),
    wire.Relayed(("hospital-2",), (2**31,)),
    wire.Agreed({"hospital-2": b"p" * 32}),
    wire.HandedOver(("hospital-1",), {}),
    wire.Continue(("hospital-1",)),
    Stop("cohort"),
    Gather({"hospital-1": b"n" * 16}),
    wire.Ready(),
    wire.SumInput("host", (wire.Segment(b"k" * 32, 8),)),
    wire.Declare(("x",)),
    wire.Reveal({}, {"hospital-2": b"k" * 16}),
    Failed("policy"),
    Hello(b"n" * 16),
    Gathered(b"r" * 16),
    wire.Done(),
]


@pytest.mark.parametrize("state", ["never invited", "invited", "seated"])
def test_messages_out_of_place(opened, state):
    """Any kind, at any moment: an error or a code, and the next genuine invitation is accepted."""
    made = opened()
    asker = Asker(made)
    for message in SAMPLES if state != "seated" else [SAMPLES[i] for i in (1, 3, 5, 6, 11, 13, 19)]:
        {"never invited": lambda: None, "invited": asker.invite, "seated": asker.seated}[state]()
        answer = asker.throw(asker.link.pack(message).head)
        from_party = isinstance(message, wire.FromParty)
        if from_party or (state != "seated" and isinstance(message, Gather)):
            assert answer is None or peek(answer.head).message == Failed("cohort")
            assert answer is None or state == "invited"
        elif state == "never invited":
            assert answer is not None and peek(answer.head).message == Failed(RESTARTED)
        elif state == "invited":
            assert answer is None
        else:
            assert answer is not None and isinstance(peek(answer.head).message, Failed)
        assert (asker.seat._session is not None) == (state == "seated" and answer is None)
        asker.link = asker.fresh()
    assert isinstance(asker.invite(), Hello)


def test_what_a_genuine_coordinator_signs_breaks_nothing(opened):
    """Its signature is genuine, what it says is not a message or not one for now."""
    made, rng = opened(), random.Random(8)
    asker, outcomes = Asker(made), Counter[str]()
    for number in range(3000):
        if number % 10 == 0:
            asker.invite()
        frame = asker.link.pack(rng.choice(SAMPLES))
        mutant = changed(rng, tree(frame)) if rng.random() < 0.9 else odd(rng)
        answer = asker.throw(signed(mutant, made.coordinator), rng.choice((b"", b"x" * 9)))
        outcomes["answered" if answer else "refused"] += 1
    assert outcomes["refused"] > 1500
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
    with pytest.raises(WireError, match="answered before"):
        asker.seat.step(old)
    assert isinstance(asker.say(SAMPLES[0]), wire.Ready)  # the run goes on


def test_a_wrong_kind_does_not_move_the_counter():
    """`nothing was accepted` must be true of what it is said of."""
    server, party = Identity.generate("server"), Identity.generate("north")
    asks = Link(b"r" * 16, server, party.public, asks=True, exchange=98)
    answers = Link(b"r" * 16, party, server.public, asks=False)
    with pytest.raises(WireError, match="kind"):
        answers.unpack(asks.pack(wire.Done()))
    assert answers.exchange == 0


@pytest.mark.parametrize("message", [[10, "policy\n"], [10, "a name"], [3, "host\n", []]])
def test_a_code_is_a_code_to_its_last_byte(message):
    """`$` would let a line end pass, and with it a line of one's own into a log."""
    with pytest.raises(msgspec.ValidationError, match="regex"):
        peek(head_of(envelope_of(message)))


# --- plans -----------------------------------------------------------------------------------


def _allow(policy: SitePolicy, company: Company, plan: Plan) -> None:
    check(policy, plan, company)


def lawful(made: Town) -> None:
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
        made.seats[name]._approve = partial(_allow, policy, company)


TEXT = write_plan(PLAN)
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
    "pooled records": (TEXT.replace('"fedavg"', '"centralized"'), "policy"),
    "a ledger": (
        TEXT.replace("[protection]", '[training.dp]\nepsilon = 1.0\nledger = "/x"\n\n[protection]'),
        "policy",
    ),
    "a field twice": (TEXT.replace("seed = 0", "seed = 0\nseed = 1"), "settings"),
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
    assert text != TEXT and len(text) <= wire.MAX_PLAN
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
    padded = TEXT + "\n#" + "x" * (wire.MAX_PLAN - len(TEXT))
    for message in ([31, padded], [31, padded * 8], [31, b"\xff\xfe"], [31, TEXT, "more"], [31, 7]):
        frame = asker.link.pack(Stop("x"))
        head = signed([*tree(frame)[:-1], message], made.coordinator)
        assert asker.throw(head) is None
    raw = head_of([*tree(frame)[:-1], [31, "z" * 8]], b"").replace(b"z" * 8, b"\xff\xfe" * 4)
    assert asker.throw(raw + made.coordinator.sign(wire.digest(raw))) is None
    assert made.seen("invited") == []


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
    for _ in range(3000):
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
    assert outcomes["refused"] > 2000 and outcomes["read"] > 5


def test_a_plan_that_breaks_something_unforeseen_is_refused(opened):
    """The site's process lives on; what went wrong is told here, and a code there."""

    def unforeseen(plan: Plan) -> None:
        raise ZeroDivisionError("patient 7 of ward 3")

    made = opened(approve={"hospital-1": unforeseen})
    assert Asker(made).invite() == Failed("error")
    assert "patient 7" in made.seen("refused")[0]["why"]
    made = opened()
    made.seats["hospital-1"]._records = unforeseen
    asker = Asker(made)
    hello = asker.invite()
    nonces = {name: hello.nonce for name in made.members}
    assert asker.say(Gather(nonces)) == Failed("error")


# --- a hospital that is genuine, and answers as it likes ---------------------------------------


def another(rng: random.Random, message: Any) -> Any:
    """Another message that is one, so that it gets past the decoder."""
    for _ in range(40):
        found = changed(rng, message)
        try:
            peek(head_of(envelope_of(found)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if found != message:
            return found
    return changed(rng, message)


class Echo:
    """A hub that answers as hospitals did in a run before; one answer is another."""

    def __init__(self, made: Town, answers: list[dict[str, Frame]], run: bytes) -> None:
        self.made, self.answers, self.run = made, answers, run
        self.at = 0
        self.lie: tuple[int, str, random.Random] | None = None

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        said = self.answers[self.at] if self.at < len(self.answers) else {}
        for party, frame in frames.items():
            if party in said:
                yield party, self._signed(party, frame, said[party])
        self.at += 1

    def _signed(self, party: str, asked: Frame, answer: Frame) -> Frame:
        ask, envelope, bulk = peek(asked.head), tree(answer), answer.bulk
        envelope[0:3] = [self.run, ask.exchange, ask.round]
        if self.lie is not None and self.lie[:2] == (self.at, party):
            rng = self.lie[2]
            envelope[-1] = another(rng, envelope[-1])
            bulk = rng.choice((bulk, bulk, bulk[:-4], bulk + b"x", b"", rng.randbytes(len(bulk))))
            envelope[5:7] = [len(bulk), wire.digest(bulk)]
        return Frame(signed(envelope, self.made.keys[party].identity), bulk)


def recorded(made: Town) -> list[dict[str, Frame]]:
    """The answers of a run, exchange by exchange, without the lobby's."""
    found: list[dict[str, Frame]] = []
    original = made.exchange

    def exchange(frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        found.append({})
        for party, answer in original(frames, deadline):
            found[-1][party] = answer
            yield party, answer

    made.exchange = exchange  # type: ignore[method-assign]
    made.lead().run()
    return found[2:]


def insiders(folder: Path, runs: int, mode: Protection = "he+secagg") -> Counter[str]:
    """Runs of a coordinator in which one genuine hospital lies once."""
    plan = plan_of(FedAvg(rounds=1), protection=ProtectionSettings(mode=mode))
    made = town(folder, plan)
    answers, run = recorded(made), b"R" * 16
    rules = rules_of_roster(made.roster, plan, made.roster.names)
    outcomes: Counter[str] = Counter()
    for number in range(-1, runs):
        hub, rng = Echo(made, answers, run), random.Random(number)
        if number >= 0:
            hub.lie = rng.randrange(len(answers)), rng.choice(made.roster.names), rng
        links = {name: made.lead()._link(run, name) for name in made.roster.names}
        totals = blind_totals(plan.protection, made.roster.names, rules, run)
        coordinator = Coordinator(links, hub, rules, totals, Recorder("coordinator"))
        try:
            coordinator.run()
            outcomes["ended"] += 1
        except SecureFLError as error:
            assert number >= 0, f"the genuine answers were refused: {error}"
            outcomes[error.code] += 1
    return outcomes


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
def test_a_lying_hospital_stops_the_run_at_worst(tmp_path, mode):
    outcomes = insiders(tmp_path, 100, mode)
    assert outcomes["wire"] >= 5 and outcomes["disagreement"] >= 10
    assert 1 <= outcomes["ended"] < 60  # what the coordinator cannot see, the parties must


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_lying_hospital_stops_the_run_at_worst_many_times(tmp_path):
    insiders(tmp_path, 5000)


# --- kits ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kits of two pilots that share the names of their members: north, south, east."""
    folder, found = tmp_path_factory.mktemp("kits"), {}
    for pilot, hub, days in (("ours", "hub", 9.0), ("theirs", "hub2", 9.0), ("old", "hub", 9.0)):
        sites = [Identity.generate(name) for name in ("north", "south", "east")]
        cards = tuple(Member(s.name, "party", None, s.public) for s in sites)
        roster = make_roster(cards, Identity.generate(hub).public, days=days)
        if pilot == "old":
            past = datetime.now(UTC) - timedelta(days=2)
            roster = replace(roster, created=past, expires=past + timedelta(days=1))
        for site in sites:
            roster = roster.sign(site)
        for name, kit in write_kits(roster, folder / pilot, ("localhost",), 8002).items():
            found[f"{pilot} {name}"] = kit
    return found


def tampered(kit: Path, folder: Path, **files: Path | bytes) -> Path:
    """A copy of a kit with some files of other kits, or other contents."""
    copied = Path(shutil.copytree(kit, folder))
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        (copied / name.replace("_", ".")).write_bytes(data)
    return copied


def test_genuine_kits_load(kits):
    for who, kit in kits.items():
        if not who.startswith("old"):
            assert load_kit(kit).connection.name == who.split()[1]


def test_kits_that_are_not_whole_do_not_load(kits, tmp_path):
    ours, south, theirs = kits["ours north"], kits["ours south"], kits["theirs north"]
    connection = (ours / "connection.json").read_bytes()
    roster = (ours / "roster.json").read_bytes()
    wrong: dict[str, dict[str, Path | bytes]] = {
        "not listed": {"connection_json": connection.replace(b"north", b"west")},
        "coordinator is not": {"roster_json": theirs / "roster.json"},
        "certificate is of": {"connection_json": south / "connection.json"},
        "certificate is of 'south'": {
            "client_crt": south / "client.crt", "client_key": south / "client.key"
        },
        "not a kit's connection": {"connection_json": connection.replace(b"kit/1", b"kit/2")},
        "kit's connection": {"connection_json": connection[:-9]},
        "a kit's": {"connection_json": b"\xff\xfe" + connection},
        "kit's": {"connection_json": connection.replace(b'"north"', b"[" * 100_000)},
        "larger than": {"connection_json": connection + b" " * 2**23},
        "signature": {"roster_json": re.sub(rb'"north": "..', b'"north": "AA', roster)},
        "no signature": {"roster_json": roster.replace(b'"signatures"', b'"signature"')},
        "not a certificate": {"client_crt": b"-----BEGIN CERTIFICATE-----"},
    }  # fmt: skip
    for number, (what, files) in enumerate(wrong.items()):
        with pytest.raises(KeyringError) as caught:
            load_kit(tampered(ours, tmp_path / f"{number}", **files))
        found = str(caught.value)
        assert what in found or what in ("not listed", "no signature"), found
    dated = re.sub(rb'"created": "[^"]*', b'"created": "0001-01-01T00:00:00+05:00', roster)
    with pytest.raises(KeyringError, match="a date"):
        load_kit(tampered(ours, tmp_path / "dated", roster_json=dated))
    with pytest.raises(KeyringError, match="expired"):
        load_kit(kits["old north"])
    with pytest.raises(KeyringError, match="is not there"):
        load_kit(tampered(kits["ours hub"], tmp_path / "hub", connection_json=connection))


def test_a_foreign_roster_has_other_keys_for_this_site(kits):
    """It is whole, and of people with our names: this site's own keys are not on it."""
    mine = load_kit(kits["ours north"]).roster.member("north").identity
    load_kit(kits["ours north"]).roster.require(mine)
    with pytest.raises(KeyringError, match="other keys"):
        load_kit(kits["theirs north"]).roster.require(mine)


@pytest.mark.parametrize("name", ["connection.json", "roster.json"])
def test_damaged_files_of_a_kit_are_errors(kits, tmp_path, name):
    kit = Path(shutil.copytree(kits["ours north"], tmp_path / "kit"))
    genuine, rng = (kit / name).read_bytes(), random.Random(1)
    before, refused = load_kit(kit), 0
    for _ in range(600):
        damaged = rng.choice((flipped, flipped, cut, longer))(rng, genuine)
        (kit / name).write_bytes(damaged)
        try:
            found = load_kit(kit)
        except KeyringError:
            refused += 1
            continue
        assert found.roster.digest() == before.roster.digest()
        assert found.connection.name == "north" and found.connection.hub == "hub"
    assert refused > 400


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (8, 6)])
def test_clear_sums_of_unequal_sizes_are_a_disagreement(sizes):
    """Protection "none": one hospital could have ended the coordinator's process."""
    total = ClearTotal()
    first, second = (wire.Segment(b"k" * 32, size) for size in sizes)
    total.add("a", (first,), bytes(first.size))
    with pytest.raises(SecureFLError):
        total.add("b", (second,), bytes(second.size))
