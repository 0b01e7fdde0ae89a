"""What lies in a courier's folder: frames as the coordinator gets them, and nothing to read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl.features.air_gap.file_message import Mailbox
from secure_fl.federation.assembly import make_keys
from secure_fl.party.cohort import Cohort
from secure_fl.settings import Protection
from secure_fl.testing.harness import federate, require_carries
from tests.features.air_gap.folders import Folders

NAMES = ("east", "north", "west")
SECRET = np.arange(1000, dtype=np.float32)


def test_folders_carry_frames_as_every_engine_must(tmp_path: Path) -> None:
    with ExitStack() as stack:
        require_carries(lambda sessions: Folders(sessions, tmp_path, stack), "none")


def carried(mode: Protection, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """All that was written into the folders of a run in which values are shared and summed."""
    written, post = list[bytes](), Mailbox.write

    def noting(box: Mailbox, name: str, pieces: Sequence[bytes]) -> None:
        written.append(b"".join(pieces))
        post(box, name, pieces)

    async def program(cohort: Cohort) -> Any:
        shared = await cohort.share({"secret": SECRET})
        return shared, await cohort.sum({"secret": SECRET})

    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setattr(Mailbox, "write", noting)
        keys = make_keys(mode, list(NAMES), None)
        out = federate(
            dict.fromkeys(NAMES, program),
            mode=mode,
            keys=keys,
            engine=lambda sessions: Folders(sessions, folder, stack),
        )
    for shared, _ in out.results.values():
        assert all(np.array_equal(values["secret"], SECRET) for values in shared.values())
    return b"".join(written)


def test_what_is_shared_cannot_be_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = SECRET.tobytes()
    assert values in carried("none", tmp_path / "none", monkeypatch)  # what sealing protects from
    lain = carried("he+secagg", tmp_path / "sealed", monkeypatch)
    assert len(lain) > 3 * len(values)
    assert not any(values[at : at + 16] in lain for at in range(0, len(values) - 16, 4))
