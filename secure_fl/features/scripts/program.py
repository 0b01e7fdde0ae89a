"""The party program of a script: it carries out the script's calls, one after the other.

A script may outlive a session: if the run is gathered again, the next session finds the script in
a round. The program then repeats the calls of this round, whose results must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from secure_fl.algorithms.updates import SavedDict
from secure_fl.errors import (
    CohortError,
    DataError,
    SecureFLError,
    SettingsError,
    TrainingError,
    nearest,
)
from secure_fl.features.scripts.algorithm import WEIGHT, Script, Shape
from secure_fl.features.scripts.turns import (
    Advance,
    AgreeCall,
    AnsweredCall,
    LastMessage,
    NextRound,
    ScriptAnswer,
    ScriptHandle,
    ScriptRequest,
    SumCall,
    Summed,
    TurnRefused,
)
from secure_fl.party.cohort import Cohort
from secure_fl.runs import checkpoint

if TYPE_CHECKING:
    from secure_fl.learning.site import Site

BY_HAND = (
    "this plan is for a script, which joins by itself: write `with secure_fl.join(...)` "
    "in the script, and run it instead of `secure-fl join`"
)


def without_script(*_: object) -> NoReturn:
    """Refuse a plan of a script at a site that runs none."""
    raise DataError("no script runs at this site", fix=BY_HAND, field="algorithm.name")


class SavedCalls:
    """Answers to calls before the loop over rounds: a script that starts again gets them again.

    With the sets of names on which the sites have agreed. All of it is equal at all sites.
    """

    def __init__(self) -> None:
        self.answers: list[Summed] = []
        self.agreed: list[list[str]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the answers for a checkpoint."""
        answers = [
            {"sums": dict(one.sums), "sites": one.sites, "agreed": one.agreed}
            for one in self.answers
        ]
        return {"answers": answers, "agreed": self.agreed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the answers from `state_dict`."""
        self.answers = [
            Summed(one["sums"], one["sites"], one.get("agreed", "")) for one in state["answers"]
        ]  # older checkpoints have no digest
        self.agreed = [list(names) for names in state["agreed"]]


async def run_script(cohort: Cohort, site: Site, cfg: Script) -> None:
    """Run the program of one site."""
    script = site.silo.table
    if not isinstance(script, ScriptHandle):
        without_script()
    await ScriptProgram(cohort, cfg, script).run()


class ScriptProgram:
    """One session of a script."""

    def __init__(self, cohort: Cohort, cfg: Script, script: ScriptHandle) -> None:
        self._cohort, self._cfg, self._script = cohort, cfg, script
        self._saved, self._repeated = SavedCalls(), 0
        self._own, self._shared = SavedDict(), SavedDict()  # the script's, sent or restored
        self._moved = False
        self._rounds = cohort.rounds(
            cfg.rounds,
            keep={"own": self._own},
            shared={"calls": self._saved, "shared": self._shared},
        )

    async def run(self) -> None:
        """Carry out calls until the script ends."""
        script = self._script
        number = await self._next_round()
        if not script.round:
            script.enter(number)
        else:
            await self._return(number)
        script.begin(self._cohort.roster, self._cfg)
        while not isinstance(request := script.next_request(), LastMessage):
            try:
                self._check(request)
            except SecureFLError as error:
                script.answer(TurnRefused(error.at(party=self._cohort.me)))
                continue
            began = script.round
            answer = await self._carry_out(request)
            if script.round == began or isinstance(request, SumCall):  # not the turn of a round
                script.answered.append(AnsweredCall(request, answer))
            script.answer(answer)
        if request.error is not None:
            raise request.error

    async def _return(self, number: int) -> None:
        """Bring a script that is in a round already to the same place of a new session."""
        script = self._script
        if script.advancing and number == script.round + 1:  # the round was saved after all
            script.enter(number)
            self._moved = True
            return
        if number != script.round:
            script.abandon(
                CohortError(
                    f"the run continues in round {number}, and this script is in {script.round}",
                    fix="start the script again: it continues after the last saved round",
                    party=self._cohort.me,
                )
            )
        calls, script.answered = script.answered, []
        script.summed.clear()
        script.in_loop = script.in_loop and not any(isinstance(c.request, Advance) for c in calls)
        for call in calls:
            again = await self._carry_out(call.request)
            if isinstance(call.answer, Summed) and not _equal(again, call.answer):
                script.abandon(
                    CohortError(
                        f"round {number} was repeated with another result",
                        fix="start the script again: it continues after the last saved round",
                        party=self._cohort.me,
                    )
                )
            script.answered.append(call)

    async def _carry_out(self, request: ScriptRequest) -> ScriptAnswer:
        """Carry out one call of the script."""
        script = self._script
        if isinstance(request, Advance):
            return await self._advance(request)
        if (saved := self._saved_answer()) is not None:
            self._repeated += 1
            return saved
        if isinstance(request, AgreeCall):
            await self._cohort.agree(request.digest, request.about)
            answer = Summed({}, 0, request.digest.hex())
        else:
            if not script.in_loop and script.summed & _names(request):
                await self._turn()
            answer = await self._sum(request)
        if not script.in_loop:
            self._saved.answers.append(answer)
            self._repeated += 1
        return answer

    async def _advance(self, request: Advance) -> NextRound:
        """Save the script's state, and begin the next round; the loop's first call only begins."""
        script = self._script
        if script.in_loop:
            if not self._moved:
                self._own.load_state_dict(request.own)
                self._shared.load_state_dict(request.shared)
                await self._turn()
            self._moved = False
            return self._answer_to_advance()
        script.in_loop, self._moved = True, False  # a round before the loop may have been saved
        return replace(self._answer_to_advance(), own=dict(self._own), shared=dict(self._shared))

    def _answer_to_advance(self) -> NextRound:
        number, total = self._script.round, self._cfg.rounds
        return NextRound(number if number <= total else 0, total)

    async def _turn(self) -> None:
        """End a round, save it, and begin the next."""
        self._script.advancing = True
        self._script.enter(await self._next_round())

    async def _next_round(self) -> int:
        """Begin a round, and return its number; after the last one, return the next number."""
        try:
            return (await anext(self._rounds)).number
        except StopAsyncIteration:
            return self._cfg.rounds + 1

    async def _sum(self, request: SumCall) -> Summed:
        """Add values over the sites, which agree on a set of names before they first sum it."""
        values = dict(request.values)
        if request.weighted and not self._cfg.weighted:
            del values[WEIGHT]
        names = sorted(values)
        if names not in self._saved.agreed:
            await self._cohort.agree("\n".join(names).encode(), "the names of the values")
            self._saved.agreed.append(names)
        sums = await self._cohort.sum(values, carry=request.carry)
        self._script.summed |= _names(request)
        return Summed(sums, len(self._cohort.survivors))

    def _check(self, request: ScriptRequest) -> None:
        """Refuse a call that the plan does not allow, before anything is sent."""
        if (saved := self._saved_answer()) is not None:
            _require_same_call(request, saved)
            return
        if isinstance(request, Advance):
            checkpoint.check([request.own, request.shared])
        if not isinstance(request, SumCall):
            return
        self._require_round(sorted(self._script.summed & _names(request)))
        for name, array in request.values.items():
            if name == WEIGHT and request.weighted:
                self._require_weights(float(array))
                continue
            _require_shape(name, array.shape, self._cfg.values, self._script.shapes)
            if not np.isfinite(array).all():
                raise TrainingError(
                    f"{name} holds NaN or infinity; nothing was sent",
                    fix="lower the learning rate, or check the records of this site",
                )

    def _saved_answer(self) -> Summed | None:
        """Return the answer that a script which starts again got before its loop."""
        if self._script.in_loop or self._repeated == len(self._saved.answers):
            return None
        return self._saved.answers[self._repeated]

    def _require_round(self, again: list[str]) -> None:
        script, total = self._script, self._cfg.rounds
        if again and script.in_loop:
            raise SettingsError(
                f"{again[0]} is already summed in round {script.round}; nothing was sent",
                fix="sum each name once in a round, or use another name",
            )
        if script.round > total or (again and script.round == total):
            raise SettingsError(
                f"the plan has {total} rounds, and they are over; nothing was sent",
                fix="give the plan more rounds, or make this call in the last one",
                field="algorithm.rounds",
            )

    def _require_weights(self, weight: float) -> None:
        if not self._cfg.weighted and weight != 1:
            raise SettingsError(
                f"this mean has the weight {weight:g}, and the plan allows no weights",
                fix="omit the weight, or set weighted = true in the plan",
                field="algorithm.weighted",
            )


def _names(request: SumCall) -> set[str]:
    return request.values.keys() - {WEIGHT}


def _require_same_call(request: ScriptRequest, saved: Summed) -> None:
    """Refuse another call than this script made when the run began."""
    names = _names(request) if isinstance(request, SumCall) else set()
    if not isinstance(request, Advance) and names != saved.sums.keys() - {WEIGHT}:
        raise SettingsError(
            "this call is not the one that the script made here when the run began",
            fix="continue a run with the script that began it, or start a new run",
        )
    if isinstance(request, AgreeCall) and saved.agreed not in ("", request.digest.hex()):
        raise SettingsError(
            f"{request.about} differs from the one on which all sites agreed when the run began",
            fix="continue a run with the value and the script that began it, or start a new run",
        )


def _require_shape(
    name: str, shape: Shape, planned: Mapping[str, Shape] | None, seen: dict[str, Shape]
) -> None:
    """Refuse a value that the plan does not name, or whose shape is another."""
    if planned is not None and name not in planned:
        raise SettingsError(
            f"the plan does not name {name!r}; nothing was sent",
            fix=nearest(name, list(planned)),
            field="algorithm.values",
        )
    if planned is None and name not in seen:
        _require_plannable(name, shape)
    known = seen.setdefault(name, shape) if planned is None else tuple(planned[name])
    if shape != known:
        raise SettingsError(
            f"{name} has the shape {list(shape)} instead of {list(known)}; nothing was sent",
            fix="give it the shape of the plan, which is the same at all sites",
            field="algorithm.values",
        )


def _require_plannable(name: str, shape: Shape) -> None:
    """Refuse a value that a plan cannot name; a simulation writes the plan at its end."""
    try:
        Script(values={name: shape})
    except SecureFLError as error:
        raise SettingsError(
            f"no plan can name {name!r} with the shape {list(shape)}; nothing was sent",
            fix='choose a name of 1 to 200 characters without ", \\ and line breaks, and give at '
            "least one value in at most 8 dimensions",
        ) from error


def _equal(one: ScriptAnswer, other: Summed) -> bool:
    return (
        isinstance(one, Summed)
        and one.sites == other.sites
        and all(np.array_equal(one.sums[name], array) for name, array in other.sums.items())
    )
