"""Large cohorts: the benchmark, and what keeps a coordinator's work and memory below n²."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import alike, crowd, scale
from benchmarks.__main__ import main
from secure_fl.coordinator.assembly import lead_run, links_to
from secure_fl.coordinator.step import Rules, Sorted
from secure_fl.crypto import circle
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.masking import neighbours
from secure_fl.crypto.primitives import digest_of
from secure_fl.errors import CryptoError, SettingsError, TooFewParties
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.link import Link
from secure_fl.protocol.messages import Offer
from secure_fl.settings import ProtectionSettings


def test_sums_of_several_sizes_open_exactly_though_clients_are_lost() -> None:
    report = scale.measure(clients=(10, 30, 40), values=50, lost=0.2)
    found = json.loads(json.dumps(report.document()))
    assert [row["clients"] for row in found["rows"]] == [10, 30, 40]
    assert [row["neighbours"] for row in found["rows"]] == [9, 29, 36]
    assert [(row["lost_before"], row["lost_after"]) for row in found["rows"]] == [
        (2, 0),
        (5, 1),
        (7, 1),
    ]
    for row in found["rows"]:
        assert row["exact"] and row["recovered"] == 1.0
        assert row["client_cpu_seconds"] > 0 < row["coordinator_cpu_seconds"]
        assert row["bytes_down"] > row["bytes_up"] > 50  # a byte a value, and keys
        assert set(row["phases"]) == set(crowd.PHASES)
        parts = sum(coordinator for _, coordinator in row["phases"].values())
        assert parts == pytest.approx(row["coordinator_cpu_seconds"], rel=0.2)
    assert found["targets"][0]["met"] and found["seed"] == 0 and found["machine"]["cores"]


def test_a_sum_that_is_not_exact_ends_the_benchmark() -> None:
    plan = crowd.Plan.of(8, 0.25, 1)
    played = crowd.play(plan, 20, 1)
    played.require_exact()
    assert set(played.survivors) == set(plan.names) - plan.before
    off = played.plain.copy()
    off[3] += 1
    with pytest.raises(CryptoError, match="1 of 20 values"):
        replace(played, plain=off).require_exact()
    # Values of somebody whose input is not in the sum do not belong into it.
    everybody = crowd._Crowd(plan, 20, 1).plain(plan.names)
    with pytest.raises(CryptoError, match="of 20 values"):
        replace(played, plain=everybody).require_exact()


def test_a_signature_known_to_hold_vouches_for_nothing_else() -> None:
    signer = Identity.generate("a")
    own = signer.public
    card = alike.Card.of(own)
    one, other = digest_of(b"one"), digest_of(b"other")
    signature = signer.sign(one)
    card.verify(one, signature)
    card.verify(one, signature)
    for digest, said in ((other, signature), (one, signer.sign(other))):
        with pytest.raises(CryptoError, match="signature"):
            card.verify(digest, said)
    with pytest.raises(CryptoError, match="signature"):
        alike.Card.of(Identity.generate("b").public).verify(one, signature)


def test_sizes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match="cannot be measured"):
        scale.measure(clients=(3,))
    refused = CliRunner().invoke(main, ["scale", "--clients", "10,many"])
    assert refused.exit_code == 2 and "whole numbers" in refused.output


@pytest.mark.parametrize("n", [33, 40, 101])
def test_the_fewest_peers_are_those_of_the_naive_count(n: int) -> None:
    rng = np.random.default_rng(n)
    for degree in (2, 7, 36 if n > 36 else 5):
        graph = neighbours(range(1, n + 1), bytes([n]), degree)
        for size in (1, 2, n // 3, n - 1, n):
            among = set((rng.permutation(n)[:size] + 1).tolist())
            counts = {m: len(among.intersection(graph[m])) for m in among}
            member, fewest = graph.fewest(among)
            assert fewest == counts[member] == min(counts.values())


def test_parties_of_one_process_share_what_is_public_and_can_be_made_to_forget_it() -> None:
    names = tuple(f"p{k}" for k in range(40))
    first = circle.numbered(names)
    assert circle.numbered((*names,)) is first
    circle.forget()
    again = circle.numbered(names)
    assert again == first and again is not first


def test_offers_are_sorted_as_the_naive_search_finds_them() -> None:
    offers = {s: Offer(bytes(32), {r: (s + r).encode() for r in "abcd" if r != s}) for s in "abc"}
    del offers["a"].shares["b"]
    for member in "abcde":
        naive = {
            sender: Offer(offer.public, {member: offer.shares[member]})
            for sender, offer in offers.items()
            if member in offer.shares
        }
        assert Sorted(offers).to(member) == naive


class Reader:
    """An engine that takes frames twice and sees how many were made before it took them."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        self.links, self.made = links, list[int]()

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for party in frames:
            self.made.append(sum(link.exchange for link in self.links.values()))
            assert frames[party] == frames[party]
        yield from ()


def test_a_coordinator_makes_a_frame_when_it_is_taken_and_alike_again() -> None:
    me, names = Identity.generate("coordinator"), ("a", "b", "c")
    links = links_to({n: Identity.generate(n).public for n in names}, me, bytes(16))
    engine, rules = Reader(links), Rules(None, 2, 2)
    coordinator = lead_run(links, engine, rules, ProtectionSettings(mode="secagg"))
    with pytest.raises(TooFewParties):
        coordinator.run()
    assert engine.made[:3] == [0, 1, 2]  # the rest are those that tell everybody to stop
