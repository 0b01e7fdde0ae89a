"""Simulations run where Linux's files in memory are missing; pilots do not."""

from __future__ import annotations

import ast
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secure_fl import FedAvg
from secure_fl.crypto.sealing import secret
from secure_fl.errors import CryptoError
from secure_fl.pilot.hospital import HospitalProcess
from secure_fl.testing.hospitals import small
from tests.support.equality import equal, weights
from tests.support.names import MAPPED, ROOT

# Names of modules and attributes that macOS or Windows lacks, and the sources that may use them:
# each chooses another way elsewhere, or serves pilots only.
LINUX = {"memfd_create", "pread", "pwrite", "sched_getaffinity", "fork", "setsid", "killpg"}
LINUX |= {"fcntl", "resource", "pwd", "grp", "termios", "SIGKILL", "SIGUSR1", "prctl", "AF_UNIX"}
LINUX |= {"O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "geteuid", "getuid"}
ALLOWED = {
    "crypto/sealing/anonymous_file.py": {"memfd_create"},
    "secure_fl/files.py": {"fcntl"},
    "cli/doctor.py": {"sched_getaffinity"},
    "secure_fl/integrations/site_messages.py": {"AF_UNIX"},
    "secure_fl/integrations/site_service.py": {"AF_UNIX"},
    "crypto/keys/vault.py": {"geteuid"},
    "secure_fl/features/air_gap/file_message.py": {
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "O_CLOEXEC",
        "geteuid",
    },
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system without memfd_create; the folder of its temporary files."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_simulation_without_files_in_memory_has_equal_bits(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(RuntimeWarning, match="no files in memory") as seen:
        warnings.simplefilter("default")
        found = weights(small(FedAvg(rounds=1), "he+secagg").run())
    monkeypatch.undo()
    assert equal(found, weights(small(FedAvg(rounds=1), "he+secagg").run()))
    assert sum(str(elsewhere) in str(one.message) for one in seen) == 1
    assert not list(elsewhere.glob("secure-fl-*"))


def test_only_this_user_can_open_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    opened = os.open

    def watch(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        handle = opened(path, flags, mode, **options)
        if "secure-fl-" in str(path):
            modes.extend(
                [os.fstat(handle).st_mode & 0o777, Path(path).parent.stat().st_mode & 0o777]
            )
        return handle

    monkeypatch.setattr(os, "open", watch)
    with pytest.warns(RuntimeWarning):
        secret.generate().to_bytes()
    assert modes
    assert set(modes) == {0o600, 0o700}


def test_a_pilot_needs_files_in_memory(elsewhere: Path) -> None:
    with pytest.raises(CryptoError, match="touch its disk") as refused:
        HospitalProcess(SimpleNamespace(), lambda plan: None)  # type: ignore[arg-type]
    assert "simulations run here" in str(refused.value)


def test_names_of_linux_are_where_they_may_be() -> None:
    found = {
        (file.relative_to(ROOT).as_posix(), name) for file in sources() for name in names(file)
    }
    used = {(file, name) for file, name in found if name in LINUX}
    assert used == {(file, name) for file, listed in ALLOWED.items() for name in listed}


def sources() -> Iterator[Path]:
    """All files of the product."""
    for top in ("secure_fl", *MAPPED):
        yield from (file for file in (ROOT / top).rglob("*.py") if not linked(file))


def linked(file: Path) -> bool:
    """Return True for a file below a linked folder, which is listed by its own place."""
    return any(parent.is_symlink() for parent in file.parents)


def names(file: Path) -> Iterator[str]:
    """All attributes and imported modules in a source."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # of getattr and hasattr
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
