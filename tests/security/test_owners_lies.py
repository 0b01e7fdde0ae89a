"""Partial sums are over whom the coordinator says; nobody may be left alone in one by that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.algorithms.registry import ALGORITHMS
from secure_fl.coordinator.machine import Coordinator
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.errors import CohortError, TooFewParties
from secure_fl.federation.validation import statement_of_some
from secure_fl.party import summing as party_summing
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.runs.party_checkpoints import PartyCheckpoints
from secure_fl.settings import Protection
from secure_fl.testing.harness import LossyEngine, Program, federate
from tests.support.attacker import Liar, Lie, Wiretap, told
from tests.support.stateless import Stateless

HOST = "hub"
NAMES = ("east", "north", "south")
FOUR = (*NAMES, "west")


def careless(lie: Lie) -> Callable[..., Coordinator]:
    """A coordinator that lies, and does not itself insist on `min_cohort`."""
    return lambda links, engine, rules, *rest: Liar(
        links, engine, replace(rules, min_cohort=1), *rest, lie=lie
    )


def giving(value: float) -> Program:
    async def run(cohort: Cohort) -> Any:
        values = {} if cohort.is_host else {"x": np.full(20, value, np.float32)}
        return await cohort.sum(values, partial=True, bound=8.0)

    return run


@pytest.mark.parametrize("mode", ["secagg", "he+secagg"])
@pytest.mark.parametrize("looked", [False, True])
def test_the_host_is_no_contributor_to_hide_behind(
    mode: Protection, looked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It masks with nobody: a party "alone with the host" would send its own value.

    Where nobody looks at who it is, the host counts for nothing, and so there are too few.
    """

    def lie(party: str, message: messages.Owners) -> messages.Owners:
        return structs.replace(message, owners={"x": (party, HOST)})

    if not looked:
        monkeypatch.setattr(party_summing, "_check_members", lambda *_: None)
    tap = Wiretap()
    programs = {name: giving(k) for k, name in enumerate((*NAMES, HOST), 1)}
    out = federate(
        programs,
        mode=mode,
        host=HOST,
        min_cohort=2,
        engine=tap,
        lead=careless(told(messages.Owners, lie)),
        catch=True,
    )
    assert type(out.sessions["east"].error) is (CohortError if looked else TooFewParties)
    assert not any(h.bulk for h in tap.of(messages.SumInput))


@pytest.mark.parametrize("lost", [False, True])
def test_two_of_forty_eight_are_too_few_at_once_and_after_a_loss(lost: bool) -> None:
    """A coordinator that does not insist; at first, or once the third of them is gone."""
    names = tuple(f"p{i:02d}" for i in range(48))
    few = names[:3] if lost else names[:2]

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            values = {"few": np.ones(20)} if name in few else {}
            return await cohort.sum({"all": 1.0, **values}, partial=True, bound=2.0)

        return run

    tap = Wiretap()
    engine = (lambda s: LossyEngine(s, lose={few[-1]: 3})) if lost else tap
    options: dict[str, Any] = {"mode": "secagg", "threshold": 33, "min_cohort": 3, "catch": True}
    lead = careless(lambda _, said: said)
    out = federate({n: program(n) for n in names}, engine=engine, lead=lead, **options)
    assert isinstance(out.sessions[names[0]].error, TooFewParties) and out.results == {}
    assert not any(h.bulk for h in tap.of(messages.SumInput, names[0]))


def repeated(lie: Lie, folder: Path, lose: Mapping[str, int]) -> dict[str, list[float]]:
    """What parties learn of two runs of round 1 with the same inputs, the second with lies."""
    learnt: dict[str, list[float]] = {name: [] for name in FOUR}

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> None:
            values = {"x": np.full(20, 2.0 ** FOUR.index(name))}
            async for _ in cohort.rounds(1):
                sums = await cohort.sum(values, partial=True, bound=8.0)
                learnt[name].append(round(float(sums["x"].mean())))
                break  # before the round is saved

        return run

    for say, lost in ((lambda _, said: said, {}), (lie, lose)):
        federate(
            {name: program(name) for name in FOUR},
            mode="he+secagg",
            engine=partial(LossyEngine, lose=lost),
            lead=careless(say),
            kept={name: PartyCheckpoints(folder / name, Stateless()) for name in FOUR},
            catch=True,
        )
    return learnt


def without_west(party: str, message: messages.Owners) -> messages.Owners:
    """West is there, and "does not contribute": the two sums would differ by its input."""
    owners = ("south", "west") if party == "west" else ("east", "north", "south")
    return structs.replace(message, owners={"x": owners})


def with_scales(_party: str, message: messages.Owners) -> messages.Owners:
    """A sum more, over all; then the values are another sum than they were, without west."""
    return structs.replace(message, unscaled=("x",))


@pytest.mark.parametrize(("lie", "lose"), [(without_west, {}), (with_scales, {"west": 5})])
def test_a_repeated_round_is_summed_as_it_was_or_not_at_all(
    tmp_path: Path, lie: Lie, lose: Mapping[str, int]
) -> None:
    learnt = repeated(told(messages.Owners, lie), tmp_path, lose)
    assert learnt == {name: [15] for name in FOUR}
    honest = repeated(lambda _, said: said, tmp_path, {})
    assert honest == {name: [15, 15] for name in FOUR}


def test_a_coalition_of_min_cohort_less_one_can_single_somebody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit that is documented: who contributes a name is what the coordinator says."""
    monkeypatch.setattr(ProtectedTotal, "require_consistent", lambda *_: None)
    honest, colluders = "east", ("north", "south")

    def lie(party: str, message: messages.Owners) -> messages.Owners:
        owners = FOUR if party not in (honest, *colluders) else (honest, *colluders)
        return structs.replace(message, owners={"x": tuple(owners)})

    programs = {name: giving(2.0 ** FOUR.index(name)) for name in FOUR}
    options: dict[str, Any] = {"mode": "he+secagg", "min_cohort": 3, "catch": True}
    out = federate(programs, lead=careless(told(messages.Owners, lie)), **options)
    assert round(float(out.results[honest]["x"].mean())) == 1 + 2 + 4  # less what two know: 1
    assert "west" not in out.results

    def fewer(party: str, message: messages.Owners) -> messages.Owners:
        return structs.replace(message, owners={"x": (honest, "north")})

    out = federate(programs, lead=careless(told(messages.Owners, fewer)), **options)
    assert out.results == {}  # with one colluder, `min_cohort` of 3 stands in the way


@pytest.mark.parametrize(("min_cohort", "against"), [(2, 0), (3, 1), (5, 3)])
def test_the_result_states_that_limit(min_cohort: int, against: int) -> None:
    assert f"against {against} of them" in statement_of_some("he+secagg", min_cohort)
    assert f"fewer than {min_cohort} of one tier" in statement_of_some("he+secagg", min_cohort)
    assert not statement_of_some("none", min_cohort)
    partial = {name for name, entry in ALGORITHMS.items() if entry.partial_sums}
    assert partial == {"inclusivefl", "heterofl", "alllarge", "allsmall", "exclusivefl"}


def test_per_party_factors_say_that_records_are_told() -> None:
    assert "how many records" in FedKD(factors="per_party").caveat
    assert "records" not in FedKD(factors="per_party", mean="parties").caveat
