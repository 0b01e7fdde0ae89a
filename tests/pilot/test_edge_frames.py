"""Mutated frames at both ends of a run: nothing is accepted, and the run ends as it should."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator.assembly import lead_run, links_to
from secure_fl.crypto.keys.identity import Identity, PublicIdentity
from secure_fl.crypto.sealing.clear_sum import ClearTotal
from secure_fl.engines.transport_message import HEADER, MessageKind, StepId, TransportMessage
from secure_fl.errors import SecureFLError, WireError
from secure_fl.pilot.plan import rules_of_roster
from secure_fl.protocol import frames, messages
from secure_fl.protocol.frames import Frame, Link, peek
from secure_fl.settings import Protection, ProtectionSettings
from tests.support.edge import PLAN, envelope_of, peak
from tests.support.fuzzing import Fuzzer, FuzzFinding
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.mutants import MUTATORS, changed, head_of, nested, signed, tree
from tests.support.raising import raises


def weather(folder: Path, mutants: int, seed: int = 0) -> Fuzzer:
    """A run that ends as if nothing had been thrown at either end."""
    made = local_pilot(folder, PLAN)
    least = 60  # frames: 10 exchanges, 3 parties, 2 ways
    fuzzer = Fuzzer(made, mutants // least, seed)
    fuzzer.lead().run()
    assert fuzzer.found == []
    assert all(seat.done for seat in made.processes.values())
    assert sum(fuzzer.thrown.values()) >= mutants, fuzzer.thrown
    assert set(fuzzer.kinds) == set(MUTATORS)
    assert fuzzer.repeated > 0, "no mutant was a plain repetition"
    assert fuzzer.slowest < 0.5  # seconds of this thread's own time
    return fuzzer


def test_twelve_thousand_mutants_and_the_run_ends(tmp_path):
    fuzzer = weather(tmp_path, 12_000)
    assert min(fuzzer.thrown["party"], fuzzer.thrown["coordinator"]) > 4800


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
    """Believes the name in a frame, and looks at no signature."""

    def unpack(self, frame: Frame) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PublicIdentity, "verify", lambda self, digest, signature: None)
            return super().unpack(frame)

    def _expect(self, field: str, holds: bool) -> None:
        super()._expect(field, holds or field == "sender")


def any_bulk(frame: Frame, verify: Any) -> frames.Envelope:
    """Decode without a look at the bulk."""
    envelope = peek(frame.head)
    verify(frames.digest(frame.head[:-64]), frame.head[-64:])
    return envelope


def fragile(frame: Frame, verify: Any) -> frames.Envelope:
    """Decode, and let errors fly."""
    frames._decoder.decode(frame.head[1:-64])
    return DECODE(frame, verify)


DECODE = frames.decode


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Break one check."""
    links = {"receiver": NoReceiver, "count": NoCount, "sender": NoSender}
    if bug in links:
        patch.setattr("secure_fl.pilot.hospital.Link", links[bug])
        patch.setattr("secure_fl.pilot.gathering.links_to", partial(links_to, link=links[bug]))
    elif bug == "signature":
        patch.setattr(PublicIdentity, "verify", lambda self, digest, signature: None)
    else:
        patch.setattr(frames, "decode", any_bulk if bug == "bulk" else fragile)


@pytest.mark.parametrize(
    ("bug", "seen"),
    [
        ("receiver", "accepted"),
        ("count", "accepted"),
        ("sender", "accepted"),
        ("signature", "accepted"),
        ("bulk", "accepted"),
        ("errors that fly", r": (Decode|UnicodeDecode|Validation)Error: "),
    ],
)
def test_the_storm_finds_planted_bugs(opened, monkeypatch, bug, seen):
    plant(monkeypatch, bug)
    fuzzer = Fuzzer(opened(), 100, eager=True)
    with pytest.raises(FuzzFinding, match=seen):
        fuzzer.lead().run()


# --- a hospital that is genuine, and answers as it likes ----------------------------------------


def another(rng: random.Random, message: Any) -> Any:
    """Another message that is one, so that it gets past the decoder."""
    for _ in range(40):
        found = changed(rng, message)
        try:
            peek(head_of(envelope_of(found)))
        except WireError:
            continue
        if found != message:
            return found
    return changed(rng, message)


class Echo:
    """A hub that answers as hospitals did in a run before; one answer is another."""

    def __init__(self, made: LocalPilot, answers: list[dict[str, Frame]], run: bytes) -> None:
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
            envelope[5:7] = [len(bulk), frames.digest(bulk)]
        return Frame(signed(envelope, self.made.keys[party].identity), bulk)


