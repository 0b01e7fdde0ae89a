"""No two sums that are opened differ by one hospital's part of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl import FedAvg
from secure_fl.algorithms.baselines.settings import HeteroFL
from secure_fl.algorithms.exact import orthonormal
from secure_fl.algorithms.fedkd.factor_exchange import JointFactors
from secure_fl.algorithms.fedkd.lowrank import Subspace
from secure_fl.algorithms.updates import Update
from secure_fl.crypto.sealing.packing import Layout
from secure_fl.crypto.sealing.transcript import Scales
from secure_fl.errors import TooFewParties
from secure_fl.events import EventLog, SumDifferences
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.testing.harness import LossyEngine, Program, federate
from secure_fl.testing.hospitals import silos, small
from tests.support.attacker import NAMES, Wiretap
from tests.support.local_pilot import LocalPilot, local_pilot, plan_of
from tests.support.raising import raises

VICTIM = "west"


class Curious(JointFactors):
    """What a party sees of one exchange of factors anyway."""

    async def _sum(self, values: Update, *, together: bool = False) -> tuple[Update, Update]:
        sums, lost = await super()._sum(values, together=together)
        self.seen: list[Update] = [*getattr(self, "seen", []), sums]
        return sums, lost

    def difference(self, Ω: torch.Tensor) -> float:
        """UᵀY - BΩ: of the same parties it is zero, of all and of some Uᵀ·Gᵢ·Ω of the others."""
        Y, B = self.seen
        if not B:
            return 0.0
        return float((orthonormal(Y["w"]).T @ Y["w"] - B["w|B"] @ Ω).abs().max())


@pytest.mark.parametrize("mode", ["none", "secagg", "he+secagg"])
@pytest.mark.parametrize("exchange", range(4, 14))
def test_factors_of_who_leaves_are_not_the_difference_of_two_sums(
    exchange: int, mode: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[torch.Tensor] = []  # Ω, which is public
    probe = Subspace.probe

    def drawing(self: Subspace, width: int, generator: torch.Generator) -> torch.Tensor:
        drawn.append(probe(self, width, generator))
        return drawn[-1]

    monkeypatch.setattr(Subspace, "probe", drawing)

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            rng = np.random.default_rng(NAMES.index(name))
            G = {"w": torch.from_numpy(rng.normal(size=(40, 24)).astype(np.float32))}
            way = Curious(cohort, EventLog(name), G, 0, None)
            await way.mean(G, 1.0, 0.6)
            return way.difference(drawn[-1])

        return run

    out = federate(
        {name: program(name) for name in NAMES},
        mode=mode,
        bits=24,
        engine=lambda sessions: LossyEngine(sessions, lose={VICTIM: exchange}),
    )
    assert drawn and out.results["east"] < 1e-3


def test_a_sum_that_follows_from_the_last_is_over_the_same_parties_or_stays_masked() -> None:
    tap = Wiretap()
    lost: dict[str, int] = {}

    class Losing(LossyEngine):
        def exchange(self, frames: Any, deadline: float) -> Any:
            for party, answer in super().exchange(frames, deadline):
                tap._note(party, "out", answer)
                yield party, answer

    async def run(cohort: Cohort) -> Any:
        x = {"x": np.full(20, 1.0 + NAMES.index(cohort.me))}
        one = await cohort.sum(x, bound=8.0)
        two = await cohort.sum(x, bound=8.0, together=True)
        also = await cohort.sum({"z": np.ones(20)}, bound=8.0, together=True)  # with the first
        three = await cohort.sum({"y": np.ones(20)}, bound=8.0)
        sums = (one, two, also, three)
        return [{n: float(v.mean().round(3)) for n, v in s.items()} for s in sums]

    lost = {VICTIM: 4}  # its part of the second sum does not come
    out = federate(
        dict.fromkeys(NAMES, run), mode="he+secagg", engine=lambda s: Losing(s, lose=lost)
    )
    assert list(out.results.values()) == [[{"x": 10.0}, {}, {}, {"y": 3.0}]] * 3
    shares = [bool(h.message.seeds) for h in tap.of(messages.UnmaskShares)]
    assert shares == [True] * 4 + [False] * 3 + [True] * 3
    everybody = federate(dict.fromkeys(NAMES, run), mode="he+secagg").results["east"]
    assert everybody == [{"x": 10.0}, {"x": 10.0}, {"z": 4.0}, {"y": 4.0}]


@pytest.mark.parametrize("partial", [False, True])
def test_the_norm_of_who_leaves_is_not_the_difference_of_two_sums(
    partial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales are summed first; somebody may be gone when the values are."""
    seen: list[tuple[int, float]] = []
    learn, decode = Scales.learn, Layout.decode

    def spying_learn(self: Scales, sums: Any, *large: Any) -> None:
        learn(self, sums, *large)
        seen.extend((0, float(v[0])) for v in sums.values())

    def spying_decode(self: Layout, slots: Any, contributors: int, noise: Any = None) -> Any:
        values, norms = decode(self, slots, contributors, noise)
        seen.extend((contributors, square) for square in norms.values())
        return values, norms

    monkeypatch.setattr(Scales, "learn", spying_learn)
    monkeypatch.setattr(Layout, "decode", spying_decode)

    async def run(cohort: Cohort) -> Any:
        x = np.full(100, 1.0 + NAMES.index(cohort.me), np.float32)
        first = await cohort.sum({"x": x}, partial=partial, carry=True)
        return first, await cohort.sum({"x": 2 * x}, partial=partial, carry=True)

    options: dict[str, Any] = {"mode": "he+secagg", "bits": 24}
    out = federate(
        dict.fromkeys(NAMES, run),
        engine=lambda s: LossyEngine(s, lose={VICTIM: 5 if partial else 4}),
        **options,
    )
    first, second = out.results["east"]
    np.testing.assert_allclose(first["x"], np.full(100, 6.0), atol=1e-3)
    np.testing.assert_allclose(second["x"], np.full(100, 12.0), atol=1e-3)
    # of all four, then of the three that are left: but of other values
    assert {(parties, round(square)) for parties, square in seen} == {(0, 3000), (3, 4 * 1400)}


