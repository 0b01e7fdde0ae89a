"""Targets that arrive over a network: frames, messages, uploads, totals, and the site service's.

Signatures are not checked here (`unsigned`): a member of the roster can sign what it likes.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import numpy as np

from benchmarks.fuzzing.target import FuzzTarget, same
from benchmarks.fuzzing.world import HUB, NORTH, RUN, SOUTH, cases, cohort_key
from benchmarks.vectors.replay import Replay
from secure_fl.crypto.blame.evidence import FalseShare
from secure_fl.crypto.keys.identity import Channel, open_sealed, seal_to
from secure_fl.crypto.sealing import public, secret
from secure_fl.crypto.sealing.blind_sum import ProtectedTotal, blind_totals
from secure_fl.crypto.sealing.clear_sum import ClearTotal
from secure_fl.crypto.sealing.envelopes import Envelopes, PartyKeys
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.engines.transport_message import MessageKind, StepId, TransportMessage
from secure_fl.errors import SecureFLError, WireError
from secure_fl.features.air_gap.file_message import Endpoint, FileMessage, Kind
from secure_fl.features.air_gap.heartbeat import EndStatus
from secure_fl.features.scripts.cohort import digest
from secure_fl.integrations import site_messages as site
from secure_fl.protocol import arrays, frames, messages
from secure_fl.protocol.frames import EquivocationProof, Frame, Link, Received
from secure_fl.protocol.ports import OfferedKeys
from secure_fl.settings import ProtectionSettings

KEY, CONTEXT = bytes(32), b"context"


def unsigned(digest: bytes, signature: bytes) -> None:
    """Accept any signature, as if the sender had signed."""


@cache
def recording(mode: str) -> Mapping[str, Any]:
    """Return the first recorded run of a mode."""
    return next(case for case in cases("recordings") if case.get("mode") == mode)


@cache
def recorded() -> dict[str, bytes]:
    """Return a frame of each kind of message in the recorded runs."""
    found: dict[str, bytes] = {}
    for mode in ("secagg", "he+secagg"):
        for _, _, text in recording(mode)["frames"]:
            data = b64decode(text)
            name = type(frames.peek(Frame.from_bytes(data).head).message).__name__.lower()
            if len(data) < len(found.get(name, data + b" ")):
                found[name] = data
    return found


# --- frames and messages --------------------------------------------------------------------------


def frame(data: bytes) -> None:
    """Decode a frame, and offer it to both ends of a link."""
    of = Frame.from_bytes(data)
    envelope = frames.decode(of, unsigned)
    for asks in (True, False):
        link = Link(envelope.run, NORTH, HUB.public, asks)
        with suppress(SecureFLError):
            link.accept(Received(of, envelope))
    again = frames.encode(envelope, of.bulk, NORTH.sign)
    same(frames.decode(again, unsigned), envelope)


def message(data: bytes) -> None:
    """Decode an envelope, and use its message as its receivers do."""
    envelope = frames.peek(bytes([frames.VERSION]) + data + bytes(frames.SIGNATURE_BYTES))
    of = envelope.message
    if isinstance(of, messages.Owners):
        of.plain()
    if isinstance(of, messages.Unmask):
        with suppress(SecureFLError):
            frames.SurvivorLog(envelope.run).verify(HUB.public, of)
    if isinstance(of, messages.Total):
        with suppress(SecureFLError):
            frames.cut(b"", of.sizes)
    again = frames.encode(envelope, b"", NORTH.sign)
    same(frames.peek(again.head), envelope)


def _messages() -> dict[str, bytes]:
    found = {}
    for name, data in recorded().items():
        found[name] = Frame.from_bytes(data).head[1 : -frames.SIGNATURE_BYTES]
    statement = messages.SurvivorStatement(RUN, 1, KEY, bytes(64))
    more: tuple[Any, ...] = (
        messages.Failed("wire", "north"),
        messages.Stop("wire", "north", (statement,)),
        messages.Complaint(b"head", 1),
        messages.Finding("south"),
        messages.Examine("south", b"head", KEY, b"input", "west", 1, {"south": KEY}, {"west": KEY}),
        messages.Handover(KEY, bytes(64)),
        messages.HandedOver(("north",), {"north": KEY}),
        messages.Invite("plan", ("west",)),
        messages.Gather({"north": KEY}),
    )
    for one in more:
        envelope = frames.Envelope(RUN, 1, 1, "north", "coordinator", 0, KEY, one)
        found[type(one).__name__.lower()] = msgspec.msgpack.encode(envelope)
    return found


def transport(data: bytes) -> None:
    """Decode a message between engines."""
    of = TransportMessage.from_bytes(data)
    same(b"".join(of.to_buffers()), data)


def _transports() -> dict[str, bytes]:
    of = Frame.from_bytes(recorded()["suminput"])
    step, found = StepId(bytes(16), 7), {}
    for kind in MessageKind:
        found[kind.name.lower()] = b"".join(TransportMessage(kind, step, of).to_buffers())
    return found


def file_message(data: bytes) -> None:
    """Read a message in a folder, with the tag of both ends' key, and its content."""
    of = FileMessage.opened(data + hmac.digest(KEY, data, "sha256"), KEY)
    if of.kind is Kind.HEARTBEAT:
        EndStatus.from_bytes(of.body)
    else:
        TransportMessage.from_bytes(of.body)


