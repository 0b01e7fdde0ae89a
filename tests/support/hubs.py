"""Hubs and parties of the engines between machines, started on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from secure_fl.engines.flare.cell import FlareParty
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.pilot.certificates import Kits
from secure_fl.protocol.frames import Frame
from tests.support.processes import free_port

SITES = ("east", "north", "st.mary", "server")  # a dot and `server` mean something to CellNet
Steps = Mapping[str, Callable[[Frame], Frame]]


def free_url() -> str:
    """An address that nobody listens on."""
    return f"grpc://127.0.0.1:{free_port()}"


def echo(frame: Frame) -> Frame:
    """An answer that shows what was asked."""
    return Frame(b"re:" + frame.head, frame.bulk[::-1])


@contextmanager
def parties(kits: Kits, url: str, steps: Steps, **options: Any) -> Iterator[dict[str, FlareParty]]:
    """Parties that answer in threads of this process, over real connections."""
    with ExitStack() as stack:
        found = {}
        for name, step in steps.items():
            party = found[name] = stack.enter_context(FlareParty(name, url, kits.sites[name]))
            thread = threading.Thread(target=party.serve, args=(step,), kwargs=options)
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(party.stop)
        yield found


@contextmanager
def federation(kits: Kits, steps: Steps, **options: Any) -> Iterator[FlareHub]:
    """A hub and its parties, connected."""
    url = free_url()
    with FlareHub(url, kits.coordinator, list(steps), **options) as hub:
        with parties(kits, url, steps):
            assert not hub.wait_for(list(steps), 10)
            yield hub
