"""A run as it happens, in a terminal of any width and off one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from secure_fl import FedAvg
from secure_fl.display.watch import COORDINATOR, Watch
from secure_fl.events import Crossing, Event, MembersLost, RoundStarted, Scored, TrainingProgress
from secure_fl.testing.hospitals import silos, small
from tests.support.screens import Clock, drawn


def started(round: int) -> RoundStarted:
    return RoundStarted(party=COORDINATOR, round=round, members=NAMES)


def trained(party: str, round: int, step: int, loss: float) -> TrainingProgress:
    return TrainingProgress(party=party, round=round, step=step, steps=6, loss=loss)


def crossing(party: str, direction: str, head: int, bulk: int) -> Crossing:
    return Crossing(
        party=party, round=1, exchange=1, direction=direction, kind="SumInput",
        audience="parties", head_bytes=head, bulk_bytes=bulk, digest="",
    )  # fmt: skip


def events(rounds: int, names: tuple[str, ...]) -> Iterator[Event]:
    """What a run tells, in the middle of its last but one round."""
    for round in range(1, rounds):
        yield started(round)
        for place, name in enumerate(names):
            done = 3 if round == rounds - 1 and place else 6
            for step in range(1, done + 1):
                yield trained(name, round, step, 0.7 / round)
        for name in names if round < rounds - 1 else ():
            scores = {"accuracy": 0.5 + 0.05 * round}
            yield Scored(party=name, round=round, split="dev", values=scores)
            yield crossing(name, "out", 512, 91_000)
    yield MembersLost(party=COORDINATOR, parties=names[-1:])


NAMES = ("north", "st-elsewhere-university-hospital", "west")


def test_who_is_late_is_named_with_how_far_it_is_and_how_long_the_others_wait() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), height=40, width=100)
    watch = Watch(console, "fedavg", 8, "accuracy", clock)

    def train(party: str, step: int) -> None:
        clock.now += 5.0
        watch(trained(party, 1, step, 0.7))

    def shown() -> str:
        head = drawn(watch.shown(), 100).split("\nhospital")[0].partition("\n")[2]
        return " ".join(head.split())

    watch(started(1))
    for name in NAMES:
        watch(crossing(name, "in", 9, 0))
    train("north", 3)
    assert shown() == ""  # nobody waits yet
    train("north", 6)
    train("west", 2)
    ready = "1 of 3 have trained, for 5.0 s; waiting for "
    assert shown() == f"{ready}st-elsewhere-university-hospital (not started), west (step 2 of 6)"
    watch(MembersLost(party=COORDINATOR, parties=(NAMES[1],)))
    assert shown() == "1 of 2 have trained, for 5.0 s; waiting for west (step 2 of 6)"
    train("west", 6)
    assert shown() == ""
    for name in ("north", "west"):
        watch(trained(name, 2, 1, 0.6))
    watch(started(2))
    assert shown() == ""


def told(rounds: int, seconds: float) -> str:
    clock, said = Clock(), io.StringIO()
    with Watch(Console(file=said, width=60), "fedavg", rounds, "accuracy", clock) as watch:
        for event in events(rounds, NAMES):
            clock.now += seconds
            watch(event)
    return said.getvalue()


def test_off_a_terminal_it_says_a_line_for_each_round_and_breaks_long_silence() -> None:
    quick, slow = told(8, 0.1), told(8, 20.0)
    rounds = [line for line in quick.splitlines() if line.startswith("round ")]
    assert [line.split("  ")[0] for line in rounds] == [f"round {k}/8" for k in range(1, 7)]
    assert "about" in rounds[0] and "left" in rounds[0] and "▁" in rounds[-1]
    assert "at step" not in quick and "north at step 4 of 6" in slow
    long = "st-elsewhere-university-hospital"
    assert f"{long} at step 1 of 6" in slow
    assert f"1 of 2 have trained, for 20.0 s; waiting for {long} (step 1 of 6)" in slow


def test_a_resumed_run_tells_no_round_that_it_did_not_see() -> None:
    said = io.StringIO()
    with Watch(Console(file=said), "fedavg", 4, "accuracy", Clock()) as watch:
        watch(started(4))
        assert "loss" not in said.getvalue()
        watch(started(5))
    assert "resumed after round 3/4" in said.getvalue() and "round 4/4  loss" in said.getvalue()


def test_the_library_prints_a_line_per_round_unless_a_program_listens(capsys: Any) -> None:
    ways: list[dict[str, Any]] = [
        {}, {"progress": True}, {"progress": False}, {"listener": lambda event: None},
    ]  # fmt: skip
    printed = []
    for options in ways:
        small(FedAvg(rounds=1), silos=silos(size=16), **options).run()
        printed.append("round 1/1" in capsys.readouterr().err)
    assert printed == [True, True, False, False]
