"""The service of a site: values for another frame or model than the one under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secure_fl.integrations.site_messages import Answer, Ask, Failure, Give, SiteClient, Turn
from secure_fl.integrations.site_service import SiteSocket
from secure_fl.protocol.frames import Frame


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[SiteSocket, SiteClient]]:
    """A socket whose frames wait for the values of round 7."""
    hospital: Any = SimpleNamespace(name="east", done=False, run="run")
    found = SiteSocket(hospital, tmp_path / "site.sock")

    def step(frame: Frame) -> Frame:
        given = found.turn(Turn(7, ("w",)))
        return Frame(b"sum of " + given.ask.head)

    threading.Thread(target=found.serve, args=(step,), daemon=True).start()
    yield found, SiteClient(tmp_path / "site.sock")
    found.stop()


def test_values_for_another_frame_are_refused(place: Any) -> None:
    """They come from a training that an earlier process of the service asked for."""
    _, program = place
    assert isinstance(program.ask(Ask(b"seven")), Turn)
    reply = program.ask(Give(Ask(b"five"), {}, 1.0, {}))
    assert isinstance(reply, Failure) and reply.code == "outdated"
    assert program.ask(Give(Ask(b"seven"), {}, 1.0, {})) == Answer(b"sum of seven")
