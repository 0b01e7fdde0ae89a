"""Invariants of a pilot under attack: what must never happen, whatever its liars send."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from msgspec import structs

from secure_fl.crypto.blame.evidence import FalseShare, digest_taken, taken_by
from secure_fl.crypto.blame.inquiry import Inquiry, InquiryEvidence
from secure_fl.crypto.privacy.accounting import SkellamRelease, epsilon
from secure_fl.crypto.privacy.ledger import Account, Budget
from secure_fl.crypto.privacy.noise_ledger import UNIT
from secure_fl.errors import BudgetError, SecureFLError
from secure_fl.events import Convicted, MemberFailed, MembersLost, Refused
from secure_fl.features.statistics.note import NOTE
from secure_fl.federation.assembly import COORDINATOR
from secure_fl.protocol import frames as wire
from secure_fl.protocol.frames import EquivocationProof, Frame
from secure_fl.protocol.messages import (
    Audience,
    Complaint,
    Examine,
    Offer,
    Ready,
    Salt,
    SumInput,
    Unmask,
    UnmaskShares,
)
from tests.support.adversary import MASKED, Outcome
from tests.support.adversary_programs import (
    HOST,
    LEAST,
    MAX_EPSILON,
    NOISE,
    Opened,
    codebook_of,
    codebooks_of,
    ledger_of,
)
from tests.support.assembled_evidence import SumTold, signed

EXCUSED = (BudgetError.code,)  # repeated rounds cost


def violations(outcome: Outcome) -> Iterator[str]:
    """Yield what must never happen."""
    yield from _crashes(outcome)
    yield from _named(outcome)
    yield from _unsolved(outcome)
    yield from _keys(outcome)
    yield from _evidence(outcome)
    yield from _forgeries(outcome)
    yield from _sums(outcome)
    yield from _audience(outcome)
    yield from _tables(outcome)
    yield from _budgets(outcome)


def _honest(outcome: Outcome) -> list[str]:
    return [name for name in outcome.scenario.members if name not in outcome.scenario.liars]


def _honest_coordinator(outcome: Outcome) -> bool:
    return COORDINATOR not in outcome.scenario.liars


def _crashes(outcome: Outcome) -> Iterator[str]:
    """Yield unexpected errors of honest parties."""
    for name, run in outcome.pilot.runs:
        error = run.session.error
        if name in _honest(outcome) and error is not None and type(error) is SecureFLError:
            yield f"{name} crashed: {error}"
    for event in outcome.pilot.events:
        if isinstance(event, Refused) and event.party in _honest(outcome):
            if event.code == SecureFLError.code:
                yield f"{event.party} crashed: {event.why}"


def _unsolved(outcome: Outcome) -> Iterator[str]:
    """Yield inquiries with all uploads in which a liar is not convicted."""
    for name, run in outcome.pilot.runs if _honest_coordinator(outcome) else ():
        session = run.session
        if name in _honest(outcome) and session.explained and not session.convicted:
            yield f"{name} convicts nobody, and the total of an honest coordinator fails"


def _named(outcome: Outcome) -> Iterator[str]:
    """Yield honest members that are convicted, or lost by the act of another."""
    scenario, honest = outcome.scenario, set(_honest(outcome))
    for name, run in outcome.pilot.runs:
        accused = run.session.convicted
        if name in honest and accused and accused not in scenario.liars:
            yield f"{name} convicts {accused}"
    differ = set[str]()
    outsiders = False  # True after a conviction for which members of other tiers have no evidence
    for event in outcome.pilot.events if _honest_coordinator(outcome) else ():
        if event.party != COORDINATOR:
            continue
        named = set(event.parties) if hasattr(event, "parties") else set()
        if isinstance(event, Convicted) and named & honest:
            yield f"the coordinator convicts {', '.join(sorted(named & honest))}"
        most = 2 * len(honest & set(scenario.names)) > len(scenario.names)
        if isinstance(event, MemberFailed) and event.code == "keys" and most and not named - honest:
            yield f"honest members are at odds: {', '.join(sorted(named))}"
        outsiders |= scenario.tiers and isinstance(event, Convicted)
        excused = EXCUSED if scenario.mode in MASKED else (*EXCUSED, "tamper")  # no inquiries
        if isinstance(event, MemberFailed | Refused) and event.code in excused:
            differ |= named
        lost = (named & honest) - set(scenario.away) - differ
        alone = len(scenario.liars) == 1 and not outsiders
        if isinstance(event, MembersLost) and lost and alone:
            yield f"honest members are lost: {', '.join(sorted(lost))}"


def _keys(outcome: Outcome) -> Iterator[str]:
    """Yield honest members that lose keys, or count a forged sum, by the act of a member."""
    scenario = outcome.scenario
    if not _honest_coordinator(outcome) or scenario.mode not in MASKED:
        return
    undisturbed = set() if scenario.crash else set(scenario.names) - set(scenario.away)
    for name in _honest(outcome):
        process = outcome.pilot.processes[name]
        memory, roster = process._memory, outcome.pilot.roster
        try:
            memory.require_unforged(roster)
        except SecureFLError:
            yield f"{name} retires its keys"
        if name in undisturbed:
            notes = list(memory._lines)
            forged = sum("forged" in line for line in notes)
            if forged > sum("explained" in line for line in notes):
                yield f"{name} counts a forged sum, and the coordinator is honest"
        for accused in memory.charged(roster):
            if accused not in scenario.liars and accused not in scenario.away:
                yield f"{name} refuses {accused}, which is honest"


def _evidence(outcome: Outcome) -> Iterator[str]:
    """Yield stored evidence that does not check, or accuses honest parties."""
    pilot, scenario = outcome.pilot, outcome.scenario
    for name in _honest(outcome):
        for file in pilot.folder.glob(f"{name}/*/parties/{name}/evidence/[!.]*"):
            if file.name not in scenario.liars:
                yield f"{name} keeps evidence against {file.name}"
            try:
                data = file.read_bytes()
                if (proof := EquivocationProof.from_bytes(data)) is not None:
                    proof.check(pilot.coordinator.public)
                else:
                    case = InquiryEvidence.from_bytes(data)
                    host = HOST if scenario.host else None
                    case.check(scenario.keys()[name], pilot.coordinator.public, host)
            except SecureFLError as error:
                yield f"the evidence of {name} against {file.name} does not check: {error.what}"
    cards = {name: held.identity.public for name, held in scenario.keys().items()}
    for event in pilot.events if _honest_coordinator(outcome) else ():
        if isinstance(event, Convicted) and event.evidence:
            try:
                FalseShare.read(event.evidence).check(cards)
            except SecureFLError as error:
                yield f"the evidence of a false share does not check: {error.what}"


def _forgeries(outcome: Outcome) -> Iterator[str]:
    """Yield evidence against honest parties that liars can assemble from signed frames."""
    by_reader = dict[str, tuple[list[bytes], list[Frame], list[Frame]]]()
    for reader, frame in outcome.adversary.shown:
        message = _message(frame)
        lists, complaints, uploads = by_reader.setdefault(reader, ([], [], []))
        if isinstance(message, Unmask):
            lists.append(frame.head)
        elif isinstance(message, Examine) and message.who:
            (complaints if message.inputs else uploads).append(frame)
    rng = random.Random(outcome.scenario.seed)
    cases = list[tuple[str, bytes, list[Frame]]]()
    for reader, (lists, complaints, uploads) in by_reader.items():
        for head in lists[-2:] if complaints else ():
            shown = [*complaints[-1:], *uploads]
            orders = [shown, *([*complaints[-1:], upload] for upload in uploads[-2:])]
            orders += [rng.choices(shown, k=rng.randint(1, len(shown) + 1)) for _ in range(4)]
            cases += [(reader, head, order) for order in orders]
    reader_keys, found = outcome.scenario.keys()[_honest(outcome)[0]], set[str]()
    for reader, head, order in (*cases, *_assembled(outcome, rng)):
        found.add(_verdict(outcome, reader_keys, reader, head, order))
    for accused in sorted(found - {"", *outcome.scenario.liars}):
        yield f"assembled evidence convicts {accused}"
    yield from _false_shares(outcome)


def _assembled(outcome: Outcome, rng: random.Random) -> Iterator[tuple[str, bytes, list[Frame]]]:
    """Yield inquiries into a good sum, for which coordinator and member sign what they like."""
    scenario, schemes = outcome.scenario, outcome.adversary.schemes
    members = sorted(scenario.liars & set(scenario.names))
    if scenario.mode not in MASKED or COORDINATOR not in scenario.liars or not members:
        return
    liar, readers = rng.choice(members), _honest(outcome)
    for number, uploads in sorted(schemes.uploads.items())[-2:]:
        opened = {name: of for name, of in uploads.items() if any(of.seed)}
        if liar not in opened or not set(opened) & set(readers):
            continue
        victim, reader = rng.choice(sorted(set(opened) & set(readers))), rng.choice(readers)
        identity = scenario.keys()[liar].identity
        sent = wire.peek(opened[liar].head)
        run = sent.run
        message = sent.message
        assert isinstance(message, SumInput)
        taken = {name: bytes(32) for name in opened if name != HOST}
        message = structs.replace(
            _relaid(message, rng, tuple(sorted(opened))),
            sum=number,
            taken=digest_taken(taken, run.hex(), number, liar),
        )
        own = signed(run, identity, COORDINATOR, message, opened[liar].bulk)
        heads = {name: own.head if name == liar else of.head for name, of in opened.items()}
        told = SumTold(run, number, outcome.pilot.coordinator, reader, heads)
        lists, complaint = told.complaint(identity, taken)
        shown = told.upload(victim, opened[victim].seed, opened[victim].bulk)
        yield reader, lists, [complaint, shown]


def _relaid(message: SumInput, rng: random.Random, names: tuple[str, ...]) -> SumInput:
    """Describe an upload differently, or as it is."""
    segments = list(message.segments)
    place = rng.randrange(len(segments)) if segments else 0
    one = segments[place] if segments else None
    match rng.choice(["slots", "owners", "size", "audience", "salts", "order", "none"]):
        case "slots" if one:
            segments[place] = structs.replace(one, slots=max(0, one.slots + rng.choice([-1, 1, 9])))
        case "owners" if one:
            owners = tuple(rng.sample(names, rng.randint(1, len(names))))
            segments[place] = structs.replace(one, owners=owners)
        case "size" if one:
            segments[place] = structs.replace(one, size=rng.choice([0, 1, one.size + 1]))
        case "salts" if one:
            salts = (Salt(rng.randbytes(32), (rng.choice(names),)),)
            segments[place] = structs.replace(one, salts=salts)
        case "order":
            rng.shuffle(segments)
        case "audience":
            other = Audience.HOST if message.audience == Audience.PARTIES else Audience.PARTIES
            message = structs.replace(message, audience=other)
    return structs.replace(message, segments=tuple(segments))


def _verdict(outcome: Outcome, keys: object, reader: str, head: bytes, frames: list[Frame]) -> str:
    """Return the party that evidence of these frames convicts."""
    host = HOST if outcome.scenario.host else None
    try:
        inquiry = Inquiry(keys, outcome.pilot.coordinator.public, reader, host, head)  # type: ignore[arg-type]
        for frame in frames:
            if verdict := inquiry.look(frame):
                return verdict
    except SecureFLError:
        return ""
    return ""


def _false_shares(outcome: Outcome) -> Iterator[str]:
    """Yield honest holders that a coordinator and an owner convict by any offers they sign."""
    if outcome.scenario.mode not in MASKED:
        return
    cards = {name: held.identity.public for name, held in outcome.scenario.keys().items()}
    host = HOST if outcome.scenario.host else None
    offers: list[dict[str, Offer]] = [{}]
    for sender, frames in outcome.adversary.sent.items():
        for frame in frames[:6]:
            message = _message(frame)
            if isinstance(message, Ready | UnmaskShares) and message.offer is not None:
                if sender in offers[-1]:
                    offers.append({})
                offers[-1][sender] = message.offer
    for holder in _honest(outcome):
        sent = [(frame.head, _message(frame)) for frame in outcome.adversary.sent[holder][:8]]
        uploads = [head for head, message in sent if isinstance(message, SumInput)]
        reveals = [head for head, message in sent if isinstance(message, UnmaskShares)]
        for offered in offers[:2]:
            taken = taken_by(holder, offered, host)
            for owner in outcome.scenario.liars & set(taken):
                for upload in uploads[:2]:
                    for reveal in reveals[:2]:
                        try:
                            FalseShare(owner, taken, upload, reveal).check(cards)
                        except SecureFLError:
                            continue
                        yield f"a false share convicts {holder}"


def _message(frame: Frame) -> object:
    try:
        return wire.peek(frame.head).message
    except SecureFLError:
        return None  # a change that nobody can decode


def _sums(outcome: Outcome) -> Iterator[str]:
    """Yield opened values that differ between honest readers, or are no sum of enough parties."""
    scenario, honest = outcome.scenario, set(_honest(outcome))
    equal = dict[tuple[str, ...], tuple[float, ...]]()
    unequal = scenario.mode not in MASKED and not _honest_coordinator(outcome)
    over = dict[tuple[str, str, object], tuple[str, ...]]()
    for opened in outcome.results.opened:
        if opened.member not in honest:
            continue
        for key, values in opened.values.items():
            reader = opened.member if unequal else ""  # no promise of these modes
            if equal.setdefault((opened.run, str(opened.at), key, reader), values) != values:
                yield f"sum {opened.at} of {key} differs between honest members"
            yield from _mixed(outcome, opened, key, values)
        convicted = {run.session.convicted for _, run in outcome.pilot.runs}
        convicted |= {
            name
            for event in outcome.pilot.events
            if isinstance(event, Convicted)
            for name in event.parties
        }
        left = tuple(name for name in opened.survivors if name not in convicted)
        where = opened.name, opened.member, opened.at
        if opened.member not in scenario.wiped and over.setdefault(where, left) != left:
            yield f"{opened.member} opened sum {opened.at} again over other parties"


def _mixed(outcome: Outcome, opened: Opened, key: str, values: tuple[float, ...]) -> Iterator[str]:
    """Yield a sum of one hospital, of others than the survivors, or a fraction of one."""
    scenario = outcome.scenario
    lies = outcome.adversary.schemes
    unmasked = lies.halved or lies.salted - set(opened.survivors)  # some masks do not cancel
    if unmasked or (scenario.mode == "none" and scenario.liars):
        return  # liars may contribute any number
    if scenario.noise:
        if not any(values):
            yield f"{opened.member} opened a sum without noise"
        return
    bits, allowed = (
        round(values[0]),
        sum(1 << scenario.names.index(name) for name in opened.survivors if name != HOST),
    )
    if np.abs(np.subtract(values, bits)).max() > 0.05 or bits & ~allowed:
        yield f"{opened.member} opened {values[0]:.3f} of {key}, which is no sum of inputs"
    elif bits.bit_count() < 2:
        yield f"{opened.member} opened the value of a single hospital"


def _audience(outcome: Outcome) -> Iterator[str]:
    """Yield members that an honest coordinator shows an upload which they do not read."""
    if not _honest_coordinator(outcome):
        return
    key, keys_of = b"", dict[str, set[bytes]]()
    for name, frames in outcome.adversary.sent.items():
        for frame in frames:
            if isinstance(message := _message(frame), SumInput):
                keys_of.setdefault(name, set()).update(one.key for one in message.segments)
    for reader, frame in outcome.adversary.shown:
        message = _message(frame)
        if not isinstance(message, Examine) or not message.who:
            continue
        if message.input:
            complaint = _message(Frame(message.head))
            given = _message(Frame(message.input))
            if isinstance(complaint, Complaint) and isinstance(given, SumInput):
                key = given.segments[complaint.segment].key
        if key not in keys_of.get(reader, set()):
            yield f"{reader} sees an upload that it does not read"


def _tables(outcome: Outcome) -> Iterator[str]:
    """Yield released tables that differ, or count other records than those of the hospitals."""
    scenario, honest = outcome.scenario, _honest(outcome)
    colluders = not _honest_coordinator(outcome) and len(scenario.liars) > 1
    equal = dict[str, object]()
    for run, name, tables in outcome.results.tables:
        if name not in honest:
            continue
        proved = scenario.mode != "none" or _honest_coordinator(outcome)
        if proved and not colluders and equal.setdefault(run, tables) != tables:
            yield f"{name} releases other tables"
        if tables["status"] != "answered":
            continue
        if len(honest) == len(scenario.names) and proved and tables["epsilon"] is None:
            own, equal_parts, *_ = tables["tables"][0]["counts"]
            if equal_parts != LEAST * tables["hospitals"] or own % LEAST:
                yield f"{name} releases counts of {own} and {equal_parts} records"
            elif (own // LEAST).bit_count() != tables["hospitals"]:
                yield f"{name} releases counts of other hospitals"
        for site in honest if len(honest) == tables["hospitals"] else (name,):
            if not _noted(outcome, site, tables["epsilon"]):
                yield f"{site} has no note of what {name} releases"


def _noted(outcome: Outcome, site: str, epsilon: float | None) -> bool:
    """Return True if a site noted a codebook, or reserved its noise, before it was opened."""
    run = next(run for name, run in outcome.pilot.runs if name == site)
    if epsilon is not None:
        return bool(ledger_of(run).events(codebooks_of(site)))
    return (run.context.ledger / site / NOTE).exists()


def _budgets(outcome: Outcome) -> Iterator[str]:
    """Yield entries in ledgers beyond the announced budget, and releases without an entry."""
    scenario, host = outcome.scenario, HOST in _honest(outcome)
    runs = {name: run for name, run in outcome.pilot.runs if name in _honest(outcome)}
    opened = {(one.run, one.at): one for one in outcome.results.opened if one.member == HOST}
    for name, run in runs.items() if scenario.noise or scenario.codebook else ():
        if name == HOST:
            continue
        account = Account(name, UNIT) if scenario.noise else codebooks_of(name)
        events = ledger_of(run).events(account)
        budget = Budget(NOISE.epsilon, NOISE.delta)
        if scenario.codebook:
            budget = Budget(MAX_EPSILON, codebook_of(scenario).delta)
            lines = (run.context.ledger / name / NOTE).exists()
            if codebook_of(scenario).epsilon is None and events:
                yield f"{name} spends budget on exact counts"
            elif codebook_of(scenario).epsilon is not None and lines:
                yield f"{name} notes counts that have noise"
        if events and not epsilon(events, budget.delta) <= budget.epsilon:
            yield f"{name} spends more than its budget"
        entered = sum(one.count for one in events if isinstance(one, SkellamRelease))
        mine = [one for one in opened.values() if name in one.survivors]
        if scenario.noise and host and len(mine) > entered:
            yield f"{len(mine)} noised sums of {name} are opened, and {entered} are in its ledger"
    least = outcome.pilot.roster.t
    for one in opened.values() if scenario.noise and host else ():
        if len(set(one.survivors) - {HOST}) < least:
            yield f"a sum with the noise of {len(one.survivors) - 1} hospitals is opened"
