"""Attacks on blame: no honest party is convicted, and no member costs the others their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator.machine import Coordinator
from secure_fl.crypto.blame.evidence import FalseShare, taken_by
from secure_fl.crypto.blame.inquiry import Inquiry, InquiryEvidence
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.masking import Slots
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.errors import CohortError, CryptoError, Misconduct, TamperError, UnusableKeys
from secure_fl.federation.assembly import keys_of_sums, make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.frames import Frame, digest
from secure_fl.protocol.messages import (
    Audience,
    Deal,
    Examine,
    Ready,
    Salt,
    SumInput,
    Total,
    UnmaskShares,
)
from secure_fl.settings import Protection
from secure_fl.testing.harness import Faults, Federated, LossyEngine, federate
from tests.support.assembled_evidence import SumTold, signed
from tests.support.attacker import NAMES, Wiretap, summing
from tests.support.lying_coordinator import lying_coordinator
from tests.support.raising import raises
from tests.support.spoiling import Kept

LIAR, VICTIM = "north", "south"
KEYS = make_keys("he+secagg", NAMES, None)
CARDS = {name: KEYS[name].identity.public for name in NAMES}
VALUES = {"x": np.ones(50, np.float32)}


def run(*, sums: int = 3, **options: Any) -> tuple[Federated, dict[str, Kept]]:
    kept = {name: Kept() for name in NAMES}
    programs = {name: summing(VALUES, sums, bound=2.0) for name in NAMES}
    given = {"mode": "he+secagg", "keys": KEYS, "min_cohort": 3, "catch": True, **options}
    return federate(programs, kept=kept, **given), kept


def lies(**by_kind: Any) -> Mapping[str, Faults]:
    kinds: dict[str, Any] = {"input": SumInput, "shares": UnmaskShares, "ready": Ready}
    return {LIAR: {kinds[name]: change for name, change in by_kind.items()}}


def require_nobody_convicted(out: Federated, kept: Mapping[str, Kept]) -> None:
    assert {session.convicted for session in out.sessions.values()} == {""}
    assert all(not one.cases for one in kept.values())


def require_only_liar_lost(out: Federated) -> None:
    assert out.error is None, out.error
    lost = {name for event in out.events if event["event"] == "lost" for name in event["parties"]}
    assert lost == {LIAR}
    for name in set(NAMES) - {LIAR}:
        np.testing.assert_allclose(out.results[name][-1]["x"], 3.0, atol=1e-2)


def test_a_coordinator_that_sends_the_total_of_another_sum_frames_nobody() -> None:
    totals: list[tuple[Total, bytes]] = []

    def older(party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        if party != VICTIM or not isinstance(message, Total):
            return message, bulk
        totals.append((message, bulk))
        first, data = totals[0]
        if len(totals) != 2:
            return message, bulk
        return structs.replace(message, sum=first.sum, sizes=first.sizes), data

    out, kept = run(lead=lying_coordinator(older))
    assert isinstance(error := out.sessions[VICTIM].error, CohortError)
    assert "the total of another sum" in error.what and not out.sessions[VICTIM].disputes
    require_nobody_convicted(out, kept)


@pytest.mark.parametrize("change", ["number", "bound", "taken", "links", "twice"])
def test_an_upload_that_would_convict_the_coordinator_is_refused(change: str) -> None:
    def other(message: SumInput, bulk: bytes) -> tuple[SumInput, bytes]:
        changed: dict[str, tuple[SumInput, bytes]] = {
            "number": (structs.replace(message, sum=message.sum + 1), bulk),
            "bound": (structs.replace(message, bound=bytes(64)), bulk),
            "taken": (structs.replace(message, taken=bytes(32)), bulk),
            "links": (structs.replace(message, links={VICTIM: bytes(32)}), bulk),
            "twice": (structs.replace(message, segments=2 * message.segments), 2 * bulk),
        }
        return changed[change]

    out, kept = run(faults=lies(input=other))
    require_nobody_convicted(out, kept)
    require_only_liar_lost(out)
    refused = [tuple(event["parties"]) for event in out.events if event["event"] == "refused"]
    assert refused == [(LIAR,)]  # the log of the coordinator says why the party is lost


def test_a_coordinator_that_changes_a_link_is_convicted() -> None:
    """With it, members compute other masks of the dropped party than are in the total."""

    def changed(party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        if party != VICTIM or not isinstance(message, Total) or not message.lost:
            return message, bulk
        of = message.lost[LIAR]
        lie = structs.replace(of, links={**of.links, VICTIM: bytes(32)})
        return structs.replace(message, lost={LIAR: lie}), bulk

    engine = lambda sessions: LossyEngine(sessions, {LIAR: 2})  # noqa: E731
    out, kept = run(engine=engine, lead=lying_coordinator(changed), sums=1)
    assert isinstance(out.error, TamperError)
    case = InquiryEvidence.from_bytes(kept[VICTIM].cases["coordinator"])
    case.check(KEYS["west"], next(iter(out.sessions.values()))._link.peer, None)


def test_a_salt_that_the_peer_does_not_use_names_the_pair_before_anything_is_opened() -> None:
    def salted(message: SumInput, bulk: bytes) -> tuple[SumInput, bytes]:
        (segment,) = message.segments
        salt = Salt(bytes(32), (VICTIM,))
        return structs.replace(message, segments=(structs.replace(segment, salts=(salt,)),)), bulk

    out, kept = run(faults=lies(input=salted))
    assert isinstance(out.error, UnusableKeys) and set(out.error.members) == {LIAR, VICTIM}
    require_nobody_convicted(out, kept)
    assert not any(session.disputes for session in out.sessions.values())  # no failed sum


def test_owner_and_coordinator_cannot_make_evidence_of_a_false_share() -> None:
    """A second deal of the owner changes nothing: the holder signed what it took."""
    tap = Wiretap()
    run(engine=tap, sums=1)
    offers = {name: tap.of(Ready, name)[0].message.offer for name in NAMES}
    (upload, *_), (shares, *_) = tap.of(SumInput, VICTIM), tap.of(UnmaskShares, VICTIM)
    honest = taken_by(VICTIM, offers, None)
    other = Deal(bytes(32), bytes(32), bytes(32))
    offer = structs.replace(offers[LIAR], deals={**offers[LIAR].deals, VICTIM: other})
    forged = taken_by(VICTIM, {**offers, LIAR: offer}, None)
    assert forged != honest
    for taken in (forged, honest):
        with raises(CryptoError, party=VICTIM):
            FalseShare(LIAR, taken, upload.head, shares.head).check(CARDS)


@pytest.mark.parametrize("at", ["ready", "shares"])
def test_a_member_that_offers_no_keys_is_lost_itself(at: str) -> None:
    out, kept = run(
        faults=lies(**{at: lambda message, bulk: (structs.replace(message, offer=None), bulk)})
    )
    require_nobody_convicted(out, kept)
    require_only_liar_lost(out)


@pytest.mark.parametrize("sum", [1, 2])
def test_a_member_that_offers_a_key_of_low_order_is_named_by_all(
    sum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Public:
        def __get__(self, keys: StepKeys, kind: type) -> bytes:
            lie = (keys.me, keys.index) == (LIAR, sum)
            return bytes(32) if lie else keys._mask_key.public_key().public_bytes_raw()

    monkeypatch.setattr(StepKeys, "_public", Public())
    out, kept = run()
    assert isinstance(out.error, UnusableKeys) and out.error.members == (LIAR,)
    require_nobody_convicted(out, kept)


@pytest.mark.parametrize("at", ["ready", "shares"])
def test_a_member_that_offers_no_shares_to_another_is_lost_itself(at: str) -> None:
    def omitted(message: Any, bulk: bytes) -> tuple[Any, bytes]:
        if message.offer is None:
            return message, bulk
        offer = message.offer
        shares = {n: share for n, share in offer.shares.items() if n != VICTIM}
        deals = {n: deal for n, deal in offer.deals.items() if n != VICTIM}
        without = structs.replace(offer, shares=shares, deals=deals)
        return structs.replace(message, offer=without), bulk

    out, kept = run(faults=lies(**{at: omitted}))
    require_nobody_convicted(out, kept)
    require_only_liar_lost(out)


def test_a_member_that_deals_a_wrong_share_is_named_with_its_victim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = StepKeys._deal

    def wrong(keys: StepKeys, owner: str, holder: str, held: tuple[bytes, bytes, bytes]) -> Deal:
        deal = honest(keys, owner, holder, held)
        lie = (keys.me, owner, holder) == (LIAR, LIAR, VICTIM)
        return structs.replace(deal, own=bytes(32)) if lie else deal

    monkeypatch.setattr(StepKeys, "_deal", wrong)
    out, kept = run()
    assert isinstance(out.error, UnusableKeys) and set(out.error.members) == {LIAR, VICTIM}
    require_nobody_convicted(out, kept)


def test_a_part_that_no_other_party_has_names_its_author() -> None:
    def more(message: SumInput, bulk: bytes) -> tuple[SumInput, bytes]:
        (segment,) = message.segments
        shared = structs.replace(segment, digest=digest(bulk))
        own = structs.replace(shared, key=bytes(32))
        return structs.replace(message, segments=(shared, own)), 2 * bulk

    out, kept = run(faults=lies(input=more))
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    require_nobody_convicted(out, kept)


def test_names_that_fill_the_table_of_contributors_name_their_author() -> None:
    from secure_fl.protocol.messages import Declare

    async def program(cohort: Cohort) -> Any:
        return [await cohort.sum(dict(VALUES), partial=True, bound=2.0)]

    def many(message: Declare, bulk: bytes) -> tuple[Declare, bytes]:
        names = tuple(f"{n:0160}" for n in range(99_990))
        return structs.replace(message, names=names), bulk

    programs = dict.fromkeys(NAMES, program)
    faults = {LIAR: {Declare: many}}
    out = federate(programs, mode="he+secagg", keys=KEYS, min_cohort=3, catch=True, faults=faults)
    require_only_liar_lost(out)


@pytest.mark.parametrize("other", ["small tier", "host"])
def test_an_inquiry_shows_uploads_only_to_members_that_read_the_disputed_part(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """With all uploads of a part, anybody could add them up, and would have the sum of others."""
    outsider = "zeta"

    async def program(cohort: Cohort) -> Any:
        if cohort.is_host:
            return await cohort.sum({}, reveal=Audience.PARTIES)
        low = {"low": np.ones(20)}
        own = low if cohort.me == outsider else low | {"high": np.ones(20)}
        return await cohort.sum(own, bound=2.0, partial=other != "host")

    sealed, parts = SecureSumInProgress._masked, list[str]()

    def masked(sum: SecureSumInProgress, *what: Any) -> Slots:
        slots = sealed(sum, *what)
        parts.extend([sum._context.me] * (sum._context.me == LIAR))
        if sum._context.me == LIAR and len(parts) == 1:  # the part without zeta
            slots[-1] = (slots[-1] + np.uint64(1)) % np.uint64(COHORT.modulus)
        return slots

    monkeypatch.setattr(SecureSumInProgress, "_masked", masked)
    tap = Wiretap()
    host = outsider if other == "host" else None
    programs = dict.fromkeys((*NAMES, outsider), program)
    out = federate(programs, mode="he+secagg", host=host, min_cohort=3, engine=tap, catch=True)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    assert any(heard.bulk for heard in tap.of(Examine, VICTIM))
    shown = tap.of(Examine, outsider)
    assert shown and not any(heard.message.who or heard.bulk for heard in shown)


# --- evidence that a coordinator assembles ----------------------------------------------------


class Assembled:
    """A recorded sum, of which the coordinator and a colluding member sign further frames."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: Protection = "he+secagg") -> None:
        self.tap, self.seeds = Wiretap(), dict[str, bytes]()
        result, kept = ProtectedTotal.result, self.seeds

        def noted(total: ProtectedTotal, *shares: Any) -> Mapping[bytes, bytes]:
            made = result(total, *shares)
            kept.update(total.self_mask_seeds())
            return made

        monkeypatch.setattr(ProtectedTotal, "result", noted)
        links: dict[str, Any] = {}

        def lead(given: Mapping[str, Any], *rest: Any, **options: Any) -> Coordinator:
            links.update(given)
            return Coordinator(given, *rest, **options)

        run(engine=self.tap, sums=1, lead=lead, mode=mode)
        self.coordinator, self.run = links[VICTIM].me, links[VICTIM].run
        self.uploads = {name: self.tap.of(SumInput, name)[0] for name in NAMES}
        self.heads = {name: heard.head for name, heard in self.uploads.items()}

    def told(self, reader: str) -> SumTold:
        """Return the sum as the coordinator tells it to this reader."""
        return SumTold(self.run, 1, self.coordinator, reader, self.heads)

    def complaint(self, plaintiff: str, reader: str) -> tuple[bytes, Frame]:
        """Return lists, and a complaint about a total that the coordinator made up."""
        offers = {name: self.tap.of(Ready, name)[0].message.offer for name in NAMES}
        taken = taken_by(plaintiff, offers, None)
        return self.told(reader).complaint(KEYS[plaintiff].identity, taken)

    def upload(self, name: str, reader: str) -> Frame:
        """Show a member's upload as it was sent."""
        return self.told(reader).upload(name, self.seeds[name], self.uploads[name].bulk)