def recorded(made: LocalPilot) -> list[dict[str, Frame]]:
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
    made = local_pilot(folder, plan)
    answers = recorded(made)
    run = peek(next(iter(answers[0].values())).head).run  # what parties dealt is bound to it
    rules = rules_of_roster(made.roster, plan, made.roster.names)
    outcomes: Counter[str] = Counter()
    for number in range(-1, runs):
        hub, rng = Echo(made, answers, run), random.Random(number)
        if number >= 0:
            hub.lie = rng.randrange(len(answers)), rng.choice(made.roster.names), rng
        links = {name: made.link(run, name) for name in made.roster.names}
        coordinator = lead_run(links, hub, rules, plan.protection)
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
    # An answer that is not one counts as none: with three hospitals the others are too few.
    assert outcomes["wire"] + outcomes["too-few-parties"] >= 5 and outcomes["disagreement"] >= 10
    assert 1 <= outcomes["ended"] < 60  # what the coordinator cannot see, the parties must


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_lying_hospital_stops_the_run_at_worst_many_times(tmp_path):
    insiders(tmp_path, 5000)


# --- what a stranger sends costs no more than it weighs, and what is no frame is an error -------


def test_memory_and_time_stay_bounded(opened):
    """No forged frame is even decoded: it costs what it weighs, at either end."""
    made = opened()
    step = made.processes["hospital-1"].step
    link = made.link(b"r" * 16, "hospital-1")
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
        assert peak(step, frame) < 2 * frame.size + 2**16
        assert peak(link.unpack, frame) < 2**16
        assert time.thread_time() - began < 5
    start = head_of(envelope_of([1])[:7], b"")
    start = start[:1] + b"\x98" + start[2:]
    for kind in range(33):
        for huge in (b"\xdd", b"\xdf", b"\xdb", b"\xc6"):
            declared = start + bytes([0x92, kind]) + huge + b"\xff\xff\xff\xff" + b"s" * 64
            assert peak(step, Frame(declared)) < 2**16
            assert peak(link.unpack, Frame(declared)) < 2**16
    too_large = Frame(bytes([frames.VERSION]) * (frames.MAX_HEAD + 65))
    assert peak(step, too_large) < 2**16  # not even hashed
    assert peak(link.unpack, too_large) < 2**16
    bulk = Frame(head_of(envelope_of([28, "x"]), b"s" * 64), bytes(2**24))
    assert peak(step, bulk) < 2**16
    assert peak(link.unpack, bulk) < 2**16


def test_parcels_are_whole_or_errors():
    """The engine's own layer: any bytes at all."""
    rng = random.Random(5)
    frame, step = Frame(b"h" * 90, b"b" * 300), StepId(b"l" * 16, 7)
    genuine = [b"".join(TransportMessage(kind, step, frame).to_buffers()) for kind in MessageKind]
    refused = 0
    for _ in range(6_000):
        data = bytearray(rng.choice(genuine))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 32))] = rng.randrange(256)
        data = data[: rng.choice((len(data), rng.randrange(len(data) + 1)))]
        try:
            parcel = TransportMessage.from_bytes(data)
        except WireError:
            refused += 1
        else:  # what was read is what is there, and no byte more
            assert b"".join(parcel.to_buffers()) == bytes(data)
    assert 300 < refused < 5_700
    header = HEADER.pack(1, MessageKind.STEP, b"l" * 16, 7)
    assert peak(TransportMessage.from_bytes, header + b"\xff\xff\xff\xff" + b"x") < 2**12


def test_a_wrong_kind_does_not_move_the_counter():
    """`nothing was accepted` must be true of what it is said of."""
    server, party = Identity.generate("server"), Identity.generate("north")
    asks = Link(b"r" * 16, server, party.public, asks=True, exchange=98)
    answers = Link(b"r" * 16, party, server.public, asks=False)
    with raises(WireError, field="kind", round=0, step=0):
        answers.unpack(asks.pack(messages.Done()))
    assert answers.exchange == 0


@pytest.mark.parametrize("message", [[10, "policy\n"], [10, "a name"], [3, "host\n", []]])
def test_a_code_is_a_code_to_its_last_byte(message):
    """`$` would let a line end pass, and with it a line of one's own into a log."""
    with pytest.raises(WireError) as caught:
        peek(head_of(envelope_of(message)))
    assert re.search(r"regex|enum", str(caught.value.__cause__))


@pytest.mark.parametrize("sizes", [(4, 8), (8, 4), (8, 6)])
def test_clear_sums_of_unequal_sizes_are_a_disagreement(sizes):
    """Protection "none": one hospital could have ended the coordinator's process."""
    total = ClearTotal()
    first, second = (messages.Segment(b"k" * 32, size) for size in sizes)
    total.add("a", (first,), bytes(first.size))
    with pytest.raises(SecureFLError):
        total.add("b", (second,), bytes(second.size))
