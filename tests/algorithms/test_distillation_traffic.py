"""What FedID and its baselines send, value for value, against the sizes of the paper's Table 5."""

from __future__ import annotations

from typing import Any

import pytest

from secure_fl.algorithms.baselines.settings import DSFL, MHAT, FedDF, FedED, Gong
from secure_fl.algorithms.fedid import FedID
from secure_fl.protocol import messages
from secure_fl.settings import ModelSettings
from secure_fl.testing.hospitals import HOST, hosted, members
from tests.support.attacker import Heard, Wiretap
from tests.support.hands import AS_PRINTED, Hand

C, D0, T = 2, 16, 2  # classes, public records, rounds


def payload(heard: Heard) -> int:
    """The values in a relayed message, in bytes: all but the names and shapes before them."""
    return len(heard.bulk) - 8 - int.from_bytes(heard.bulk[:8], "little") if heard.bulk else 0


def traffic(cfg: Any) -> tuple[int, int]:
    """Bytes of values that all parties send up in sums, and that the host gives to all, once."""
    tap = Wiretap()
    hosted(cfg).run(tap)
    out = [h for h in tap.heard if h.direction == "out"]
    up = sum(
        len(h.bulk) for h in out if isinstance(h.message, messages.SumInput) and h.party != HOST
    )
    down = [h for h in out if isinstance(h.message, messages.Broadcast) and h.party == HOST]
    assert all(
        not h.bulk for h in out if isinstance(h.message, messages.Broadcast) and h.party != HOST
    )
    return up, sum(payload(h) for h in down)


def size_of_the_model() -> int:
    return sum(w.numel() for w in Hand(members()[3], ModelSettings(layers=1)).start.values())


K, Y = 3, 4 * D0 * C  # parties, and the bytes of one party's predictions: |D⁰| of the paper
COUNTS = 4 * 2  # a party's records and its weight, once a round; the paper leaves out such numbers


@pytest.mark.parametrize("method", [DSFL, MHAT])
def test_traffic_of_predictions_is_table_5s(method: Any) -> None:
    up, down = traffic(method(rounds=T))
    assert up == T * K * (Y + COUNTS) and down == T * Y  # |D⁰| x (K + 1) x T


def test_traffic_of_fedid_is_table_5s_with_a_number_for_every_batch() -> None:
    batches = D0 // 8
    up, down = traffic(FedID(rounds=T))  # one exchange a round, and a weight with it
    assert up == T * K * (Y + 4 + 4) and down == T * (Y + 4 * batches)
    up, down = traffic(FedID(**AS_PRINTED, rounds=T))
    assert up == T * K * (Y + 4 + 4 * batches) and down == T * (Y + 4 * batches)
    exact = AS_PRINTED | {"feedback": "exact", "host_learning_rate": 0.1}
    up, down = traffic(FedID(**exact, rounds=T))
    assert up == T * K * (Y + 4 + 4 * batches) and down == T * 2 * Y  # h is as large as y


def test_traffic_of_one_shot_is_table_5s() -> None:
    up, down = traffic(Gong())
    assert (up, down) == (K * (Y + COUNTS), 0)  # |D⁰| x K


def test_traffic_of_feded_is_table_5s() -> None:
    """Only predictions go up: not one weight leaves a party."""
    θ = 4 * size_of_the_model()
    up, down = traffic(FedED(rounds=T))
    assert up == T * K * (Y + COUNTS) and down == T * θ  # (θ + |D⁰| x K) x T
    assert θ > 100 * Y


def test_traffic_of_feddf_is_table_5s() -> None:
    θ = 4 * size_of_the_model()
    up, down = traffic(FedDF(rounds=T))
    reach = 4  # the largest value, which the host needs to bound a sum; up, and down again
    weight = 4  # of the sum of models
    assert up == T * K * (θ + Y + COUNTS + reach + weight)
    assert down == T * (θ + 2 * reach)  # double precision there: (θ x (K + 1) + |D⁰| x K) x T
