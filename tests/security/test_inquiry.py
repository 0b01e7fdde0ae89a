"""Whose tag was wrong: who spoils a sum is named by all others, and nobody sees a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tenseal import sealapi

from secure_fl.crypto.blame.inquiry import InquiryEvidence
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing import masking, public, secret
from secure_fl.crypto.sealing.blind_sum import blind_totals
from secure_fl.crypto.sealing.masking import Slots, StreamId
from secure_fl.crypto.sealing.packing import Codec, Field, Layout
from secure_fl.crypto.sealing.public import SeededSum, from_parts, to_parts
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.secure_sum import SecureSumInProgress
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.errors import CryptoError, Misconduct, PartyFailed, SecureFLError, TamperError
from secure_fl.federation.assembly import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import Session
from secure_fl.protocol import frames as wire
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Frame
from secure_fl.protocol.messages import Audience, Complaint, Examine
from secure_fl.settings import Protection, ProtectionSettings
from secure_fl.testing.harness import Federated, LossyEngine, Program, federate
from tests.support.attacker import NAMES, Wiretap, summing, tampering
from tests.support.raising import raises
from tests.support.spoiling import Kept

LIAR = "north"
MODES: tuple[Protection, ...] = ("secagg", "he+secagg")
KEYS = make_keys("he+secagg", NAMES, None)
T = np.uint64(COHORT.modulus)
VALUES = {name: np.linspace(-k, k, 300, dtype=np.float32) for k, name in enumerate(NAMES, 1)}


def run(
    mode: Protection = "he+secagg", times: int = 1, **options: Any
) -> tuple[Federated, dict[str, Kept]]:
    """Two sums of four parties, each with values of its own, so many times over."""
    kept = {name: Kept() for name in NAMES}
    vectors = {name: np.tile(VALUES[name], times) for name in NAMES}
    programs = {name: summing({"x": vectors[name]}, 2, bound=8.0) for name in NAMES}
    keys = None if mode == "none" else KEYS
    out = federate(programs, mode=mode, min_cohort=3, keys=keys, kept=kept, catch=True, **options)
    return out, kept


def lying(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Slots], None],
    liars: tuple[str, ...] = (LIAR,),
) -> None:
    """Let some change their slots after the tag was made, under the self mask."""
    sealed = SecureSumInProgress._masked

    def masked(sum: SecureSumInProgress, *what: Any) -> Slots:
        slots = sealed(sum, *what)
        if sum._context.me in liars:
            change(slots)
        return slots

    monkeypatch.setattr(SecureSumInProgress, "_masked", masked)


def wrong_tag(slots: Slots) -> None:
    slots[-1] = (slots[-1] + np.uint64(1)) % T


def other_value(slots: Slots) -> None:
    slots[0] = (slots[0] + np.uint64(1)) % T


def convicted(out: Federated) -> set[str]:
    return {session.convicted for session in out.sessions.values()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [wrong_tag, other_value])
def test_who_tags_wrongly_is_named_by_everybody(
    monkeypatch: pytest.MonkeyPatch, mode: Protection, change: Callable[[Slots], None]
) -> None:
    lying(monkeypatch, change)
    out, kept = run(mode)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    assert convicted(out) == {LIAR} and out.results == {}
    told = [event for event in out.events if event["event"] == "convicted"]
    assert {tuple(event["parties"]) for event in told} == {(LIAR,)} and len(told) == 5
    disputes = [event for event in out.events if event["event"] == "sum_disputed"]
    assert len(disputes) == 1  # all complain of one sum; a second one would be charged to nobody
    if mode == "he+secagg":
        for name in NAMES:
            InquiryEvidence.from_bytes(kept[name].cases[LIAR]).check(
                KEYS[NAMES[0]], coordinator_of(out), None
            )


def coordinator_of(out: Federated) -> Any:
    return next(iter(out.sessions.values()))._link.peer


@pytest.mark.parametrize("mode", MODES)
def test_a_coordinator_that_changes_a_total_is_convicted_by_its_own_signature(
    mode: Protection,
) -> None:
    def changed(totals: dict[bytes, bytes]) -> dict[bytes, bytes]:
        change = _one_less if mode == "he+secagg" else _flipped
        return {key: change(data) for key, data in totals.items()}

    run_id = b"fixed for a test"
    honest = blind_totals(ProtectionSettings(mode=mode), NAMES, host=None, threshold=3, run=run_id)
    out, kept = run(mode, run=run_id, new_total=tampering(honest, changed))
    assert isinstance(out.error, TamperError) and convicted(out) == {"coordinator"}
    if mode == "he+secagg":
        case = InquiryEvidence.from_bytes(kept["east"].cases["coordinator"])
        case.check(KEYS["west"], coordinator_of(out), None)
        with raises(CryptoError):  # without the upload that was shown last
            structs.replace(case, frames=case.frames[:-1]).check(
                KEYS["west"], coordinator_of(out), None
            )


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _one_less(data: bytes) -> bytes:
    count = (len(data) - 5 - 64 * len(NAMES)) // 7
    parts = to_parts(data, count)
    seeds = [part[-64 * len(NAMES) :] for part in parts]
    total = SeededSum(public.load(public.context_bytes(COHORT)), count)
    total.add([part[: len(part) - 64 * (len(NAMES) - 1)] for part in parts])
    one = np.zeros(count, np.uint64)
    one[0] = 1
    total.subtract_plain(one)
    return from_parts([half[:-64] + of for half, of in zip(total.result(), seeds, strict=True)])


@pytest.mark.parametrize("mode", MODES)
def test_who_complains_of_a_total_that_fits_is_named(mode: Protection) -> None:
    out, _ = run(mode, engine=Complaining)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    assert convicted(out) == {LIAR}


def test_who_complains_of_an_older_total_convicts_nobody_and_is_lost() -> None:
    """Shown beside the uploads of another sum, it would convict an honest coordinator."""
    out, _ = run(engine=lambda sessions: Complaining(sessions, older=True))
    assert out.error is None and convicted(out) == {""}
    assert [event["parties"] for event in out.events if event["event"] == "lost"] == [[LIAR]]


def test_who_complains_of_a_part_that_the_total_does_not_have_is_lost() -> None:
    out, _ = run(engine=lambda sessions: Complaining(sessions, segment=1))
    assert out.error is None and convicted(out) == {""}
    assert [event["parties"] for event in out.events if event["event"] == "lost"] == [[LIAR]]


class Complaining:
    """One party answers its first total with a complaint."""

    def __init__(
        self, sessions: Mapping[str, Session], *, older: bool = False, segment: int = 0
    ) -> None:
        self.sessions, self.done, self.older, self.segment = sessions, False, older, segment
        self.kept: Frame | None = None

    def exchange(self, frames: Mapping[str, Frame], deadline: float) -> Iterator[tuple[str, Frame]]:
        for party, frame in frames.items():
            session, message = self.sessions[party], wire.peek(frame.head).message
            answer = session.step(frame)
            if party == LIAR and isinstance(message, messages.Total) and not self.done:
                if self.older and self.kept is None:
                    self.kept = frame
                    yield party, answer
                    continue
                self.done, frame = True, self.kept or frame
                bulk = wire.Bulk.of(frame.bulk)
                answer = session._link.pack(Complaint(frame.head, self.segment), bulk)
            yield party, answer


def test_a_party_that_hides_its_upload_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, wrong_tag)

    def hide(session: Session, message: Examine, frame: Frame) -> Any:
        answer, bulk = examine(session, message, frame)
        return (answer, b"" if session.party == LIAR else bulk)

    examine = Session._examine
    monkeypatch.setattr("secure_fl.party.session.Session._examine", hide)
    out, _ = run(engine=(tap := Wiretap()))
    assert isinstance(out.error, PartyFailed) and out.error.where["party"] == LIAR
    assert convicted(out) == {""}  # others were looked at, and fit
    questions = [heard for heard in tap.of(Examine) if not heard.message.who]
    assert questions and not any(heard.message.head or heard.bulk for heard in questions)


@pytest.mark.parametrize("exchange", [5, 6, 7])
def test_an_inquiry_in_which_somebody_is_lost_ends_well(
    monkeypatch: pytest.MonkeyPatch, exchange: int
) -> None:
    lying(monkeypatch, wrong_tag)
    out, _ = run(engine=lambda sessions: LossyEngine(sessions, {"west": exchange}))
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR


def test_where_somebody_was_lost_the_masks_with_it_are_part_of_the_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lose = lambda sessions: LossyEngine(sessions, {"west": 2})  # noqa: E731
    out, _ = run(engine=lose)
    assert out.error is None
    whole = sum(VALUES[name] for name in NAMES[:3])
    np.testing.assert_allclose(out.results["east"][0]["x"], whole, atol=1e-2)
    lying(monkeypatch, wrong_tag)
    out, kept = run(engine=lose)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    InquiryEvidence.from_bytes(kept["south"].cases[LIAR]).check(
        KEYS["west"], coordinator_of(out), None
    )


def test_evidence_that_was_edited_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lying(monkeypatch, wrong_tag)
    out, kept = run()
    coordinator = coordinator_of(out)
    case = InquiryEvidence.from_bytes(kept["east"].cases[LIAR])
    first, second = case.frames
    flipped = second[:-1] + bytes([second[-1] ^ 1])
    for edited in (
        structs.replace(case, accused="south"),
        structs.replace(case, frames=(first,)),
        structs.replace(case, frames=(first, flipped)),
        structs.replace(case, frames=(second, first)),
        structs.replace(case, reader="south"),
        structs.replace(case, lists=InquiryEvidence.from_bytes(kept["west"].cases[LIAR]).lists),
        structs.replace(case, lists=case.lists[:-1] + bytes([case.lists[-1] ^ 1])),
    ):
        with pytest.raises(SecureFLError):
            edited.check(KEYS["south"], coordinator, None)
    other = make_keys("he+secagg", NAMES, None)["south"]
    for keys, card in (
        (other, coordinator),
        (KEYS["south"], Identity.generate("coordinator").public),
    ):
        with pytest.raises(SecureFLError):
            case.check(keys, card, None)
    for count in range(1, 4):  # left out, repeated, in another order
        for frames in product((first, second), repeat=count):
            for accused in {"coordinator", *NAMES} - {LIAR}:
                with pytest.raises(SecureFLError):
                    structs.replace(case, frames=frames, accused=accused).check(
                        KEYS["south"], coordinator, None
                    )
    for data in (b"", b"no", case.to_bytes()[:-1]):
        with raises(CryptoError):
            InquiryEvidence.from_bytes(data)


# --- what an inquiry shows ------------------------------------------------------------------------


def shown_to(monkeypatch: pytest.MonkeyPatch, reader: str) -> dict[str, Slots]:
    """All that a member can make of what it is shown: uploads without self masks, and its own."""
    tap = Wiretap()
    found: dict[str, Slots] = {}
    lying(monkeypatch, wrong_tag, ("west",))
    out, _ = run(engine=tap)
    assert out.error is not None
    for heard in tap.of(Examine, reader):
        shown = heard.message
        if not shown.seed:
            continue
        sent: Any = wire.peek(shown.head)
        (segment,) = sent.message.segments
        stream = StreamId(sent.run.hex(), segment.key.hex(), sent.message.sum)
        cohort = KEYS[reader].cohort
        assert cohort is not None
        slots = secret.open(cohort, to_parts(heard.bulk, segment.slots), segment.slots, 1)
        key = masking.stream_key(shown.seed, stream, "self")
        found[shown.who] = (slots + T - masking.uniform(key, segment.slots, COHORT.modulus)) % T
    return found


def values_of(slots: Slots, parties: int = 1) -> Any:
    """What slots hold, if they hold values of one party, or a sum of so many."""
    layout = Layout((Field("x", 300, 8.0),), Codec(16, len(NAMES), COHORT.modulus, 0))
    values, _ = layout.decode(slots[:-1], parties)
    return values["x"]


def test_what_is_shown_would_be_the_values_without_masks_between_parties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack: a member reads another's upload. A coordinator can make it fail at will."""
    mask = StepKeys.mask

    def alone(keys: StepKeys, owners: Any, *what: Any, **how: Any) -> Slots:
        return mask(keys, (), *what, **how)

    monkeypatch.setattr(StepKeys, "mask", alone)
    seen = shown_to(monkeypatch, "south")
    np.testing.assert_allclose(values_of(seen["east"]), VALUES["east"], atol=1e-2)


