"""How a pilot stands, below the logs of its coordinator and of a hospital."""

from __future__ import annotations

from rich.text import Text

from secure_fl.display.status_line import CoordinatorStatus, SiteStatus
from secure_fl.events import (
    PlanAccepted,
    RoundSaved,
    RoundStarted,
    Scored,
    TrainingProgress,
    Waiting,
)
from tests.support.screens import WIDTHS, Clock, drawn, require_text

NAMES = ("north", "st-elsewhere-university-hospital", "west")


def screens(*named: tuple[str, list[str]]) -> str:
    """Lines at every width, under what they are of."""
    return "\n".join(
        "\n".join([f"--- {what}, {width} columns", drawn(Text("\n".join(lines)), width)])
        for what, lines in named
        for width in WIDTHS
    )


def lead(clock: Clock) -> CoordinatorStatus:
    standing = CoordinatorStatus(8, clock)
    for round in (1, 2, 3):
        standing(RoundStarted(round=round, members=NAMES))
        clock.now += 40.0
    return standing


def test_a_coordinator_shows_who_is_late_and_since_when() -> None:
    clock = Clock()
    standing = CoordinatorStatus(8, clock)
    before = standing.lines()
    standing(Waiting(parties=NAMES[:2]))
    clock.now += 12.0
    gathering = standing.lines()
    clock.now = 0.0
    standing = lead(clock)
    standing.waited_for = lambda: {NAMES[1]: 34.0, "west": 12.5}
    standing.connected = lambda: {"north", NAMES[1]}
    running = standing.lines()
    standing.waited_for = dict
    seen = [("before anybody", before), ("gathering", gathering), ("in a round", running)]
    require_text("lead", screens(*seen, ("all have answered", standing.lines())))
    standing(Waiting(parties=("west",)))
    assert standing.lines() == ["gathering; waiting for west (0.0 s)"]


def scored(round: int, *, pooled: bool = False, **scores: float) -> Scored:
    return Scored(round=round, split="dev", values=scores, pooled=pooled)


def trained(round: int, step: int) -> TrainingProgress:
    return TrainingProgress(round=round, step=step, steps=6, loss=0.7 / round)


def test_a_hospital_shows_its_own_training_and_for_whom_it_waits() -> None:
    clock = Clock()
    standing, seen = SiteStatus(clock), list[tuple[str, list[str]]]()

    def see(what: str) -> None:
        seen.append((what, standing.lines()))

    see("before anybody")
    standing(PlanAccepted(run="study", rounds=8))
    standing(Waiting(run="study", parties=NAMES[1:]))
    see("gathering")

    def step(round: int) -> int:
        standing(RoundSaved(round=round, members=NAMES))
        clock.now += 20.0
        standing(trained(round, 3))
        if round == 4:
            see("training")
        standing(trained(round, 6))
        if round == 4:
            see("at work")
        score = 0.5 + 0.05 * round
        standing(scored(round, loss=0.5, accuracy=0.1))
        standing(scored(round, pooled=True, loss=0.5, accuracy=score))
        return round

    stepped = standing.around(step)
    for round in (1, 2, 3, 4):
        assert stepped(round) == round
        clock.now += 15.0
    see("answered")
    require_text("site", screens(*seen))
    assert "0.100" not in seen[-1][1][-1]  # scores over all records, where there are such


def test_scores_that_stay_at_home_are_called_so() -> None:
    standing = SiteStatus(Clock())
    standing(PlanAccepted(run="study", rounds=2))
    standing(RoundSaved(round=1, members=NAMES))
    standing(scored(1, loss=0.5, accuracy=0.75))
    assert standing.lines()[-1] == "dev accuracy here 0.750"
