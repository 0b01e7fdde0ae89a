"""The folder and services of a simulation."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from secure_fl.errors import SettingsError
from secure_fl.integrations.sandbox import Sandbox
from tests.support.carried_pilot import NAMES, carried_plan
from tests.support.raising import raises


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    keys = tmp_path / "study-keys"
    keys.mkdir()
    (keys / "identity").write_text("the keys of a site")
    with raises(SettingsError, "not made by a simulation"), Sandbox(keys, NAMES, carried_plan()):
        pass
    assert (keys / "identity").read_text() == "the keys of a site"


def test_services_end_if_one_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try replaces the folder."""
    started: list[subprocess.Popen[bytes]] = []
    popen, handler, before = subprocess.Popen, signal.getsignal(signal.SIGTERM), dict(os.environ)

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if len(started) % 2:
            started.append(started[-1])
            raise OSError("too many open files")
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    for _ in range(2):
        with (
            pytest.raises(OSError, match="open files"),
            Sandbox(tmp_path / "s", NAMES, carried_plan()),
        ):
            pass
        assert started[-1].poll() is not None
        assert signal.getsignal(signal.SIGTERM) == handler and dict(os.environ) == before