def test_what_is_shown_tells_the_sum_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown_to(monkeypatch, "south")
    assert seen.keys() == set(NAMES)  # the liar is the last
    for name in NAMES:
        guess = values_of(seen[name])
        assert abs(np.corrcoef(guess, VALUES[name])[0, 1]) < 0.3
    total = sum(seen.values(), np.zeros_like(seen["east"])) % T
    np.testing.assert_allclose(values_of(total, len(NAMES)), sum(VALUES.values()), atol=1e-2)


# --- sums of other kinds --------------------------------------------------------------------------


def test_a_host_that_notices_has_everybody_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the host opens the sum; members look at what is masked for it, too."""

    async def party(cohort: Cohort) -> Any:
        return await cohort.sum({"x": np.ones(50)}, reveal=Audience.HOST, bound=2.0)

    programs = dict.fromkeys((*NAMES, "hub"), party)
    honest = federate(programs, mode="he+secagg", host="hub", min_cohort=3)
    assert honest.results["hub"]["x"].tolist() == pytest.approx([4.0] * 50, abs=1e-3)
    lying(monkeypatch, wrong_tag)
    out = federate(programs, mode="he+secagg", host="hub", min_cohort=3, catch=True)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    assert {out.sessions[name].convicted for name in NAMES} == {LIAR}


@pytest.mark.parametrize("lost", [None, "x1", "x2"])
def test_members_of_another_tier_look_as_well(
    monkeypatch: pytest.MonkeyPatch, lost: str | None
) -> None:
    """Layers of the large tier: its masks are salted, in the second sum, with what it saw alone."""
    small = ("x1", "x2", "x3")

    def program(name: str) -> Program:
        async def run(cohort: Cohort) -> Any:
            for _ in range(3):
                own = {"low": np.ones(20)} | ({} if name in small else {"high": np.ones(20)})
                found = await cohort.sum(own, bound=2.0, partial=True)
            return found

        return run

    def run(**options: Any) -> Federated:
        programs = {name: program(name) for name in (*NAMES, *small)}
        engine = lambda sessions: LossyEngine(sessions, {lost: 7} if lost else {})  # noqa: E731
        return federate(programs, mode="he+secagg", min_cohort=3, engine=engine, catch=True)

    out = run()
    assert out.error is None
    low = 7.0 - (lost is not None)
    assert out.results["x3"]["low"].tolist() == pytest.approx([low] * 20, abs=1e-3)
    assert out.results["east"]["high"].tolist() == pytest.approx([4.0] * 20, abs=1e-3)
    sealed, sums = SecureSumInProgress._masked, list[str]()

    def masked(sum: SecureSumInProgress, *what: Any) -> Slots:
        slots = sealed(sum, *what)
        if sum._context.me == LIAR:
            sums.append(what[1].owners)
            if len(sums) == 6:  # the third sum, the second segment
                wrong_tag(slots)
        return slots

    monkeypatch.setattr(SecureSumInProgress, "_masked", masked)
    out = run()
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR


def test_who_seals_with_too_much_noise_is_found_by_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone its upload opens, and fits; the sum does not, and the coordinator added right."""
    sealed = SecureSumInProgress._seal

    def seal(sum: SecureSumInProgress, group: Any, at: Any) -> Any:
        segment, data = sealed(sum, group, at)
        if sum._context.me != LIAR:
            return segment, data
        noisy = from_parts([_noisy(part) for part in to_parts(data, segment.slots)])
        return structs.replace(segment, size=len(noisy)), noisy

    monkeypatch.setattr(SecureSumInProgress, "_seal", seal)
    # Of many values some have the honest noise, 17 of 6.4 in a sum, that is missing to the bound.
    out, kept = run(times=12)
    assert isinstance(out.error, Misconduct) and out.error.where["party"] == LIAR
    assert convicted(out) == {LIAR}
    for name in NAMES:  # the evidence has all uploads: only their sum shows that one is noisy
        InquiryEvidence.from_bytes(kept[name].cases[LIAR]).check(
            KEYS["west"], coordinator_of(out), None
        )


def _noisy(part: bytes) -> bytes:
    """The first half of a ciphertext with an error just below what an upload alone opens with."""
    (modulus, _) = sealapi.CoeffModulus.Create(COHORT.degree, list(COHORT.coefficient_bits))
    size = (len(part) - 1 - public.SEED_BYTES) // public.WORD_BYTES
    return part[:1] + public.moved(part[1:], size, 495, modulus.value())