def _file_messages() -> dict[str, bytes]:
    status = msgspec.json.encode(EndStatus("connection", "reason", True))
    message = _transports()["answer"]
    return {
        kind.name.lower(): b"".join(
            FileMessage(Endpoint.TRAINER, kind, bytes(16), bytes(16), 1).sealed(KEY, [body])[:-1]
        )
        for kind, body in ((Kind.HEARTBEAT, status), (Kind.MESSAGE, message))
    }


# --- the service of a site ------------------------------------------------------------------------


def _used(given: site.Vectors) -> None:
    """Use vectors as the service and the server do."""
    found = site.arrays(given)
    same(digest(site.arrays(site.vectors(found))), digest(found))


def request(data: bytes) -> None:
    """Decode a request to a site's service."""
    of = site.read_request(data)
    if isinstance(of, site.Give):
        _used(of.start)
        _used(of.values)


def reply(data: bytes) -> None:
    """Decode a reply of a site's service, as the server does, which trusts no site."""
    of = site.read_reply(data)
    if isinstance(of, site.Turn):
        _used(of.vectors)
    if isinstance(of, site.Turn | site.Answer) and of.mean is not None:
        _used(of.mean.vectors)


def _vectors() -> site.Vectors:
    kinds = (np.float32, np.float64, np.int64, np.bool_, np.float16)
    return site.vectors({np.dtype(k).name: np.ones((2, 3), k) for k in kinds} | {"": np.ones(0)})


def _requests() -> dict[str, bytes]:
    ask = site.Ask(b"head", b"bulk", True)
    give = site.Give(ask, _vectors(), 2.5, _vectors())
    return {type(of).__name__.lower(): site.encode(of) for of in (site.Who(), ask, give)}


def _replies() -> dict[str, bytes]:
    mean = site.Mean(1, KEY, _vectors())
    of: tuple[Any, ...] = (
        site.SiteName("north"),
        site.Answer(b"head", b"bulk", mean),
        site.Turn(1, ("a", "b"), _vectors(), True, mean),
        site.Failure("wire", "text"),
    )
    return {type(one).__name__.lower(): site.encode(one) for one in of}


# --- sealed sums ----------------------------------------------------------------------------------


@cache
def _offered(mode: str) -> tuple[Any, str]:
    """Return the coordinator's first sum of a recorded run, before any upload."""
    case = recording(mode)
    hub, sender = Replay(case, cohort_key().to_bytes()), case["frames"][0][0]
    for name, direction, text in case["frames"]:
        of = Frame.from_bytes(b64decode(text))
        got = frames.peek(of.head).message
        if isinstance(got, messages.SumInput):
            sender = name
            break
        if direction == "out" and (offer := getattr(got, "offer", None)) is not None:
            hub.offers.setdefault(1, {})[name] = offer
    keys = OfferedKeys(tuple(hub.offers[1]), hub.offers[1], 1)
    make = blind_totals(
        ProtectionSettings(mode=case["mode"]), sorted(case["identities"]), run=hub.run,
        host=hub.host, threshold=hub.threshold,
    )  # fmt: skip
    return lambda audience: make(audience, keys), sender


def upload(data: bytes) -> None:
    """Admit and add an upload at the coordinator, of masked and of encrypted integers."""
    of = Frame.from_bytes(data)
    got = frames.peek(of.head).message
    if not isinstance(got, messages.SumInput):
        raise WireError("this is no upload", field="kind")
    for mode in ("secagg", "he+secagg"):
        make, sender = _offered(mode)
        total: ProtectedTotal = make(got.audience)
        with suppress(SecureFLError):
            total.admit(sender, got)
        with suppress(SecureFLError):
            total.add(sender, got.segments, of.bulk)
            total.require_consistent([sender])
            total.unmasked()
    ClearTotal().add("north", got.segments, of.bulk)