@pytest.mark.parametrize("lie", ["slots", "owners", "audience", "none"])
def test_an_upload_is_not_judged_by_the_layout_that_another_member_signs(
    monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    made = Assembled(monkeypatch)
    message = made.uploads[LIAR].message
    (segment,) = message.segments
    changes: dict[str, dict[str, Any]] = {
        "slots": {"segments": (structs.replace(segment, slots=segment.slots + 1),)},
        "owners": {"segments": (structs.replace(segment, owners=NAMES),)},
        "audience": {"audience": Audience.HOST},
        "none": {},
    }
    again = structs.replace(message, **changes[lie])
    bulk = made.uploads[LIAR].bulk
    made.heads[LIAR] = signed(made.run, KEYS[LIAR].identity, "coordinator", again, bulk).head
    lists, filed = made.complaint(LIAR, VICTIM)
    inquiry = Inquiry(KEYS[VICTIM], made.coordinator.public, VICTIM, None, lists)
    assert inquiry.look(filed) == ""
    assert inquiry.look(made.upload(VICTIM, VICTIM)) == ("" if lie == "none" else "coordinator")


def test_masked_uploads_are_judged_with_the_keys_of_masked_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ceremony deals the key of ciphertexts always; with it, each upload seems malformed."""
    made = Assembled(monkeypatch, "secagg")
    lists, filed = made.complaint(LIAR, VICTIM)
    dealt = KEYS[VICTIM]
    for keys, verdict in ((dealt, VICTIM), (keys_of_sums(dealt, "secagg"), "")):
        inquiry = Inquiry(keys, made.coordinator.public, VICTIM, None, lists)
        inquiry.look(filed)
        assert inquiry.look(made.upload(VICTIM, VICTIM)) == verdict


def test_the_host_of_evidence_is_the_roster_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a survivor as host, the complaint would be one that an honest party never makes."""
    made = Assembled(monkeypatch)
    lists, filed = made.complaint(VICTIM, "west")
    case = InquiryEvidence(VICTIM, "west", lists, (filed.to_bytes(),))
    case.check(KEYS["east"], made.coordinator.public, "east")  # the attack works
    with raises(CryptoError):
        case.check(KEYS["east"], made.coordinator.public, None)
    with raises(CryptoError):
        InquiryEvidence.from_bytes(msgspec.msgpack.encode({**structs.asdict(case), "host": "east"}))


@pytest.mark.parametrize("wrong", ["form", "coefficients"])
def test_a_malformed_ciphertext_loses_its_sender_only(wrong: str) -> None:
    """The second part of an upload is malformed: the first one is taken out of its sum again."""
    outsider = "zeta"

    async def program(cohort: Cohort) -> Any:
        low, high = {"low": np.ones(20)}, {"high": np.ones(20)}
        own = low if cohort.me == outsider else low | high
        return [await cohort.sum(own, bound=2.0, partial=True)]

    def spoilt(message: SumInput, bulk: bytes) -> tuple[SumInput, bytes]:
        first, second = message.segments
        parts = bulk[: first.size], bytearray(bulk[first.size :])
        start, end = (4, 5) if wrong == "form" else (5, 100)
        parts[1][start:end] = b"\xff" * (end - start)
        again = structs.replace(second, digest=digest(bytes(parts[1])))
        return structs.replace(message, segments=(first, again)), b"".join(parts)

    programs = dict.fromkeys((*NAMES, outsider), program)
    faults = lies(input=spoilt)
    out = federate(programs, mode="he+secagg", min_cohort=3, catch=True, faults=faults)
    assert out.error is None, out.error
    lost = {name for event in out.events if event["event"] == "lost" for name in event["parties"]}
    refused = {
        name for event in out.events if event["event"] == "refused" for name in event["parties"]
    }
    assert lost == refused == {LIAR}
    for name in set(NAMES) - {LIAR}:
        np.testing.assert_allclose(out.results[name][0]["low"], 4.0, atol=1e-2)
        np.testing.assert_allclose(out.results[name][0]["high"], 3.0, atol=1e-2)
