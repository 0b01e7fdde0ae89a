"""A hospital that is genuine, and answers as it likes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.coordinator.assembly import lead_run
from secure_fl.errors import SecureFLError
from secure_fl.pilot.run_id import rules_of_roster
from secure_fl.protocol import frames
from secure_fl.protocol.frames import Frame, peek
from secure_fl.settings import Protection, ProtectionSettings
from tests.support.edge import envelope_of
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.mutants import changed, head_of, signed, tree


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
