"""The service of a site: values for another frame or model than the one under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from secure_fl.errors import SettingsError
from secure_fl.features.scripts.algorithm import Script
from secure_fl.integrations import site_service
from secure_fl.integrations.command import serve
from secure_fl.integrations.site_messages import Answer, Ask, Failure, Give, SiteClient, Turn
from secure_fl.integrations.site_service import MEAN, NUMBERS, SiteSocket, average
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


def test_a_service_that_restarts_after_the_last_round_has_its_mean(place: Any) -> None:
    """The coordinator can have lost it in the same crash, and asks for it at the end."""

    class Restored:
        """A cohort whose saved rounds are all that the plan has."""

        settings = Script(rounds=3, values={"w": (1,)}, means_to_coordinator=True)

        def rounds(self, shared: dict[str, Any]) -> Iterator[Any]:
            shared.update({MEAN: {"w": np.ones(1)}, NUMBERS: {}})
            return iter(())

    socket, _ = place
    cohort: Any = Restored()
    assert average(cohort, socket) == {"w": np.ones(1)}
    assert socket.mean.round == 3 and socket.mean.vectors["w"].array() == np.ones(1)


@pytest.mark.parametrize("option", [[], ["--go-back"]])
def test_a_service_may_repeat_rounds_if_its_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    given: list[bool] = []

    def join(*_: Any, goes_back: bool = False, **__: Any) -> Any:
        given.append(goes_back)
        raise SettingsError("the options are read")

    monkeypatch.setattr(site_service, "join", join)
    command = ["site.toml", "--socket", str(tmp_path / "site.sock"), *option]
    result = CliRunner().invoke(serve, command)
    assert given == [bool(option)], result.output
