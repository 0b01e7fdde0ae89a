"""The settings file of most tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.studies import FILE


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A file that is well."""
    file = tmp_path / "study.toml"
    file.write_text(FILE)
    return file
