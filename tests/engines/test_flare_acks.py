"""Beside parcels almost nothing is sent: over a bad line each message more can be lost."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)

from secure_fl.engines.flare import cell
from secure_fl.engines.flare.cell import ACK_EVERY
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.pilot.certificates import Kits, make_kits
from secure_fl.protocol.frames import Frame
from tests.support.hubs import SITES, echo, federation

TWO = SITES[:2]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(tmp_path_factory.mktemp("kits"), SITES)


class Heard:
    """What the coordinator's cell is sent: kinds of messages, and how far they acknowledge."""

    def __init__(self, hub: FlareHub) -> None:
        self.data, self.acks = 0, list[int]()
        hub._end._cell.core_cell.add_incoming_filter("*", "*", self._note)

    def _note(self, message: Any) -> None:
        topic = message.get_header(MessageHeaderKey.TOPIC)
        self.data += topic == STREAM_DATA_TOPIC
        if topic == STREAM_ACK_TOPIC:
            self.acks.append(message.get_header(StreamHeaderKey.OFFSET))


def exchanged(kits: Kits, bulk: bytes) -> Heard:
    with federation(kits, dict.fromkeys(TWO, echo)) as hub:
        heard = Heard(hub)
        answers = dict(hub.exchange({name: Frame(b"step", bulk) for name in TWO}, 60))
        assert answers == dict.fromkeys(TWO, Frame(b"re:step", bulk[::-1]))
        until = time.monotonic() + 10
        while len(heard.acks) < len(TWO) and time.monotonic() < until:
            time.sleep(0.02)
        return heard


def test_a_small_exchange_is_one_message_each_way_and_a_last_word(
    kits: Kits, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = exchanged(kits, b"")
    assert heard.data == len(TWO) and heard.acks == [0] * len(TWO)
    monkeypatch.setattr(cell, "spare_acks", lambda core: None)
    monkeypatch.setattr(cell, "last_word", lambda core, peer: None)
    alone = exchanged(kits, b"")  # FLARE as it is: every step is acknowledged before its answer
    assert alone.data == len(TWO) and len(alone.acks) == len(TWO) and 0 not in alone.acks


def test_a_window_is_still_opened(kits: Kits) -> None:
    heard = exchanged(kits, os.urandom(6 * ACK_EVERY))  # more than the window of 16 MiB
    assert max(heard.acks) >= ACK_EVERY