def _uploads() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for mode in ("secagg", "he+secagg"):
        for _, _, text in recording(mode)["frames"]:
            data = b64decode(text)
            got = frames.peek(Frame.from_bytes(data).head).message
            if isinstance(got, messages.SumInput):
                found.setdefault(mode, data)
    segment = messages.Segment(KEY, 24, 6)
    clear = messages.SumInput(messages.Audience.PARTIES, (segment,))
    bulk = np.arange(6, dtype="<f4").tobytes()
    envelope = frames.Envelope(RUN, 1, 1, "north", "coordinator", 24, frames.digest(bulk), clear)
    found["clear"] = frames.encode(envelope, bulk, NORTH.sign).to_bytes()
    return found


@cache
def _context() -> public.PublicContext:
    return public.load(public.context_bytes(COHORT))


def total(data: bytes) -> None:
    """Open a sealed total: the first two bytes say how many integers and contributors."""
    count, contributors = 1 + data[0] % 40 if data else 1, 1 + data[1] % 20 if data[1:] else 1
    parts = public.to_parts(data[2:], count)
    secret.open(cohort_key(), parts, count, contributors)
    adding = public.SeededSum(_context(), count)
    with suppress(SecureFLError):
        adding.add(parts)


def _totals() -> dict[str, bytes]:
    one = secret.seal(cohort_key(), np.arange(10, dtype=np.uint64))
    adding = public.SeededSum(_context(), 10)
    adding.add(one)
    adding.add(secret.seal(cohort_key(), np.arange(10, dtype=np.uint64)))
    start = bytes((9, 0)), bytes((9, 1))
    return {
        "upload": start[0] + public.from_parts(one),
        "total": start[1] + public.from_parts(adding.result()),
    }


def sealed(data: bytes) -> None:
    """Open messages between sites: sealed ones, those of a channel, and those for all parties."""
    with suppress(SecureFLError):
        open_sealed(SOUTH, NORTH.public, data, CONTEXT)
    with suppress(SecureFLError):
        Channel(SOUTH, NORTH.public, RUN).open(data, CONTEXT)
    Envelopes(PartyKeys(SOUTH, {}, None, KEY, KEY), RUN).open(data, CONTEXT)


def _sealed() -> dict[str, bytes]:
    return {
        "sealed": seal_to(NORTH, SOUTH.public, b"a kit", CONTEXT),
        "channel": Channel(NORTH, SOUTH.public, RUN).seal(b"two shares", CONTEXT),
        "envelope": Envelopes(PartyKeys(NORTH, {}, None, KEY, KEY), RUN).seal(b"value", CONTEXT),
    }


def relayed(data: bytes) -> None:
    """Decode a value that another party sent to all."""
    found = arrays.unpack(data)
    same(digest(arrays.unpack(arrays.pack(found))), digest(found))


def _relayed() -> dict[str, bytes]:
    kinds = (np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16)
    return {"arrays": arrays.pack({np.dtype(k).name: np.ones((2, 3), k) for k in kinds})}


def evidence(data: bytes) -> None:
    """Read evidence against a member or the coordinator."""
    proof = EquivocationProof.from_bytes(data)
    if proof is not None:
        with suppress(SecureFLError):
            proof.check(HUB.public)
    FalseShare.read(data.hex()).check({"north": NORTH.public, "south": SOUTH.public})


def _evidence() -> dict[str, bytes]:
    one = messages.SurvivorStatement(RUN, 1, KEY, bytes(64))
    two = messages.SurvivorStatement(RUN, 1, bytes([1] * 32), bytes(64))
    head = Frame.from_bytes(recorded()["suminput"]).head
    false = FalseShare("north", {"north": bytes(96)}, head, head)
    return {
        "equivocation": EquivocationProof("coordinator", one, two).to_bytes(),
        "share": bytes.fromhex(false.text()),
    }


WIRE = {
    "frames": FuzzTarget(frame, recorded),
    "messages": FuzzTarget(message, _messages, "msgpack"),
    "transport": FuzzTarget(transport, _transports),
    "file-messages": FuzzTarget(file_message, _file_messages),
    "site-requests": FuzzTarget(request, _requests, "msgpack"),
    "site-replies": FuzzTarget(reply, _replies, "msgpack"),
    "uploads": FuzzTarget(upload, _uploads),
    "totals": FuzzTarget(total, _totals),
    "seals": FuzzTarget(sealed, _sealed),
    "relayed": FuzzTarget(relayed, _relayed),
    "evidence": FuzzTarget(evidence, _evidence, "msgpack"),
}
