"""FetchSGD against matrices: the sketch is linear, the server's part is Algorithm 1's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from secure_fl import FedAvg, Local
from secure_fl.algorithms.baselines import fetchsgd as fetchsgd_module
from secure_fl.algorithms.baselines.fetchsgd import Aggregator, CountSketch
from secure_fl.algorithms.baselines.settings import FetchSGD
from secure_fl.algorithms.public_coins import coins
from secure_fl.config import load as config
from secure_fl.errors import SettingsError
from secure_fl.federation.result import Result
from secure_fl.learning.anatomy import trainable
from secure_fl.seeds import seed_for
from secure_fl.testing.hospitals import frozen, silos, small
from tests.support.event_documents import into
from tests.support.raising import raises

SMALL = CountSketch(rows=3, columns=7, size=40, seed=5)


def matrix(sketch: CountSketch) -> Any:
    """The sketch as a matrix, column by column: [rows, columns, size]."""
    units = torch.eye(sketch.size, dtype=torch.float64)
    return np.stack([sketch.of(unit) for unit in units], axis=-1)


def flat_weights(result: Result) -> Any:
    return torch.cat([w.detach().reshape(-1) for w in trainable(result.model).values()]).numpy()


def test_coins_are_splitmix64() -> None:
    # The generator's published outputs for this seed; no library stands between two hospitals.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert coins(1234567, np.arange(5)).tolist() == published
    assert coins(1234567, np.array([3, 1])).tolist() == [published[3], published[1]]


@pytest.mark.parametrize("block", [1, 7, 40, 1000])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = torch.from_numpy(np.random.default_rng(0).normal(size=SMALL.size))
    S = matrix(SMALL)
    monkeypatch.setattr(fetchsgd_module, "BLOCK", block)
    table = SMALL.of(vector)
    np.testing.assert_allclose(table, S @ vector.numpy(), atol=1e-12)
    estimates = np.median(np.einsum("rcd,rc->rd", S, table), axis=0)
    np.testing.assert_allclose(SMALL.estimates(table, np.arange(40)), estimates, atol=1e-12)
    where, values = SMALL.top(table, 9)
    assert where.tolist() == sorted(np.argsort(-np.abs(estimates), kind="stable")[:9].tolist())
    np.testing.assert_allclose(values, estimates[where], atol=1e-12)


def test_the_largest_values_come_back() -> None:
    rng = np.random.default_rng(3)
    vector = rng.normal(size=50_000) * 0.01
    heavy = rng.choice(50_000, size=20, replace=False)
    vector[heavy] = rng.choice([-1, 1], size=20) * rng.uniform(5, 9, size=20)
    sketch = CountSketch(rows=5, columns=1000, size=50_000, seed=3)
    where, values = sketch.top(sketch.of(torch.from_numpy(vector)), 20)
    assert set(where) == set(heavy)
    # A cell holds 50 small values beside the heavy one: √50 · 0.01, and a median over five.
    np.testing.assert_allclose(values, vector[where], atol=0.3)


def test_equal_values_are_taken_in_order_and_zeros_never() -> None:
    wide = CountSketch(rows=5, columns=1 << 16, size=30, seed=0)
    vector = torch.zeros(30)
    vector[[4, 11, 17, 25]] = torch.tensor([1.0, -1.0, 1.0, 3.0])
    assert wide.top(wide.of(vector), 3)[0].tolist() == [4, 11, 25]
    assert wide.top(wide.of(vector), 30)[0].tolist() == [4, 11, 17, 25]


@pytest.mark.parametrize("masking", [True, False])
def test_the_server_is_algorithm_1(masking: bool) -> None:
    cfg = FetchSGD(k=4, momentum=0.75, server_learning_rate=0.5, masking=masking)
    server, S = Aggregator(cfg, SMALL), matrix(SMALL)
    S_u, S_e = np.zeros((3, 7)), np.zeros((3, 7))
    for g in np.random.default_rng(1).integers(-99, 99, size=(5, 40)).astype(float):  # no rounding
        S_u = 0.75 * S_u + S @ g
        S_e = S_e + 0.5 * S_u
        estimate = np.median(np.einsum("rcd,rc->rd", S, S_e), axis=0)
        top = np.sort(np.argsort(-np.abs(estimate), kind="stable")[:4])
        where, Δ = server.step(SMALL.of(torch.from_numpy(g)))
        assert where.tolist() == top.tolist()
        np.testing.assert_allclose(Δ, estimate[top], atol=1e-12)
        touched = np.abs(S[:, :, top]).sum(axis=2) > 0
        S_e[touched] = 0
        S_u[touched] = 0 if masking else S_u[touched]
        np.testing.assert_allclose(server.S_e, S_e, atol=1e-12)
        np.testing.assert_allclose(server.S_u, S_u, atol=1e-12)
        assert 0 < touched.sum() <= 12


def test_a_round_by_hand() -> None:
    """One round of a federation, from what the parties would have done alone."""
    cfg = FetchSGD(rounds=1, epochs=1, k=500, columns=900)
    parties, alone = silos(), small(Local(rounds=1, epochs=1)).run()
    counts = np.array([len(p.train) for p in parties], float)
    models = [alone.models[f"{p.name}/model"] for p in parties]
    start = flat_weights(small(FedAvg(rounds=1), training=frozen()).run())
    moves = [
        torch.cat([w.detach().reshape(-1) for w in trainable(m).values()]).numpy() - start
        for m in models
    ]
    g = (counts[:, None] * moves).sum(axis=0) / counts.sum()
    sketch = CountSketch(5, 900, g.size, seed_for(0, "sketch"))
    estimates = sketch.estimates(sketch.of(torch.from_numpy(g)), np.arange(g.size))
    largest = np.argsort(-np.abs(estimates))[:500]
    expected = np.zeros(g.size)
    expected[largest] = estimates[largest]
    found = flat_weights(small(cfg).run()) - start
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)  # few ties differ
    assert np.count_nonzero(found) <= 500


def test_it_sends_a_quarter_of_the_bytes() -> None:
    sent = [small(a(rounds=4)).run().document["bytes"]["hospital-1"] for a in (FedAvg, FetchSGD)]
    for way in ("up", "down"):  # both include the counts of scores, two kilobytes a round
        assert sent[1][way] == pytest.approx(sent[0][way] / 4, rel=0.07)


def test_steps_train_on_that_many_batches() -> None:
    events: list[dict[str, Any]] = []
    small(FetchSGD(rounds=1, steps=2), listener=into(events)).run()
    assert {e["steps"] for e in events if e["event"] == "train"} == {2}


TOML = '[algorithm]\nname = "fetchsgd"\n{}\n[data]\ncorpus = "ade"\nparties = 3\n'


@pytest.mark.parametrize("k", [7, 1, 1.0, 0.25])
def test_k_is_a_number_or_a_share(k: float) -> None:
    cfg = config.loads(config.dump(config.loads(TOML.format(f"k = {k}")))).algorithm
    assert isinstance(cfg, FetchSGD) and type(cfg.k) is type(k)
    assert cfg.moving(1000) == (k if isinstance(k, int) else 1000 * k)


def test_more_weights_than_there_are_cannot_move() -> None:
    with raises(SettingsError, "40", field="algorithm.k"):
        FetchSGD(k=41).moving(40)


def test_columns_follow_from_the_compression() -> None:
    sizes: Sequence[tuple[FetchSGD, int]] = [
        (FetchSGD(), 5000),  # 100,000 weights by 5 rows by 4
        (FetchSGD(compression=10.0), 2000),
        (FetchSGD(rows=2), 12500),
        (FetchSGD(columns=77), 77),
    ]
    for cfg, columns in sizes:
        assert cfg.columns_for(100_000) == columns