def test_nested_sums_of_weights_do_not_differ_by_the_records_of_a_few() -> None:
    """One narrow hospital: all records less those of the wide ones would be its own."""
    cfg, tiers = HeteroFL(rounds=1, steps=1, weights="samples"), ("weak", *["strong"] * 3)
    protection = ProtectionSettings(mode="none", min_cohort=3)

    def run(cfg: HeteroFL) -> Any:
        parts = [replace(s, tier=t) for s, t in zip(silos(4, size=8), tiers, strict=True)]
        return small(cfg, silos=parts, protection=protection).run()

    with raises(TooFewParties, party="hospital-1", round=1, field="algorithm.weights"):
        run(cfg)
    assert run(cfg.model_copy(update={"weights": "users"})).models


def test_pairs_of_sums_that_differ_by_one_hospital_are_listed(tmp_path: Path) -> None:
    """P3 is about one sum: everybody learns where two sums show one hospital's part."""

    async def run(cohort: Cohort) -> Any:
        for _ in range(4):
            await cohort.sum({"x": np.ones(20)}, bound=8.0)
        await cohort.sum({"y": np.ones(20)}, bound=8.0)
        return None

    def pairs(**lost: int) -> list[dict[str, Any]]:
        out = federate(
            dict.fromkeys(NAMES, run),
            mode="he+secagg",
            engine=lambda sessions: LossyEngine(sessions, lose=lost),
        )
        (same,) = {str(out.recorders[name].differences.pairs) for name in out.results}
        assert same
        return out.recorders["east"].differences.pairs

    assert pairs() == []
    left = {"round": 0, "party": VICTIM, "change": "left", "sums": 1}
    assert pairs(**{VICTIM: 6}) == [left]
    again = SumDifferences()
    seen = SumDifferences()
    seen.saw(1, {"x": ["a", "b", "c"], "y": ["a", "b", "c"]})
    again.load_state_dict(seen.state_dict())
    again.saw(2, {"x": ["a", "c"], "y": ["a", "c"]})
    again.saw(3, {"x": ["a", "b", "c"]})
    again.saw(4, {"x": ["a"]})  # two at once hide each other
    assert again.pairs == [
        {"round": 2, "party": "b", "change": "left", "sums": 2},
        {"round": 3, "party": "b", "change": "joined", "sums": 1},
    ]
    whole = small(FedAvg(rounds=2), folder=tmp_path / "run").run().document
    assert whole["differing_sums"] == []


def test_a_hospital_that_leaves_a_pilot_is_in_the_result(tmp_path: Path) -> None:
    pilot = local_pilot(tmp_path, plan_of(FedAvg(rounds=3)), count=4)

    def leaves(town: LocalPilot, party: str) -> None:
        started = [e for e in town.events if e["event"] == "round_started" and e["round"] == 2]
        if party == "hospital-4" and started and party not in town.down:
            town.kill(party)

    pilot.before = leaves
    pilot.lead(patience=0.0).run()
    document = json.loads((tmp_path / "hospital-1" / "run" / "result.json").read_text())
    assert {(one["party"], one["change"]) for one in document["differing_sums"]} == {
        ("hospital-4", "left")
    }
