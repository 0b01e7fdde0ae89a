"""Messages between a site's service and the program of another engine at the same site.

The engine's server sends an `Ask` to a site. The program there passes it to the service through a
local socket, and sends the reply back. Only the service has keys, kit and rules of the site.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.keys.identity import digest_of
from secure_fl.errors import CohortError, SettingsError, WireError
from secure_fl.protocol.frames import Frame

MOST_BYTES = 2**32
MOST_TEXT = 2000  # characters of an error
LENGTH = 8
KINDS = r"^[<>|][fiub][0-9]{1,2}\Z"  # of arrays, as NumPy writes them

Count = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class Vector(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array without pickles."""

    kind: Annotated[str, msgspec.Meta(pattern=KINDS)]
    shape: tuple[Count, ...]
    data: bytes

    def array(self) -> NDArray[Any]:
        """Return the array; its size must fit the data."""
        try:
            return np.frombuffer(self.data, np.dtype(self.kind)).reshape(self.shape)
        except (TypeError, ValueError):
            raise WireError("a message has an array of another type or size") from None


Vectors: TypeAlias = dict[str, Vector]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Who(_Message, frozen=True, tag=1):
    """A request for the site's name on the roster."""


class Ask(_Message, frozen=True, tag=2):
    """A frame of the coordinator; `mean`: the reply includes the mean, if the plan opens it."""

    head: bytes
    bulk: bytes = b""
    mean: bool = False


class Give(_Message, frozen=True, tag=3):
    """The values for a `Turn`, with the arrays that training began with.

    `settings`: a digest of everything else that the engine's server sent to the training.
    """

    ask: Ask
    values: Vectors
    weight: float
    start: Vectors
    settings: bytes = b""


class SiteName(_Message, frozen=True, tag=4):
    """The site's name on the roster: a hint, because only signed frames prove it."""

    name: Text


class Mean(_Message, frozen=True, tag=5):
    """The mean of a round, which the plan opens to the coordinator; one site sends the arrays.

    `signature`: the site's, over `statement` for the frame that this answers.
    """

    round: Count
    digest: bytes
    vectors: Vectors = {}
    signature: bytes = b""

    def statement(self, head: bytes) -> bytes:
        """Compute what the site signs; the frame is of one run, site and moment."""
        return digest_of(b"secure-fl carried mean", head, str(self.round).encode(), self.digest)


class Answer(_Message, frozen=True, tag=6):
    """The site's frame."""

    head: bytes
    bulk: bytes = b""
    mean: Mean | None = None


class Turn(_Message, frozen=True, tag=7):
    """The run waits for the values of this round, so training is due."""

    round: Count
    planned: tuple[str, ...] = ()  # the names that may be summed
    vectors: Vectors = {}  # the mean so far; none in the first round
    opened: bool = False  # the plan opens means to the coordinator, which sends the next model
    mean: Mean | None = None


class Failure(_Message, frozen=True, tag=8):
    """The site does not answer; `what` is for its own log."""

    code: Annotated[str, msgspec.Meta(max_length=40)]
    what: Text = ""


Request: TypeAlias = Who | Ask | Give
Reply: TypeAlias = SiteName | Answer | Turn | Failure
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
encode = msgspec.msgpack.encode


def read_request(data: bytes) -> Request:
    """Decode a request; anything else is an error."""
    try:
        return _requests.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("this is no request to a site") from error


def read_reply(data: bytes) -> Reply:
    """Decode a reply; anything else is an error."""
    try:
        return _replies.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("this is no reply of a site") from error


def vectors(arrays: Mapping[str, Any]) -> Vectors:
    """Encode arrays by name."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    if other := [name for name, array in found.items() if not re.match(KINDS, array.dtype.str)]:
        raise SettingsError(
            f"{other[0]} is of the type {found[other[0]].dtype}, which cannot be summed",
            fix="send arrays of numbers",
        )
    return {n: Vector(a.dtype.str, a.shape, a.tobytes()) for n, a in found.items()}


def arrays(given: Vectors) -> dict[str, NDArray[Any]]:
    """Decode arrays by name."""
    return {name: vector.array() for name, vector in given.items()}


def send(end: socket.socket, message: Request | Reply) -> None:
    """Send one message."""
    data = encode(message)
    end.sendall(len(data).to_bytes(LENGTH, "big"))
    end.sendall(data)


def receive(end: socket.socket) -> bytes:
    """Receive one message."""
    size = int.from_bytes(_exactly(end, LENGTH), "big")
    if size > MOST_BYTES:
        raise WireError("a message to this site is larger than allowed")
    return _exactly(end, size)


def _exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if not (got := end.recv_into(view)):
            raise WireError("a message was cut short: the other end of the socket left")
        view = view[got:]
    return bytes(data)


class SiteClient:
    """The way from a program at a site to the site's service."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, request: Request) -> Reply:
        """Send a request, and wait for the reply."""
        with socket.socket(socket.AF_UNIX) as end:
            try:
                end.connect(str(self._path))
                send(end, request)
                return read_reply(receive(end))
            except (OSError, WireError) as error:
                raise CohortError(
                    f"the service of this site does not answer at {self._path} ({error})",
                    fix="start it: secure-fl serve SITE --socket PATH",
                ) from error


def frame_of(message: Ask | Answer) -> Frame:
    """Return the frame of a message."""
    return Frame(message.head, message.bulk)
