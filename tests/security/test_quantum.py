"""An attacker that computes X25519 and Ed25519 keys from public ones, as a quantum computer could.

It has recorded all traffic. Each test first shows that the attack works against X25519 alone: then
the secrets of ML-KEM are public constants. Against the hybrid keys the same attack fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import numpy as np
import pytest

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.keys.identity import (
    CIPHERTEXT_BYTES,
    Channel,
    Identity,
    PublicIdentity,
)
from secure_fl.crypto.keys.keyring import deal, open_bundle, seal_bundles
from secure_fl.crypto.keys.roster_files import card_bytes, read_card
from secure_fl.crypto.sealing import masking
from secure_fl.crypto.sealing.step_keys import KEY
from secure_fl.errors import CryptoError, KeyringError
from secure_fl.pilot.approvals import Approval, read
from secure_fl.pilot.kits import BUNDLE, open_kit, write_sealed_kits
from tests.support.collusion import LENGTH, MODULUS, STREAM, MaskedStep, channels
from tests.support.key_sites import signed, site, unsigned
from tests.support.local_pilot import plan_of
from tests.support.raising import raises

NAMES = ("east", "north", "south")
Alone = Callable[[], AbstractContextManager[None]]


def broken(victim: Identity) -> Identity:
    """The victim's keys as the attacker has them: those of X25519 and Ed25519."""
    own = Identity.generate(victim.name)
    attacker = Identity(victim.name, victim._signing, own._mldsa, victim._agreement, own._kem)
    object.__setattr__(attacker, "public", victim.public)
    return attacker


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """X25519 and Ed25519 alone: all secrets of ML-KEM are known, and no ML-DSA is verified."""

    @contextmanager
    def known() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(PublicIdentity, "encapsulate", lambda _: (bytes(32), bytes(1088)))
            patch.setattr(Identity, "decapsulate", lambda *_: bytes(32))
            patch.setattr(PublicIdentity, "_verify_mldsa", lambda *_: None)
            yield

    return known


def test_a_recorded_ceremony_and_kit_stay_closed(alone: Alone, tmp_path: Path) -> None:
    roster, keys = signed(*NAMES), deal(site("north"), signed(*NAMES), b"the cohort's secret")

    def recorded(folder: Path) -> tuple[bytes, Path]:
        folder.mkdir()
        bundles = seal_bundles(site("north"), roster, keys)
        for name, bundle in bundles.items():
            (folder / f"{name}.bundle").write_bytes(bundle)
        address = (["hub.example.org"], 8443)
        kits = write_sealed_kits(roster, site("hub"), folder, folder / "kits", address)
        return bundles["south"], kits["south"]

    attacker = broken(site("south"))
    with alone():
        bundle, kit = recorded(tmp_path / "alone")
        assert open_bundle(attacker, roster, bundle).secret == keys.secret
        opened = open_kit(kit, attacker, tmp_path / "opened")
        assert (opened / BUNDLE).read_bytes() == bundle
    bundle, kit = recorded(tmp_path / "hybrid")
    with raises(KeyringError, reason="cannot-open"):
        open_bundle(attacker, roster, bundle)
    with raises(KeyringError, reason="cannot-open"):
        open_kit(kit, attacker, tmp_path / "closed")
    assert open_bundle(site("south"), roster, bundle).secret == keys.secret


def test_forged_documents_are_refused(alone: Alone, tmp_path: Path) -> None:
    hub, north, roster = broken(site("hub")), broken(site("north")), signed(*NAMES)
    keys = deal(site("north"), roster, b"the cohort's secret")
    own, plan = Identity.generate("north"), plan_of(FedAvg(rounds=1))
    thief = Identity("north", north._signing, own._mldsa, own._agreement, own._kem)
    swapped = PublicIdentity("north", north.public.signing, own.public.agreement)
    object.__setattr__(thief, "public", swapped)

    def bundles() -> dict[str, bytes]:
        made = seal_bundles(north, roster, keys)
        for name, bundle in made.items():
            (tmp_path / f"{name}.bundle").write_bytes(bundle)
        return made

    def kit() -> object:
        address, folder = (["hub.example.org"], 8443), Path(mkdtemp(dir=tmp_path))
        kits = write_sealed_kits(roster, hub, tmp_path, folder, address, plan="")
        return open_kit(kits["south"], site("south"), folder / "opened")

    documents: dict[str, Callable[[], object]] = {
        "a card with the thief's agreement keys": lambda: read_card(card_bytes(thief)),
        "a roster": lambda: unsigned(*NAMES).sign(north).verify(),
        "an approval": lambda: read(
            msgspec.json.encode(Approval.make(north, "south", plan, {})), "approval"
        ),
        "the cohort's keys": lambda: open_bundle(site("south"), roster, bundles()["south"]),
        "a kit with a plan": kit,
    }
    for forge in documents.values():
        with alone():
            forge()
        with pytest.raises(KeyringError):
            forge()


