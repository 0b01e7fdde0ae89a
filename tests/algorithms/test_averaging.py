"""FedAvg's relatives: each against the equations of its paper, in a few lines of numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl import (
    AdapterSettings,
    DPSettings,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedExP,
    FedProx,
    FedYogi,
    ModelSettings,
    Scaffold,
    TrainingSettings,
)
from secure_fl.algorithms.server_optimizers import server_of
from secure_fl.algorithms.settings import Averaging
from secure_fl.errors import SettingsError
from secure_fl.testing.harness import LossyEngine
from secure_fl.testing.hospitals import silos, small
from tests.support.equality import equal, weights
from tests.support.quadratic_hospitals import (
    RATE,
    SGD,
    STEPS,
    Hospital,
    Vector,
    hospitals,
    optimum,
    trained,
)
from tests.support.raising import raises

ROUNDS, MU = 6, 0.7
Sites = Mapping[str, Hospital]
Reference = Callable[[Sites], list[Vector]]


def mean(values: Mapping[str, Vector], sites: Sites) -> Vector:
    """Σ nₖ·xₖ / Σ nₖ."""
    total = sum(site.records for site in sites.values())
    return sum((s.records / total * values[n] for n, s in sites.items()), np.zeros(24))


def moves(w: Vector, sites: Sites, μ: float = 0.0) -> dict[str, Vector]:
    """Each hospital's update by local steps on fₖ + μ/2·‖y - w‖²."""
    found = {}
    for name, site in sites.items():
        y = w.copy()
        for _ in range(STEPS):
            y = y - RATE * (site.a * (y - site.b) + μ * (y - w))
        found[name] = y - w
    return found


def prox(sites: Sites) -> list[Vector]:
    """Algorithm 2 of Li et al."""
    w, history = np.zeros(24), []
    for _ in range(ROUNDS):
        w = w + mean(moves(w, sites, MU), sites)
        history.append(w)
    return history


def scaffold(sites: Sites) -> list[Vector]:
    """Algorithm 1 of Karimireddy et al., option II; all clients, by records."""
    x, c, history = np.zeros(24), np.zeros(24), []
    own = {name: np.zeros(24) for name in sites}
    for _ in range(ROUNDS):
        Δy, Δc = {}, {}
        for name, site in sites.items():
            y = x.copy()
            for _ in range(STEPS):
                y = y - RATE * (site.a * (y - site.b) - own[name] + c)  # line 10
            new = own[name] - c + (x - y) / (STEPS * RATE)  # line 12
            Δy[name], Δc[name], own[name] = y - x, new - own[name], new
        x, c = x + 0.8 * mean(Δy, sites), c + mean(Δc, sites)  # lines 16 and 17
        history.append(x)
    return history


def momentum(sites: Sites) -> list[Vector]:
    """FedAvgM of Hsu et al."""
    w, v, history = np.zeros(24), np.zeros(24), []
    for _ in range(ROUNDS):
        v = 0.6 * v + mean(moves(w, sites), sites)
        w = w + 0.5 * v
        history.append(w)
    return history


def adaptive(yogi: bool) -> Reference:
    def run(sites: Sites) -> list[Vector]:
        """Algorithm 2 of Reddi et al."""
        η, β1, β2, τ = 0.3, 0.5, 0.9, 0.2
        w, m, v, history = np.zeros(24), np.zeros(24), np.full(24, τ**2), []
        for _ in range(ROUNDS):
            Δ = mean(moves(w, sites), sites)
            m = β1 * m + (1 - β1) * Δ
            v = v - (1 - β2) * Δ**2 * np.sign(v - Δ**2) if yogi else β2 * v + (1 - β2) * Δ**2
            w = w + η * m / (np.sqrt(v) + τ)
            history.append(w)
        return history

    return run


def exp(sites: Sites) -> list[Vector]:
    """Algorithm 1 of Jhunjhunwala et al., with records as weights."""
    w, history = np.zeros(24), []
    for _ in range(ROUNDS):
        each = moves(w, sites)
        Δ = mean(each, sites)
        squares = mean({name: np.full(24, np.sum(δ**2)) for name, δ in each.items()}, sites)
        w = w + max(1.0, squares[0] / (2 * (np.sum(Δ**2) + 2.0))) * Δ
        history.append(w)
    return history


