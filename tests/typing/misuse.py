"""Code that must not pass the type checker: every line marked so is an error, and no other.

It is never run. `test_misuse.py` gives it to mypy.
"""

from __future__ import annotations

from secure_fl.coordinator.machine import Coordinator, Engine
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity, PublicIdentity, open_sealed, seal_to
from secure_fl.crypto.sealing import public, secret
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal, SealedInts
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.crypto.sealing.masking import Slots
from secure_fl.crypto.sealing.public import PublicContext, Sum
from secure_fl.crypto.sealing.secret import SecretKey
from secure_fl.events import EventLog
from secure_fl.party.cohort import Cohort
from secure_fl.protocol import messages
from secure_fl.protocol.frames import Bulk, Frame, Link
from secure_fl.protocol.messages import Audience, Segment, Unmask
from secure_fl.protocol.ports import Group, Rule, SumInProgress, SumLayer, TotalFor, Vector


def clear_values_to_a_coordinator(
    total: Sum, protected: ProtectedTotal, sealed: SealedInts, values: Slots
) -> None:
    total.add([b"sealed"])
    total.add(values)  # expect: error
    total.add([1.5, 2.5])  # expect: error
    sealed.add(values, 3)  # expect: error
    segment = Segment(bytes(32), 3)
    protected.add("north", (segment,), b"sealed")
    protected.add("north", (segment,), values)  # expect: error
    protected.add("north", {"layer.weight": values}, b"")  # expect: error


def clear_values_on_the_wire(link: Link, values: Slots) -> None:
    message = messages.SumInput(Audience.PARTIES, ())
    link.pack(message, Bulk.of(b"sealed"))
    link.pack(message, values)  # expect: error
    link.pack(message, b"without a digest")  # expect: error
    link.pack({"loss": 0.3})  # expect: error
    messages.SumInput(Audience.PARTIES, ({"layer.weight": values},))  # expect: error
    Frame(b"head", values)  # expect: error


def keys_at_a_coordinator(key: SecretKey, context: PublicContext) -> None:
    Sum(context, 9)
    Sum(key, 9)  # expect: error
    SealedInts(key, 3, 9)  # expect: error
    public.load(key.public())
    public.load(key)  # expect: error


def opening_without_the_secret(key: SecretKey, context: PublicContext) -> None:
    parts = [b"sealed"]
    secret.open(key, parts, 3)
    secret.open(context, parts, 3)  # expect: error
    context.open(parts)  # expect: error
    Sum(context).open(parts)  # expect: error


def the_wrong_audience() -> None:
    Rule(audience=Audience.PARTIES)
    Rule(audience="coordinator")  # expect: error


def a_sum_out_of_order(
    sums: SumLayer, group: Group, under_way: SumInProgress, lists: Unmask
) -> None:
    sums.begin([group], Rule(), (1, 1)).settle(lists)
    under_way.shares(None)
    sums.settle(lists)  # expect: error
    sums.open([b"total"], ())  # expect: error
    under_way.begin([group], Rule(), (1, 1))  # expect: error
    under_way.shares(lists)  # expect: error
    under_way.settle(None)  # expect: error
    under_way.open(under_way.upload, ())  # expect: error


def clear_values_as_slots(key: SecretKey, group: Group, vector: Vector) -> None:
    secret.seal(key, vector)  # expect: error
    secret.seal(key, group.vectors)  # expect: error
    secret.seal(key, [0.5])  # expect: error


def private_and_public_identities(me: Identity, card: PublicIdentity) -> None:
    seal_to(me, card, b"", b"")
    seal_to(me, me, b"", b"")  # expect: error
    seal_to(card, card, b"", b"")  # expect: error
    open_sealed(card, card, b"", b"")  # expect: error
    card.sign(bytes(32))  # expect: error
    card.shared_with(bytes(32))  # expect: error
    Link(bytes(16), me, card, asks=True)
    Link(bytes(16), me, me, asks=True)  # expect: error
    Link(bytes(16), card, card, asks=True)  # expect: error


def another_partys_keys(me: Identity, card: PublicIdentity, key: SecretKey) -> None:
    PartyKeys(me, {"north": card}, key, bytes(32), bytes(32))
    PartyKeys(card, {"north": card}, key, bytes(32), bytes(32))  # expect: error
    PartyKeys(me, {"north": me}, key, bytes(32), bytes(32))  # expect: error


def a_coordinator_made_of_party_things(
    links: dict[str, Link],
    engine: Engine,
    rules: CoordinatorRules,
    totals: TotalFor,
    keys: PartyKeys,
) -> None:
    recorder = EventLog("coordinator")
    Coordinator(links, engine, rules, totals, recorder)
    Coordinator({"north": keys}, engine, rules, totals, recorder)  # expect: error
    Coordinator(links, engine, rules, keys, recorder)  # expect: error


async def a_door_used_wrongly(cohort: Cohort, values: Slots) -> None:
    await cohort.sum({"x": values})
    await cohort.sum(values)  # expect: error
    await cohort.sum({"x": values}, reveal="coordinator")  # expect: error
    await cohort.agree("a text", "about")  # expect: error
    cohort.send(values)  # expect: error