def recorded_step(n: int = 4, t: int = 3) -> MaskedStep:
    """The first sum of a run, in whose messages all ciphertexts of ML-KEM are."""
    channels.cache_clear()
    return MaskedStep(n, t)


def seeds_of(step: MaskedStep, owner: str) -> tuple[bytes, bytes]:
    """Open the recorded shares of one party, and recover its seeds: of mask key and self mask."""
    shares: tuple[dict[int, bytes], dict[int, bytes]] = {}, {}
    for holder in set(step.names) - {owner}:
        offer, attacker = step.offers[owner], broken(step.sites[holder])
        about = step.keys[holder]._about(owner, holder, offer)
        end = Channel(attacker, step.sites[owner].public, b"run")
        opened = end.open(offer.shares[holder], about)
        both = opened[KEY:]
        for found, cut in zip(shares, (slice(0, 17), slice(17, 34)), strict=True):
            found[step.numbers[holder]] = both[cut]
    key, own = (masking.recover_secret(found, step.threshold) for found in shares)
    return key, own


def input_of(step: MaskedStep, party: str) -> masking.Slots:
    """Compute a party's input from all mask keys of X25519, recorded traffic and its self seed."""
    keys, pairs = step.keys[party], {}
    for peer in sorted(keys.links):
        halves = []
        for sender, receiver in ((party, peer), (peer, party)):
            about = step.keys[receiver]._about(sender, receiver, step.offers[sender])
            end = Channel(broken(step.sites[receiver]), step.sites[sender].public, b"run")
            try:
                opened = end.open(step.offers[sender].shares[receiver], about)
                halves.append(opened[-masking.HALF_BYTES :])
            except CryptoError:  # then what the coordinator has: the link of both
                halves.append(keys.links[peer])
        agreed = masking.agree(keys._mask_key, step.offers[peer].public)
        pairs[step.numbers[peer]] = masking.pair_secret(agreed, *halves)
    plus, minus = masking.pair_keys(step.numbers[party], pairs, STREAM)
    plus.append(masking.stream_key(keys._self_seed, STREAM, "self"))
    mask = masking.combine(plus, minus, LENGTH, MODULUS)
    return (step.sent[party] + (np.uint64(MODULUS) - mask)) % np.uint64(MODULUS)


def test_recorded_masks_stay_on(alone: Alone) -> None:
    """Self masks are removed from every sum, so the pairwise masks have to protect an input."""
    with alone():
        step = recorded_step()
        np.testing.assert_array_equal(input_of(step, "p00"), step.inputs["p00"])
    step = recorded_step()
    assert not np.any(input_of(step, "p00") == step.inputs["p00"])


def test_recorded_shares_stay_closed(alone: Alone) -> None:
    with alone():
        step = recorded_step()
        keys = step.keys["p00"]
        assert seeds_of(step, "p00") == (keys._mask_seed, keys._self_seed)
    with raises(CryptoError, field="seal"):
        seeds_of(recorded_step(), "p00")


def cost(*, first: bool) -> tuple[float, int]:
    """Return CPU seconds and bytes, sent and received, of one hospital of 16 for a sum's keys."""
    step, seconds = recorded_step(16, 11), []
    if not first:
        step = MaskedStep(16, 11)
    for _ in range(5):
        began = time.process_time()
        ends = channels(16)["p00"]
        if first:
            ends = {p: Channel(step.sites["p00"], of.peer, b"run") for p, of in ends.items()}
        keys = step.keys_of("p00", ends)
        offer, theirs = keys.offer(), step.for_("p00", step.names[1:])
        keys.accept(theirs, step.names)
        seconds.append(time.process_time() - began)
    size = sum(len(msgspec.msgpack.encode(one)) for one in (offer, theirs, keys.links))
    return min(seconds), size


@pytest.mark.parametrize(("first", "most"), [(True, 40_000), (False, 3_000)])
def test_the_cost_of_hybrid_keys_at_16_hospitals(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, first: bool, most: int
) -> None:
    spent, size = cost(first=first)
    with alone(), monkeypatch.context() as patch:
        patch.setattr(masking, "half", lambda *_: bytes(masking.HALF_BYTES))
        before, _ = cost(first=first)
    peers, item = 15, len(msgspec.msgpack.encode(bytes(32)))
    # without: ciphertexts, second bytes and halves both ways, digests of halves, links by name
    more = 2 * peers * (1 + masking.HALF_BYTES + CIPHERTEXT_BYTES * first)
    more += item * (16 + peers) + peers * (item + 4) + 1
    print(f"{size} bytes, {more} of them and {1e3 * (spent - before):.1f} ms for hybrid keys")
    # Three times the goal of 5 ms: a busy machine computes more slowly.
    assert more <= most and spent - before <= 15e-3
