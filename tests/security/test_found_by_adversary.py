"""Faults that the generative adversary found (`tests/support/adversary.py`), as direct attacks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from secure_fl.coordinator.blame import HIDDEN
from secure_fl.coordinator.run_steps import HandoverStep
from secure_fl.coordinator.sum_steps import CoordinatorRules, StepContext
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.errors import (
    CohortError,
    Misconduct,
    PartyFailed,
    SecureFLError,
    TooFewParties,
    UnusableKeys,
    WireError,
)
from secure_fl.party import cohort as party_cohort
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.arrays import pack
from secure_fl.protocol.frames import Frame, cut
from secure_fl.protocol.messages import (
    Agree,
    Audience,
    Broadcast,
    Complaint,
    Failed,
    Finding,
    Handover,
    Hello,
    Lost,
    Relayed,
    SumInput,
    Total,
    UnmaskShares,
)
from secure_fl.protocol.ports import Group, OfferedKeys
from secure_fl.testing.harness import Federated, LossyEngine, federate
from tests.security.test_blame_attacks import (
    KEYS,
    LIAR,
    VICTIM,
    lies,
    require_nobody_convicted,
    require_only_liar_lost,
    run,
)
from tests.support.attacker import NAMES
from tests.support.lying_coordinator import lying_coordinator
from tests.support.raising import raises
from tests.support.spoiling import Spoiler


def test_a_message_of_no_run_loses_its_sender_only() -> None:
    def greet(message: SumInput, bulk: bytes) -> Any:
        return Hello(bytes(16)), b""

    out, kept = run(faults={LIAR: {SumInput: greet}})
    require_nobody_convicted(out, kept)
    require_only_liar_lost(out)


@pytest.mark.parametrize("honest", [True, False])
def test_a_complaint_about_a_total_that_fits_convicts_its_author_only(honest: bool) -> None:
    """With other bytes than were sent, members would convict the coordinator."""
    sent = list[Frame]()

    def keep(party: str, direction: str, frame: Frame) -> Frame:
        if (party, direction) == (LIAR, "in"):
            sent.append(frame)
        return frame

    def complain(message: SumInput, bulk: bytes) -> Any:
        total = sent[-1]
        if message.sum != 2:  # it answers the first total by its second upload
            return message, bulk
        return Complaint(total.head), total.bulk if honest else bytes(len(total.bulk))

    out, kept = run(
        engine=lambda sessions: LossyEngine(sessions, tap=keep), faults=lies(input=complain)
    )
    if honest:
        assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
        lost = [event for event in out.events if event["event"] == "lost"]
        assert not lost  # nobody who has begun the next sum counts as one that hides its upload
    else:
        require_nobody_convicted(out, kept)
        require_only_liar_lost(out)


def test_parties_show_the_upload_of_a_host_sum_though_they_have_begun_the_next() -> None:
    host, names = "zeta", (*NAMES, "west")

    async def program(cohort: Cohort) -> Any:
        for _ in range(2):
            values = {"x": np.ones(20, np.float32)}
            await cohort.sum(values, bound=2.0, reveal=Audience.HOST)

    def spoil(message: SumInput, bulk: bytes) -> Any:
        sent.append(bytes([bulk[0] ^ 1]) + bulk[1:])
        return message, sent[-1]

    def show(message: Finding, bulk: bytes) -> Any:
        return message, sent[0] if bulk else b""

    sent = list[bytes]()
    out = federate(
        dict.fromkeys((*names, host), program),
        mode="he+secagg",
        host=host,
        min_cohort=3,
        faults={LIAR: {SumInput: spoil, Finding: show}},
        catch=True,
    )
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    assert not [event for event in out.events if event["event"] == "lost"]
    assert out.sessions[host].convicted == LIAR  # else it could not repeat the round without it


@pytest.mark.parametrize("threshold", [3, 4])  # the others could go on, or could not
@pytest.mark.parametrize("about", ["", VICTIM])
def test_a_member_that_leaves_an_inquiry_is_named_for_it(about: str, threshold: int) -> None:
    """By a claim about another's keys, it would end the inquiry without a name."""

    def leave(message: Finding, bulk: bytes) -> Any:
        return Failed("keys", about), b""

    spoiler = Spoiler(KEYS[LIAR], slot=-1)
    faults: Any = {LIAR: {**spoiler.faults, Finding: leave}}
    out, kept = run(faults=faults, threshold=threshold)
    require_nobody_convicted(out, kept)
    assert isinstance(out.error, PartyFailed) and out.error.reason == HIDDEN
    assert out.error.where["party"] == LIAR
    for name in set(NAMES) - {LIAR}:
        assert out.sessions[name].charged == LIAR


