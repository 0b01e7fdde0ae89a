"""Mutated frames at both ends of a run: nothing is accepted, and the run ends as it should."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secure_fl.coordinator.assembly import links_to
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.errors import WireError
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Frame, Link, peek
from tests.support.edge import PLAN
from tests.support.fuzzing import Fuzzer, FuzzFinding
from tests.support.local_pilot import local_pilot
from tests.support.mutants import MUTATORS


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


def test_thirty_thousand_mutants_and_the_run_ends(tmp_path):
    fuzzer = weather(tmp_path, 30_000)
    assert min(fuzzer.thrown["party"], fuzzer.thrown["coordinator"]) > 12_000


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
    try:
        envelope = peek(frame.head)
    except Exception as error:
        raise WireError("not a frame") from error
    verify(frames.digest(frame.head[:-64]), frame.head[-64:])
    return envelope


def fragile(frame: Frame, verify: Any) -> frames.Envelope:
    """Decode, and let errors fly."""
    peek(frame.head)
    return DECODE(frame, verify)


DECODE = frames.decode


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Break one check."""
    links = {"receiver": NoReceiver, "count": NoCount, "sender": NoSender}
    if bug in links:
        patch.setattr("secure_fl.pilot.hospital.Link", links[bug])
        patch.setattr(
            "secure_fl.pilot.coordinator_process.links_to", partial(links_to, link=links[bug])
        )
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
