"""What FLARE sends beside our parcels: no acknowledgement that nobody waits for, and a last word.

Over a line that loses packets each message more is one more that can be lost, and holds up all
behind it. FLARE acknowledges each stream at its end, which only who waits for its window needs.

A packet that is lost is sent again when a later one has arrived: after a round trip. The last one
of a parcel has none behind it, and waits for TCP's timer, three to five round trips. So a few bytes
follow each parcel: an acknowledgement of no stream, which its receiver passes over.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    StreamDataType,
    StreamHeaderKey,
)

ACK_EVERY = 4 * 2**20  # bytes of a stream: those acknowledgements open its window
NO_STREAM = 0


def spare_acks(core: Any) -> None:
    """Let this cell send only those acknowledgements that a sender can wait for."""

    def unneeded(message: Any) -> Message | None:
        offset = message.get_header(StreamHeaderKey.OFFSET) or 0
        return Message() if 0 < offset < ACK_EVERY else None  # an answer here: it is not sent

    core.add_outgoing_request_filter(STREAM_CHANNEL, STREAM_ACK_TOPIC, unneeded)


def last_word(core: Any, peer: str) -> None:
    """Send something behind a parcel, so that the loss of its last packet is found out soon."""
    if not core.is_cell_connected(peer):
        return
    about = {
        StreamHeaderKey.STREAM_ID: NO_STREAM,
        StreamHeaderKey.DATA_TYPE: StreamDataType.ACK,
        StreamHeaderKey.OFFSET: 0,
        StreamHeaderKey.SEQUENCE: 0,
    }
    core.fire_and_forget(STREAM_CHANNEL, STREAM_ACK_TOPIC, peer, Message(about), optional=True)