def test_relayed_values_of_other_numbers_than_their_senders_are_refused() -> None:
    async def program(cohort: Cohort) -> Any:
        return await cohort.share({"x": np.ones(2, np.float32)})

    def fewer(party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        if not isinstance(message, Relayed):
            return message, bulk
        return Relayed(message.senders, (sum(message.sizes),)), bulk

    out = federate(
        dict.fromkeys(NAMES, program),
        mode="he+secagg",
        keys=KEYS,
        lead=lying_coordinator(fewer),
        catch=True,
    )
    error = out.sessions[NAMES[0]].error
    assert isinstance(error, CohortError) and "other values than it lists" in error.what


@pytest.mark.parametrize("more", ["ghost", NAMES[1]])
def test_relayed_values_of_other_senders_than_the_members_are_refused(more: str) -> None:
    async def program(cohort: Cohort) -> Any:
        return await cohort.share({"x": np.ones(2, np.float32)})

    def add(party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        if not isinstance(message, Relayed):
            return message, bulk
        copied = bulk[: message.sizes[0]]
        return Relayed((*message.senders, more), (*message.sizes, len(copied))), bulk + copied

    out = federate(
        dict.fromkeys(NAMES, program),
        mode="he+secagg",
        keys=KEYS,
        lead=lying_coordinator(add),
        catch=True,
    )
    error = out.sessions[NAMES[0]].error
    assert isinstance(error, CohortError) and "did not begin with" in error.what


@pytest.mark.parametrize("liars", [(LIAR, "east"), (LIAR, "east", "west")])
def test_half_of_the_members_do_not_have_another_named_alone(liars: tuple[str, ...]) -> None:
    """By a majority of the *others*, two of four would exclude an honest member."""

    def refuse(message: UnmaskShares, bulk: bytes) -> Any:
        return Failed("keys", VICTIM), b""

    out, kept = run(faults={name: {UnmaskShares: refuse} for name in liars})
    require_nobody_convicted(out, kept)
    assert isinstance(out.error, UnusableKeys)
    assert (set(out.error.members) == {VICTIM}) is (len(liars) == 3)


@pytest.mark.parametrize("named", [VICTIM, "stranger"])
def test_a_false_total_with_the_mask_of_a_party_that_is_not_lost_frames_nobody(named: str) -> None:
    """Its reader must refuse it: the others would take a complaint about it for unfounded."""
    reader = "north"

    def name(party: str, message: Any, bulk: bytes) -> tuple[Any, bytes]:
        if not isinstance(message, Total) or party != reader:
            return message, bulk
        lost = {named: Lost(bytes(16), ({"east": bytes(32)},))}
        return structs.replace(message, lost=lost), bulk[:-1] + bytes([bulk[-1] ^ 1])

    out, kept = run(mode="secagg", keys=None, lead=lying_coordinator(name), sums=1)
    require_nobody_convicted(out, kept)
    error = out.sessions[reader].error
    assert isinstance(error, CohortError) and "seeds of dropped parties' masks" in error.what


def test_a_host_that_names_other_contributors_than_the_parties_frames_nobody() -> None:
    """By a complaint about their sum it would convict the coordinator: it is not one upload."""
    host, sent = "zeta", list[Frame]()

    async def program(cohort: Cohort) -> Any:
        for _ in range(2):
            values = {"x": np.ones(20, np.float32)}
            await cohort.sum(values, bound=2.0, reveal=Audience.HOST)

    def fewer(message: SumInput, bulk: bytes) -> Any:
        if message.sum == 2:
            return Complaint(sent[-1].head), sent[-1].bulk
        (segment,) = message.segments
        return structs.replace(message, segments=(structs.replace(segment, owners=("east",)),)), b""

    def keep(party: str, direction: str, frame: Frame) -> Frame:
        if (party, direction) == (host, "in"):
            sent.append(frame)
        return frame

    out = federate(
        dict.fromkeys((*NAMES, host), program),
        mode="secagg",
        host=host,
        min_cohort=3,
        faults={host: {SumInput: fewer}},
        engine=lambda sessions: LossyEngine(sessions, tap=keep),
        catch=True,
    )
    assert {session.convicted for session in out.sessions.values()} == {""}
    assert isinstance(out.error, SecureFLError) and f"{host} sent an invalid" in out.error.what


def test_a_member_that_salts_a_mask_with_itself_is_lost_before_the_sum_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other tag cancels this part of its own, which fits what it signed: nobody is at fault."""
    honest = SecureSumInProgress._salts

    def salts(under_way: SecureSumInProgress, group: Group) -> dict[str, bytes]:
        other = {LIAR: bytes(32)} if under_way._context.me == LIAR else {}
        return honest(under_way, group) | other

    monkeypatch.setattr(SecureSumInProgress, "_salts", salts)
    out, kept = run()
    require_nobody_convicted(out, kept)
    require_only_liar_lost(out)


def omitting(*liars: str) -> Federated:
    """Run a sum with two parts, of which these members omit the one that west does not have."""

    async def program(cohort: Cohort) -> Any:
        names = ("low",) if cohort.me == "west" else ("low", "high")
        values = {name: np.ones(20, np.float32) for name in names}
        return [await cohort.sum(values, partial=True, bound=2.0)]

    def omit(message: SumInput, bulk: bytes) -> Any:
        kept = [place for place, one in enumerate(message.segments) if not one.owners]
        parts = cut(bulk, [one.size for one in message.segments])
        segments = tuple(message.segments[place] for place in kept)
        return structs.replace(message, segments=segments), b"".join(parts[place] for place in kept)

    return federate(
        dict.fromkeys(NAMES, program),
        mode="he+secagg",
        keys=KEYS,
        min_cohort=2,
        faults={name: {SumInput: omit} for name in liars},
        catch=True,
    )


@pytest.mark.parametrize("liars", [("north",), ("north", "south")])
def test_members_that_omit_a_part_cost_nobody_the_keys_and_convict_nobody(
    liars: tuple[str, ...],
) -> None:
    """The sum is not opened: no upload of that part could explain why it fails."""
    out = omitting(*liars)
    assert isinstance(out.error, UnusableKeys)
    assert set(out.error.members) == {"east", "north", "south"}
    assert not any(session.disputes for session in out.sessions.values())  # no failed sum


@pytest.mark.parametrize(
    ("owners", "named"),
    [(("east", "north"), {"east", "north", "west"}), (("east", "north", "south"), {"west"})],
)
def test_a_member_that_reads_a_part_which_nobody_has_is_named(
    owners: tuple[str, ...], named: set[str]
) -> None:
    """It ends the sum for all. The word of most members convicts it; of fewer, names both sides."""

    async def program(cohort: Cohort) -> Any:
        return [await cohort.sum({"x": np.ones(20, np.float32)}, partial=True, bound=2.0)]

    def invent(message: SumInput, bulk: bytes) -> Any:
        part = structs.replace(message.segments[0], key=b"i" * 32, size=0, owners=owners, salts=())
        return structs.replace(message, segments=(*message.segments, part)), bulk

    out = federate(
        dict.fromkeys(NAMES, program),
        mode="he+secagg",
        keys=KEYS,
        min_cohort=2,
        faults={"west": {SumInput: invent}},
        catch=True,
    )
    assert isinstance(out.error, UnusableKeys) and set(out.error.members) == named
    assert not any(session.disputes for session in out.sessions.values())


@pytest.mark.parametrize(
    ("sharing", "named"),
    [(("east", "north"), {"east", "north"}), (("east", "north", "south", "west"), {"east"})],
)
def test_the_first_upload_of_a_part_does_not_decide_how_it_is_laid_out(
    sharing: tuple[str, ...], named: set[str]
) -> None:
    """A liar that answers first would have honest members lost who describe the part truly."""

    async def program(cohort: Cohort) -> Any:
        names = ("low", "high") if cohort.me in sharing else ("low",)
        values = {name: np.ones(20, np.float32) for name in names}
        return [await cohort.sum(values, partial=True, bound=2.0)]

    def describe(message: SumInput, bulk: bytes) -> Any:
        owned = [at for at, one in enumerate(message.segments) if one.owners]
        at = owned[0] if owned else 0
        told = structs.replace(message.segments[at], owners=("east", "north", "south"))
        return structs.replace(
            message, segments=(*message.segments[:at], told, *message.segments[at + 1 :])
        ), bulk

    out = federate(
        dict.fromkeys(NAMES, program),
        mode="he+secagg",
        min_cohort=2,
        faults={"east": {SumInput: describe}},
        catch=True,
    )
    assert isinstance(out.error, UnusableKeys) and set(out.error.members) == named
    assert not any(session.disputes for session in out.sessions.values())


def test_a_member_whose_state_is_not_what_it_proves_is_named_by_all_others() -> None:
    """The coordinator cannot check the proof, and would see only that everybody stops."""

    async def program(cohort: Cohort) -> Any:
        await cohort.agree(b"equal", "a state")

    def forge(message: Agree, bulk: bytes) -> Any:
        return structs.replace(message, proof=bytes(len(message.proof))), bulk

    out = federate(
        dict.fromkeys(NAMES, program),
        mode="he+secagg",
        keys=KEYS,
        faults={LIAR: {Agree: forge}},
        catch=True,
    )
    assert isinstance(out.error, PartyFailed) and out.error.members == (LIAR,)


@pytest.mark.parametrize(("liar", "junk"), [("north", b"junk"), ("zhost", b"")])
def test_a_party_that_broadcasts_is_left_out_and_a_host_that_does_not_is_named(
    liar: str, junk: bytes
) -> None:
    """The others would refuse the broadcast, or wait for it, and blame the host or nobody."""

    async def program(cohort: Cohort) -> Any:
        await cohort.broadcast({"v": np.ones(2, np.float32)} if cohort.is_host else None)
        return await cohort.sum({} if cohort.is_host else {"x": np.ones(3, np.float32)})

    out = federate(
        dict.fromkeys((*NAMES, "zhost"), program),
        mode="secagg",
        host="zhost",
        faults={liar: {Broadcast: lambda message, bulk: (message, junk)}},
        catch=True,
    )
    if junk:
        assert out.error is None and {"east", "south", "west"} <= set(out.results)
        np.testing.assert_allclose(out.results["east"]["x"], 3)
    else:
        assert isinstance(out.error, TooFewParties) and liar in out.error.what
    lost = [event["parties"] for event in out.events if event["event"] == "lost"]
    assert lost == [[liar]]


def of_bfloat16(values: Any) -> bytes:
    """Encode values as pack does, except for names that end in 16."""
    if not any(name.endswith("16") for name in values):
        return pack(values)
    head = b'{"v16":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    return len(head).to_bytes(8, "little") + head + bytes(4)


@pytest.mark.parametrize("liar", ["north", "zhost"])
def test_a_shared_value_that_is_no_numpy_array_names_its_sender(
    liar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy has no bfloat16: all members stopped at once, so that none was named."""
    monkeypatch.setattr(party_cohort, "pack", of_bfloat16)

    async def program(cohort: Cohort) -> Any:
        value = {"v16" if cohort.me == liar else "v": np.ones(2, np.float32)}
        if liar == "zhost":
            await cohort.broadcast(value if cohort.is_host else None)
        else:
            await cohort.share(value)

    out = federate(
        dict.fromkeys((*NAMES, "zhost"), program), mode="secagg", host="zhost", catch=True
    )
    assert isinstance(out.error, PartyFailed) and out.error.members == (liar,)


def handing_over() -> HandoverStep:
    offered = OfferedKeys()
    total = partial(ProtectedTotal, 2, None, numbers={}, host=None, threshold=2, run=b"")
    rules = CoordinatorRules(None, 2, 2)
    context = StepContext(rules, NAMES, lambda _, offered: total(offered=offered), offered, None)
    return HandoverStep(context._replace(newcomers=("east",)))


def test_the_first_holder_is_named_if_it_hands_nothing_over() -> None:
    """The run would wait for it and gather again, for ever."""
    step, held = handing_over(), Handover(bytes(32), b"proof")
    step.receive("east", Handover(), b"")
    for party in ("north", "south"):
        step.receive(party, held, b"")
    with raises(UnusableKeys, party="north"):
        step.reply(NAMES)
    with raises(TooFewParties, "was lost"):  # perhaps the first holder: nobody is named
        step.reply(("north", "south", "west"))


def test_only_holders_vouch_for_a_state() -> None:
    """Members would count other holders than the coordinator does, and none could go on."""
    held = Handover(bytes(32), b"proof")
    for party, message in (("east", held), ("north", Handover())):
        with raises(WireError, party=party):
            handing_over().receive(party, message, b"")


def test_only_the_first_holder_hands_its_state_over() -> None:
    """Any other would have newcomers refuse the state of an honest one."""
    step, held = handing_over(), Handover(bytes(32), b"proof")
    for party, message, state in (
        ("north", held, b"true"),
        ("east", Handover(), b"of a newcomer"),
        ("south", held, b"of another holder"),
        ("west", held, b""),
    ):
        step.receive(party, message, state)
    bulks = step.reply(NAMES).bulks
    assert {party: bulk.data for party, bulk in bulks.items()} == {"east": b"true"}