ADAPTIVE: Mapping[str, Any] = {"server_learning_rate": 0.3, "beta1": 0.5, "beta2": 0.9, "tau": 0.2}
PAPERS: dict[str, tuple[Averaging, Reference]] = {
    "fedprox": (FedProx(rounds=ROUNDS, proximal=MU), prox),
    "scaffold": (Scaffold(rounds=ROUNDS, server_learning_rate=0.8), scaffold),
    "fedavgm": (FedAvgM(rounds=ROUNDS, server_learning_rate=0.5, momentum=0.6), momentum),
    "fedadam": (FedAdam(rounds=ROUNDS, **ADAPTIVE), adaptive(yogi=False)),
    "fedyogi": (FedYogi(rounds=ROUNDS, **ADAPTIVE), adaptive(yogi=True)),
    "fedexp": (FedExP(rounds=ROUNDS, damping=2.0), exp),
}


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize(("mode", "off"), [("none", 1e-5), ("he+secagg", 5e-3)])
def test_every_round_is_the_papers(name: str, mode: str, off: float) -> None:
    cfg, reference = PAPERS[name]
    found, wanted = trained(cfg, hospitals(), mode), reference(hospitals())
    plain = trained(FedAvg(rounds=ROUNDS), hospitals())
    assert np.abs(np.array(found) - wanted).max() < off
    assert np.abs(np.array(found[-1]) - plain[-1]).max() > 5 * off  # FedAvg would not pass


def test_scaffold_reaches_the_optimum_that_fedavg_misses() -> None:
    """With many local steps FedAvg ends between the hospitals' optima, weighted wrongly."""
    best = optimum(hospitals())
    start = np.abs(best).max()
    biased = np.abs(trained(FedAvg(rounds=30), hospitals())[-1] - best).max()
    for mode, off in (("none", 1e-3), ("he+secagg", 1e-2)):
        found = np.abs(trained(Scaffold(rounds=30), hospitals(), mode)[-1] - best).max()
        assert found < off * start < 0.1 * start < biased


def test_scaffold_corrects_steps_of_adamw_without_harm() -> None:
    """Its steps are about equally long, so there is little to correct."""
    adamw = SGD.model_copy(update={"optimizer": "adamw", "learning_rate": 0.02})
    found = [trained(cfg(rounds=20), hospitals(training=adamw)) for cfg in (FedAvg, Scaffold)]
    plain, corrected = (np.abs(h[-1] - optimum(hospitals())).max() for h in found)
    assert corrected == pytest.approx(plain, rel=0.1)
    assert np.abs(found[0][-1] - found[1][-1]).max() > 0


def test_the_average_weights_rounds_by_its_decay() -> None:
    plain = trained(FedAvg(rounds=ROUNDS), hospitals())
    found = trained(FedAvg(rounds=ROUNDS, average=0.7), hospitals())
    for number in range(1, ROUNDS + 1):
        weights = 0.7 ** np.arange(number)[::-1]
        wanted = np.average(plain[:number], axis=0, weights=weights)
        assert np.abs(found[number - 1] - wanted).max() < 1e-6


def test_a_hospital_that_drops_out_takes_its_control_variate_along() -> None:
    sites = hospitals()
    rest = {name: site for name, site in sites.items() if name != "west"}
    lossy = {"engine": lambda sessions: LossyEngine(sessions, lose={"west": 20})}
    found = trained(Scaffold(rounds=30), sites, "he+secagg", **lossy)
    assert 0 < len(sites["west"].history) < 20 and len(found) == 30
    assert np.abs(found[-1] - optimum(rest)).max() < 1e-2
    assert np.abs(optimum(sites) - optimum(rest)).max() > 1e-1


def test_extrapolation_is_over_the_hospitals_that_are_present() -> None:
    sites = hospitals()
    rest = {name: site for name, site in sites.items() if name != "west"}
    lossy = {"engine": lambda sessions: LossyEngine(sessions, lose={"west": 2})}
    found = trained(FedExP(rounds=ROUNDS, damping=2.0), sites, **lossy)
    assert not sites["west"].history
    assert np.abs(np.array(found) - exp(rest)).max() < 1e-5


def test_the_first_round_of_scaffold_is_fedavg_to_the_last_bit() -> None:
    """Without variates an optimizer with corrections is the one that a site makes itself."""
    few = silos(size=16)
    plain, found = (small(cfg(rounds=1), silos=few).run() for cfg in (FedAvg, Scaffold))
    assert equal(weights(plain), weights(found))


ADAPTER = ModelSettings(layers=1, adapter=AdapterSettings(rank=2))


@pytest.mark.parametrize("cfg", [Scaffold(rounds=2, average=0.5), FedExP(rounds=2)])
def test_adapters_are_trained_sealed(cfg: Averaging) -> None:
    result = small(cfg, "he+secagg", silos=silos(size=16), model=ADAPTER).run()
    start = small(FedAvg(rounds=1), silos=silos(size=16), model=ADAPTER, training=STILL).run()
    assert any("lora_" in name for name in weights(result))
    assert not equal(weights(start), weights(result))


STILL = TrainingSettings(learning_rate=1e-30, weight_decay=0.0, device="cpu")
PRIVATE = TrainingSettings(
    learning_rate=2e-3,
    batch_size=8,
    device="cpu",
    dp=DPSettings(epsilon=50.0, delta=1e-3, noise_multiplier=1.0, accountant="rdp"),
)


def test_a_proximal_term_and_averages_run_under_dp_sgd() -> None:
    cfg = FedProx(rounds=2, average=0.5)
    result = small(cfg, "he+secagg", silos=silos(size=16), training=PRIVATE).run()
    assert set(result.document["privacy"]["steps"].values()) == {4}


@pytest.mark.parametrize("cfg", [Scaffold(), FedExP()])
def test_noise_is_refused_where_it_would_lead_the_steps(cfg: Averaging) -> None:
    with raises(SettingsError, cfg.name, "noise", "fedprox", field="training.dp"):
        small(cfg, training=PRIVATE)


@pytest.mark.parametrize("field", ["proximal", "average"])
def test_exact_sums_of_adapters_refuse_what_they_would_ignore(field: str) -> None:
    model = ModelSettings(layers=1, adapter=AdapterSettings(kind="exact", rank=2))
    with raises(SettingsError, "exact", field=f"algorithm.{field}"):
        small(FedAvg.model_validate({field: 0.5}), model=model)


def test_a_site_is_asked_for_both_vectors_of_scaffold() -> None:
    training = TrainingSettings()
    assert Scaffold().demands(training, 1000).cells == 2000
    assert FedProx().demands(training, 1000).cells == 0


# --- the server's Adam: steps as long as the members' own by default ------------------------------


@pytest.mark.parametrize(
    ("cfg", "far"),
    [
        (FedAdam(), 15 * 2e-3),
        (FedAdam(server_learning_rate=0.5), 0.5),
        (FedAdam(server_learning_rate=0.5, tau=1e-9), 0.5),
    ],
)
def test_a_steady_move_takes_a_value_as_far_as_η(cfg: FedAdam, far: float) -> None:
    server, δ = server_of(cfg, 2e-3), {"w": torch.tensor([1e6, -1e6])}
    for _ in range(2000):  # until both moments have forgotten how they began
        moved = server.step(δ)["w"]
    assert moved.tolist() == pytest.approx([far, -far], rel=1e-3)


def test_a_small_move_is_taken_as_far_as_it_went() -> None:
    """τ follows η: far above it every value moves alike, far below it values move as by FedAvg."""
    server, δ = server_of(FedAdam(), 2e-3), {"w": torch.tensor([3e-4, 3e-5])}
    assert server.step(δ)["w"].tolist() == pytest.approx(δ["w"].tolist(), rel=1e-2)
